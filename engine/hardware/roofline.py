"""Lower bounds on a workload's time: what the reference asks for against what the hardware can do at best.

``bound_ms = max(FLOPs / rate by unit and type, mandatory bytes / bandwidth)``. Mandatory bytes are the needed
elements of the inputs and all outputs, each moved once; matrix and vector units may overlap with each other and
with memory. Overheads are left out on purpose (a launch takes ``launch_floor_ms`` by itself): who does what the
reference does cannot be faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from engine.decoding import decode_json
from engine.errors import BadInput
from engine.hardware.peaks import Peaks, find_peaks, require_peaks
from engine.problems.model import Problem, Tolerance, Workload

if TYPE_CHECKING:
    from engine.tracing.graph import TraceGraph

# A float32 product may be computed from operands rounded to a shorter type if the tolerance leaves room for it:
# rounding to bfloat16 (8 bits) costs about 2^-9 of the result, to TF32 (11 bits) about 2^-12. Half of that is
# asked: errors of many products cancel, and a lower bound must not be too high.
BF16_TOLERANCE = 1e-3
TF32_TOLERANCE = 1.2e-4
TF32_PASSES = 3  # splitting float32 into TF32 parts keeps its precision and triples the work

_WIDER = {
    "float4_e2m1fn_x2": ("float4", "float8", "bfloat16", "float16"),
    "float8_e4m3fn": ("float8", "bfloat16", "float16"),
    "float8_e5m2": ("float8", "bfloat16", "float16"),
    "bfloat16": ("bfloat16", "float16"),
    "float16": ("float16", "bfloat16"),
    "int8": ("int8",),
    "bool": ("int8",),
    "float64": ("float64",),
}


class Bound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lower bound of one workload. ``launch_floor_ms`` is apart: it is not part of ``bound_ms``."""

    uuid: str
    flops: float
    bytes: float
    bound_ms: float
    limit: str  # compute | memory
    launch_floor_ms: float
    notes: list[str] = []


class FileBound(NamedTuple):
    """Published numbers of one workload: the bound and the scoring baseline, in ms."""

    sol_ms: float
    baseline_ms: float | None


class SolScore(NamedTuple):
    """``value`` in [0, 1]; ``below_bound`` says that the time beats the bound: a wrong bound or a hack."""

    value: float
    below_bound: bool


def bounds(problem: Problem, gpu_name: str, graphs: Mapping[str, TraceGraph] | None = None) -> list[Bound]:
    """One bound per traced workload, in the problem's order.

    ``graphs`` are ``trace_problem``'s; without them the reference is traced here (in a child process). Raises
    :class:`BadInput` for an unknown GPU and :class:`Fault` if the tracer could not run at all.
    """
    peaks = require_peaks(gpu_name)
    if graphs is None:
        from engine.tracing.trace import trace_problem

        graphs = trace_problem(problem)
    return [
        workload_bound(workload, graphs[workload.uuid], peaks)
        for workload in problem.workloads
        if workload.uuid in graphs
    ]


def least_ms(workload: Workload, graph: TraceGraph, peaks: Peaks) -> float:
    """What the reference's work takes in whatever precision of eight bits and more, milliseconds.

    Correctness says which precision will do. A time below it is that of other work, or not true.
    """
    short = [rate for name, rate in peaks.tensor.items() if not name.startswith("float4")]
    flops = sum(flops for key, flops in graph.flops.items() if key.startswith("tensor:"))
    tensor_ms = flops / (max(short, default=math.inf) * 1e12) * 1e3
    bound_ms = workload_bound(workload, graph, peaks).bound_ms
    return min(bound_ms, max(tensor_ms, _memory_ms(graph, peaks)))


def _memory_ms(graph: TraceGraph, peaks: Peaks) -> float:
    return graph.total_bytes / (peaks.memory_gb_s * 1e9) * 1e3


def workload_bound(workload: Workload, graph: TraceGraph, peaks: Peaks) -> Bound:
    """The bound of one traced workload on a device with ``peaks``."""
    tensor_s = vector_s = 0.0
    for key, flops in graph.flops.items():
        unit, _, dtype = key.partition(":")
        if unit == "tensor":
            tensor_s += flops / (matrix_rate(peaks, dtype, workload.tolerance) * 1e12)
        else:
            vector_s += flops / (vector_rate(peaks, dtype) * 1e12)
    compute_ms = max(tensor_s, vector_s) * 1e3
    memory_ms = _memory_ms(graph, peaks)
    return Bound(
        uuid=workload.uuid,
        flops=graph.total_flops,
        bytes=graph.total_bytes,
        bound_ms=max(compute_ms, memory_ms),
        limit="compute" if compute_ms > memory_ms else "memory",
        launch_floor_ms=peaks.launch_floor_us / 1e3,
        notes=graph.notes,
    )


def matrix_rate(peaks: Peaks, dtype: str, tolerance: Tolerance) -> float:
    """TFLOP/s of the fastest way to multiply operands of ``dtype`` that the tolerance admits."""
    if dtype == "float32":
        return _float32_rate(peaks, max(tolerance.max_atol, tolerance.max_rtol))
    for name in _WIDER.get(dtype, ()):
        if name in peaks.tensor:
            return peaks.tensor[name]
    return vector_rate(peaks, dtype)


def _float32_rate(peaks: Peaks, tolerance: float) -> float:
    half = max(peaks.tensor.get("bfloat16", 0.0), peaks.tensor.get("float16", 0.0))
    tf32 = peaks.tensor.get("tf32", 0.0)
    rates = [peaks.vector["float32"], tf32 / TF32_PASSES]
    if tolerance >= TF32_TOLERANCE:
        rates.append(tf32)
    if tolerance >= BF16_TOLERANCE:
        rates.append(half)
    return max(rates)


def vector_rate(peaks: Peaks, dtype: str) -> float:
    """TFLOP/s of the ordinary units; a type without a figure runs at the float32 rate (float64 at 1/64 of it)."""
    single = peaks.vector["float32"]
    return peaks.vector.get(dtype, single / 64 if dtype == "float64" else single)


def sol_score(t_k: float, t_b: float, t_sol: float) -> SolScore:
    """SOL-ExecBench's score: 0.5 at the baseline ``t_b``, 1 at the bound ``t_sol``, towards 0 when slower.

    ``S = 1 / (1 + (t_k - t_sol) / (t_b - t_sol))``; without a gap 1 at or below the bound, else 0. Times below
    the bound would exceed 1 or divide by zero: clamped and flagged.
    """
    if not all(math.isfinite(t) and t > 0 for t in (t_k, t_b, t_sol)):
        raise ValueError("times must be positive and finite")
    if t_k <= t_sol:
        return SolScore(1.0, t_k < t_sol)
    gap = t_b - t_sol
    if gap <= 0:
        return SolScore(0.0, False)
    return SolScore(1.0 / (1.0 + (t_k - t_sol) / gap), False)


class _FileEntry(msgspec.Struct, frozen=True):
    index: int
    sol_ms: float
    baseline_latency_ms: float | None = None


class _BoundsFile(msgspec.Struct, frozen=True):
    hardware: str
    per_workload: list[_FileEntry]


def file_bounds(problem: Problem, gpu_name: str) -> dict[str, FileBound]:
    """Published bounds from the problem's ``bounds.json`` by uuid; empty unless it is for this very GPU.

    A file that cannot be read counts as absent: it is not part of the problem format.
    """
    folder = problem.folder
    file = folder / "bounds.json" if folder else None
    if file is None or not file.is_file():
        return {}
    try:
        content: _BoundsFile = decode_json(_limited(file), where=str(file), kind=_BoundsFile)
    except (BadInput, OSError):
        return {}
    theirs, ours = find_peaks(content.hardware), find_peaks(gpu_name)
    if theirs is None or ours is None or theirs.name != ours.name:
        return {}
    return {
        problem.workloads[entry.index].uuid: FileBound(entry.sol_ms, entry.baseline_latency_ms)
        for entry in content.per_workload
        if 0 <= entry.index < len(problem.workloads) and math.isfinite(entry.sol_ms) and entry.sol_ms > 0
    }


def _limited(file: Path) -> bytes:
    if file.stat().st_size > 16 << 20:
        raise OSError("too large")
    return file.read_bytes()
