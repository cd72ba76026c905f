"""What is written down of a judged candidate: length-capped, cleaned, without anything unmeasured. Pure."""

from __future__ import annotations

import msgspec

from engine.guard.keep import Decision
from engine.problems.solution import solution_sha
from engine.profile.sanitize import Sanitized
from engine.proposers.base import Context, PastCandidate, Proposal, UnusableReply
from engine.records import Evaluation
from engine.text import clean, one_line

DETAIL_LIMIT = 2000
HYPOTHESIS_LIMIT = 600
FAMILY_LIMIT = 80


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


def past_of(
    reply: Proposal | UnusableReply, context: Context, decision: Decision, evaluation: Evaluation | None
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
        latency_ms=evaluation.latency_ms if evaluation is not None and passed else None,
        log_ratio=comparison.log_ratio if comparison else None,
        source_sha=solution_sha(proposal.solution) if proposal else "",
        hypothesis=one_line(proposal.hypothesis, HYPOTHESIS_LIMIT) if proposal else "",
    )
