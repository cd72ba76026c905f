"""Timing statistics: known values, and error rates in simulation with fixed seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench import stats


@pytest.mark.parametrize(
    ("p", "df", "value"),  # Student's table
    [
        (0.975, 4, 2.776),
        (0.99, 4, 3.747),
        (0.975, 1, 12.706),
        (0.95, 10, 1.812),
        (0.975, 39, 2.0227),
        (0.995, 3, 5.841),
    ],
)
def test_t_quantiles(p: float, df: int, value: float) -> None:
    assert stats.t_quantile(p, df) == pytest.approx(value, rel=3e-4)


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([2.0, 8.0], 4.0),
        ([5.0], 5.0),
        ([], None),
        ([1.0, None], None),
        ([1.0, 0.0], None),
        ([1.0, math.inf], None),
    ],
)
def test_geomean_is_missing_when_any_value_is(values: list[float | None], mean: float | None) -> None:
    assert stats.geomean(values) == (None if mean is None else pytest.approx(mean))


@pytest.mark.parametrize(
    ("n", "lo", "hi"),  # published ranks of the 95 % sign-test interval
    [(1, 1, 1), (5, 1, 5), (6, 1, 6), (9, 2, 8), (10, 2, 9), (20, 6, 15), (50, 18, 33), (100, 40, 61)],
)
def test_median_interval_ranks(n: int, lo: int, hi: int) -> None:
    samples = [float(v) for v in range(1, n + 1)]
    random.Random(3).shuffle(samples)
    found = stats.median_interval(samples)
    assert (found.lo, found.hi, found.n) == (lo, hi, n) and found.mid == (n + 1) / 2


def test_trimmed_interval_ignores_a_fifth_of_wild_pairs() -> None:
    calm = [0.1 + 0.001 * (i % 5) for i in range(20)]
    wild = [*calm[:16], 5.0, -4.0, 9.0, -9.0]
    assert abs(stats.paired_interval(wild).mid - stats.paired_interval(calm).mid) < 0.002
    assert stats.paired_interval(wild).lo > 0.09


def test_workloads_are_averaged_pair_by_pair() -> None:
    assert stats.aggregate([[0.1, 0.2, 0.9], [0.3, 0.4]]) == pytest.approx([0.2, 0.3])
    assert stats.aggregate([]) == []


@pytest.mark.parametrize(
    ("low", "high", "schedule"),
    [(5, 40, (5, 8, 12, 18, 27, 40)), (5, 5, (5,)), (3, 7, (3, 5, 7)), (0, 0, (2,)), (10, 4, (10,))],
)
def test_looks(low: int, high: int, schedule: tuple[int, ...]) -> None:
    assert stats.looks(low, high) == schedule


@pytest.mark.parametrize(
    ("value", "spread", "n", "final", "verdict"),
    [
        (0.10, 0.001, 5, False, "keep"),
        (0.10, 0.001, 4, False, "continue"),  # not a look
        (0.00, 0.001, 5, False, "accept"),  # a clear tie stops early
        (-0.3, 0.001, 5, False, "revert"),
        (0.05, 0.100, 5, False, "continue"),
        (0.05, 0.100, 5, True, "accept"),  # the time is up
        (0.05, 0.500, 40, False, "accept"),  # all pairs used, not proven
        (0.05, 0.500, 41, False, "accept"),
    ],
)
def test_sequential_decision(value: float, spread: float, n: int, final: bool, verdict: str) -> None:
    values = [value + spread * (1 if i % 2 else -1) for i in range(n)]
    assert stats.decide_pairs([values, values], 0.02, final=final).verdict == verdict


def test_no_pairs_decide_nothing() -> None:
    assert stats.decide_pairs([], 0.02).verdict == "continue"
    assert stats.decide_pairs([[], []], 0.02, final=True).verdict == "revert"


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=60), st.floats(0, 0.3))
def test_a_keep_has_its_interval_above_the_margin(values: list[float], margin: float) -> None:
    decision = stats.decide_pairs([values], margin)
    interval = decision.interval
    assert interval.lo <= interval.mid <= interval.hi
    assert (decision.verdict == "keep") <= (interval.lo > math.log1p(margin))


# --- error rates


def quiet(rng: random.Random) -> float:
    """A GPU with fixed clocks: 0.4 % per pair."""
    return rng.gauss(0, 0.004)


def busy(rng: random.Random) -> float:
    """A shared CPU with a compile beside: 5 % per pair, a quarter of the pairs disturbed by 25 % on one side."""
    disturbed = rng.random() < 0.25
    return rng.gauss(0, 0.05) + disturbed * rng.choice((-1, 1)) * rng.expovariate(4)


def heavy(rng: random.Random) -> float:
    """Student's t with two degrees of freedom: no variance at all."""
    return 0.03 * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1, 1))


def trial(
    rng: random.Random, noise: Callable[[random.Random], float], gain: float, margin: float, *, child: float = 0.0
) -> bool:
    """One keep decision, confirmation included, each on a fresh pair of children with its own fixed bias."""
    for _ in range(2):
        bias = gain + rng.gauss(0, child)
        pairs: list[list[float]] = [[], [], []]
        while True:
            for workload in pairs:
                workload.append(bias + noise(rng))
            decision = stats.decide_pairs(pairs, margin)
            if decision.verdict != "continue":
                break
        if decision.verdict != "keep":
            return False
    return True


@pytest.mark.parametrize(("noise", "margin"), [(quiet, 0.01), (busy, 0.02), (heavy, 0.02)])
def test_identical_kernels_are_never_kept(noise: Callable[[random.Random], float], margin: float) -> None:
    rng = random.Random(20)
    assert sum(trial(rng, noise, 0.0, margin) for _ in range(300)) == 0


def test_children_that_differ_for_life_are_covered_by_the_measured_noise_floor() -> None:
    rng, kept, margins = random.Random(21), 0, []
    for _ in range(300):
        floor = stats.noise_floor([rng.gauss(0, 0.01) for _ in range(6)])
        margins.append(max(0.02, floor))
        kept += trial(rng, quiet, 0.0, margins[-1], child=0.01)
    assert kept == 0
    assert 0.02 <= sorted(margins)[150] < 0.04  # about three standard deviations, not an unusable bar


def test_scatter_within_a_pair_is_not_counted_twice() -> None:
    """On a busy box the floor stays usable: the intervals of the decisions cover the blocks' scatter already."""
    rng, floors, kept, gained = random.Random(24), [], 0, 0
    for _ in range(150):
        pairs = [[sum(busy(rng) for _ in range(3)) / 3 for _ in range(12)] for _ in range(8)]
        mids = [stats.paired_interval(p).mid for p in pairs]
        floors.append(stats.noise_floor(mids, [stats.standard_error(p) for p in pairs]))
        assert floors[-1] <= stats.noise_floor(mids)
        margin = max(0.02, floors[-1])
        kept += trial(rng, busy, 0.0, margin)
        gained += trial(rng, busy, math.log1p(0.10), margin)
    assert kept == 0 and gained >= 130
    assert sorted(floors)[75] < 0.04


@pytest.mark.parametrize(
    ("noise", "gain", "margin"),
    [(quiet, 0.03, 0.01), (busy, 0.10, 0.02), (heavy, 0.10, 0.02)],
)
def test_true_gains_are_kept(noise: Callable[[random.Random], float], gain: float, margin: float) -> None:
    rng = random.Random(22)
    kept = sum(trial(rng, noise, math.log1p(gain), margin) for _ in range(200))
    assert kept >= 190


def test_a_gain_of_exactly_the_margin_is_kept_no_more_often_than_the_level_says() -> None:
    rng = random.Random(23)
    once = 0
    for _ in range(400):
        pairs: list[list[float]] = [[]]
        while True:
            pairs[0].append(math.log1p(0.02) + quiet(rng))
            decision = stats.decide_pairs(pairs, 0.02)
            if decision.verdict != "continue":
                break
        once += decision.verdict == "keep"
    assert once <= 20  # 2.5 % of 400 is 10; P(> 20) is about 0.002


@pytest.mark.parametrize("k", [0, 3])
def test_a_noise_floor_needs_four_pairs(k: int) -> None:
    with pytest.raises(ValueError, match="at least 4"):
        stats.noise_floor([0.01] * k)


def test_noise_floor_value() -> None:
    assert stats.noise_floor([0.01, -0.01, 0.01, -0.01]) == pytest.approx(math.expm1(3.747 * 0.01), rel=1e-3)
    assert stats.noise_floor([0.0] * 4) == 0.0
    raw = stats.noise_floor([0.02] * 4)
    assert stats.noise_floor([0.02] * 4, [0.0] * 4) == raw
    assert stats.noise_floor([0.02] * 4, [9.0] * 4) == pytest.approx(raw * 0.3, rel=0.03)  # never nothing
    assert math.isinf(stats.standard_error([0.1]))


# --- the outside cross-check


@pytest.mark.parametrize(
    ("claimed", "wall_k", "wall_2k", "k", "overhead", "bound", "suspect", "weak"),
    [
        (1.0, 100.0, 200.0, 100, 0.0, None, False, False),
        (1.0, 100.0, 209.0, 100, 0.0, None, False, False),  # within 10 %
        (1.0, 100.0, 212.0, 100, 0.0, None, True, False),
        (1.0, 100.0, 212.0, 100, 0.05, None, False, False),  # explained by the measured overhead
        (0.001, 100.0, 200.0, 100, 0.0, None, True, True),  # claims a microsecond, takes a millisecond
        (0.001, 0.5, 0.9, 100, 0.0, None, False, True),  # 4 µs a call: below 5 µs of excess nothing is said
        (1.0, 100.0, 200.0, 100, 0.0, 1.2, False, False),
        (1.0, 100.0, 200.0, 100, 0.0, 1.3, True, False),  # faster than 0.8 × the bound
    ],
)
def test_claimed_time_against_the_parents_clock(
    claimed: float,
    wall_k: float,
    wall_2k: float,
    k: int,
    overhead: float,
    bound: float | None,
    suspect: bool,
    weak: bool,
) -> None:
    check = stats.check_timing(claimed, wall_k, wall_2k, k, overhead_ms=overhead, bound_ms=bound)
    assert (check.suspect, check.weak) == (suspect, weak)


def test_one_disturbed_run_is_no_proof() -> None:
    good = stats.check_timing(1.0, 100, 200, 100)
    bad = stats.check_timing(1.0, 100, 250, 100)
    impossible = stats.check_timing(1.0, 100, 200, 100, bound_ms=2.0)
    assert not stats.timing_is_forged(good, bad) and not stats.timing_is_forged(bad, good)
    assert stats.timing_is_forged(bad, bad) and stats.timing_is_forged(impossible, impossible)
    assert not stats.timing_is_forged(impossible, good), "a clock that sees well enough has cleared it"
