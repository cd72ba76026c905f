"""Wins and traps: only from verdicts, within the limits, near-duplicates merged, retention as configured."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_proposer import in_order, slowly_better

from engine.config import CampaignConfig
from engine.memory import (
    BEFORE_AFTER,
    STRUCK,
    Lesson,
    adding,
    carried,
    near_duplicate,
    recall,
    retired,
    shapes_text,
    trap_of,
    visible,
    win_of,
    without_claims,
)
from engine.proposers.base import MemoryEntry
from engine.records import Outcome
from engine.store import events as ev

SHARED = CampaignConfig(wins=4, traps=4)
WORDS = (
    "online softmax",
    "split rows",
    "fuse epilogue",
    "vector loads",
    "persistent grid",
    "cache blocks",
    "tree sum",
)


def entry(id: int, kind: str = "win", **fields: object) -> MemoryEntry:
    defaults: dict[str, object] = {
        "kernel_type": "norm", "strategy": f"s · {WORDS[id % 7]} {'abcdefgh'[id % 8] * 3}",
        "reflection": " ".join(chr(97 + (id * 7 + i) % 26) * 4 for i in range(6)), "agent": "1",
        "speedup": 1.0 + id / 100,
    }  # fmt: skip
    return MemoryEntry(id=id, kind=kind, **{**defaults, **fields})  # type: ignore[arg-type]


def lesson(**fields: object) -> Lesson:
    defaults: dict[str, object] = {
        "kernel_type": "norm", "strategy": "operator-fusion", "family": "rows", "hypothesis": "one pass is enough",
        "outcome": Outcome.KEEP, "before_ms": 1.0, "after_ms": 0.8, "log_ratio": 0.2231, "speedup": 1.25,
    }  # fmt: skip
    return Lesson(**{**defaults, **fields})  # type: ignore[arg-type]


@given(
    st.text(max_size=3000),
    st.text(max_size=3000),
    st.sampled_from([Outcome.KEEP, Outcome.REVERT]),
    st.text(max_size=900),
)
def test_no_text_passes_a_field_limit(hypothesis: str, reflection: str, outcome: Outcome, detail: str) -> None:
    one = lesson(
        hypothesis=hypothesis,
        reflection=reflection,
        outcome=outcome,
        detail=detail,
        reason="wrong.numerical" if outcome is Outcome.REVERT else "",
        parameters={"block": 64},
    )
    made = win_of(one) or trap_of(one, 0.04)
    assert made is not None
    assert len(made.strategy) <= 160 and len(made.reflection) <= 1200
    assert BEFORE_AFTER in made.reflection
    assert "\x1b" not in made.strategy + made.reflection


@pytest.mark.parametrize(
    "claim",
    ["1.4x faster", "35% less traffic", "0.08 ms", "2.1 TB/s", "700 TFLOPS", "10-15 %", "8-fold", "3 times",
     "speedup: 1.9", "latency = 0.04", "~12µs", "5 s", "faster by a factor of 3", "a speed-up of about 2.5",
     "1.4 x faster", "2 faster", "1.4× faster", "2× less traffic", "3×", "2.5 × the reference"],
)  # fmt: skip
def test_an_agents_numbers_are_struck_out(claim: str) -> None:
    said = without_claims(f"it is {claim} now")
    assert STRUCK in said and not any(character.isdigit() for character in said)


@pytest.mark.parametrize(
    "text",
    [
        "BLOCK=128",
        "16 x 16 tiles",
        "3xTF32 products",
        "fp8 weights",
        "unroll 4x4",
        "tile 128×64 → 128×256",
        "32 × 33 floats",
        "3×BF16 products",
        "2 passes",
        "unroll factor of 4",
    ],
)
def test_parameters_and_names_keep_their_numbers(text: str) -> None:
    assert without_claims(text) == text


def test_the_guards_numbers_are_the_only_measurements() -> None:
    win = win_of(lesson(reflection="3x faster because one pass"))
    assert win is not None
    why, _, measured = win.reflection.partition(BEFORE_AFTER)
    assert "3x" not in why
    assert "1 ms → 0.8 ms" in measured and "1.250×" in measured and "-20.0 % paired" in measured


def test_what_teaches_a_win_or_a_trap() -> None:
    assert win_of(lesson(outcome=Outcome.ACCEPT)) is None
    assert win_of(lesson(speedup=None)) is None
    for outcome in (Outcome.KEEP, Outcome.ACCEPT, Outcome.REJECT, Outcome.ERROR):
        assert trap_of(lesson(outcome=outcome, reason="wrong.shape"), 0.04) is None
    assert trap_of(lesson(outcome=Outcome.REVERT, log_ratio=-0.02), 0.04) is None, "hardly slower is no dead end"
    slower = trap_of(lesson(outcome=Outcome.REVERT, log_ratio=-0.3), 0.04)
    wrong = trap_of(lesson(outcome=Outcome.REVERT, log_ratio=None, reason="wrong.numerical", detail="row 3"), 0.04)
    assert slower is not None and slower.error == "slower"
    assert wrong is not None and wrong.error == "wrong.numerical: row 3"


@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.booleans()), max_size=40), st.integers(0, 6))
def test_wins_are_kept_by_speed_up_and_pinned_ones_always(drawn: list[tuple[float, bool]], cap: int) -> None:
    config = CampaignConfig(wins=cap)
    room = [entry(i, speedup=speed, pinned=pinned) for i, (speed, pinned) in enumerate(drawn)]
    out = set(retired(room, config))
    kept = [e for e in room if e.id not in out]
    assert all(not e.pinned for e in room if e.id in out)
    loose = [e for e in kept if not e.pinned]
    assert len(loose) == min(cap, sum(not e.pinned for e in room))
    if loose and out:
        assert min(e.speedup or 0 for e in loose) >= max(e.speedup or 0 for e in room if e.id in out)


@given(st.integers(0, 40), st.integers(0, 6))
def test_traps_leave_first_in_first_out(count: int, cap: int) -> None:
    room = [entry(i, "trap", error="slower") for i in range(count)]
    assert set(retired(room, CampaignConfig(traps=cap))) == set(range(max(0, count - cap)))
    assert retired(room, CampaignConfig(traps=None)) == []


DRAWN = st.tuples(
    st.sampled_from(["win", "trap"]),
    st.floats(0.5, 4.0),
    st.sampled_from(["gemm", "norm"]),
    st.sampled_from(["1", "2"]),
)


@given(st.lists(DRAWN, max_size=60), st.sampled_from(["shared", "private"]))
def test_a_bounded_memory_never_exceeds_its_cap(drawn: list[tuple[str, float, str, str]], memory: str) -> None:
    config = CampaignConfig(wins=3, traps=2, memory=memory)
    live: list[MemoryEntry] = []
    for number, (kind, speedup, kernel_type, agent) in enumerate(drawn, 1):
        new = entry(number, kind, speedup=speedup, kernel_type=kernel_type, agent=agent)
        plan = adding(live, new, config)
        live = [e for e in live if e.id not in plan.expire] + ([new] if plan.store else [])
        rooms: dict[tuple[str, ...], int] = {}
        for e in live:
            key = (e.kind, e.kernel_type, e.agent if memory == "private" else "")
            rooms[key] = rooms.get(key, 0) + 1
        assert all(size <= (3 if key[0] == "win" else 2) for key, size in rooms.items())


def test_near_duplicates_are_told_by_words_not_by_numbers() -> None:
    one = entry(1, strategy="s · rows: block 64", reflection=f"cache blocks help\n{BEFORE_AFTER}1 ms → 0.9 ms")
    same = msgspec.structs.replace(
        one, id=2, strategy="s · rows: block 256", reflection=f"cache blocks help\n{BEFORE_AFTER}9 ms"
    )
    other = msgspec.structs.replace(one, id=3, strategy="t · grid: persistent", reflection="one program a core")
    assert near_duplicate(one, same) and not near_duplicate(one, other)
    failed = msgspec.structs.replace(one, kind="trap", error="wrong.numerical: row 3")
    crashed = msgspec.structs.replace(failed, error="crash.signal: 11")
    assert not near_duplicate(failed, crashed), "other reasons are other lessons"


def test_a_faster_near_duplicate_takes_the_place_of_a_slower_win() -> None:
    old = entry(1, speedup=1.2)
    faster = msgspec.structs.replace(old, id=2, speedup=1.5)
    assert adding([old], faster, SHARED).expire == (1,)
    slower = msgspec.structs.replace(old, id=3, speedup=1.1)
    assert adding([old], slower, SHARED).merge_into == 1
    pinned = msgspec.structs.replace(old, pinned=True)
    assert adding([pinned], faster, SHARED).merge_into == 1


def test_recall_ranks_pins_then_strategy_then_shapes() -> None:
    entries = [
        entry(1, strategy="memory-layout · x", shapes="rows=8 cols=16"),
        entry(2, strategy="operator-fusion · y", shapes="rows=9 cols=99"),
        entry(3, strategy="operator-fusion · z", shapes="rows=8 cols=16", speedup=1.0),
        entry(4, strategy="launch-overhead · w", pinned=True),
        entry(5, kernel_type="gemm"),
        entry(6, "trap", strategy="operator-fusion · q", error="slower"),
    ]
    wins, traps = recall(entries, kernel_type="norm", strategy="operator-fusion", shapes="rows=8 cols=16")
    assert [e.id for e in wins] == [4, 3, 2, 1] and [e.id for e in traps] == [6]


@given(st.lists(st.sampled_from("abcdefghij"), max_size=12), st.lists(st.sampled_from("abcdefghij"), max_size=12))
def test_what_is_told_from_marks_is_what_the_words_say(mine: list[str], theirs: list[str]) -> None:
    one, other = ({letter * 4 for letter in letters} for letters in (mine, theirs))
    first, second = (
        entry(i, strategy=" ".join(sorted(words)), reflection=f"9 {BEFORE_AFTER}{i} ms words of the guard")
        for i, words in enumerate((one, other))
    )
    same = len(one & other) / len(one | other) >= 0.8 if one and other else False
    assert near_duplicate(first, second) == same


def test_private_memory_shows_an_agent_its_own_and_what_was_carried_over() -> None:
    live = [entry(1, agent="1"), entry(2, agent="2"), entry(3, agent="2", carried_from="before")]
    assert [e.id for e in visible(live, "1", CampaignConfig(memory="private"))] == [1, 3]
    assert len(visible(live, "1", CampaignConfig(memory="shared"))) == 3
    brought = carried([entry(1, pinned=True), entry(2, kernel_type="gemm")], kernel_type="norm", campaign="before")
    assert [(e.id, e.carried_from, e.pinned) for e in brought] == [(1, "before", False)]


def test_shapes_are_one_bounded_line() -> None:
    assert shapes_text([{"rows": 8, "cols": 16}, {"rows": 64, "cols": 16}]) == "cols=16 rows=8 rows=64"
    assert len(shapes_text([{f"axis{i}": i} for i in range(500)])) <= 200


async def test_entries_carry_their_provenance(lab) -> None:  # type: ignore[no-untyped-def]
    campaign = lab(in_order(["ms=0.8", "fail=wrong.numerical", "ms=1.5"]), candidates=3)
    await campaign.run()
    with campaign.reader() as reader:
        (win,) = reader.memory("win")
        traps = reader.memory("trap")
    assert (win.agent, win.candidate, win.device, win.versions) == ("1", 1, "fake CPU", {"fake": "1"})
    assert win.shapes == "cols=16 rows=8" and win.speedup == pytest.approx(1.25)
    assert [(t.candidate, t.error.partition(":")[0]) for t in traps] == [(3, "slower"), (2, "wrong.numerical")]


async def test_a_later_campaign_can_start_with_the_memory_of_an_earlier_one(lab) -> None:  # type: ignore[no-untyped-def]
    first = lab(in_order(["ms=0.8", "fail=wrong.numerical"]), candidates=2)
    first.create("first")
    await first.run()
    second = lab(slowly_better, candidates=2, memory_from="first")
    await second.run()
    assert [(w.carried_from, w.kernel_type) for w in second.contexts[0].wins] == [("first", "elementwise")]
    assert [t.carried_from for t in second.contexts[0].traps] == ["first"]
    added = second.events(ev.MemoryAdded)[:2]
    assert {e.carried_from for e in added} == {"first"}


@pytest.mark.parametrize(("preset", "kept", "expired"), [("multi-bounded", 16, 8), ("multi-unbounded", 24, 0)])
async def test_retention_is_a_setting(lab, preset: str, kept: int, expired: int) -> None:  # type: ignore[no-untyped-def]
    def better(context):  # type: ignore[no-untyped-def]
        letters = "abcdefghijklmnopqrstuvwx"
        idea = "_".join(f"{letters[context.position - 1] * 3}{letters[i] * 3}" for i in range(12))
        return f"ms={0.99 * 0.95**context.position:.6f} idea={idea}"

    campaign = lab(better, candidates=24, config=preset)
    await campaign.run()
    with campaign.reader() as reader:
        live = reader.memory("win")
        gone = reader.expired_memory(kind="win")
    assert (len(live), len(gone)) == (kept, expired)
    assert sorted(entry.candidate for entry in live) == list(range(25 - kept, 25)), "the fastest stay"
