"""What a measured latency is worth: the bound of each workload and its SOL score. Pure.

A score says what it rests on: its bound (published with the problem, or our own roofline) and its baseline
(published, or the better of the eager and the compiled reference as measured here). One workload without a bound,
and there is no score. The measured ceiling is shown beside the bound and never scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from engine.hardware.ceilings import Ceilings, ceiling_ms
from engine.hardware.peaks import find_peaks
from engine.hardware.roofline import bounds, file_bounds, sol_score
from engine.problems.model import Problem
from engine.records import Evaluation, WorkloadResult
from engine.tracing.graph import TraceGraph

FILE, ROOFLINE, EAGER, COMPILE = "file", "roofline", "eager", "compile"
_NAMED = 5  # workloads below their bound that a note names


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds by workload uuid: the bound, the time that scores one half, the measured ceiling."""

    bound_ms: dict[str, float] = {}
    limit: dict[str, str] = {}  # memory | compute, what sets our own bound
    baseline_ms: dict[str, float] = {}
    ceiling_ms: dict[str, float] = {}
    bound: str | None = None  # file | roofline
    baseline: str | None = None  # file | eager | compile


def scale_for(
    problem: Problem,
    device_name: str,
    graphs: Mapping[str, TraceGraph],
    measured: Sequence[WorkloadResult],
    *,
    compile_ms: Mapping[str, float] | None = None,
    ceilings: Ceilings | None = None,
) -> Scale:
    """What this campaign is graded by. ``measured`` are the seed's results, with the reference's latencies.

    No bound on a device of unknown peaks: an unknown bound is never guessed.
    """
    published = file_bounds(problem, device_name)
    wanted = [workload.uuid for workload in problem.workloads]
    reached = ceiling_ms(problem, graphs, ceilings) if ceilings is not None else {}
    baseline_ms, baseline = _on_the_spot(measured, compile_ms or {})
    if published and all(uuid in published for uuid in wanted):
        theirs = {u: p.baseline_ms for u in wanted if (p := published[u]).baseline_ms is not None}
        if len(theirs) == len(wanted):
            baseline_ms, baseline = theirs, FILE
        bound_ms, limit, bound = {uuid: published[uuid].sol_ms for uuid in wanted}, {}, FILE
    elif find_peaks(device_name) is None or not graphs:
        return Scale(ceiling_ms=reached)
    else:
        known = [b for b in bounds(problem, device_name, graphs) if b.bound_ms > 0]
        bound_ms, limit = {b.uuid: b.bound_ms for b in known}, {b.uuid: b.limit for b in known}
        bound = ROOFLINE
    if not bound_ms:
        return Scale(ceiling_ms=reached)
    return Scale(
        bound_ms=bound_ms,
        limit=limit,
        baseline_ms=baseline_ms,
        ceiling_ms=reached,
        bound=bound,
        baseline=baseline,
    )


def _on_the_spot(
    measured: Sequence[WorkloadResult], compile_ms: Mapping[str, float]
) -> tuple[dict[str, float], str]:
    """The better of eager and torch.compile over all workloads: one of them, so that the label is true."""
    eager = {r.uuid: r.reference_latency_ms for r in measured if r.reference_latency_ms is not None}
    if (
        eager
        and eager.keys() == compile_ms.keys()
        and all(ms > 0 for ms in (*eager.values(), *compile_ms.values()))
    ):
        gain = sum(math.log(eager[uuid] / compile_ms[uuid]) for uuid in eager)
        if gain > 0:
            return dict(compile_ms), COMPILE
    return eager, EAGER


def graded(evaluation: Evaluation, scale: Scale) -> Evaluation:
    """The evaluation with the bound and score of every workload, and their mean if every one has a score."""
    if not scale.bound_ms:
        if not scale.ceiling_ms:
            return evaluation
        return msgspec.structs.replace(evaluation, workloads=graded_all(evaluation.workloads, scale))
    workloads = graded_all(evaluation.workloads, scale)
    notes = [*evaluation.notes, *below_bound(workloads, scale)]
    return msgspec.structs.replace(evaluation, workloads=workloads, sol_score=mean_score(workloads), notes=notes)


def graded_all(results: Sequence[WorkloadResult], scale: Scale) -> list[WorkloadResult]:
    return [_graded_result(result, scale) for result in results]


def below_bound(results: Sequence[WorkloadResult], scale: Scale) -> list[str]:
    """One note if a time lies below its bound: the score is clamped, and something is wrong with either."""
    faster = [
        str(number)
        for number, r in enumerate(results, 1)
        if r.latency_ms is not None and r.roofline_ms is not None and r.latency_ms < r.roofline_ms
    ]
    if not faster:
        return []
    listed = ", ".join(faster[:_NAMED]) + (", …" if len(faster) > _NAMED else "")
    source = "published" if scale.bound == FILE else "roofline"
    return [f"faster than the {source} bound on workload {listed}: scored 1; that bound does not hold here"]


def mean_score(workloads: Sequence[WorkloadResult]) -> float | None:
    """The arithmetic mean of the workloads' clamped scores; ``None`` if one has none."""
    scores = [result.sol_score for result in workloads]
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known and len(known) == len(scores) else None


def geomean_of(values: Sequence[float | None]) -> float | None:
    """The geometric mean, ``None`` unless every value is known and above zero."""
    known = [value for value in values if value is not None and value > 0]
    return math.exp(sum(map(math.log, known)) / len(known)) if known and len(known) == len(values) else None


def _graded_result(result: WorkloadResult, scale: Scale) -> WorkloadResult:
    bound, baseline = scale.bound_ms.get(result.uuid), scale.baseline_ms.get(result.uuid)
    score = None
    if bound and baseline and result.latency_ms is not None and result.latency_ms > 0:
        score = sol_score(result.latency_ms, baseline, bound).value
    return msgspec.structs.replace(
        result, roofline_ms=bound, ceiling_ms=scale.ceiling_ms.get(result.uuid), sol_score=score
    )
