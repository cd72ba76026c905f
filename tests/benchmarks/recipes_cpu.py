"""CPU recipes against their references on one thread: paired ratios, reference and recipe call by call.

    python tests/benchmarks/recipes_cpu.py [--only PATTERN] [--recipes PATTERN] [--points N] [--pairs N]

Each pair times one call of the reference and one of the recipe back to back, in alternating order; the figure is
exp of the median log-ratio, per workload and as a geometric mean. Results are checked against the reference first.
"""

# ruff: noqa: E402
from __future__ import annotations

import os

# Before torch: one thread, and the allocator that the bench uses (see engine/bench/sandbox.py).
for _name, _value in (
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
    ("MALLOC_MMAP_THRESHOLD_", str(32 << 20)),
    ("MALLOC_TRIM_THRESHOLD_", str(1 << 30)),
):
    os.environ.setdefault(_name, _value)

import argparse
import fnmatch
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch

from engine.problems.axes import resolve_axes
from engine.problems.inputs import make_inputs
from engine.problems.load import load_problem
from engine.problems.model import Problem, Workload
from engine.problems.outputs import allocate_outputs
from engine.recipes.capture import trace_all
from engine.recipes.match import match_all
from engine.recipes.model import load_recipes
from engine.recipes.render import render
from engine.recipes.reply import Request
from engine.recipes.space import every_point, starting_points
from engine.recipes.subject import Subject, subject_of
from engine.recipes.tracing import calls_for
from engine.records import DeviceFacts
from engine.skills import load_skills


def traced(problem: Problem) -> Subject:
    request = Request(reference=problem.definition.reference, calls=calls_for(problem))
    device = DeviceFacts(kind="cpu", name="cpu", cores=1)
    return subject_of(problem, list(trace_all(request).values()), device, "other")


def entry(source: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(source, "kernel.py", "exec"), namespace)
    return namespace["run"]  # type: ignore[no-any-return]


def right(outputs: list[torch.Tensor], result: Any, workload: Workload) -> bool:
    tolerance = workload.tolerance
    wanted = list(result) if isinstance(result, tuple | list) else [result]
    for found, expected in zip(outputs, wanted, strict=True):
        error = (found.double() - expected.double()).abs()
        close = error <= tolerance.max_atol + tolerance.max_rtol * expected.double().abs()
        if float(close.double().mean()) < tolerance.required_matched_ratio:
            return False
    return True


def ratio(problem: Problem, workload: Workload, reference: Any, candidate: Any, pairs: int) -> tuple[float, float]:
    """(milliseconds of the reference, how many times faster the recipe is); NaN where it is wrong."""
    axes = resolve_axes(problem.definition, workload)
    inputs = make_inputs(problem.definition, workload, axes, "cpu", 1)
    outputs = allocate_outputs(problem.definition, axes, "cpu")
    candidate(*inputs, *outputs)
    if not right(outputs, reference(*inputs), workload):
        return math.nan, math.nan
    logs, times = [], []

    def timed(call: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    for pair in range(pairs):
        calls = [lambda: reference(*inputs), lambda: candidate(*inputs, *outputs)]
        if pair % 2:
            second, first = timed(calls[1]), timed(calls[0])
        else:
            first, second = timed(calls[0]), timed(calls[1])
        logs.append(math.log(first / second))
        times.append(first)
    return statistics.median(times) * 1e3, math.exp(statistics.median(logs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*_fp32")
    parser.add_argument("--recipes", default="row-blocks,gemm-epilogue-blocks,fused-sdpa")
    parser.add_argument("--points", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=21)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    recipes, _ = load_recipes(load_skills())
    wanted = [r for r in recipes if any(fnmatch.fnmatch(r.name, w) for w in options.recipes.split(","))]
    for folder in sorted((ROOT / "tasks").iterdir()):
        if not fnmatch.fnmatch(folder.name, options.only) or "moe" in folder.name:
            continue
        problem = load_problem(folder)
        fits, _ = match_all(wanted, traced(problem))
        reference = entry(problem.definition.reference)
        print(problem.name)
        for fit in fits:
            points = starting_points(fit.recipe.file, fit.facts)
            others = [p for p in every_point(fit.recipe.file, fit.facts) if p not in points]
            random.Random(0).shuffle(others)
            for point in [*points, *others][: options.points]:
                candidate = entry(render(fit, point).entry_source)
                found = [ratio(problem, w, reference, candidate, options.pairs) for w in problem.workloads]
                mean = math.exp(sum(math.log(r) for _, r in found) / len(found))
                cells = "  ".join(f"{ms:.2f} ms {r:.2f}x" for ms, r in found)
                print(f"  {mean:.2f}x  {fit.recipe.name} {point}   {cells}", flush=True)


if __name__ == "__main__":
    main()
