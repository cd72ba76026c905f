"""Statistics of timing: medians with intervals, paired log-ratios, the sequential decision, the noise floor. Pure.

The unit of evidence is a *pair*: one short block of calls of the incumbent and one of the candidate, next to each
other in random order, reduced to ``ln(incumbent / candidate)`` of their times per call, per workload (> 0: the
candidate is faster). A block's time is its mean, not its median: who moves the work of many calls into one must
not gain by it. Pairs cancel what both sides share (clock, temperature, neighbours). Over workloads a pair is
averaged, which is the geometric mean of the ratios.

The interval of the mean pair is Student's t below 12 pairs and Yuen's 20 % trimmed-mean interval from 12 on. In
simulation, with a quarter of the pairs disturbed as by a compile running beside, t alone kept a true 10 % gain in
70 of 100 trials and the hybrid in 99; trimming wastes power below 12 pairs, and a signed-rank interval cannot
reach the level at 5. Under heavy tails both err towards wider intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, median, variance

import msgspec

TRIM = 0.2
TRIM_FROM = 12  # pairs
LOOK_GROWTH = 1.5
_POCOCK = {
    1: 0.05,
    2: 0.0294,
    3: 0.0221,
    4: 0.0182,
    5: 0.0158,
    6: 0.0142,
    7: 0.0130,
    8: 0.0120,
    9: 0.0112,
    10: 0.0106,
}
_SMALL_SAMPLE = 0.85  # nominal levels are multiplied by it: the normal-theory levels are a little too bold for t
NOISE_LEVEL = 0.99
_LEAST_LEFT = 0.3
NOISE_PAIRS = 4  # fewest A/A child pairs that a floor can be estimated from


class Interval(msgspec.Struct, frozen=True):
    """A location with its two-sided interval, from ``n`` values."""

    mid: float
    lo: float
    hi: float
    n: int


class PairDecision(msgspec.Struct, frozen=True, kw_only=True):
    """``verdict``: continue, keep, accept or revert. ``interval`` has 95 % coverage over all looks together."""

    verdict: str
    interval: Interval
    margin: float
    look: int  # index of this look, from 1; 0 between looks


# --- quantiles


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8, modified Lentz)."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / ((1.0 - (a + b) * x / (a + 1.0)) or tiny)
    result = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + term / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1.0) < 1e-12:
            break
    return result


def _t_upper_tail(t: float, df: float) -> float:
    """P(T > t) for t ≥ 0."""
    a, b, x = df / 2.0, 0.5, df / (df + t * t)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return 0.5 * front * _beta_fraction(a, b, x) / a
    return 0.5 * (1.0 - front * _beta_fraction(b, a, 1.0 - x) / b)


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """The ``p`` quantile (0.5 < p < 1) of Student's t with ``df`` > 0 degrees of freedom."""
    if not 0.5 < p < 1.0 or df <= 0:
        raise ValueError(f"need 0.5 < p < 1 and df > 0, got p={p}, df={df}")
    low, high = 1e-9, 2.0
    while _t_upper_tail(high, df) > 1.0 - p:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        if _t_upper_tail(middle, df) > 1.0 - p:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


# --- single samples


def geomean(values: Sequence[float | None]) -> float | None:
    """Geometric mean; ``None`` if empty or if any value is missing, not finite or not positive."""
    if not values:
        return None
    total = 0.0
    for value in values:
        if value is None or not math.isfinite(value) or value <= 0:
            return None
        total += math.log(value)
    return math.exp(total / len(values))


def median_interval(samples: Sequence[float], level: float = 0.95) -> Interval:
    """Median with the exact distribution-free interval from order statistics.

    The ranks come from the binomial distribution, so nothing is assumed about the shape and nothing is random.
    Fewer than six samples cannot reach 95 %: then the interval is their range, whose coverage is 1 - 2^(1-n).
    Raises ``ValueError`` on no samples.
    """
    n = len(samples)
    if n == 0:
        raise ValueError("no samples")
    ordered = sorted(samples)
    tail, rank, cumulative = (1.0 - level) / 2.0, 0, 0.0
    log_half_n = -n * math.log(2.0)
    while rank < n // 2:
        log_choose = math.lgamma(n + 1) - math.lgamma(rank + 1) - math.lgamma(n - rank + 1)
        cumulative += math.exp(log_choose + log_half_n)
        if cumulative > tail:
            break
        rank += 1
    lower = max(rank - 1, 0)
    return Interval(median(ordered), ordered[lower], ordered[n - 1 - lower], n)


# --- pairs


def aggregate(log_ratios: Sequence[Sequence[float]]) -> list[float]:
    """One value per pair: the mean over workloads. Workloads with more pairs than others lose the last ones."""
    if not log_ratios:
        return []
    return [fmean(row) for row in zip(*log_ratios, strict=False)]


def paired_interval(values: Sequence[float], alpha: float = 0.05) -> Interval:
    """Location of the pairs with its two-sided ``1 - alpha`` interval: t below 12 pairs, Yuen's from 12 on.

    Yuen (1974): the trimmed mean, with the winsorised standard deviation and h - 1 degrees of freedom, h being
    what trimming leaves. One pair has an infinite interval. Raises ``ValueError`` on none.
    """
    n = len(values)
    if n == 0:
        raise ValueError("no pairs")
    ordered = sorted(values)
    cut = int(TRIM * n) if n >= TRIM_FROM else 0
    mid = fmean(ordered[cut : n - cut])
    if n == 1:
        return Interval(mid, -math.inf, math.inf, 1)
    winsorised = [ordered[cut]] * cut + ordered[cut : n - cut] + [ordered[n - 1 - cut]] * cut
    centre = fmean(winsorised)
    spread = sum((v - centre) ** 2 for v in winsorised)
    left = n - 2 * cut
    half = t_quantile(1.0 - alpha / 2.0, left - 1) * math.sqrt(spread / (left * (left - 1)))
    return Interval(mid, mid - half, mid + half, n)


def looks(min_pairs: int, max_pairs: int) -> tuple[int, ...]:
    """Numbers of pairs at which the sequential test may stop: from min to max, each 1.5 times the last."""
    first = max(2, min_pairs)
    last = max(first, max_pairs)
    schedule = [first]
    while schedule[-1] < last and len(schedule) < max(_POCOCK):
        schedule.append(min(last, math.ceil(schedule[-1] * LOOK_GROWTH)))
    schedule[-1] = last
    return tuple(schedule)


def look_alpha(count: int) -> float:
    """Two-sided nominal level of each of ``count`` looks that leaves 5 % for all of them (Pocock's boundary)."""
    return _POCOCK[min(max(count, 1), max(_POCOCK))] * (_SMALL_SAMPLE if count > 1 else 1.0)


def decide_pairs(
    log_ratios: Sequence[Sequence[float]],
    margin: float,
    *,
    min_pairs: int = 5,
    max_pairs: int = 40,
    final: bool = False,
) -> PairDecision:
    """Whether the pairs so far settle the question. ``log_ratios``: per workload, one value per pair.

    At each look of :func:`looks` the interval at Pocock's nominal level is compared with ln(1 + margin): above
    it, keep; below it, a KEEP is excluded and the point estimate says accept (≥ -ln(1 + 2 x margin)) or revert.
    Between looks the answer is continue, so extra peeks cost no error. ``final`` (the time is up) decides at once.
    The interval that comes back is the one the decision used: over all looks together it covers 95 %.
    """
    values = aggregate(log_ratios)
    schedule = looks(min_pairs, max_pairs)
    alpha = look_alpha(len(schedule))
    if not values:
        nothing = Interval(0.0, -math.inf, math.inf, 0)
        return PairDecision(verdict="revert" if final else "continue", interval=nothing, margin=margin, look=0)
    interval = paired_interval(values, alpha)
    n = len(values)
    over = n >= schedule[-1] or final
    if n not in schedule and not over:
        return PairDecision(verdict="continue", interval=interval, margin=margin, look=0)
    look = sum(1 for at in schedule if at <= n)
    bar = math.log1p(margin)
    if interval.lo > bar:
        verdict = "keep"
    elif interval.hi < bar or over:
        verdict = "accept" if interval.mid >= -math.log1p(2.0 * margin) else "revert"
    else:
        verdict = "continue"
    return PairDecision(verdict=verdict, interval=interval, margin=margin, look=look)


def standard_error(values: Sequence[float]) -> float:
    """Of the location that :func:`paired_interval` reports; infinite for one pair."""
    interval = paired_interval(values)
    cut = int(TRIM * interval.n) if interval.n >= TRIM_FROM else 0
    if interval.n - 2 * cut < 2:
        return math.inf
    return (interval.hi - interval.lo) / 2.0 / t_quantile(0.975, interval.n - 2 * cut - 1)


def noise_floor(aa_log_ratios: Sequence[float], standard_errors: Sequence[float] | None = None) -> float:
    """The A/A noise of a device and problem, as a fraction: no KEEP is decided on less.

    Each value is the aggregate log-ratio of one *fresh pair of children* running the same kernel, because what
    makes identical kernels differ is mostly fixed for a child's life (page placement, clocks, neighbours) and
    cannot be seen within a pair. Their expectation is zero, so with root mean square s over k pairs the next pair
    stays within t(0.99, k)·s in 98 % of cases.

    ``standard_errors``, one per value, say how much of s is only the scatter of blocks within a pair: every
    decision's own interval covers that already. It is taken off, but never more than leaves 0.3·s. Without this, a
    floor from five noisy blocks a pair was 14 % on a busy box and no gain of 10 % was ever kept; with it, and
    twelve blocks, 95 of 100 were, and none of 600 identical kernels.

    Raises ``ValueError`` on fewer than four values.
    """
    k = len(aa_log_ratios)
    if k < NOISE_PAIRS:
        raise ValueError(f"need at least {NOISE_PAIRS} A/A pairs, got {k}")
    square = fmean([v * v for v in aa_log_ratios])
    within = fmean([e * e for e in standard_errors]) if standard_errors else 0.0
    left = max(square - within, _LEAST_LEFT**2 * square)
    return math.expm1(t_quantile(NOISE_LEVEL, k) * math.sqrt(left))


def process_noise_floor(rounds: Sequence[Sequence[float]]) -> float:
    """The A/A noise from a panel: ``rounds[p]`` are the log-times of process p, one a round, all the same kernel.

    One-way analysis of variance: the variance of the process means, less what the scatter of rounds contributes
    to it (never more than leaves 0.3 of the standard deviation, as in :func:`noise_floor`), is that of a process's
    own effect s². Two processes differ by √2·s; t(0.99, m - 1) of it are exceeded in 2 % of pairs.

    Raises ``ValueError`` on fewer than three processes or two rounds.
    """
    m = len(rounds)
    if m < 3 or min(len(row) for row in rounds) < 2:
        raise ValueError("need at least three processes and two rounds")
    square = variance([fmean(row) for row in rounds])
    within = fmean([variance(row) / len(row) for row in rounds])
    left = max(square - within, _LEAST_LEFT**2 * square)
    return math.expm1(t_quantile(NOISE_LEVEL, m - 1) * math.sqrt(2.0 * left))


# --- the outside cross-check of a claimed time


class TimingCheck(msgspec.Struct, frozen=True, kw_only=True):
    """``suspect``: this run contradicts the claim. ``weak``: too short to be checked well from outside."""

    suspect: bool
    weak: bool
    slope_ms: float
    excess_ms: float  # slope - claimed - overhead
    allowed_ms: float
    below_bound: bool  # the claim is below what is possible, and no clock says that it is true all the same


WEAK_BELOW_MS = 0.010
_MIN_EXCESS_MS = 0.005
POSSIBLE_SHARE = 0.8  # of the lower bound: peaks are datasheets', and clocks go a little beyond them


def check_timing(
    claimed_ms: float,
    wall_k_ms: float,
    wall_2k_ms: float,
    k: int,
    *,
    overhead_ms: float = 0.0,
    bound_ms: float | None = None,
) -> TimingCheck:
    """One run of the parent's own clock over k and over 2k calls against the time claimed per call.

    ``overhead_ms`` per call is what the same measurement says of a no-op in the same kind of child.
    """
    if k < 1:
        raise ValueError("k must be at least 1")
    slope = (wall_2k_ms - wall_k_ms) / k
    excess = slope - claimed_ms - overhead_ms
    allowed = max(0.10 * claimed_ms, _MIN_EXCESS_MS)
    below = bound_ms is not None and claimed_ms < POSSIBLE_SHARE * bound_ms
    return TimingCheck(
        suspect=excess > allowed or below,
        weak=claimed_ms < WEAK_BELOW_MS,
        slope_ms=slope,
        excess_ms=excess,
        allowed_ms=allowed,
        below_bound=below,
    )


def timing_is_forged(first: TimingCheck, second: TimingCheck) -> bool:
    """Both runs contradict the claim, be it by the clock or, where the clock is blind, by the lower bound."""
    return first.suspect and second.suspect
