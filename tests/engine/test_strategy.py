"""Choosing strategies: eligible only, spread over agents, rewarded by the guard, never collapsing to one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_proposer import slowly_better

from engine.breaker import Breaker, backoff_s
from engine.proposers.base import PastCandidate
from engine.records import Mode, Outcome, StopReason
from engine.store import events as ev
from engine.strategy import choose, posterior, reward

SKILLS = ("fusion", "layout", "tiling", "launch", "precision")


def past(strategy: str, outcome: Outcome, log_ratio: float | None = None, number: int = 1) -> PastCandidate:
    return PastCandidate(
        number=number, position=number, mode=Mode.REFINE, strategy=strategy, family="", outcome=outcome,
        log_ratio=log_ratio,
    )  # fmt: skip


def play(pays: str, turns: int, seed: int = 0, skills: tuple[str, ...] = SKILLS) -> list[str]:
    history: list[PastCandidate] = []
    for position in range(1, turns + 1):
        choice = choose(skills, history, seed=seed, agent="1", ordinal=0, position=position, mode=Mode.REFINE)
        outcome = Outcome.KEEP if choice.strategy == pays and position % 2 else Outcome.REVERT
        history.append(past(choice.strategy, outcome, 0.08 if outcome is Outcome.KEEP else -0.1, position))
    return [one.strategy for one in history]


def test_agents_start_spread_over_the_eligible_strategies() -> None:
    first = [
        choose(SKILLS, [], seed=3, agent=str(i), ordinal=i, position=1, mode=Mode.REFINE).strategy
        for i in range(7)
    ]
    assert first == [*SKILLS, SKILLS[0], SKILLS[1]]


def test_the_same_state_gives_the_same_choice_and_another_seed_another_order() -> None:
    assert play("tiling", 40, seed=1) == play("tiling", 40, seed=1)
    assert play("tiling", 40, seed=1) != play("tiling", 40, seed=2)


@given(st.integers(0, 10_000), st.sampled_from(SKILLS))
def test_no_strategy_is_ever_starved(seed: int, pays: str) -> None:
    counts = Counter(play(pays, 60, seed))
    assert all(counts[name] >= 0.5 * 60 / len(SKILLS) - 1 for name in SKILLS)


def test_what_pays_off_is_tried_more_often() -> None:
    shares = [Counter(play("layout", 80, seed))["layout"] for seed in range(12)]
    assert sum(shares) / len(shares) > 1.4 * 80 / len(SKILLS)


@given(st.lists(st.tuples(st.sampled_from(SKILLS), st.sampled_from(list(Outcome)), st.floats(-1, 1)), max_size=50))
def test_rewards_and_posteriors_stay_in_their_bounds(drawn: list[tuple[str, Outcome, float]]) -> None:
    history = [past(name, outcome, ratio) for name, outcome, ratio in drawn]
    assert all(0 <= reward(one) <= 1 for one in history)
    for name in SKILLS:
        hits, misses = posterior(name, history)
        assert hits >= 1 and misses >= 1 and hits + misses <= 2 + 1 / (1 - 0.93) + 1e-9


def test_a_draft_leaves_the_strategy_of_the_last_try() -> None:
    history = [past("fusion", Outcome.REVERT, -0.1)]
    for position in range(2, 30):
        choice = choose(SKILLS, history, seed=0, agent="1", ordinal=0, position=position, mode=Mode.DRAFT)
        assert choice.strategy != "fusion"
    line = choose(SKILLS, history, seed=0, agent="1", ordinal=0, position=2, mode=Mode.DRAFT, line=True)
    assert line.strategy == "fusion", "its second try develops the first one"
    only = choose(("fusion",), history, seed=0, agent="1", ordinal=0, position=2, mode=Mode.DRAFT)
    assert only.strategy == "fusion"


@pytest.mark.parametrize("skills", [(), ("fusion",)])
def test_few_strategies_are_no_trouble(skills: tuple[str, ...]) -> None:
    assert choose(skills, [], seed=0, agent="1", ordinal=9, position=1, mode=Mode.REFINE).strategy == "".join(
        skills
    )


def test_the_only_one_that_a_proposer_can_serve_is_not_said_to_be_the_only_eligible_one() -> None:
    given = {"seed": 0, "agent": "1", "ordinal": 0, "position": 1, "mode": Mode.REFINE}
    assert choose(("layout",), [], **given).why == "the only one that fits"  # type: ignore[arg-type]
    served = choose(("layout",), [], **given, of=7).why  # type: ignore[arg-type]
    assert served == "the only one of 7 that fit with a recipe made for this problem"


async def test_every_change_is_logged_with_its_reason(lab) -> None:  # type: ignore[no-untyped-def]
    campaign = lab(slowly_better, candidates=20, agents=2, strategies=["operator-fusion", "memory-layout"])
    await campaign.run()
    chosen = campaign.events(ev.StrategyChosen)
    assert {e.strategy for e in chosen} == {"operator-fusion", "memory-layout"}
    assert all(e.why and e.by == "policy" for e in chosen)
    assert {c.strategy for c in campaign.contexts} == {"operator-fusion", "memory-layout"}
    first = {e.agent: e.strategy for e in reversed(chosen)}
    assert first["1"] != first["2"]


async def test_a_named_strategy_that_is_of_no_use_here_is_left_out_and_said(lab) -> None:  # type: ignore[no-untyped-def]
    campaign = lab(slowly_better, candidates=6, strategies=["native-tensor-core", "memory-layout"])
    summary = await campaign.run()
    assert {c.strategy for c in campaign.contexts} == {"memory-layout"}
    told = [note.text for note in summary.attention if note.code == "strategy.left-out:native-tensor-core"]
    assert len(told) == 1 and "native-tensor-core is left out: it is for" in told[0]


async def test_naming_only_what_is_of_no_use_ends_the_campaign_before_it_measures(lab) -> None:  # type: ignore[no-untyped-def]
    campaign = lab(slowly_better, strategies=["native-tensor-core", "hopper-bf16-gemm"])
    summary = await campaign.run()
    assert (summary.stop_reason, summary.candidates) == (StopReason.FAULT, 0)
    assert "not eligible here; eligible are: operator-fusion" in summary.stop_detail
    assert campaign.bench.measured == 0


async def test_a_playbook_is_a_strategy_once_a_person_names_it(lab, private_home: Path) -> None:  # type: ignore[no-untyped-def]
    folder = private_home / "config" / "kernelarc" / "skills" / "my-course"
    folder.mkdir(parents=True)
    head = "---\nname: my-course\ndescription: a curriculum\nmetadata:\n  playbook: true\n---\n"
    (folder / "SKILL.md").write_text(f"{head}Tier 0.\n")
    unnamed = lab(slowly_better, candidates=12)
    await unnamed.run()
    assert "my-course" not in {c.strategy for c in unnamed.contexts}
    named = lab(slowly_better, candidates=12, strategies=["operator-fusion", "my-course"])
    await named.run()
    assert {c.strategy for c in named.contexts} == {"operator-fusion", "my-course"}


@pytest.mark.parametrize(
    ("crashes", "opens"),
    [
        ([(0.0, 0), (20.0, 0)], False),
        ([(0.0, 0), (20.0, 1), (29.0, 2)], True),  # three in thirty seconds, whatever was judged meanwhile
        ([(0.0, 0), (20.0, 1), (45.0, 2)], False),  # the first is forgotten after thirty seconds
        ([(0.0, 0), (20.0, 1), (45.0, 2), (46.0, 3)], True),
        ([(0.0, 0), (600.0, 0), (1200.0, 0)], True),  # a model that takes ten minutes leads nowhere as well
        ([(0.0, 5), (600.0, 5), (1200.0, 6), (1800.0, 6)], False),  # a verdict in between
        ([(0.0, 5), (600.0, 6), (1200.0, 6), (1800.0, 6)], True),
    ],
)
def test_the_breaker_opens_at_the_third_crash_that_leads_nowhere(
    crashes: list[tuple[float, int]], opens: bool
) -> None:
    breaker = Breaker()
    for at, verdicts in crashes:
        assert not breaker.open
        breaker = breaker.after_crash(at, verdicts)
    assert breaker.open is opens


def test_errors_are_tried_again_later_each_time() -> None:
    assert [backoff_s(n) for n in (1, 2, 3, 4, 10)] == [1.0, 2.0, 4.0, 8.0, 30.0]
