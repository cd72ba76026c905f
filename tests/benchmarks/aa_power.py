"""How often the guard keeps an identical kernel (never, it should be) and a truly faster one (nearly always).

    python tests/benchmarks/aa_power.py [--device cpu|cuda] [--aa 300] [--power 100] [--gain 0.10] [--beside]
        [--parallel N] [--limit-s S]

One trial is one keep decision as a campaign makes it: evaluation against the incumbent, and if it says KEEP the
confirmation in fresh processes. The noise floor is measured first, as when a campaign starts. ``--beside`` keeps a
compiler-like load running on the other cores; ``--parallel`` makes so many decisions side by side, as a campaign's
agents do: one at a time has the device, processes start beside it. A gain g is built exactly: the incumbent
repeats the same block of work n times, the candidate n·(1 - g/(1+g)) times; on a GPU inside one Triton kernel of
about 60 µs. Everything is random by the operating system's entropy, as in a campaign: there is no seed that a run
could be lucky with.
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


GPU_REPEATS = 400

GPU_WORK = """
import torch
import triton
import triton.language as tl


@triton.jit
def _softmax(x, y, out, scale, count, COLS: tl.constexpr):
    at = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros([COLS], tl.float32)
    for _ in range(count):  # a volatile load is repeated every time
        v = tl.load(x + at, volatile=True)
        e = tl.exp(v - tl.max(v, 0))
        total = e / tl.sum(e, 0)
    tl.store(out + at, total * scale + tl.load(y + at))


def run(x, y, scale):
    out = torch.empty_like(x)
    _softmax[(x.shape[0],)](x, y, out, scale, {count}, COLS=x.shape[1], num_warps=4)
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
            f"import os\nos.sched_setaffinity(0, {cores})\n"
            f"while os.getppid() == {os.getpid()}: sorted(range(200000), key=str)",  # it ends with us in any case
        ]
    )
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


class Series:
    """Decisions against one incumbent, as a campaign's guard makes them."""

    def __init__(
        self, bench: Any, incumbent: Any, margin: float, noise: float, *, parallel: int, deadline: float
    ) -> None:
        self.bench, self.incumbent, self.margin, self.noise = bench, incumbent, margin, noise
        self.parallel, self.deadline = parallel, deadline

    async def run(self, name: str, count: int, candidate: Any) -> tuple[int, int]:
        """(KEEPs, decisions made)."""
        outcomes: dict[str, int] = {}
        ratios: list[float] = []
        begin = time.monotonic()
        waiting = iter(range(count))

        async def decide() -> None:
            for _ in waiting:
                if time.monotonic() > self.deadline:
                    return
                outcome, ratio = await self._decide(candidate)
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                ratios.append(ratio)
                if len(ratios) % 25 == 0:
                    print(f"  {len(ratios)}: {outcomes}, {time.monotonic() - begin:.0f} s", flush=True)

        await asyncio.gather(*(decide() for _ in range(self.parallel)))
        made = len(ratios)
        spread = statistics.pstdev(ratios) if made > 1 else 0.0
        mean = statistics.fmean(ratios) if ratios else 0.0
        print(
            f"{name}: {outcomes} of {made}, log ratio {mean:+.4f} ± {spread:.4f}, "
            f"{(time.monotonic() - begin) / max(made, 1):.2f} s per decision",
            flush=True,
        )
        return outcomes.get("KEEP", 0), made

    async def _decide(self, candidate: Any) -> tuple[str, float]:
        from engine.bench.api import SEARCH_S, EvaluationPlan
        from engine.guard import keep
        from engine.records import Outcome

        bar = keep.effective_margin(self.margin, self.noise)
        plan = EvaluationPlan(margin=bar, unlisted_shape=False, timing_s=SEARCH_S)
        answer = await self.bench.evaluate(candidate, plan, self.incumbent)
        decision = keep.decide(answer, self.margin, self.noise)
        if decision.outcome is Outcome.KEEP:
            again = await self.bench.evaluate(candidate, plan.final(), self.incumbent)
            decision = keep.confirm(decision, again, self.margin, self.noise)
        if decision.outcome is Outcome.KEEP:
            own = await self.bench.noise_of(candidate)
            decision = keep.confirm(decision, again, self.margin, max(self.noise, own or 0.0))
        if decision.outcome is Outcome.ERROR:
            print(f"ERROR {decision.reason} {decision.detail[:300]}", flush=True)
        ratio = answer.comparison.log_ratio if answer.comparison else float("nan")
        return decision.outcome.value, ratio


async def run(args: argparse.Namespace) -> int:
    from engine.bench import open_bench
    from engine.problems.solution import python_solution

    on_gpu = args.device != "cpu"
    problem = problem_of(args.rows)
    repeats, work = (GPU_REPEATS, GPU_WORK) if on_gpu else (REPEATS, WORK)
    language = ("triton",) if on_gpu else ("pytorch",)
    margin = args.margin if args.margin is not None else (0.02 if args.device == "cpu" else 0.01)

    def solution(count: int) -> Any:
        source = work.replace("{count}", str(count))
        return python_solution(source, definition=problem.name, name=f"work-{count}", languages=language)

    fewer = round(repeats / (1.0 + args.gain))
    deadline = time.monotonic() + args.limit_s
    with tempfile.TemporaryDirectory(prefix="kernelarc-aa-") as folder, load_beside(args.beside):
        bench = open_bench(problem, args.device, Path(folder) / "scratch")
        try:
            base = await bench.measure_baselines(solution(repeats))
            noise = base.noise if base.noise is not None else await bench.noise_of(solution(repeats)) or 0.0
            print(
                f"{args.device}: margin {margin:.3f}, measured noise {noise:.4f}, "
                f"seed {base.seed_ms:.4f} ms, timer {base.timer}, beside: {args.beside}",
                flush=True,
            )
            judge = Series(bench, solution(repeats), margin, noise, parallel=args.parallel, deadline=deadline)
            found, tried = await judge.run(f"true gain {repeats / fewer - 1:.3f}", args.power, solution(fewer))
            kept, same = await judge.run("A/A", args.aa, solution(repeats))
        finally:
            await bench.close()
    print(f"false KEEPs {kept}/{same}; true gains kept {found}/{tried}")
    return 1 if kept or found < 0.95 * tried else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--aa", type=int, default=300)
    parser.add_argument("--power", type=int, default=100)
    parser.add_argument("--gain", type=float, default=0.10)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--margin", type=float)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument(
        "--limit-s", type=float, default=36000.0, help="stop after so many seconds, counting what is done"
    )
    parser.add_argument("--beside", action="store_true")
    sys.exit(asyncio.run(run(parser.parse_args())))
