"""Our lower bounds against the published B200 ones, on problems that carry a ``bounds.json``.

    python tests/benchmarks/bounds_ratio.py ../shared/problems [--gpu B200]

Only the definition and the traced reference are used for our side. Counted are workloads whose published bound is
above 1 µs and not below what writing the outputs at 8 TB/s takes (the published analysis counts float32 as 16
bits, so that some of its bounds cannot be reached).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import msgspec

from engine.errors import Fault
from engine.hardware.roofline import bounds, file_bounds
from engine.problems.axes import output_bytes, resolve_axes
from engine.problems.load import load_problem
from engine.problems.model import Problem
from engine.tracing.trace import trace_problems

MIN_PUBLISHED_MS = 1e-3
WRITE_BYTES_PER_S = 8e12


class Row(msgspec.Struct, frozen=True):
    """One workload: ours / published, and what limits ours."""

    problem: str
    uuid: str
    ratio: float
    limit: str


def counted(problem: Problem, gpu: str) -> dict[str, float]:
    """Published bounds in ms by uuid, of the workloads that count."""
    chosen = {}
    published = file_bounds(problem, gpu)
    for workload in problem.workloads:
        if workload.uuid not in published:
            continue
        sol_ms = published[workload.uuid].sol_ms
        written = output_bytes(problem.definition, resolve_axes(problem.definition, workload))
        if sol_ms > MIN_PUBLISHED_MS and sol_ms * 1e-3 >= written / WRITE_BYTES_PER_S:
            chosen[workload.uuid] = sol_ms
    return chosen


def ratios(folders: list[Path], gpu: str = "B200") -> list[Row]:
    """One row per counted workload. Traces only those."""
    problems = [load_problem(folder) for folder in folders]
    published = [counted(problem, gpu) for problem in problems]
    wanted = [(p, c) for p, c in zip(problems, published, strict=True) if c]
    rows = []
    traced = trace_problems([p for p, _ in wanted], [list(c) for _, c in wanted], timeout_s=300)
    for (problem, chosen), graphs in zip(wanted, traced, strict=True):
        if isinstance(graphs, Fault):
            raise graphs
        name = Path(problem.root or "").name
        rows += [
            Row(name, bound.uuid, bound.bound_ms / chosen[bound.uuid], bound.limit)
            for bound in bounds(problem, gpu, graphs)
        ]
    return rows


def summary(rows: list[Row]) -> tuple[float, float]:
    """(median ratio, share within a factor of two)."""
    values = [row.ratio for row in rows]
    return statistics.median(values), sum(0.5 <= value <= 2.0 for value in values) / len(values)


def table(rows: list[Row]) -> str:
    lines = [f"{'problem':56} {'n':>4} {'min':>6} {'median':>7} {'max':>6} {'> 2x off':>9}"]
    for name in dict.fromkeys(row.problem for row in rows):
        values = sorted(row.ratio for row in rows if row.problem == name)
        outside = sum(not 0.5 <= value <= 2.0 for value in values)
        middle = statistics.median(values)
        lines.append(
            f"{name[:56]:56} {len(values):4} {values[0]:6.2f} {middle:7.2f} {values[-1]:6.2f} {outside:9}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", default="B200")
    options = parser.parse_args()
    folders = sorted(path.parent for path in options.folder.rglob("bounds.json"))
    began = time.monotonic()
    rows = ratios(folders, options.gpu)
    median, within = summary(rows)
    print(table(rows))
    print(f"{len(rows)} workloads, median ratio {median:.3f}, {within:.1%} within a factor of 2", end=" ")
    print(f"({time.monotonic() - began:.0f} s)")
    return 0 if 0.8 <= median <= 1.25 and within >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
