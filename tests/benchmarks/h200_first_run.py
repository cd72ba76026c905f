"""What works on this GPU box, in one short report: isolation layers, timer, shared memory, Triton, torch.compile.

    python tests/benchmarks/h200_first_run.py [--device cuda:0] [--problem FOLDER] [--only NAME ...]

Every step is tried on its own and reported with its seconds; a step that fails does not stop the others. Exit
code 0 if all steps that apply passed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from scratch import own_home, scratch_folder

TRITON = """
import torch
import triton
import triton.language as tl


@triton.jit
def _rms(x, w, y, eps, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < n
    v = tl.load(x + row * n + at, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v) / n + eps)
    tl.store(y + row * n + at, v * scale * tl.load(w + at, mask=mask, other=0.0), mask=mask)


def run(x, weight, eps):
    y = torch.empty_like(x)
    _rms[(x.shape[0],)](x, weight, y, eps, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
"""
COMPILED = """
import torch


@torch.compile(mode=%r, dynamic=False)
def _norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def run(x, weight, eps):
    return _norm(x, weight, eps)
"""
CHEATS = {
    "late": """
import torch
_side = torch.cuda.Stream()


def run(x, weight, eps):
    y = torch.empty_like(x)
    with torch.cuda.stream(_side):
        torch.cuda._sleep(200_000)
        y.copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight)
    return y
""",
    "elapsed": """
import torch
_true = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda self, end: _true(self, end) / 100


def run(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
""",
    "cached": """
import torch
_seen = {}


def run(x, weight, eps):
    if x.data_ptr() not in _seen:
        _seen[x.data_ptr()] = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    return _seen[x.data_ptr()]
""",
}


def rms_problem(rows: tuple[int, ...] = (64, 4096), hidden: int = 4096) -> Any:
    from engine.problems.model import (
        ConstAxis,
        Definition,
        Problem,
        ScalarInput,
        TensorSpec,
        Tolerance,
        VarAxis,
        Workload,
    )

    definition = Definition(
        name="first_run_rmsnorm",
        axes={"rows": VarAxis(), "hidden": ConstAxis(value=hidden)},
        inputs={
            "x": TensorSpec("float32", ["rows", "hidden"]),
            "weight": TensorSpec("float32", ["hidden"]),
            "eps": TensorSpec("float32", None),
        },
        outputs={"y": TensorSpec("float32", ["rows", "hidden"])},
        reference=(
            "import torch\n\n\ndef run(x, weight, eps):\n"
            "    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight\n"
        ),
    )
    workloads = [
        Workload(
            uuid=f"rows-{count}",
            axes={"rows": count},
            inputs={"eps": ScalarInput(1e-6)},
            tolerance=Tolerance(max_atol=1e-4, max_rtol=1e-4, required_matched_ratio=1.0),
        )
        for count in rows
    ]
    return Problem(definition=definition, workloads=workloads)


class Report:
    def __init__(self, only: list[str]) -> None:
        self.only, self.failed = only, 0

    async def step(self, name: str, action: Callable[[], Awaitable[Any]]) -> None:
        if self.only and name not in self.only:
            return
        begin = time.monotonic()
        try:
            answer = await action()
            print(f"[ok]   {name} ({time.monotonic() - begin:.2f} s): {answer}", flush=True)
        except Exception:  # noqa: BLE001  a step that fails must not stop the others
            self.failed += 1
            print(f"[FAIL] {name} ({time.monotonic() - begin:.2f} s)\n{traceback.format_exc()}", flush=True)


def brief(evaluation: Any) -> str:
    phases = {key: round(value, 2) for key, value in evaluation.phases_s.items()}
    rows = [
        f"{w.latency_ms and round(w.latency_ms, 5)} ms {w.speedup and round(w.speedup, 2)}x"
        for w in evaluation.workloads
    ]
    checks = evaluation.evidence.get("timing_checks", {})
    excess = [f"{1000 * c.excess_ms:.1f}/{1000 * c.allowed_ms:.1f} us" for c in checks.values()]
    return (
        f"{evaluation.verdict} {evaluation.reason} {evaluation.detail[:300]} | {evaluation.timer} | {rows} | "
        f"excess {excess} | wall {evaluation.wall_s:.2f} s {phases} | {evaluation.notes}"
    )


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--problem", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    own_home("kernelarc-first-")
    from engine.bench import open_bench
    from engine.bench.api import EvaluationPlan
    from engine.bench.probe import probe_layers
    from engine.hardware.facts import device_facts
    from engine.problems.load import load_problem
    from engine.problems.solution import python_solution

    report = Report(args.only)
    problem = load_problem(args.problem) if args.problem else rms_problem()
    scratch = scratch_folder("kernelarc-scratch-")

    async def layers() -> Any:
        return json.dumps(await asyncio.to_thread(probe_layers), indent=1)

    async def facts() -> Any:
        return await asyncio.to_thread(device_facts, args.device)

    await report.step("layers", layers)
    await report.step("facts", facts)
    bench = open_bench(problem, args.device, scratch)
    plan = EvaluationPlan(against_reference=True)

    def evaluate(source: str, languages: tuple[str, ...] = ("pytorch",), expect: str = "PASS") -> Any:
        async def action() -> str:
            solution = python_solution(source, definition=problem.name, name="first-run", languages=languages)
            answer = await bench.evaluate(solution, plan)
            if expect == "PASS" and answer.verdict != "PASS":
                raise RuntimeError(brief(answer))
            if expect == "FAIL" and answer.verdict == "PASS" and (answer.geomean_speedup or 9) > 1.3:
                raise RuntimeError(f"fooled: {brief(answer)}")
            return brief(answer)

        return action

    await report.step("reference", evaluate(problem.definition.reference))
    await report.step("reference-again", evaluate(problem.definition.reference))
    if not args.problem:
        await report.step("triton", evaluate(TRITON, ("triton",)))
        await report.step("triton-again", evaluate(TRITON, ("triton",)))
        await report.step("compile", evaluate(COMPILED % "default"))
        await report.step("compile-again", evaluate(COMPILED % "default"))
        await report.step("reduce-overhead", evaluate(COMPILED % "reduce-overhead"))
        for name, source in CHEATS.items():
            await report.step(f"cheat-{name}", evaluate(source, expect="FAIL"))

    async def isolation() -> Any:
        answer = await bench.evaluate(
            python_solution(problem.definition.reference, definition=problem.name, name="layers"),
            EvaluationPlan(timing=False, rounds=1),
        )
        return json.dumps(answer.evidence["isolation"], indent=1)

    async def baselines() -> Any:
        seed = python_solution(problem.definition.reference, definition=problem.name, name="seed")
        found = await bench.measure_baselines(seed)
        return f"{found.reference_ms:.5f} ms, {found.notes}"

    async def gives_back() -> Any:
        begin = time.monotonic()
        await bench.suspend()
        return f"suspended in {time.monotonic() - begin:.2f} s"

    await report.step("isolation", isolation)
    await report.step("baselines", baselines)
    await report.step("suspend", gives_back)
    await bench.close()
    for log in scratch.glob("*.log"):
        text = log.read_text(errors="replace").strip()
        if text:
            print(f"--- {log.name}\n{text[-3000:]}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
