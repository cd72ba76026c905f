"""What a verdict costs beside the candidate's own run time, and where the time goes.

    python tests/benchmarks/guard_throughput.py [--device cpu|cuda] [--repeat 10]

One warm bench, ``x.clone()`` against itself on a small problem, 3 rounds, 20 timed calls. The overhead is the wall
time of the whole verdict minus what the calls themselves took on both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCE = "import torch\n\n\ndef run(x):\n    return x.clone()\n"


def clone_problem(rows: int = 256) -> Any:
    from engine.problems.model import ConstAxis, Definition, Problem, TensorSpec, Tolerance, Workload

    definition = Definition(
        name="clone_f32",
        axes={"rows": ConstAxis(value=rows), "cols": ConstAxis(value=256)},
        inputs={"x": TensorSpec("float32", ["rows", "cols"])},
        outputs={"y": TensorSpec("float32", ["rows", "cols"])},
        reference=SOURCE,
    )
    tolerance = Tolerance(max_atol=0.0, max_rtol=0.0, required_matched_ratio=1.0)
    return Problem(definition=definition, workloads=[Workload(uuid="only", axes={}, tolerance=tolerance)])


def inside_s(evaluation: Any) -> float:
    samples = evaluation.evidence["samples_ns"].values()
    return sum(sum(block) for roles in samples for blocks in roles.values() for block in blocks) / 1e9


async def run(device: str, repeat: int) -> None:
    from engine.bench import open_bench
    from engine.bench.api import EvaluationPlan
    from engine.problems.solution import python_solution

    problem = clone_problem()
    solution = python_solution(SOURCE, definition=problem.name, name="clone")
    plan = EvaluationPlan(rounds=3, calls=20)
    with tempfile.TemporaryDirectory(prefix="kernelarc-throughput-") as folder:
        bench = open_bench(problem, device, Path(folder) / "scratch")
        try:
            begin = time.monotonic()
            first = await bench.evaluate(solution, plan, solution)
            print(f"first verdict, with starting: {time.monotonic() - begin:.2f} s {first.verdict} {first.reason}")
            walls, overheads = [], []
            for _ in range(repeat):
                answer = await bench.evaluate(solution, plan, solution)
                if answer.verdict != "PASS":
                    print(answer.verdict, answer.reason, answer.detail)
                    continue
                walls.append(answer.wall_s)
                overheads.append(answer.wall_s - inside_s(answer))
                pairs = answer.comparison.pairs if answer.comparison else 0
                print(f"  {answer.wall_s:.3f} s, {pairs} pairs, {answer.phases_s}")
            print(
                f"{device}: wall median {statistics.median(walls):.3f} s, overhead median "
                f"{statistics.median(overheads):.3f} s, worst {max(overheads):.3f} s over {len(walls)} verdicts"
            )
        finally:
            await bench.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=10)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.device, arguments.repeat))
