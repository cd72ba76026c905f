"""A reference that cannot be used is told as such, whatever it does, and is never the candidate's fault."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.bench import wire
from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.bench.contender import Contender
from engine.bench.machine import Cores
from engine.bench.processes import ending
from engine.errors import Fault
from engine.problems.model import ConstAxis, CustomInput, Problem
from engine.problems.solution import Solution
from engine.problems.validate import MAX_OUTPUT_DIMS
from engine.records import Evaluation

from .conftest import make_problem

Make = Callable[..., Solution]
CORRECTNESS = EvaluationPlan(rounds=1, timing=False, against_reference=False)


def _problem(top: str, body: str) -> Problem:
    plain = make_problem((16,))
    lines = f"import torch\n{top}\n\n\ndef run(x, y, scale):\n    {body}\n"
    return msgspec.structs.replace(plain, definition=msgspec.structs.replace(plain.definition, reference=lines))


async def _evaluate(problem: Problem, solution: Solution, scratch: Path) -> Evaluation:
    bench = ProcessBench(problem, "cpu", scratch)
    try:
        return await bench.evaluate(solution, CORRECTNESS)
    finally:
        await bench.close()


@pytest.mark.parametrize(
    ("top", "body", "says"),
    [
        ("import sys\nsys.exit(0)", "return x", "cannot be imported: SystemExit: 0"),
        ("import os\nos._exit(0)", "return x", "ended, with exit status 0"),
        ("import os", "print('so long', flush=True); os._exit(7)", "ended, with exit status 7: so long"),
        ("import os", "os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("", "raise SystemExit(3)", "the reference failed: SystemExit: 3"),
        ("", "raise KeyboardInterrupt", "the reference failed: KeyboardInterrupt"),
        ("class E(BaseException): pass", "raise E('x')", "the reference failed: E: x"),
        (
            "class E(Exception):\n    def __str__(self): raise SystemExit",
            "raise E",
            "E: (its text could not be read)",
        ),
        ("", "return x.to_sparse()", "output out is a tensor of layout torch.sparse_coo"),
        ("", "return x.to('meta')", "output out is a meta tensor"),
        ("", "return torch.nested.nested_tensor([x, y])", "output out is a tensor of layout"),
    ],
)
async def test_whatever_a_reference_does_is_the_references_fault(
    candidate: Make, tmp_path: Path, top: str, body: str, says: str
) -> None:
    answer = await _evaluate(_problem(top, body), candidate(), tmp_path / "scratch")
    assert (answer.verdict, answer.reason) == ("ERROR", "fault.reference"), answer.detail
    assert says in answer.detail and "Traceback" not in answer.detail


async def test_inputs_that_are_no_dense_tensors_are_the_problems_fault(candidate: Make, tmp_path: Path) -> None:
    made = "def make(axes, device):\n    x = torch.ones(16, 64)\n"
    made += "    return {'x': x.to_sparse(), 'y': x, 'scale': 1.0}"
    plain = _problem(made, "return x.to_dense() * scale + y")
    inputs = {name: CustomInput() for name in plain.definition.inputs}
    problem = msgspec.structs.replace(
        plain,
        definition=msgspec.structs.replace(plain.definition, custom_inputs_entrypoint="make"),
        workloads=[msgspec.structs.replace(workload, inputs=inputs) for workload in plain.workloads],
    )
    answer = await _evaluate(problem, candidate(), tmp_path / "scratch")
    assert (answer.verdict, answer.reason) == ("ERROR", "fault.reference"), answer.detail
    assert "input x is a tensor of layout torch.sparse_coo" in answer.detail


async def test_a_call_that_no_memory_holds_is_refused_with_its_size(candidate: Make, tmp_path: Path) -> None:
    plain = make_problem((16,))
    axes: dict[str, Any] = {**plain.definition.axes, "cols": ConstAxis(value=10**12)}
    problem = msgspec.structs.replace(plain, definition=msgspec.structs.replace(plain.definition, axes=axes))
    answer = await _evaluate(problem, candidate(), tmp_path / "scratch")
    assert (answer.verdict, answer.reason) == ("ERROR", "needs.memory"), answer.detail
    assert "workload w16" in answer.detail and "192000.0 GB" in answer.detail


async def test_a_judge_that_ends_while_a_process_fails_to_start_is_one_fault(candidate: Make) -> None:
    class Broken:
        """A session whose judge has just ended, and its zygote with it."""

        inputs_travel = False
        cores = Cores(timing=[0], work=[0])

        def take_side(self) -> object:
            return object()

        async def renew(self, side: object) -> None:
            raise Fault("fault.judge", "the judge process ended")

        async def spawn(self, side: object, solution: Solution) -> None:
            raise Fault("fault.spawn", "the zygote is gone")

    forgotten: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(context))
    contender = Contender(Broken(), candidate(), "candidate")  # type: ignore[arg-type]
    with pytest.raises(Fault, match=r"fault\.spawn"):
        await contender.start()
    gc.collect()
    await asyncio.sleep(0)
    assert not forgotten


def test_how_a_process_ended_in_words() -> None:
    assert ending(0) == "with exit status 0" and ending(7) == "with exit status 7"
    assert ending(-11) == ending(139) == "killed by SIGSEGV"
    assert "memory ran out" in ending(137) and ending(None) == "how is not known"
    assert ending(255) == "with exit status 255"


def test_problems_declare_no_more_dimensions_than_a_call_can_tell() -> None:
    assert MAX_OUTPUT_DIMS == wire.MAX_DIMS
