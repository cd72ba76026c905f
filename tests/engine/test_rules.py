"""Random sequences of verdicts, and of money, through the rules of a campaign: plateau, budget, retention."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import budget
from engine.agent_state import AgentState, after_verdict, base_number, begun, without
from engine.config import CampaignConfig
from engine.guard import archive, plateau
from engine.guard.plateau import LINE_TRIES, PlateauConfig
from engine.guard.stop import AgentStanding, CampaignStanding, split_budget, stop_reason
from engine.memory import Lesson, adding, trap_of, win_of
from engine.proposers.base import MemoryEntry, PastCandidate
from engine.records import Mode, Outcome, StopReason, Trap, Win
from engine.store import ledger
from engine.store.create import create_database, open_database
from engine.store.ledger import OverBudget
from engine.store.summary import Summary
from engine.store.tx import transaction
from tests.fixtures.store_records import SEED, row, started

NEAR = 0.04
WORDS = re.findall(
    r"\w+", "amber basalt cedar delta ember fjord grove hazel inlet jasper kelp lotus maple nectar onyx pebble"
)


@dataclass(frozen=True)
class Step:
    """What becomes of one proposal. ``correct`` matters for a REVERT: slower, or wrong."""

    agent: int
    outcome: Outcome
    correct: bool
    ratio: float
    cost: float


STEPS = st.lists(
    st.builds(
        Step,
        agent=st.integers(0, 1),
        outcome=st.sampled_from(list(Outcome)),
        correct=st.booleans(),
        ratio=st.floats(0.01, 0.5),
        cost=st.floats(0.0, 0.3),
    ),
    max_size=120,
)


@dataclass
class Play:
    """A campaign of two agents without its I/O: the rules, in the order in which agent and guard use them."""

    config: CampaignConfig
    rules: PlateauConfig
    shares: list[int | None]
    states: list[AgentState] = field(default_factory=lambda: [AgentState(name="1"), AgentState(name="2")])
    spent: float = 0.0
    number: int = 0
    best_ms: float = 1.0
    live: list[MemoryEntry] = field(default_factory=list)
    lessons: int = 0

    def stop(self, agent: int) -> StopReason | None:
        state = self.states[agent]
        standing = AgentStanding(
            candidates=len(state.history),
            budget=self.shares[agent],
            plateau=state.plateau.stop,
            r=state.plateau.r,
        )
        campaign = CampaignStanding(cost_usd=self.spent, max_cost_usd=self.config.max_cost)
        found = stop_reason(standing, campaign)
        return found.reason if found else None

    def take(self, step: Step) -> None:
        state = self.states[step.agent]
        mode = plateau.mode(state.plateau, self.rules)
        state = begun(state, mode, self.rules)
        self.spent += step.cost
        if step.outcome is not Outcome.ERROR:
            self.number += 1
            past = self._past(step, state, mode)
            state = after_verdict(state, past, self.rules)
            self._learn(step, past)
        self.states[step.agent] = state

    def _past(self, step: Step, state: AgentState, mode: Mode) -> PastCandidate:
        reasons = {
            Outcome.REVERT: "keep.slower" if step.correct else "wrong.numerical",
            Outcome.REJECT: "reply.empty",
        }
        return PastCandidate(
            number=self.number,
            position=state.position,
            mode=mode,
            strategy="s",
            family=WORDS[self.number % len(WORDS)],
            outcome=step.outcome,
            reason=reasons.get(step.outcome, ""),
            log_ratio=step.ratio if step.outcome is Outcome.KEEP else -step.ratio,
        )

    def _learn(self, step: Step, past: PastCandidate) -> None:
        """Words that differ for every candidate, so that no lesson is a near-duplicate of another."""
        words = " ".join(
            WORDS[(self.number * k + k * k) % len(WORDS)] + "abcdefg"[k] * self.number for k in range(7)
        )
        lesson = Lesson(
            kernel_type="norm",
            strategy=past.strategy,
            family=past.family,
            reflection=words,
            outcome=past.outcome,
            reason="" if past.reason.startswith("keep.") else past.reason,
            log_ratio=past.log_ratio,
            speedup=1 + self.number / 100 if past.outcome is Outcome.KEEP else None,
        )
        made: Win | Trap | None = win_of(lesson) or trap_of(lesson, NEAR)
        if made is None:
            return
        self.lessons += 1
        entry = MemoryEntry(
            id=self.number,
            kind="win" if isinstance(made, Win) else "trap",
            kernel_type=made.kernel_type,
            strategy=made.strategy,
            reflection=made.reflection,
            error=made.error if isinstance(made, Trap) else "",
            speedup=made.speedup if isinstance(made, Win) else None,
            agent=str(step.agent + 1),
            candidate=self.number,
        )
        plan = adding(self.live, entry, self.config)
        self.live = [e for e in self.live if e.id not in plan.expire] + ([entry] if plan.store else [])


@settings(deadline=None)
@given(
    STEPS,
    st.integers(1, 5),
    st.integers(LINE_TRIES, 8),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.floats(0.5, 5.0)),
    st.sampled_from(["shared", "private"]),
    st.one_of(st.none(), st.integers(0, 4)),
)
def test_no_sequence_of_verdicts_breaks_a_rule(
    steps: list[Step],
    r_draft: int,
    gap: int,
    budget: int | None,
    max_cost: float | None,
    memory: str,
    cap: int | None,
) -> None:
    config = CampaignConfig(max_cost=max_cost, memory=memory, wins=cap, traps=cap)
    rules = PlateauConfig(r_draft=r_draft, r_stop=r_draft + gap)
    play = Play(config=config, rules=rules, shares=split_budget(budget, 2))
    for step in steps:
        reason = play.stop(step.agent)
        if reason is not None:
            _stopped_rightly(play, step.agent, reason)
            continue
        before = play.states[step.agent]
        play.take(step)
        _plateau_holds(before, play.states[step.agent], step, rules)
        _budget_holds(play, budget)
        _retention_holds(play, cap)


@given(
    st.lists(st.tuples(st.sampled_from(["KEEP", "ACCEPT", "REVERT", "REJECT"]), st.integers(0, 20)), max_size=30)
)
def test_best_and_working_point_are_those_of_the_whole_history(steps: list[tuple[str, int]]) -> None:
    """They are moved verdict by verdict; now and then the KEEP of so many steps ago, if it was one, is vetoed."""
    state, rules = AgentState(name="1"), PlateauConfig(r_stop=10**6)
    for number, (outcome, back) in enumerate(steps, 1):
        past = PastCandidate(
            number=number, position=number, mode=Mode.REFINE, strategy="s", family="", outcome=Outcome(outcome)
        )
        state = after_verdict(state, past, rules)
        vetoed = number - back
        if vetoed > 0 and state.history[vetoed - 1].outcome is Outcome.KEEP:
            state = without(state, vetoed)
        standing = [p.number for p in state.history if p.outcome is Outcome.KEEP and p.number not in state.vetoed]
        assert state.best == (standing[-1] if standing else 0)
        whole = [(p.number, p.outcome) for p in state.history]
        assert state.working == archive.working_point(whole, state.vetoed)


def _stopped_rightly(play: Play, agent: int, reason: StopReason) -> None:
    state = play.states[agent]
    if reason is StopReason.PLATEAU:
        assert state.plateau.r >= play.rules.r_stop and not state.plateau.line_open
    elif reason is StopReason.CANDIDATES:
        assert len(state.history) == play.shares[agent]
    else:
        assert (
            reason is StopReason.COST and play.config.max_cost is not None and play.spent >= play.config.max_cost
        )


def _plateau_holds(before: AgentState, after: AgentState, step: Step, rules: PlateauConfig) -> None:
    if step.outcome is Outcome.ERROR:
        assert (after.history, after.best, after.plateau.r) == (before.history, before.best, before.plateau.r)
        return
    assert after.position == before.position + 1
    outcomes = [past.outcome for past in after.history]
    since = (
        outcomes[len(outcomes) - outcomes[::-1].index(Outcome.KEEP) :] if Outcome.KEEP in outcomes else outcomes
    )
    assert after.plateau.r == sum(outcome in (Outcome.ACCEPT, Outcome.REVERT) for outcome in since)
    assert after.plateau.r < rules.r_stop + LINE_TRIES
    past = after.history[-1]
    assert (
        past.mode is Mode.DRAFT or before.plateau.r < rules.r_draft or before.plateau.next_draft > before.plateau.r
    )
    known = {0, *(p.number for p in after.history if p.outcome in (Outcome.KEEP, Outcome.ACCEPT, Outcome.REVERT))}
    assert base_number(after) in known and after.best in known
    wrong = {p.number for p in after.history if p.reason.startswith("wrong.")}
    assert base_number(after) not in wrong, "nothing is ever built on a candidate that was wrong"


def _budget_holds(play: Play, budget: int | None) -> None:
    used = [len(state.history) for state in play.states]
    if budget is not None:
        assert sum(used) <= budget
        assert all(share is not None and n <= share for n, share in zip(used, play.shares, strict=True))
    assert sum(used) == play.number


def _retention_holds(play: Play, cap: int | None) -> None:
    rooms = Counter((e.kind, e.agent if play.config.memory == "private" else "") for e in play.live)
    if cap is None:
        assert len(play.live) == play.lessons
    else:
        assert all(size <= cap for size in rooms.values())
    outcomes = {past.number: past.outcome for state in play.states for past in state.history}
    for entry in play.live:
        assert outcomes[entry.candidate or 0] is (Outcome.KEEP if entry.kind == "win" else Outcome.REVERT)


# Money


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[sqlite3.Connection, Summary]]:
    path: Path = tmp_path_factory.mktemp("ledger") / "campaign.db"
    create_database(path, row(), SEED, started(), lambda: 0.0)
    connection, summary = open_database(path, lambda: 0.0)
    connection.execute("PRAGMA synchronous = OFF")
    yield connection, summary
    connection.close()


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "reserve", "settle", "lose", "kill"]),
        st.floats(0.05, 0.5),
        st.integers(0, 5),
    ),
    min_size=5,
    max_size=60,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CALLS, st.floats(0.2, 2.0), st.one_of(st.just(10**9), st.integers(200, 2000)))
def test_no_order_of_calls_passes_a_cap(
    database: tuple[sqlite3.Connection, Summary],
    calls: list[tuple[str, float, int]],
    cap: float,
    token_cap: int,
) -> None:
    """Reserved, settled at any part of the reservation, lost, or left by a kill -9: in any order, by any agent."""
    connection, summary = database
    connection.execute("DELETE FROM ledger")
    opened: list[tuple[int, float, int]] = []
    with transaction(connection, summary, 0.0) as tx:
        for action, share, pick in calls:
            if action == "reserve":
                tokens = int(1000 * share)
                try:
                    number = ledger.reserve(tx, "1", "m", share, tokens, cap_usd=cap, cap_tokens=token_cap)
                except OverBudget as error:
                    totals = error.totals
                    assert (
                        totals.charged_usd + totals.reserved_usd + share > cap
                        or totals.tokens + totals.reserved_tokens + tokens > token_cap
                    )
                    continue
                opened.append((number, share, tokens))
            elif action == "kill":
                assert ledger.lose_open(tx) == len(opened)
                opened.clear()
            elif opened:
                number, usd, tokens = opened.pop(pick % len(opened))
                done = (
                    ledger.lose(tx, number)
                    if action == "lose"
                    else ledger.settle(tx, number, usd * share, int(tokens * share), 0)
                )
                assert done and not ledger.lose(tx, number), "nothing is charged twice"
            totals = ledger.totals(connection)
            assert totals.charged_usd + totals.reserved_usd <= cap + 1e-9
            assert totals.tokens + totals.reserved_tokens <= token_cap
            assert totals.reserved_tokens == sum(tokens for _, _, tokens in opened)


@pytest.mark.parametrize(
    ("minutes", "seconds"), [(None, 120.0), (1.25, 7.5), (10.0, 60.0), (600.0, 120.0)], ids=str
)
def test_what_is_no_search_takes_a_tenth_of_the_time_budget(minutes: float | None, seconds: float) -> None:
    assert budget.share_s(minutes, 120.0) == pytest.approx(seconds)
