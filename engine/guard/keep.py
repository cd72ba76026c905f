"""The keep rule: from a measured evaluation to an outcome. Pure.

KEEP iff the 95 % interval of the paired log-ratio ln(best / candidate) lies above ln(1 + margin), where the
margin is the configured one or the measured A/A noise (of device and problem; on a GPU of the two kernels),
whichever is larger; a first KEEP is provisional until a fresh pair of children repeats it. ACCEPT iff the
candidate is correct and the *point estimate* of the log-ratio is above -ln(1 + 2 x margin): the near-best band is
judged by the point, because with a wide interval an interval rule would either accept everything or nothing, and
an ACCEPT changes no best. REVERT otherwise.
"""

from __future__ import annotations

import math

import msgspec

from engine.records import Comparison, Evaluation, Outcome

BAND = 2.0  # near-best band, in margins
BEYOND_NOISE = 1.0
"""A gain from which on a kernel's own noise is not asked for: it was never seen above 0.87, and that of an eager
reference of a hundred launches (H200)."""
UNKNOWN_NOISE = 0.25
"""What a kernel of several launches may scatter by on a GPU: near its best is twice that while none is known."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome and why. ``correct``: every workload passed, whatever the speed (a draft line builds on it)."""

    outcome: Outcome
    reason: str = ""
    detail: str = ""
    correct: bool = False
    margin: float = 0.0  # the one in force, as a fraction


def effective_margin(margin: float, noise: float | None) -> float:
    """The configured margin, never below the measured noise floor (fractions; NaN counts as none)."""
    floor = noise if noise is not None and math.isfinite(noise) else 0.0
    return max(margin, floor, 0.0)


def keep_threshold(margin: float) -> float:
    """The log-ratio that the interval of a KEEP must lie above."""
    return math.log1p(margin)


def accept_threshold(margin: float) -> float:
    """The log-ratio that the point estimate of an ACCEPT must reach."""
    return -math.log1p(BAND * margin)


def decide(evaluation: Evaluation, margin: float, noise: float | None = None, scatter: float = 0.0) -> Decision:
    """The outcome of one evaluation against the agent's best. A KEEP is provisional: see :func:`confirm`.

    ``scatter``: by how much equals may differ, a fraction, where that is more than the noise that is known; it
    widens the near-best band and nothing else.

    ``margin`` and ``noise`` are fractions (0.02 is 2 %). ``evaluation.comparison.noise`` counts too, so a bench
    that measured more noise now than was known raises the bar, never lowers it.
    """
    early = _not_a_pass(evaluation)
    if early is not None:
        return early
    comparison = evaluation.comparison
    if comparison is None or not _finite(comparison):
        return Decision(
            outcome=Outcome.ERROR,
            reason="fault.no-comparison",
            detail="the bench returned a PASS without a finite comparison against the best",
        )
    bar = effective_margin(margin, max(noise or 0.0, comparison.noise))
    return _by_speed(comparison, bar, max(bar, scatter))


def confirm(first: Decision, evaluation: Evaluation, margin: float, noise: float | None = None) -> Decision:
    """The final word on a provisional KEEP, from a confirmation in fresh children with ten rounds.

    Only a KEEP is confirmed; any other ``first`` comes back unchanged. A confirmation that fails correctness is a
    REVERT with its own reason; one that does not repeat the gain leaves at most an ACCEPT.
    """
    if first.outcome is not Outcome.KEEP:
        return first
    again = decide(evaluation, max(margin, first.margin), noise)
    if again.outcome in (Outcome.KEEP, Outcome.ERROR) or not again.correct:
        return again
    return msgspec.structs.replace(
        again,
        reason="keep.unconfirmed",
        detail=f"faster in the first measurement, not in the confirmation: {again.detail}",
    )


def beyond_noise(evaluation: Evaluation, noise: float) -> bool:
    """Whether the gain is so clear that no kernel's own noise could explain it; ``noise``: what is known of it."""
    comparison = evaluation.comparison
    return comparison is not None and comparison.lo > math.log1p(max(BEYOND_NOISE, 3.0 * noise))


def stopped_early(evaluation: Evaluation, margin: float, noise: float) -> bool:
    """Whether the gain is likely beyond the margin and its interval not: it was measured for a smaller one."""
    comparison = evaluation.comparison
    if evaluation.verdict != "PASS" or comparison is None or not _finite(comparison):
        return False
    bar = keep_threshold(effective_margin(margin, max(noise, comparison.noise)))
    return comparison.lo <= bar < comparison.log_ratio


def regressions(evaluation: Evaluation, margin: float, noise: float | None = None) -> list[str]:
    """A note per workload whose own interval lies below the best's by the margin: a KEEP may still be one."""
    bar = effective_margin(margin, noise)
    notes = []
    for workload in evaluation.workloads:
        interval = workload.log_ratio_ci
        if interval is not None and interval[1] < -math.log1p(bar):
            slower = math.expm1(-(workload.log_ratio if workload.log_ratio is not None else interval[1]))
            notes.append(f"workload {workload.uuid}: {slower:.1%} slower than the best")
    return notes


def _not_a_pass(evaluation: Evaluation) -> Decision | None:
    verdict = evaluation.verdict
    if verdict == "PASS":
        return None
    outcome = {"REJECT": Outcome.REJECT, "FAIL": Outcome.REVERT}.get(verdict, Outcome.ERROR)
    return Decision(outcome=outcome, reason=evaluation.reason, detail=evaluation.detail)


def _by_speed(comparison: Comparison, bar: float, band: float) -> Decision:
    ratio = comparison.log_ratio
    text = (
        f"latency {_percent(ratio)} against the best "
        f"(95 % interval {_percent(comparison.hi)} to {_percent(comparison.lo)}, margin {bar:.1%})"
    )
    if comparison.lo > keep_threshold(bar):
        return Decision(outcome=Outcome.KEEP, detail=text, correct=True, margin=bar)
    if ratio >= accept_threshold(band):
        reason = "keep.unproven" if ratio > keep_threshold(bar) else "keep.near-best"
        return Decision(outcome=Outcome.ACCEPT, reason=reason, detail=text, correct=True, margin=bar)
    return Decision(outcome=Outcome.REVERT, reason="keep.slower", detail=text, correct=True, margin=bar)


def _percent(log_ratio: float) -> str:
    """The change of latency in per cent: less (-) is faster."""
    return f"{math.expm1(min(-log_ratio, 50.0)):+.1%}"


def _finite(comparison: Comparison) -> bool:
    values = (comparison.log_ratio, comparison.lo, comparison.hi)
    return all(math.isfinite(v) for v in values) and comparison.lo <= comparison.hi
