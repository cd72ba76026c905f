"""From raw outputs to a finding: the comparator's answer in the bench's reason codes (imports torch)."""

from __future__ import annotations

import torch

from engine.bench.judge_wire import Finding
from engine.problems.model import Problem


def judge_call(
    problem: Problem, workload: int, outputs: list[torch.Tensor], expected: list[torch.Tensor]
) -> Finding:
    tolerance = problem.workloads[workload].tolerance
    worst_abs = worst_rel = 0.0
    for name, out, ref in zip(problem.definition.outputs, outputs, expected, strict=True):
        o, r = out.float(), ref.float()
        if not torch.isfinite(o).all():
            return Finding(reason="wrong.not-finite", detail=f"{name} has NaN or Inf")
        diff = (o - r).abs()
        if diff.numel():
            worst_abs = max(worst_abs, float(diff.max()))
            worst_rel = max(worst_rel, float((diff / r.abs().clamp_min(tolerance.max_atol)).max()))
        miss = (diff > tolerance.max_atol + tolerance.max_rtol * r.abs()).float().mean() if diff.numel() else 0.0
        if 1.0 - float(miss) < tolerance.required_matched_ratio:
            detail = f"{name}: {float(miss):.2%} of the elements differ, largest error {worst_abs:.3g}"
            return Finding(
                reason="wrong.numerical", detail=detail, max_abs_error=worst_abs, max_rel_error=worst_rel
            )
    return Finding(max_abs_error=worst_abs, max_rel_error=worst_rel)
