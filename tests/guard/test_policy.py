"""The guard's policy, as a specification: keep rule, plateau and draft line, stop rule, archives, budget split."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.guard import archive, keep, plateau, stop
from engine.guard.account import AHEAD, comparable_ms
from engine.records import Comparison, Evaluation, Mode, Outcome, StopReason, WorkloadResult

K, A, V, X, E = Outcome.KEEP, Outcome.ACCEPT, Outcome.REVERT, Outcome.REJECT, Outcome.ERROR
CFG = plateau.PlateauConfig(r_draft=5, r_stop=15)


def passed(ratio: float, half: float, noise: float = 0.0) -> Evaluation:
    """An evaluation whose paired speed ratio is ``ratio`` with ± ``half`` on the log scale."""
    mid = math.log(ratio)
    return Evaluation(
        verdict="PASS", comparison=Comparison(log_ratio=mid, lo=mid - half, hi=mid + half, pairs=9, noise=noise)
    )


# --- keep rule


@pytest.mark.parametrize(
    ("ratio", "half", "margin", "noise", "outcome"),
    [
        (1.10, 0.01, 0.02, 0.0, K),  # clearly faster
        (1.10, 0.09, 0.02, 0.0, A),  # faster by the point, not proven
        (1.03, 0.005, 0.02, 0.0, K),
        (1.03, 0.005, 0.02, 0.04, A),  # the measured noise floor is the margin
        (1.021, 0.0, 0.02, 0.0, K),
        (1.0199, 0.0, 0.02, 0.0, A),
        (1.00, 0.001, 0.02, 0.0, A),
        (0.97, 0.001, 0.02, 0.0, A),  # within 2 × margin
        (0.95, 0.001, 0.02, 0.0, V),  # outside the near-best band
        (0.95, 0.001, 0.02, 0.05, A),  # a noisy device widens the band
        (0.50, 0.001, 0.02, 0.0, V),
    ],
)
def test_outcome_of_a_correct_candidate(
    ratio: float, half: float, margin: float, noise: float, outcome: Outcome
) -> None:
    decision = keep.decide(passed(ratio, half), margin, noise)
    assert decision.outcome is outcome and decision.correct
    assert keep.decide(passed(ratio, half, noise), margin).outcome is outcome  # noise measured with the pair


@pytest.mark.parametrize(
    ("verdict", "reason", "outcome"),
    [
        ("REJECT", "gate.syntax", X),
        ("FAIL", "wrong.numerical", V),
        ("FAIL", "crash.signal", V),
        ("ERROR", "needs.cuda", E),
        ("garbled", "", E),
    ],
)
def test_what_did_not_pass_keeps_its_reason(verdict: str, reason: str, outcome: Outcome) -> None:
    decision = keep.decide(Evaluation(verdict=verdict, reason=reason, detail="d"), 0.02)
    assert (decision.outcome, decision.reason, decision.correct) == (outcome, reason, False)


def test_a_pass_that_was_never_compared_is_our_fault_not_an_outcome() -> None:
    assert keep.decide(Evaluation(verdict="PASS"), 0.02).outcome is E
    broken = Comparison(log_ratio=math.nan, lo=0.5, hi=0.6, pairs=3)
    assert keep.decide(Evaluation(verdict="PASS", comparison=broken), 0.02).outcome is E


@pytest.mark.parametrize(
    ("again", "outcome", "reason"),
    [
        (passed(1.1, 0.01), K, ""),
        (passed(1.0, 0.01), A, "keep.unconfirmed"),
        (passed(0.8, 0.01), V, "keep.unconfirmed"),
        (Evaluation(verdict="FAIL", reason="wrong.numerical"), V, "wrong.numerical"),
        (Evaluation(verdict="ERROR", reason="fault.bench"), E, "fault.bench"),
    ],
)
def test_a_keep_counts_only_if_a_fresh_pair_repeats_it(again: Evaluation, outcome: Outcome, reason: str) -> None:
    first = keep.decide(passed(1.1, 0.01), 0.02)
    final = keep.confirm(first, again, 0.02)
    assert (final.outcome, final.reason) == (outcome, reason)


def test_only_a_keep_is_confirmed() -> None:
    first = keep.decide(passed(1.0, 0.01), 0.02)
    assert keep.confirm(first, passed(1.5, 0.01), 0.02) is first


@pytest.mark.parametrize(
    ("gain", "noise", "clear"), [(1.9, 0.0, False), (2.1, 0.0, True), (2.1, 0.5, False), (60.0, 0.12, True)]
)
def test_only_a_gain_that_no_noise_comes_near_is_clear(gain: float, noise: float, clear: bool) -> None:
    assert keep.beyond_noise(passed(gain, 0.01), noise) is clear
    assert not keep.beyond_noise(passed(gain, 4.0), noise)  # its interval reaches below


@pytest.mark.parametrize(
    ("gain", "half", "noise", "early"),
    [(1.4, 0.2, 0.25, True), (1.4, 0.05, 0.25, False), (1.2, 0.1, 0.25, False), (1.4, 0.2, 0.0, False)],
)
def test_only_a_gain_that_is_likely_and_unclear_was_stopped_early(
    gain: float, half: float, noise: float, early: bool
) -> None:
    assert keep.stopped_early(passed(gain, half), 0.01, noise) is early


def test_a_workload_that_got_slower_is_noted() -> None:
    evaluation = Evaluation(
        verdict="PASS",
        workloads=[
            WorkloadResult(uuid="a", status="PASSED", log_ratio=0.2, log_ratio_ci=(0.19, 0.21)),
            WorkloadResult(uuid="b", status="PASSED", log_ratio=-0.1, log_ratio_ci=(-0.11, -0.09)),
            WorkloadResult(uuid="c", status="PASSED", log_ratio=-0.1, log_ratio_ci=(-0.3, 0.1)),
        ],
    )
    notes = keep.regressions(evaluation, 0.02)
    assert len(notes) == 1 and "b" in notes[0] and "10.5%" in notes[0]


@given(st.floats(0.3, 3), st.floats(0, 0.5), st.floats(0, 0.2), st.floats(0, 0.2))
def test_a_keep_is_never_below_margin_or_noise(ratio: float, half: float, margin: float, noise: float) -> None:
    decision = keep.decide(passed(ratio, half), margin, noise)
    if decision.outcome is K:
        assert math.log(ratio) - half > math.log1p(max(margin, noise)) - 1e-12
    if decision.outcome is V:
        assert ratio < 1


# --- plateau and draft line


def run(outcomes: str, state: plateau.PlateauState | None = None, cfg: plateau.PlateauConfig = CFG):
    """Feed outcomes, one letter each: K A V X E, ``s`` a slower but correct REVERT, ``F`` a forced draft."""
    state = state or plateau.PlateauState()
    trail = []
    for number, letter in enumerate(outcomes, 1):
        if letter == "F":
            state = plateau.force_draft(state)
            continue
        state = plateau.before_proposal(state, cfg)
        outcome = {"K": K, "A": A, "V": V, "s": V, "X": X, "E": E}[letter]
        state = plateau.after_verdict(state, outcome, cfg, number=number, correct=letter in "KAs")
        trail.append(state)
        if state.stop:
            break
    return state, trail


@pytest.mark.parametrize(
    ("outcomes", "r", "is_open", "tries", "due", "stopped"),
    [
        ("", 0, False, 0, False, False),
        ("AVAV", 4, False, 0, False, False),
        ("XXXXXXXX", 0, False, 0, False, False),  # a REJECT never moves r
        ("AVEEEEEE", 2, False, 0, False, False),  # an ERROR never moves r
        ("AVAK", 0, False, 0, False, False),  # a KEEP resets
        ("AVAVA", 5, False, 0, True, False),  # r_draft reached: a draft is due
        ("AVAVAV", 6, True, 1, False, False),  # the line's first try
        ("AVAVAXX", 5, True, 0, False, False),  # REJECTs in the line use no try
        ("AVAVAVV", 7, True, 2, False, False),
        ("AVAVAVVV", 8, False, 0, False, False),  # third try closes it
        ("AVAVAVK", 0, False, 0, False, False),  # a KEEP closes it
        ("AVAVAVVVVVVV", 12, False, 0, False, False),
        ("AVAVAVVVVVVVV", 13, False, 0, True, False),  # next draft due r_draft after the line closed
        ("AVAVAVVVVVVVVVV", 15, True, 2, False, False),  # r_stop is not tested in a line
        ("AVAVAVVVVVVVVVVV", 16, False, 0, False, True),  # but when it closes
        ("FV", 1, True, 1, False, False),  # by force, at any r
        ("VVFVVV", 5, False, 0, False, False),  # and the next draft r_draft later, not now
        ("VVFVVVVVVVV", 10, False, 0, True, False),
        ("VVFVVFV", 5, False, 0, False, False),  # forcing inside a line changes nothing
        ("FXEXV", 1, True, 1, False, False),
    ],
)
def test_plateau_table(outcomes: str, r: int, is_open: bool, tries: int, due: bool, stopped: bool) -> None:
    state, _ = run(outcomes)
    assert (state.r, state.line_open, state.line_tries) == (r, is_open, tries)
    assert plateau.draft_due(state, CFG) is due and state.stop is stopped
    expected = Mode.DRAFT if is_open or due else Mode.REFINE
    assert plateau.mode(state, CFG) is expected


def test_r_stop_without_drafts_in_the_way() -> None:
    state, _ = run("V" * 8, cfg=plateau.PlateauConfig(r_draft=5, r_stop=8))
    assert state.stop and state.r == 8  # the line closed with its third try, exactly at r_stop


def test_a_line_builds_on_its_own_last_correct_candidate_even_if_slower() -> None:
    state, _ = run("AVAVAs")
    assert plateau.base_of(state, working=3, best=0) == 6
    state, _ = run("AVAVAsV")
    assert plateau.base_of(state, working=3, best=0) == 6  # a wrong one does not move it
    state, _ = run("AVAVAVs")
    assert plateau.base_of(state, working=3, best=0) == 7
    state, _ = run("AVAVAV")
    assert plateau.base_of(state, working=3, best=2) == 2  # nothing correct yet: from the best
    state, _ = run("AVAVAsss")
    assert not state.line_open and plateau.base_of(state, working=0, best=0) == 0


@given(st.text(alphabet="AVsXEKF", max_size=80), st.integers(1, 6), st.integers(3, 12))
def test_plateau_invariants(outcomes: str, r_draft: int, gap: int) -> None:
    cfg = plateau.PlateauConfig(r_draft=r_draft, r_stop=r_draft + gap)
    state, trail = run(outcomes, cfg=cfg)
    previous = plateau.PlateauState()
    for now in trail:
        assert 0 <= now.line_tries < plateau.LINE_TRIES
        assert now.r in (0, previous.r, previous.r + 1)
        assert not (now.stop and now.line_open)
        assert now.stop == (now.r >= cfg.r_stop and not now.line_open and now.r != previous.r)
        assert now.r < cfg.r_stop + plateau.LINE_TRIES
        assert now.line_base is None or now.line_open
        previous = now
    assert msgspec.json.decode(msgspec.json.encode(state), type=plateau.PlateauState) == state


@given(st.text(alphabet="AVsK", max_size=60))
def test_r_counts_benched_non_improvements_in_a_row(outcomes: str) -> None:
    state, _ = run(outcomes, cfg=plateau.PlateauConfig(r_draft=5, r_stop=1000))
    assert state.r == len(outcomes) - (outcomes.rfind("K") + 1)


# --- comparable times


@pytest.mark.parametrize(
    ("timer", "measured_ms", "ratio", "speedup", "kept", "shown_ms"),
    [
        ("cupti", 9.4, 1.72, 1.78, True, 9.4),  # a GPU's clock is the same for everybody
        ("wall", 9.4, 1.72, 1.78, True, 6.155 / 1.78),  # a KEEP on a box that was busy meanwhile
        ("wall", 9.4, 1.72, 0.98, True, 6.079 * AHEAD),  # not behind the best that it has beaten
        ("wall", 5.0, 0.90, None, False, 6.079 / 0.90),  # slower, although its milliseconds are fewer
        ("wall", 5.0, 1.001, 1.60, False, 6.079 / 1.001),  # who has not beaten the best does not pass it
    ],
)
def test_times_that_are_shown_are_comparable(
    timer: str, measured_ms: float, ratio: float, speedup: float | None, kept: bool, shown_ms: float
) -> None:
    evaluation = msgspec.structs.replace(
        passed(ratio, 0.01), latency_ms=measured_ms, timer=timer, geomean_speedup=speedup
    )
    assert comparable_ms(evaluation, 6.079, 6.155, kept=kept) == pytest.approx(shown_ms)


@given(
    st.tuples(st.floats(1.02, 3), st.floats(0.5, 4)),
    st.tuples(st.floats(1.0, 2), st.floats(1.0, 2)),
)
def test_a_keep_that_gains_more_by_both_measures_is_not_behind(
    one: tuple[float, float], more: tuple[float, float]
) -> None:
    """Two agents' KEEPs over the same seed: 1.31 and 1.23 times of it and the reference, 1.20 and 1.17 times."""

    def shown(ratio: float, speedup: float) -> float:
        evaluation = msgspec.structs.replace(
            passed(ratio, 0.01), latency_ms=9.4, timer="wall", geomean_speedup=speedup
        )
        found = comparable_ms(evaluation, 2.84, 3.363, kept=True)
        assert found is not None and found < 2.84
        return found

    assert shown(1.307, 1.231) < shown(1.202, 1.173)
    assert shown(one[0] * more[0], one[1] * more[1]) <= shown(*one)


def test_without_a_best_there_is_nothing_to_compare_with() -> None:
    evaluation = msgspec.structs.replace(passed(1.2, 0.01), latency_ms=5.0, timer="wall")
    assert comparable_ms(evaluation, None, 6.0, kept=True) == 5.0


# --- stop rule

RICH = stop.CampaignStanding()


@pytest.mark.parametrize(
    ("agent", "campaign", "reason"),
    [
        ({}, {}, None),
        ({"candidates": 4, "budget": 5}, {}, None),
        ({"candidates": 5, "budget": 5}, {}, "candidates"),
        ({"candidates": 10**6}, {}, None),
        ({"plateau": True, "r": 15}, {}, "plateau"),
        ({"plateau": True, "candidates": 5, "budget": 5}, {}, "candidates"),
        ({"plateau": True}, {"elapsed_s": 60, "limit_s": 60}, "time"),
        ({}, {"elapsed_s": 59.9, "limit_s": 60}, None),
        ({}, {"cost_usd": 2.0, "max_cost_usd": 2.0, "elapsed_s": 61, "limit_s": 60}, "cost"),
        ({}, {"tokens": 100, "max_tokens": 100}, "cost"),
        ({}, {"best_speedup": 1.5, "target_speedup": 1.5, "cost_usd": 3, "max_cost_usd": 2}, "target"),
        ({}, {"best_speedup": 1.49, "target_speedup": 1.5}, None),
        ({}, {"best_speedup": None, "target_speedup": 1.0}, None),
        ({"candidates": 0, "budget": 0}, {}, "candidates"),
    ],
)
def test_stop_table(agent: dict, campaign: dict, reason: str | None) -> None:
    found = stop.stop_reason(stop.AgentStanding(**agent), stop.CampaignStanding(**campaign))
    assert (found.reason if found else None) == reason
    assert found is None or found.detail


def test_time_that_was_used_up_by_measuring_the_reference_says_so() -> None:
    for candidates in (0, 3):
        found = stop.campaign_stop(stop.CampaignStanding(elapsed_s=120, limit_s=120, candidates=candidates))
        assert found is not None and ("measuring the reference" in found.detail) is (candidates == 0)


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ("plateau plateau", "plateau"),
        ("plateau candidates", "candidates"),
        ("candidates user", "user"),
        ("time plateau", "time"),
        ("fault candidates", "candidates"),
        ("fault", "fault"),
        ("target time", "target"),
    ],
)
def test_reason_of_a_campaign_whose_agents_stopped(reasons: str, expected: str) -> None:
    assert stop.campaign_reason(StopReason(r) for r in reasons.split()) == expected


@given(st.integers(0, 500), st.integers(1, 20))
def test_budget_is_split_evenly_with_the_remainder_to_the_first(total: int, agents: int) -> None:
    shares = [s for s in stop.split_budget(total, agents) if s is not None]
    assert sum(shares) == total and max(shares) - min(shares) <= 1 and shares == sorted(shares, reverse=True)


def test_no_budget_is_no_limit() -> None:
    assert stop.split_budget(None, 3) == [None, None, None]


# --- the working point


@pytest.mark.parametrize(
    ("outcomes", "vetoed", "working"),
    [
        ("", (), 0),
        ("K", (), 1),
        ("KA", (), 2),
        ("KAV", (), 1),
        ("KAX", (), 2),
        ("KAE", (), 2),
        ("AV", (), 0),
        ("KK", (2,), 1),
        ("KA", (1,), 2),
        ("KAV", (1,), 0),
    ],
)
def test_working_point(outcomes: str, vetoed: tuple[int, ...], working: int) -> None:
    names = {"K": K, "A": A, "V": V, "X": X, "E": E}
    assert archive.working_point([(i, names[c]) for i, c in enumerate(outcomes, 1)], vetoed) == working
