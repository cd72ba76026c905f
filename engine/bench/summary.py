"""From the raw material of a trial to an :class:`Evaluation`. Pure."""

from __future__ import annotations

import math
from statistics import fmean, median
from typing import TYPE_CHECKING

import msgspec

from engine.bench.reasons import status_of
from engine.bench.stats import geomean, median_interval, paired_interval
from engine.hardware.roofline import sol_score
from engine.records import Comparison, Evaluation, WorkloadResult
from engine.text import clean

if TYPE_CHECKING:
    from engine.bench.evaluation import Trial


def summarize(trial: Trial, reason: str) -> Evaluation:
    """Aggregates are ``None`` as soon as one workload failed. Verdict, reason and times are the caller's."""
    rows = [_row(trial, workload) for workload in sorted(trial.results)]
    complete = bool(rows) and not reason and all(row.status == "PASSED" for row in rows)
    return Evaluation(
        verdict="",
        workloads=rows,
        latency_ms=geomean([row.latency_ms for row in rows]) if complete else None,
        geomean_speedup=geomean([row.speedup for row in rows]) if complete else None,
        sol_score=_mean([row.sol_score for row in rows]) if complete else None,
        comparison=_comparison(trial) if complete else None,
        timer=trial.candidate.timer or "wall",
        notes=list(dict.fromkeys([*trial.notes, *(note for r in trial.results.values() for note in r.notes)])),
        evidence=_evidence(trial),
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _row(trial: Trial, workload: int) -> WorkloadResult:
    result, bound = trial.results[workload], trial.session.bound_of(workload)
    row = WorkloadResult(
        roofline_ms=None if bound is None else bound.roofline_ms,
        uuid=trial.session.specs[workload].uuid,
        status=status_of(result.reason),
        reason=result.reason,
        detail=clean(result.detail, 600),
        max_abs_error=_finite(result.max_abs_error),
        max_rel_error=_finite(result.max_rel_error),
    )
    if result.reason or trial.timing is None:
        return row
    return _timed(trial, workload, row)


def _timed(trial: Trial, workload: int, row: WorkloadResult) -> WorkloadResult:
    assert trial.timing is not None
    blocks = {role: by_workload[workload] for role, by_workload in trial.timing.blocks.items()}
    if not blocks["candidate"]:
        return row
    interval = median_interval([block.mean_ms for block in blocks["candidate"]])
    row = msgspec.structs.replace(row, latency_ms=interval.mid, latency_ci=(interval.lo, interval.hi))
    if "incumbent" in blocks:
        pairs = paired_interval(trial.timing.log_ratios("incumbent", [workload])[0])
        row = msgspec.structs.replace(row, log_ratio=pairs.mid, log_ratio_ci=(pairs.lo, pairs.hi))
    if "reference" in blocks:
        ratios = trial.timing.log_ratios("reference", [workload])[0]
        baseline = median(block.mean_ms for block in blocks["reference"])
        row = msgspec.structs.replace(row, reference_latency_ms=baseline, speedup=math.exp(median(ratios)))
        if row.roofline_ms and row.latency_ms:
            score = sol_score(row.latency_ms, baseline, row.roofline_ms)
            row = msgspec.structs.replace(row, sol_score=score.value)
    return row


def _comparison(trial: Trial) -> Comparison | None:
    if trial.timing is None or trial.timing.decision is None:
        return None
    interval = trial.timing.decision.interval
    return Comparison(
        log_ratio=interval.mid,
        lo=interval.lo,
        hi=interval.hi,
        pairs=interval.n,
        against=trial.rivals[0].role,
    )


def _evidence(trial: Trial) -> dict[str, object]:
    evidence: dict[str, object] = dict(trial.evidence)
    evidence["isolation"] = dict(trial.session.layers)
    evidence["seeds"] = {trial.session.specs[w].uuid: result.seeds for w, result in trial.results.items()}
    if trial.timing is not None:
        if trial.session.on_gpu:
            evidence["clocks"] = {
                "watch": trial.session.clocks.state,
                "pairs_discarded": trial.timing.discarded,
                "kept_although": trial.timing.clock_notes[:20],
            }
        evidence["samples_ns"] = {
            trial.session.specs[w].uuid: {
                role: [block.claimed_ns for block in by_workload.get(w, [])]
                for role, by_workload in trial.timing.blocks.items()
            }
            for w in trial.results
        }
    return evidence


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
