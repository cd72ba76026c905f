"""How often the guard keeps an identical kernel (never, it should be) and a truly faster one (nearly always).

    python tests/benchmarks/aa_power.py [--device cpu|cuda] [--aa 300] [--power 100] [--gain 0.10] [--beside]

One trial is one keep decision as a campaign makes it: evaluation against the incumbent, and if it says KEEP the
confirmation in fresh processes. The noise floor is measured first, as when a campaign starts. ``--beside`` keeps a
compiler-like load running on the other cores. A gain g is built exactly: the incumbent repeats the same block of
work n times, the candidate n·(1 - g/(1+g)) times.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPEATS = 110

WORK = """
import torch


def run(x, y, scale):
    for _ in range({count}):
        out = torch.softmax(x, dim=-1) * scale + y
    return out
"""


def problem_of(rows: int) -> Any:
    from engine.problems.model import ConstAxis, Definition, Problem, ScalarInput, TensorSpec, Tolerance, Workload

    definition = Definition(
        name="aa_softmax",
        axes={"rows": ConstAxis(value=rows), "cols": ConstAxis(value=256)},
        inputs={
            "x": TensorSpec("float32", ["rows", "cols"]),
            "y": TensorSpec("float32", ["rows", "cols"]),
            "scale": TensorSpec("float32", None),
        },
        outputs={"out": TensorSpec("float32", ["rows", "cols"])},
        reference="import torch\n\n\ndef run(x, y, scale):\n    return torch.softmax(x, dim=-1) * scale + y\n",
    )
    tolerance = Tolerance(max_atol=1e-5, max_rtol=1e-4, required_matched_ratio=1.0)
    workload = Workload(uuid="only", axes={}, inputs={"scale": ScalarInput(0.5)}, tolerance=tolerance)
    return Problem(definition=definition, workloads=[workload])


@contextlib.contextmanager
def load_beside(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    cores = sorted(os.sched_getaffinity(0))[:-1]
    burner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os\nos.sched_setaffinity(0, {cores})\nwhile True: sorted(range(200000), key=str)",
        ]
    )
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


async def trial(bench: Any, candidate: Any, incumbent: Any, margin: float, noise: float) -> tuple[str, float]:
    from engine.bench.api import EvaluationPlan
    from engine.guard import keep
    from engine.records import Outcome

    plan = EvaluationPlan(margin=keep.effective_margin(margin, noise), unlisted_shape=False)
    answer = await bench.evaluate(candidate, plan, incumbent)
    decision = keep.decide(answer, margin, noise)
    if decision.outcome is Outcome.KEEP:
        again = await bench.evaluate(candidate, plan.final(), incumbent)
        decision = keep.confirm(decision, again, margin, noise)
    ratio = answer.comparison.log_ratio if answer.comparison else float("nan")
    return decision.outcome.value, ratio


async def series(
    bench: Any, name: str, count: int, candidate: Any, incumbent: Any, margin: float, noise: float
) -> int:
    outcomes: dict[str, int] = {}
    ratios = []
    begin = time.monotonic()
    for _ in range(count):
        outcome, ratio = await trial(bench, candidate, incumbent, margin, noise)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        ratios.append(ratio)
    spread = statistics.pstdev(ratios) if len(ratios) > 1 else 0.0
    print(
        f"{name}: {outcomes} of {count}, log ratio {statistics.fmean(ratios):+.4f} ± {spread:.4f}, "
        f"{(time.monotonic() - begin) / max(count, 1):.2f} s per decision",
        flush=True,
    )
    return outcomes.get("KEEP", 0)


async def run(args: argparse.Namespace) -> int:
    from engine.bench import open_bench
    from engine.problems.solution import python_solution

    problem = problem_of(args.rows)
    margin = args.margin if args.margin is not None else (0.02 if args.device == "cpu" else 0.01)

    def solution(count: int) -> Any:
        return python_solution(WORK.format(count=count), definition=problem.name, name=f"work-{count}")

    fewer = round(REPEATS / (1.0 + args.gain))
    with tempfile.TemporaryDirectory(prefix="kernelarc-aa-") as folder, load_beside(args.beside):
        bench = open_bench(problem, args.device, Path(folder) / "scratch")
        try:
            base = await bench.measure_baselines(solution(REPEATS))
            print(f"{args.device}: margin {margin:.3f}, measured noise {base.noise:.4f}, beside: {args.beside}")
            kept = await series(bench, "A/A", args.aa, solution(REPEATS), solution(REPEATS), margin, base.noise)
            name = f"true gain {REPEATS / fewer - 1:.3f}"
            found = await series(bench, name, args.power, solution(fewer), solution(REPEATS), margin, base.noise)
        finally:
            await bench.close()
    print(f"false KEEPs {kept}/{args.aa}; true gains kept {found}/{args.power}")
    return 1 if kept or found < 0.95 * args.power else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--aa", type=int, default=300)
    parser.add_argument("--power", type=int, default=100)
    parser.add_argument("--gain", type=float, default=0.10)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--margin", type=float)
    parser.add_argument("--beside", action="store_true")
    sys.exit(asyncio.run(run(parser.parse_args())))
