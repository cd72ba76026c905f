"""The fold is pure, bounded, and the same however it is cut."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import BadInput
from engine.records import CampaignState, Mode, Outcome, StopReason
from engine.store import events as ev
from engine.store.create import create_database, open_database
from engine.store.fold import NOTES_LIMIT, fold
from engine.store.reader import StoreReader
from engine.store.summary import Summary
from engine.store.tx import transaction
from engine.store.writer import StoreWriter
from tests.fixtures.store_records import BASELINES, SEED, fold_all, row, started, verdict

AGENTS = st.sampled_from(["a1", "a2", "stranger"])
NUMBERS = st.integers(1, 60)
MS = st.one_of(st.none(), st.floats(0.01, 10.0))
USD = st.one_of(st.none(), st.floats(0.0, 1.0))
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)

RANDOM = {
    ev.Verdict: st.builds(
        ev.Verdict,
        number=NUMBERS,
        agent=AGENTS,
        position=NUMBERS,
        mode=st.sampled_from(Mode),
        strategy=TEXT,
        family=TEXT,
        outcome=st.sampled_from([Outcome.KEEP, Outcome.ACCEPT, Outcome.REVERT, Outcome.REJECT]),
        latency_ms=MS,
        speedup=MS,
        r=st.integers(0, 20),
        draft_due=st.booleans(),
        draft_line=st.integers(0, 3),
        tokens=st.integers(0, 9000),
        cost_usd=USD,
    ),
    ev.CandidateError: st.builds(
        ev.CandidateError,
        agent=AGENTS,
        reason=TEXT,
        streak=st.integers(1, 6),
        tokens=st.integers(0, 99),
        cost_usd=USD,
    ),
    ev.Vetoed: st.builds(
        ev.Vetoed,
        number=NUMBERS,
        agent=AGENTS,
        best=NUMBERS,
        best_ms=MS,
        best_speedup=MS,
        expired=st.lists(NUMBERS, max_size=2),
    ),
    ev.MemoryAdded: st.builds(
        ev.MemoryAdded,
        id=NUMBERS,
        memory=st.sampled_from(["win", "trap"]),
        kernel_type=TEXT,
        strategy=TEXT,
        agent=AGENTS,
        merged_into=st.one_of(st.none(), NUMBERS),
    ),
    ev.MemoryExpired: st.builds(
        ev.MemoryExpired, id=NUMBERS, why=TEXT, memory=st.sampled_from(["win", "trap", ""])
    ),
    ev.BudgetChanged: st.builds(
        ev.BudgetChanged,
        candidates=st.one_of(st.none(), NUMBERS),
        agents=st.dictionaries(AGENTS, NUMBERS, max_size=2),
    ),
    ev.Attention: st.builds(ev.Attention, code=TEXT, text=TEXT, agent=AGENTS, clear=st.booleans()),
    ev.CampaignEnded: st.builds(
        ev.CampaignEnded, state=st.sampled_from(["stopped", "finished"]), reason=st.sampled_from(StopReason)
    ),
    ev.BaselinesMeasured: st.just(BASELINES),
    ev.NoiseMeasured: st.builds(ev.NoiseMeasured, candidate=NUMBERS, noise=st.floats(0.0, 10.0)),
    ev.CampaignStarted: st.just(started()),
    ev.ModelCharged: st.builds(ev.ModelCharged, agent=AGENTS, cost_usd=st.floats(0.0, 1.0), tokens=NUMBERS),
}
EVENTS = st.one_of(
    *(RANDOM[kind] if kind in RANDOM else st.from_type(kind) for kind in get_args(ev.Event)),
)
LOGS = st.lists(st.tuples(st.floats(0.0, 100.0), EVENTS), max_size=60)


def run(log: list[tuple[float, ev.Event]], start: Summary | None = None, at: float = 0.0) -> tuple[Summary, float]:
    summary = start or Summary()
    for step, event in log:
        at += step
        summary = fold(summary, at, event)
    return summary, at


def test_every_kind_of_event_can_be_folded() -> None:
    assert {kind.__name__ for kind in get_args(ev.Event)} >= {
        "Verdict",
        "Vetoed",
        "CampaignEnded",
        "SkillReloaded",
    }
    assert set(RANDOM) <= set(get_args(ev.Event))


@given(LOGS, st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_a_snapshot_and_its_tail_are_the_whole_log(log: list[tuple[float, ev.Event]], cut: int) -> None:
    whole, _ = run(log)
    half, at = run(log[:cut])
    restored = msgspec.json.decode(msgspec.json.encode(half), type=Summary)
    assert restored == half
    assert run(log[cut:], restored, at)[0] == whole
    assert whole.seq == len(log)


@given(LOGS)
@settings(max_examples=100, deadline=None)
def test_the_fold_never_changes_what_it_is_given(log: list[tuple[float, ev.Event]]) -> None:
    summary, at = Summary(), 0.0
    for step, event in log:
        at += step
        before = msgspec.json.encode(summary)
        after = fold(summary, at, event)
        assert msgspec.json.encode(summary) == before
        summary = after


@given(LOGS)
@settings(max_examples=100, deadline=None)
def test_whatever_happens_the_summary_holds_together(log: list[tuple[float, ev.Event]]) -> None:
    summary, at = run([(0.0, started()), (0.0, BASELINES), *log])
    verdicts = [event for _, event in log if isinstance(event, ev.Verdict)]
    restarts = [i for i, (_, event) in enumerate(log) if isinstance(event, ev.CampaignStarted)]
    if not restarts:
        for name, agent in summary.agents.items():
            mine = [event for event in verdicts if event.agent == name]
            assert agent.candidates == len(mine) == sum(agent.outcomes.values())
            assert len(agent.keeps) <= agent.outcomes.get("KEEP", 0)
            assert agent.best == (agent.kept[-1] if agent.kept else 0)
            changes = len(agent.outcomes) and agent.outcomes.get("KEEP", 0)
            vetoes = sum(isinstance(event, ev.Vetoed) for _, event in log)
            measured = sum(isinstance(event, ev.BaselinesMeasured) for _, event in log) + 1
            assert len(agent.trajectory) <= changes + vetoes + measured
    assert summary.candidates == len(verdicts)
    assert summary.wins >= 0 and summary.traps >= 0
    assert len(summary.attention) <= NOTES_LIMIT
    assert 0.0 <= summary.elapsed_s(at) <= at + 1e-6
    kept = {keep.number for agent in summary.agents.values() for keep in agent.keeps}
    assert summary.best in kept or (summary.best == 0 and summary.best_agent == "")


@given(LOGS)
@settings(max_examples=20, deadline=None)
def test_the_stored_summary_is_the_fold_and_any_point_can_be_replayed(
    tmp_path_factory: pytest.TempPathFactory, log: list[tuple[float, ev.Event]]
) -> None:
    path = tmp_path_factory.mktemp("c") / "campaign.db"
    create_database(path, row(), SEED, started(), lambda: 0.0)
    connection, summary = open_database(path, lambda: 0.0)
    at = 0.0
    connection.execute("PRAGMA synchronous = OFF")
    for step, event in log:
        at += step
        with transaction(connection, summary, at) as tx:
            tx.append(event)
        summary = tx.summary
    connection.close()
    with StoreReader(path) as reader:
        stored = reader.events(0, 1000)
        assert fold_all(stored) == reader.summary() == summary
        middle = len(stored) // 2
        assert reader.summary_at(middle) == fold_all(stored[:middle])


def test_any_point_of_a_long_log_is_a_snapshot_and_a_short_tail(tmp_path: Path) -> None:
    path = tmp_path / "campaign.db"
    create_database(path, row(), SEED, started(), lambda: 0.0)
    connection, summary = open_database(path, lambda: 0.0)
    with transaction(connection, summary, 1.0) as tx:
        for position in range(1, 2600):
            tx.append(verdict(position=position, outcome=Outcome.REVERT))
    snapshots = [seq for (seq,) in connection.execute("SELECT seq FROM snapshots ORDER BY seq")]
    connection.close()
    assert snapshots == [1000, 2000]
    with StoreReader(path) as reader:
        for seq in (0, 1, 999, 1000, 1001, 2345, 2600):
            assert reader.summary_at(seq) == fold_all(reader.events(0, seq)) if seq else Summary()


def test_the_clock_stands_still_while_paused_and_between_engines() -> None:
    log: list[tuple[float, ev.Event]] = [
        (100.0, started()),
        (0.0, ev.EngineAttached(pid=1)),
        (10.0, BASELINES),
        (10.0, ev.CampaignPaused()),
        (500.0, ev.CampaignResumed()),
        (10.0, ev.HintGiven(agent="a1", text="x")),
        (900.0, ev.EngineAttached(pid=2, resumed=True)),
        (5.0, ev.CampaignEnded(state="finished", reason=StopReason.PLATEAU)),
    ]
    summary, at = run(log)
    assert summary.elapsed_s(at + 1000.0) == pytest.approx(35.0)
    assert (summary.state, summary.stop_reason) == (CampaignState.FINISHED, StopReason.PLATEAU)


def test_an_ended_campaign_can_be_taken_up_again() -> None:
    summary, at = run(
        [
            (0.0, started()),
            (0.0, ev.EngineAttached(pid=1)),
            (1.0, BASELINES),
            (1.0, ev.AgentStopped(agent="a1", reason=StopReason.CANDIDATES)),
            (0.0, ev.CampaignEnded(state="stopped", reason=StopReason.USER)),
            (50.0, ev.EngineAttached(pid=2, resumed=True)),
            (0.0, ev.BudgetChanged(candidates=40, agents={"a1": 30})),
            (0.0, ev.AgentResumed(agent="a1")),
            (0.0, ev.CampaignResumed()),
        ]
    )
    assert (summary.state, summary.stop_reason, summary.budget) == (CampaignState.RUNNING, None, 40)
    assert (summary.agents["a1"].budget, summary.agents["a1"].stopped) == (30, None)
    assert summary.elapsed_s(at) == pytest.approx(2.0)


def test_the_seed_is_everybodys_best_until_a_keep() -> None:
    summary, _ = run([(0.0, started()), (0.0, BASELINES)])
    assert (summary.best, summary.best_agent, summary.best_ms) == (0, "", 1.9)
    assert {agent.best_ms for agent in summary.agents.values()} == {1.9}


def test_the_leader_is_the_fastest_agents_best() -> None:
    def keep_event(number: int, agent: str, ms: float) -> ev.Verdict:
        return msgspec.structs.replace(
            verdict(agent, number, Outcome.KEEP, latency_ms=ms, speedup=2.0 / ms, sol_score=0.5), number=number
        )

    start = [(0.0, started()), (0.0, BASELINES)]
    summary, _ = run([*start, (1.0, keep_event(1, "a1", 1.0)), (1.0, keep_event(2, "a2", 1.2))])
    assert (summary.best_agent, summary.best, summary.best_ms, summary.sol_score) == ("a1", 1, 1.0, 0.5)
    gone = ev.Vetoed(number=1, agent="a1", best=0, best_ms=1.9, best_speedup=1.05)
    summary = fold(summary, 5.0, gone)
    assert (summary.best_agent, summary.best, summary.best_ms) == ("a2", 2, 1.2)
    assert summary.agents["a1"].trajectory[-1].latency_ms == 1.9


def test_vetoing_an_earlier_keep_leaves_the_best_alone() -> None:
    log: list[tuple[float, ev.Event]] = [(0.0, started()), (0.0, BASELINES)]
    for number, ms in ((1, 1.0), (2, 0.8)):
        event = verdict("a1", number, Outcome.KEEP, latency_ms=ms, speedup=2.0 / ms)
        log.append((1.0, msgspec.structs.replace(event, number=number)))
    summary, at = run(log)
    summary = fold(summary, at, ev.Vetoed(number=1, agent="a1", best=2, best_ms=0.8, best_speedup=2.5))
    agent = summary.agents["a1"]
    assert (agent.best, agent.kept, len(agent.trajectory)) == (2, [2], 3)
    summary = fold(summary, at, ev.Vetoed(number=2, agent="a1", best=0, best_ms=1.9, best_speedup=1.05))
    assert (summary.agents["a1"].best, summary.best_ms) == (0, 1.9)


def test_a_reject_leaves_an_open_draft_line_alone() -> None:
    summary, at = run([(0.0, started()), (0.0, BASELINES), (1.0, ev.DraftLineOpened(agent="a1"))])
    assert summary.agents["a1"].mode is Mode.DRAFT
    summary = fold(summary, at, verdict("a1", 1, Outcome.REJECT))
    assert summary.agents["a1"].mode is Mode.DRAFT
    summary = fold(summary, at, verdict("a1", 2, Outcome.REVERT, r=6))
    summary = fold(summary, at, ev.DraftLineClosed(agent="a1", kept=False))
    assert summary.agents["a1"].mode is Mode.REFINE


def test_an_attention_line_stands_until_it_is_withdrawn() -> None:
    summary, at = run([(0.0, ev.Attention(code="disk.low", text="1 GiB left"))])
    summary = fold(summary, at, ev.Attention(code="disk.low", text="0.5 GiB left"))
    assert [note.text for note in summary.attention] == ["0.5 GiB left"]
    assert fold(summary, at, ev.Attention(code="disk.low", text="", clear=True)).attention == []


async def test_an_event_that_could_not_be_read_back_is_refused(writer: StoreWriter) -> None:
    with pytest.raises(BadInput, match="BaselinesMeasured"):
        await writer.append(msgspec.structs.replace(BASELINES, reference_ms=float("nan")))
    with pytest.raises(BadInput, match="HintGiven"):
        await writer.append(ev.HintGiven(agent="a1", text="\ud800"))
    await writer.append(msgspec.structs.replace(BASELINES, sol_score=float("inf")))
    assert writer.summary.seed_sol_score is None
    with StoreReader(writer.path) as reader:
        assert fold_all(reader.events(0)) == writer.summary


def test_old_logs_are_read_without_the_fields_that_came_later(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute(
            'INSERT INTO events (seq, at, data) VALUES (2, 1, \'{"kind":"MemoryExpired","id":1,"why":"user"}\')'
        )
    with StoreReader(database) as reader:
        assert reader.summary_at(2).seq == 2


def test_a_campaign_that_is_started_again_has_no_best_of_agents_that_are_gone() -> None:
    win = ev.Verdict(
        number=1, agent="a1", position=1, mode=Mode.REFINE, strategy="", family="", outcome=Outcome.KEEP,
        latency_ms=0.5, speedup=2.0, r=0,
    )  # fmt: skip
    summary, _ = run([(0.0, started()), (0.0, BASELINES), (1.0, win), (1.0, started())])
    assert (summary.best, summary.best_agent, summary.candidates) == (0, "", 1)
