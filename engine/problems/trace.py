"""SOL-ExecBench trace lines from an evaluation: one JSON object per workload, numbers finite.

The format's consistency rule: PASSED carries correctness and performance, INCORRECT_NUMERICAL only correctness,
every other status neither. Every workload of the problem gets a line; one that passed without being timed has no
``evaluation`` (the format allows that, and a time that nobody measured would be a lie).
"""

from __future__ import annotations

import datetime
import math
from typing import Any

import msgspec

from engine.problems.model import Problem, Workload
from engine.problems.solution import Solution
from engine.records import Evaluation, WorkloadResult
from engine.text import clean

STATUSES = (
    "PASSED",
    "INVALID_REFERENCE",
    "INCORRECT_SHAPE",
    "INCORRECT_NUMERICAL",
    "INCORRECT_DTYPE",
    "RUNTIME_ERROR",
    "COMPILE_ERROR",
    "TIMEOUT",
    "REWARD_HACK",
)
LOG_LIMIT = 4000  # characters

# Reason prefix → status, for workloads that an evaluation never reached. First match wins.
_STATUS_OF_REASON = (
    ("hack.", "REWARD_HACK"),
    ("gate.syntax", "COMPILE_ERROR"),
    ("gate.forbidden", "REWARD_HACK"),
    ("compile.", "COMPILE_ERROR"),
    ("resource.timeout", "TIMEOUT"),
    ("wrong.shape", "INCORRECT_SHAPE"),
    ("wrong.dtype", "INCORRECT_DTYPE"),
    ("fault.reference", "INVALID_REFERENCE"),
)


def status_of_reason(reason: str) -> str:
    """The format's status for one of our reason codes; ``RUNTIME_ERROR`` where it has no closer one."""
    return next((status for prefix, status in _STATUS_OF_REASON if reason.startswith(prefix)), "RUNTIME_ERROR")


def traces(
    problem: Problem,
    solution: Solution,
    evaluation: Evaluation,
    *,
    hardware: str,
    libs: dict[str, str] | None = None,
    timestamp: str | None = None,
) -> list[bytes]:
    """One trace line (no newline) per workload of ``problem``, in its order.

    ``hardware`` is the device's name, ``libs`` library versions, ``timestamp`` ISO text (default: now, UTC).
    """
    stamp = timestamp or datetime.datetime.now(datetime.UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    environment = {"hardware": hardware, "libs": dict(libs or {})}
    results = {result.uuid: result for result in evaluation.workloads}
    lines = []
    for workload in problem.workloads:
        result = results.get(workload.uuid) or _never_reached(workload, evaluation)
        record = {
            "definition": problem.name,
            "solution": solution.name,
            "workload": _workload(workload),
            "evaluation": _evaluation(result, environment, stamp),
        }
        lines.append(msgspec.json.encode(record))
    return lines


def _never_reached(workload: Workload, evaluation: Evaluation) -> WorkloadResult:
    detail = evaluation.detail or evaluation.reason or "this workload was not evaluated"
    status = status_of_reason(evaluation.reason)
    return WorkloadResult(uuid=workload.uuid, status=status, reason=evaluation.reason, detail=detail)


def _workload(workload: Workload) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.to_builtins(workload)
    return record


def _evaluation(result: WorkloadResult, environment: dict[str, Any], stamp: str) -> dict[str, Any] | None:
    status = result.status if result.status in STATUSES else status_of_reason(result.reason)
    if status == "PASSED" and result.latency_ms is None:
        return None
    return {
        "status": status,
        "environment": environment,
        "timestamp": stamp,
        "log": clean(" ".join(part for part in (result.reason, result.detail) if part), LOG_LIMIT),
        "correctness": _correctness(result) if status in ("PASSED", "INCORRECT_NUMERICAL") else None,
        "performance": _performance(result) if status == "PASSED" else None,
    }


def _correctness(result: WorkloadResult) -> dict[str, Any]:
    unbounded = [
        name
        for name, value in (("relative", result.max_rel_error), ("absolute", result.max_abs_error))
        if value is None or not math.isfinite(value)
    ]
    extra: dict[str, Any] = {"reason": result.reason} if result.reason else {}
    if unbounded:
        # The format has no null here: 0.0 is its own default, and the flags say what it stands for.
        extra["not_finite"] = unbounded
    return {
        "max_relative_error": _finite(result.max_rel_error),
        "max_absolute_error": _finite(result.max_abs_error),
        "has_nan": "nan" in result.reason,
        "has_inf": "inf" in result.reason.rpartition(".")[2],
        "extra": extra or None,
    }


def _performance(result: WorkloadResult) -> dict[str, Any]:
    latency = _finite(result.latency_ms)
    reference = _finite(result.reference_latency_ms)
    speedup = _finite(result.speedup) or (reference / latency if latency else 0.0)
    return {"latency_ms": latency, "reference_latency_ms": reference, "speedup_factor": speedup}


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0
