"""Which recipe an offline agent tries next. Pure: records in, an order of recipe names out."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from engine.proposers.base import MemoryEntry, PastCandidate
from engine.records import Mode, Outcome

RECIPE = "recipe"
"""Key of a candidate's parameters that names its recipe."""
EXPLORE = 0.25
"""Share of refinements that leave the best recipe for another."""
EXPENSIVE = 5
CHEAP_TRIES = 6
"""An agent's first tries are cheap ones: what compiles for long waits until as many were measured."""
WRAPPERS_AFTER, WRAPPERS_IF_NOTHING_WON = 8, 4
"""Wrappers around the reference wait for as many tries of an agent while anything was made for the problem: they
rarely gain much, and a short campaign has only a few tries. If nothing was kept, they wait for fewer."""
HOPELESS = 2
"""Failures without one correct candidate after which a recipe comes last."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One recipe that fits the problem. ``cost`` is the expense of a try; ``free``: of use under any strategy.

    A ``wrapper`` runs the reference itself, in another setting.
    """

    name: str
    skill: str
    family: str
    cost: int
    free: bool = False
    wrapper: bool = False


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent's own tries of one recipe came to."""

    tries: int = 0
    correct: int = 0
    best_ms: float | None = None


def record_of(name: str, history: Sequence[PastCandidate]) -> Record:
    mine = [past for past in history if past.parameters.get(RECIPE) == name]
    times = [past.latency_ms for past in mine if past.latency_ms is not None]
    return Record(tries=len(mine), correct=len(times), best_ms=min(times, default=None))


def ordered(
    options: Sequence[Option],
    history: Sequence[PastCandidate],
    *,
    strategy: str,
    mode: Mode,
    ordinal: int,
    rng: random.Random,
    wins: Sequence[MemoryEntry] = (),
    traps: Sequence[MemoryEntry] = (),
) -> list[Option]:
    """The recipes in the order in which to look for a point that was not tried yet.

    The chosen strategy's recipes come first, then the others; expensive ones not among the very first tries, and
    wrappers of the reference not before recipes made for the problem had theirs.
    Among them: in a draft line the line's recipe, a new draft leaves the last family; a refinement stays with the
    fastest recipe, but for a quarter of the time; untried recipes come before known ones, cheap before expensive,
    those that won elsewhere before the rest, and those that failed without ever being right last.
    """
    records = {option.name: record_of(option.name, history) for option in options}
    last = history[-1] if history else None
    fastest = _fastest(records)
    explore = rng.random() < EXPLORE
    line = last is not None and last.mode is Mode.DRAFT and mode is Mode.DRAFT
    shifted = _rotated(options, ordinal)
    place = {option.name: index for index, option in enumerate(shifted)}
    waiting = _wrappers_wait(options, history)

    def rank(option: Option) -> tuple[bool, bool, bool, bool, bool, bool, bool, bool, int, float, int]:
        record = records[option.name]
        was_last = last is not None and last.parameters.get(RECIPE) == option.name
        leaving = mode is Mode.DRAFT and not line and last is not None and option.family == last.family
        return (
            (record.tries >= HOPELESS and not record.correct) or _trapped(option, record, traps),
            option.cost >= EXPENSIVE and len(history) < CHEAP_TRIES,
            leaving,
            option.wrapper and waiting,
            not (line and was_last),
            option.skill != strategy and not option.free and not (option.wrapper and explore and not record.tries),
            record.tries > 0,
            not (mode is Mode.REFINE and not explore and option.name == fastest),
            option.cost - (1 if _won(option, wins) else 0),
            record.best_ms or 0.0,
            place[option.name],
        )

    return sorted(shifted, key=rank)


def _wrappers_wait(options: Sequence[Option], history: Sequence[PastCandidate]) -> bool:
    if all(option.wrapper for option in options):
        return False
    won = any(past.outcome is Outcome.KEEP for past in history)
    return len(history) < (WRAPPERS_AFTER if won else WRAPPERS_IF_NOTHING_WON)


def _rotated(options: Sequence[Option], ordinal: int) -> list[Option]:
    """Agents look at recipes of equal cost in different orders, so that they do not all start with the same."""
    by_cost = sorted(options, key=lambda option: (option.cost, option.name))
    shifted: list[Option] = []
    for cost in dict.fromkeys(option.cost for option in by_cost):
        group = [option for option in by_cost if option.cost == cost]
        cut = ordinal % len(group)
        shifted += group[cut:] + group[:cut]
    return shifted


def _fastest(records: dict[str, Record]) -> str:
    timed = [(record.best_ms, name) for name, record in records.items() if record.best_ms is not None]
    return min(timed)[1] if timed else ""


def _won(option: Option, wins: Sequence[MemoryEntry]) -> bool:
    return any(entry.strategy.startswith(f"{option.skill} · {option.family}") for entry in wins)


def _trapped(option: Option, record: Record, traps: Sequence[MemoryEntry]) -> bool:
    """Others found that it does not even run or is wrong here, and this agent has not seen it right either."""
    if record.correct:
        return False
    return any(
        entry.strategy.startswith(f"{option.skill} · {option.family}")
        and entry.error.startswith(("compile.", "wrong.", "crash."))
        for entry in traps
    )


def dead_end(past: PastCandidate) -> bool:
    """Benched and not right: its neighbours are unlikely to be."""
    return past.outcome is Outcome.REVERT and past.latency_ms is None
