"""How close a measured time is to what the hardware allows: bounds and scores by workload. Pure.

A score says what it rests on: its bound (published with the problem, or our own roofline) and its baseline
(published, or the reference as it was measured here). One workload without a bound, and there is no score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from engine.hardware.peaks import find_peaks
from engine.hardware.roofline import bounds, file_bounds, sol_score
from engine.problems.model import Problem
from engine.records import Evaluation, WorkloadResult
from engine.tracing.graph import TraceGraph

FILE, ROOFLINE, EAGER = "file", "roofline", "eager"


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds by workload uuid: the bound, and the time that scores one half."""

    bound_ms: dict[str, float] = {}
    baseline_ms: dict[str, float] = {}
    bound: str | None = None  # file | roofline
    baseline: str | None = None  # file | eager


def scale_for(
    problem: Problem, device_name: str, graphs: Mapping[str, TraceGraph], measured: Sequence[WorkloadResult]
) -> Scale:
    """What this campaign is graded by. ``measured`` are the seed's results, with the reference's latencies.

    Empty on a device of unknown peaks: an unknown bound is never guessed.
    """
    published = file_bounds(problem, device_name)
    wanted = [workload.uuid for workload in problem.workloads]
    eager = {r.uuid: r.reference_latency_ms for r in measured if r.reference_latency_ms is not None}
    if published and all(uuid in published for uuid in wanted):
        bound_ms, bound = {uuid: published[uuid].sol_ms for uuid in wanted}, FILE
        theirs = {u: p.baseline_ms for u in wanted if (p := published[u]).baseline_ms is not None}
        if len(theirs) == len(wanted):
            return Scale(bound_ms=bound_ms, baseline_ms=theirs, bound=bound, baseline=FILE)
        return Scale(bound_ms=bound_ms, baseline_ms=eager, bound=bound, baseline=EAGER)
    if find_peaks(device_name) is None or not graphs:
        return Scale()
    bound_ms = {b.uuid: b.bound_ms for b in bounds(problem, device_name, graphs) if b.bound_ms > 0}
    return Scale(bound_ms=bound_ms, baseline_ms=eager, bound=ROOFLINE, baseline=EAGER) if bound_ms else Scale()


def graded(evaluation: Evaluation, scale: Scale) -> Evaluation:
    """The evaluation with the bound and score of every workload, and their mean if every one has a score."""
    if not scale.bound_ms:
        return evaluation
    workloads = [_graded_result(result, scale) for result in evaluation.workloads]
    return msgspec.structs.replace(evaluation, workloads=workloads, sol_score=mean_score(workloads))


def graded_all(results: Sequence[WorkloadResult], scale: Scale) -> list[WorkloadResult]:
    return [_graded_result(result, scale) for result in results]


def mean_score(workloads: Sequence[WorkloadResult]) -> float | None:
    """The arithmetic mean of the workloads' clamped scores; ``None`` if one has none."""
    scores = [result.sol_score for result in workloads]
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known and len(known) == len(scores) else None


def _graded_result(result: WorkloadResult, scale: Scale) -> WorkloadResult:
    bound, baseline = scale.bound_ms.get(result.uuid), scale.baseline_ms.get(result.uuid)
    score = None
    if bound and baseline and result.latency_ms is not None and result.latency_ms > 0:
        score = sol_score(result.latency_ms, baseline, bound).value
    return msgspec.structs.replace(result, roofline_ms=bound, sol_score=score)
