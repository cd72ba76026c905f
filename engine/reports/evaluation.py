"""``evaluate --json``: the document that other tools rely on."""

from __future__ import annotations

import math
from typing import Any

from engine.problems.model import Problem
from engine.problems.solution import Solution
from engine.records import Evaluation

_PHASES = ("start", "compile", "wait", "correctness", "timing")
_WORKLOAD_KEYS = (
    "uuid", "status", "latency_ms", "latency_ci", "reference_latency_ms", "speedup", "max_abs_error",
    "max_rel_error", "roofline_ms", "ceiling_ms", "sol_score",
)  # fmt: skip


def evaluation_json(
    problem: Problem, solution: Solution, device: str, evaluation: Evaluation, against: Solution | None = None
) -> dict[str, Any]:
    """One evaluation as a plain document; keys and meanings are a contract. ``against`` only if asked for."""
    compared = {"against": _against(evaluation, against)} if against is not None else {}
    return {
        "problem": problem.name,
        "solution": solution.name,
        "device": device,
        "verdict": evaluation.verdict,
        "reason": evaluation.reason,
        "detail": evaluation.detail,
        "workloads": [{key: getattr(w, key) for key in _WORKLOAD_KEYS} for w in evaluation.workloads],
        "geomean_speedup": evaluation.geomean_speedup,
        "sol_score": evaluation.sol_score,
        "timer": evaluation.timer,
        "notes": evaluation.notes,
        "wall_s": round(evaluation.wall_s, 3),
        "phases_s": {name: round(evaluation.phases_s.get(name, 0.0), 3) for name in _PHASES},
        **compared,
    }


def _against(evaluation: Evaluation, rival: Solution) -> dict[str, Any] | None:
    """How many times faster than the other solution, with a 95 % interval; from paired blocks."""
    comparison = evaluation.comparison
    if comparison is None or comparison.against != "incumbent":
        return None
    return {
        "solution": rival.name,
        "speedup": math.exp(comparison.log_ratio),
        "speedup_ci": [math.exp(comparison.lo), math.exp(comparison.hi)],
        "pairs": comparison.pairs,
    }
