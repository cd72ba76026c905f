"""What is written down of a judged candidate: length-capped, cleaned, without anything unmeasured. Pure."""

from __future__ import annotations

import math

import msgspec

from engine.guard.keep import Decision
from engine.problems.solution import solution_sha
from engine.profile.sanitize import Sanitized
from engine.proposers.base import Context, PastCandidate, Proposal, UnusableReply
from engine.records import WALL, Evaluation, Outcome
from engine.text import clean, one_line

DETAIL_LIMIT = 2000
HYPOTHESIS_LIMIT = 600
FAMILY_LIMIT = 80
AHEAD = 0.999  # of the best that it has beaten, where the reference says that a KEEP gained nothing


def with_findings(evaluation: Evaluation, found: Sanitized) -> Evaluation:
    """The evaluation with what compute-sanitizer said; an error of the candidate's own kernels fails it."""
    evaluation = msgspec.structs.replace(
        evaluation,
        notes=[*evaluation.notes, *found.notes],
        evidence={**evaluation.evidence, **found.evidence},
    )
    if not found.reason:
        return evaluation
    return msgspec.structs.replace(evaluation, verdict="FAIL", reason=found.reason, detail=found.detail)


def comparable_ms(
    evaluation: Evaluation, best_ms: float | None, reference_ms: float, *, kept: bool
) -> float | None:
    """The latency by which candidates are ranked and shown, geometric mean over workloads, milliseconds.

    On a GPU it is the measured one. Wall times of different evaluations are not comparable, because a CPU is busy
    now and idle then: there the paired ratio to the best counts (``best_ms``: what the best was shown with), and a
    KEEP's ratio to the reference, so that the order by time is the order by speed-up, also between agents. One
    that this would put behind the best that it has beaten is just ahead of it, and no further: by the ratio to its
    own best it would pass KEEPs of other agents that are faster than it.
    """
    if evaluation.timer != WALL or evaluation.comparison is None or best_ms is None:
        return evaluation.latency_ms
    if evaluation.geomean_speedup is None or not kept:
        return best_ms * math.exp(-evaluation.comparison.log_ratio)
    return min(reference_ms / evaluation.geomean_speedup, best_ms * AHEAD)


def past_of(
    reply: Proposal | UnusableReply,
    context: Context,
    decision: Decision,
    evaluation: Evaluation | None,
    *,
    best_ms: float | None,
    reference_ms: float,
) -> PastCandidate:
    """The candidate as its own agent remembers it; the number comes with the commit."""
    passed = evaluation is not None and evaluation.verdict == "PASS"
    comparison = evaluation.comparison if evaluation is not None and passed else None
    proposal = reply if isinstance(reply, Proposal) else None
    return PastCandidate(
        number=0,
        position=context.position,
        mode=context.mode,
        strategy=one_line(reply.strategy or context.strategy, FAMILY_LIMIT),
        family=one_line(proposal.family, FAMILY_LIMIT) if proposal else "",
        parameters=proposal.parameters if proposal else {},
        outcome=decision.outcome,
        reason=decision.reason,
        detail=clean(decision.detail, DETAIL_LIMIT),
        latency_ms=comparable_ms(evaluation, best_ms, reference_ms, kept=decision.outcome is Outcome.KEEP)
        if evaluation is not None and passed
        else None,
        log_ratio=comparison.log_ratio if comparison else None,
        source_sha=solution_sha(proposal.solution) if proposal else "",
        hypothesis=one_line(proposal.hypothesis, HYPOTHESIS_LIMIT) if proposal else "",
    )
