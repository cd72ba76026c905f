"""Wins and traps: what may be written, what is kept, what is recalled. Pure functions over plain records.

An entry is written from a guard verdict only. The words may be an agent's; every measured number in them is the
guard's: numbers with a unit of performance in an agent's text are struck out and the guard's own
"before→after" is appended. Field limits are the paper's: 160 characters of strategy, 1200 of reflection.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from engine.config import CampaignConfig
from engine.proposers.base import MemoryEntry
from engine.records import DeviceFacts, Outcome, Trap, Win
from engine.store.rows import REFLECTION_LIMIT, STRATEGY_LIMIT, Addition, Compared, MemoryRow, MemoryWrite
from engine.text import clean, one_line

ERROR_LIMIT = 300
SHAPES_LIMIT = 200
BEFORE_AFTER = "before→after: "
STRUCK = "[not measured]"
SAME = 0.8
"""Share of common words from which two entries say the same (Jaccard index)."""

_UNIT = (
    r"percent|times|fold|ms|us|µs|μs|ns|s|sec|secs|seconds|milliseconds|microseconds"
    r"|[kMGT]?i?B/s|[kMGTP]?FLOP/?s?|[kMGTP]?FLOPS"
)
_NUMBER = r"[~≈<>≤≥+−-]*\d+(?:[.,]\d+)?"
_CLAIM = re.compile(
    rf"(?<![\w.]){_NUMBER}(?:\s?[-–]\s?\d+(?:[.,]\d+)?)?(?:\s?%|\s?×(?!\w|\s?\d)|x(?![\w/])|(?:\s|-)?(?:{_UNIT})(?![\w/]))"
    rf"|(?<!\w)(?:ms|us|µs|speed-?up|latency|runtime|gain)\s?[=:]\s?{_NUMBER}"
    rf"|(?<!\w)(?:by a factor|speed-?up|gain) of (?:about )?{_NUMBER}"
    rf"|(?<![\w.]){_NUMBER}\s?[x×]?\s?(?:faster|slower|quicker)(?!\w)",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_MARKS = 1024


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """What one verdict can teach: the agent's words and the guard's numbers."""

    kernel_type: str
    strategy: str
    family: str
    hypothesis: str = ""
    reflection: str = ""
    parameters: Mapping[str, Any] = {}
    before_parameters: Mapping[str, Any] = {}
    outcome: Outcome
    reason: str = ""
    detail: str = ""
    before_ms: float | None = None  # the agent's best before, as last measured
    after_ms: float | None = None
    log_ratio: float | None = None  # paired ln(best / candidate)
    speedup: float | None = None  # paired, against the reference
    shapes: str = ""


Entry = MemoryEntry | Compared


def without_claims(text: str) -> str:
    """``text`` with every number that claims performance struck out: agents do not measure."""
    return _CLAIM.sub(STRUCK, text)


def win_of(lesson: Lesson) -> Win | None:
    """The win that a KEEP teaches; ``None`` for any other outcome."""
    if lesson.outcome is not Outcome.KEEP or lesson.speedup is None:
        return None
    return Win(
        kernel_type=lesson.kernel_type,
        strategy=_headline(lesson),
        reflection=_reflection(lesson),
        speedup=lesson.speedup,
        gain=_gain(lesson),
        before_ms=lesson.before_ms,
        after_ms=lesson.after_ms,
        shapes=clean(lesson.shapes, SHAPES_LIMIT),
    )


def trap_of(lesson: Lesson, near_best: float) -> Trap | None:
    """The trap that a dead end teaches: it failed in the bench, or is slower than the best beyond ``near_best``.

    A REJECT says nothing about kernels, an ERROR nothing about the candidate, an ACCEPT is no dead end.
    """
    if lesson.outcome is not Outcome.REVERT:
        return None
    slower = lesson.log_ratio is not None and lesson.log_ratio < -near_best
    if not lesson.reason and not slower:
        return None
    error = lesson.reason or "slower"
    if lesson.detail:
        error = f"{error}: {lesson.detail}"
    return Trap(
        kernel_type=lesson.kernel_type,
        strategy=_headline(lesson),
        error=clean(error, ERROR_LIMIT),
        reflection=_reflection(lesson),
        shapes=clean(lesson.shapes, SHAPES_LIMIT),
    )


def adding(live: Sequence[Entry], new: Entry, config: CampaignConfig) -> Addition:
    """What adding ``new`` to the live entries does under the campaign's retention.

    A near-duplicate is counted to the entry that is there, unless it is a faster win: that one takes its place.
    """
    room = [entry for entry in live if same_room(entry, new, config)]
    twin = next((entry for entry in room if near_duplicate(entry, new)), None)
    replaced: tuple[int, ...] = ()
    if twin is not None:
        if twin.pinned or new.kind == "trap" or (new.speedup or 0.0) <= (twin.speedup or 0.0):
            return Addition(store=False, merge_into=twin.id)
        room = [entry for entry in room if entry.id != twin.id]
        replaced = (twin.id,)
    out = set(retired([*room, new], config))
    if new.id in out:
        return Addition(store=False)
    return Addition(store=True, expire=(*replaced, *sorted(out)))


def retired(room: Sequence[Entry], config: CampaignConfig) -> list[int]:
    """Ids that the retention drops from entries of one kind, kernel type and owner.

    Wins stay by speed-up, traps by age, newest first; an unbounded memory (cap ``None``) drops nothing.
    Pinned entries stay and take no room.
    """
    loose = [entry for entry in room if not entry.pinned]
    if not loose:
        return []
    cap = config.wins if loose[0].kind == "win" else config.traps
    if cap is None:
        return []
    if loose[0].kind == "win":
        loose.sort(key=lambda e: (-(e.speedup or 0.0), e.id))
    else:
        loose.sort(key=lambda e: -e.id)
    return [entry.id for entry in loose[cap:]]


def same_room(one: Entry, other: Entry, config: CampaignConfig) -> bool:
    """Whether two entries compete for the same places: kind, kernel type and, in private memory, the agent."""
    return (
        one.kind == other.kind
        and one.kernel_type == other.kernel_type
        and (config.memory == "shared" or (one.agent == other.agent and one.carried_from == other.carried_from))
    )


def near_duplicate(one: Entry, other: Entry) -> bool:
    """Same kind of lesson in nearly the same words; numbers and measurements do not count as words."""
    if one.kind != other.kind or one.kernel_type != other.kernel_type or _code(one) != _code(other):
        return False
    if _cannot_be_alike(_marks(one.strategy, one.reflection), _marks(other.strategy, other.reflection)):
        return False
    mine, theirs = _words(one.strategy, one.reflection), _words(other.strategy, other.reflection)
    if not mine or not theirs:
        return one.strategy == other.strategy and one.reflection == other.reflection
    return len(mine & theirs) / len(mine | theirs) >= SAME


def _cannot_be_alike(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Told from their marks, without looking at the words: most entries differ in most of them."""
    (mine, count), (theirs, others) = one, other
    common = min(count - (mine & ~theirs).bit_count(), others - (theirs & ~mine).bit_count())  # at most
    union = count + others - common
    return union > 0 and common / union < SAME


@lru_cache(maxsize=8192)
def _marks(strategy: str, reflection: str) -> tuple[int, int]:
    """A bit set for every word, and how many words there are; a live entry is asked for at every verdict."""
    words = _words(strategy, reflection)
    mask = 0
    for word in words:
        mask |= 1 << (hash(word) % _MARKS)
    return mask, len(words)


def visible(live: Iterable[MemoryEntry], agent: str, config: CampaignConfig) -> list[MemoryEntry]:
    """What ``agent`` may recall: everything in shared memory, its own and what was carried over in private."""
    return [e for e in live if config.memory == "shared" or e.agent == agent or e.carried_from]


def recall(
    live: Iterable[MemoryEntry], *, kernel_type: str, strategy: str, shapes: str
) -> tuple[tuple[MemoryEntry, ...], tuple[MemoryEntry, ...]]:
    """(wins, traps) of the kernel type, the most useful first.

    Pinned before others, then the chosen strategy, then shared shapes, then wins by speed-up and traps by age.
    """
    fitting = [entry for entry in live if entry.kernel_type == kernel_type]

    def rank(entry: MemoryEntry) -> tuple[bool, bool, float, float, int]:
        return (
            not entry.pinned,
            not entry.strategy.startswith(strategy),
            -shape_overlap(entry.shapes, shapes),
            -(entry.speedup or 0.0),
            -entry.id,
        )

    ordered = sorted(fitting, key=rank)
    wins = tuple(entry for entry in ordered if entry.kind == "win")
    return wins, tuple(entry for entry in ordered if entry.kind == "trap")


def shape_overlap(one: str, other: str) -> float:
    """Share of common ``axis=value`` words of two shape texts, 0 to 1."""
    mine, theirs = set(one.split()), set(other.split())
    return len(mine & theirs) / len(mine | theirs) if mine and theirs else 0.0


def shapes_text(axes: Iterable[Mapping[str, int]]) -> str:
    """The distinct ``axis=value`` pairs of the workloads, bounded, in a stable order."""
    words = dict.fromkeys(f"{name}={value}" for workload in axes for name, value in sorted(workload.items()))
    kept: list[str] = []
    length = 0
    for word in words:
        length += len(word) + 1
        if length > SHAPES_LIMIT:
            break
        kept.append(word)
    return " ".join(kept)


def carried(entries: Iterable[MemoryEntry], *, kernel_type: str, campaign: str) -> list[MemoryEntry]:
    """What another campaign's live entries bring: those of the kernel type, marked with where they came from."""
    return [
        msgspec.structs.replace(entry, carried_from=entry.carried_from or campaign, pinned=False)
        for entry in entries
        if entry.kernel_type == kernel_type
    ]


def _headline(lesson: Lesson) -> str:
    idea = without_claims(one_line(lesson.hypothesis, REFLECTION_LIMIT))
    head = f"{lesson.strategy} · {lesson.family}" if lesson.family else lesson.strategy
    return _cut(f"{head}: {idea}" if idea else head, STRATEGY_LIMIT)


def _reflection(lesson: Lesson) -> str:
    measured = BEFORE_AFTER + _before_after(lesson)
    why = without_claims(clean(lesson.reflection or lesson.hypothesis, REFLECTION_LIMIT)).strip()
    room = REFLECTION_LIMIT - len(measured) - 1
    return _cut(why, room) + "\n" + measured if why else measured[:REFLECTION_LIMIT]


def _before_after(lesson: Lesson) -> str:
    parts: list[str] = []
    if lesson.before_ms is not None and lesson.after_ms is not None:
        parts.append(f"{lesson.before_ms:.4g} ms → {lesson.after_ms:.4g} ms")
    if lesson.log_ratio is not None:
        parts.append(f"latency {100 * (math.exp(-lesson.log_ratio) - 1):+.1f} % paired")
    if lesson.speedup is not None:
        parts.append(f"{lesson.speedup:.3f}× of the reference")
    if lesson.reason:
        parts.append(f"failed with {lesson.reason}")
    changes = _parameter_changes(lesson)
    return clean("; ".join(parts + changes) or "not timed", 400)


def _parameter_changes(lesson: Lesson) -> list[str]:
    before, after = lesson.before_parameters, lesson.parameters
    changed = [
        f"{name} {before[name]}→{value}" if name in before else f"{name} {value}"
        for name, value in sorted(after.items())
        if before.get(name) != value
    ]
    return [", ".join(changed[:8])] if changed else []


def _gain(lesson: Lesson) -> float:
    return math.exp(lesson.log_ratio) - 1 if lesson.log_ratio is not None else 0.0


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(0, limit - 1)].rstrip() + "…"


def _code(entry: Entry) -> str:
    return entry.error.partition(":")[0]


def _words(strategy: str, reflection: str) -> set[str]:
    text = f"{strategy} {reflection.partition(BEFORE_AFTER)[0]}"
    return {word.lower() for word in _WORD.findall(text)}


def memory_entry(row: MemoryRow) -> MemoryEntry:
    """A stored entry as agents see it."""
    return MemoryEntry(
        id=row.id,
        kind=row.kind,
        kernel_type=row.kernel_type,
        strategy=row.strategy,
        reflection=row.reflection,
        error=row.error,
        speedup=row.speedup,
        gain=row.gain,
        before_ms=row.before_ms,
        after_ms=row.after_ms,
        agent=row.agent,
        candidate=row.candidate,
        pinned=row.pinned,
        carried_from=row.carried_from,
        shapes=row.shapes,
        note=row.note,
    )


def write_of(
    lesson: Win | Trap, *, agent: str, device: DeviceFacts, carried_from: str = "", candidate: int | None = None
) -> MemoryWrite:
    """A win or trap with its provenance, as the store takes it."""
    common: dict[str, Any] = {
        "kernel_type": lesson.kernel_type,
        "strategy": lesson.strategy,
        "reflection": lesson.reflection,
        "agent": agent,
        "device": device.name,
        "shapes": lesson.shapes,
        "versions": device.versions,
        "carried_from": carried_from,
        "candidate": candidate,
    }
    if isinstance(lesson, Trap):
        return MemoryWrite(kind="trap", error=lesson.error, **common)
    return MemoryWrite(
        kind="win",
        speedup=lesson.speedup,
        gain=lesson.gain,
        before_ms=lesson.before_ms,
        after_ms=lesson.after_ms,
        **common,
    )
