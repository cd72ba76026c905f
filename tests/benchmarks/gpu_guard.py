"""Is the guard fast, repeatable and fair on this GPU? Whole processes, ten evaluations in a row, compiled kernels.

    python tests/benchmarks/gpu_guard.py [--device cuda:0] [--only cold repeat compiled]

``cold``: ``kernelarc evaluate`` as a user starts it, ten rounds and fifty calls, the same kernel twice (compiling
is printed apart). ``repeat``: how far the latency of one kernel moves over ten evaluations, each with a process of
its own. ``compiled``: honest ``torch.compile`` kernels; none may raise an alarm.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

from h200_first_run import TRITON, rms_problem  # noqa: E402
from scratch import run_parts  # noqa: E402

COMPILED = (
    "swiglu_bf16",
    "layernorm_h2048_bf16",
    "qk_rmsnorm_h24_d128_bf16",
    "fused_add_rmsnorm_bf16",
)
MODES = ("default", "reduce-overhead")


def write_problem(folder: Path, problem: Any) -> Path:
    """A problem of ours as a folder that the command line takes."""
    import msgspec

    from engine.problems.load import problem_to_json

    document = msgspec.json.decode(problem_to_json(problem))
    folder.mkdir()
    (folder / "definition.json").write_text(json.dumps(document["definition"]))
    lines = [json.dumps(workload) for workload in document["workloads"]]
    (folder / "workload.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def cold(scratch: Path, device: str) -> None:
    for rows in ((64, 512, 4096), (1, 7, 16, 33, 64, 128, 256, 500, 512, 1000, 1024, 2048, 4096, 8192)):
        problem = write_problem(scratch / f"rms-{len(rows)}", rms_problem(rows))
        kernels = []
        for index in range(2):
            kernels.append(scratch / f"kernel-{len(rows)}-{index}.py")
            kernels[-1].write_text(TRITON + f"# {index}\n")
        for count in (1, 2):
            seconds, said = evaluated(problem, kernels[:count], device)
            print(f"{len(rows)} workloads, {count} kernels: whole process {seconds:.2f} s\n{said}", flush=True)


def evaluated(problem: Path, kernels: list[Path], device: str) -> tuple[float, str]:
    """Seconds of one ``kernelarc evaluate`` as a user starts it, and what it said of each kernel."""
    arguments = ["evaluate", str(problem), *map(str, kernels), "--device", device, "--json"]
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "kernelarc_tui", *arguments], capture_output=True, text=True, check=False
    )
    return time.monotonic() - begin, _phases(done.stdout, done.stderr)


def _phases(text: str, errors: str) -> str:
    try:
        found = json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return f"no answer: {(errors or text)[-300:]}"
    documents = found if isinstance(found, list) else [found]
    return "\n".join(
        f"    {d['verdict']} {d['reason']} {d['detail'][:300]} {d['wall_s']:.2f} s "
        f"of which compiling {d['phases_s']['compile']:.2f} {d['phases_s']}"
        for d in documents
    )


async def repeat(scratch: Path, device: str) -> None:
    from engine.bench import open_bench
    from engine.bench.api import EvaluationPlan
    from engine.problems.solution import python_solution

    problem = rms_problem((64, 4096))
    bench = open_bench(problem, device, scratch / "repeat")
    solution = python_solution(TRITON, definition=problem.name, name="repeat", languages=("triton",))
    plan = EvaluationPlan(rounds=10, calls=50, against_reference=True, check_claims=True)
    found: dict[str, list[float]] = {}
    try:
        for _ in range(10):
            answer = await bench.evaluate(solution, plan)
            if answer.verdict != "PASS":
                print(f"repeat: {answer.verdict} {answer.reason} {answer.detail[:300]}")
                continue
            for row in answer.workloads:
                found.setdefault(row.uuid, []).append(row.latency_ms or 0.0)
    finally:
        await bench.close()
    for uuid, values in found.items():
        middle = statistics.median(values)
        deviation, spread = statistics.pstdev(values) / middle, (max(values) - min(values)) / middle
        print(
            f"{uuid}: median {1000 * middle:.3f} µs over {len(values)} evaluations, "
            f"deviation {deviation:.2%}, range {spread:.2%}",
            flush=True,
        )


async def compiled(scratch: Path, device: str) -> None:
    from engine.bench import open_bench
    from engine.bench.api import EvaluationPlan
    from engine.bench.compiled import compiled_reference
    from engine.problems.library import find_problem

    alarms = made = 0
    for name in COMPILED:
        problem = find_problem(name)
        bench = open_bench(problem, device, scratch / name)
        try:
            for mode in MODES:
                solution = compiled_reference(problem, mode)
                begin = time.monotonic()
                answer = await bench.evaluate(solution, EvaluationPlan(against_reference=True, check_claims=True))
                made += 1
                alarms += answer.verdict != "PASS"
                print(
                    f"{name}, torch.compile {mode}: {answer.verdict} {answer.reason} {answer.detail[:200]} "
                    f"{answer.geomean_speedup and round(answer.geomean_speedup, 2)}x, "
                    f"{time.monotonic() - begin:.1f} s {answer.notes}",
                    flush=True,
                )
        finally:
            await bench.close()
    print(f"{alarms} alarms in {made} honest compiled kernels")


if __name__ == "__main__":
    run_parts(
        __doc__,
        {
            "cold": cold,
            "repeat": lambda folder, device: asyncio.run(repeat(folder, device)),
            "compiled": lambda folder, device: asyncio.run(compiled(folder, device)),
        },
    )
