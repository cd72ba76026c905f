"""Inputs that nobody can look up: of problems whose own code makes them, and of the calls that come later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.bench.plan_calls import calls_to_draw, round_inputs
from engine.problems.model import (
    ConstAxis,
    CustomInput,
    Definition,
    Problem,
    TensorSpec,
    Tolerance,
    VarAxis,
    Workload,
)
from engine.problems.solution import Solution, python_solution
from engine.records import Evaluation

from .conftest import make_problem

TIMED = EvaluationPlan(rounds=2, min_pairs=3, max_pairs=4, calls=6)
GENERATOR = """

def get_inputs(axes_and_scalars, device):
    rows, cols = axes_and_scalars["rows"], axes_and_scalars["cols"]
    order = torch.arange(rows * cols, device=device).view(rows, cols) / 100.0
    return {"x": torch.rand((), device=device) + order, "y": order, "scale": 0.5}
"""
ONCE = """
import torch
_seen = set()

def run(x, y, scale):
    key = x.numpy().tobytes()
    if key in _seen:
        raise RuntimeError("the same inputs again")
    _seen.add(key)
    return torch.softmax(x, dim=-1) * scale + y
"""


def with_generator() -> Problem:
    problem = make_problem((16,), name="own_inputs")
    definition = msgspec.structs.replace(
        problem.definition,
        custom_inputs_entrypoint="get_inputs",
        reference=problem.definition.reference + GENERATOR,
    )
    inputs = dict.fromkeys(problem.definition.inputs, CustomInput())
    workloads = [msgspec.structs.replace(workload, inputs=inputs) for workload in problem.workloads]
    return Problem(definition=definition, workloads=workloads)


async def judged(problem: Problem, text: str, folder: Path) -> Evaluation:
    bench = ProcessBench(problem, "cpu", folder / "scratch")
    try:
        return await bench.evaluate(python_solution(text, definition=problem.name, name="once"), TIMED)
    finally:
        await bench.close()


async def test_no_call_gets_inputs_that_the_process_had_before(tmp_path: Path) -> None:
    problem = with_generator()
    answer = await judged(problem, ONCE, tmp_path)
    assert answer.verdict == "PASS", (answer.reason, answer.detail)


SORTED = """
import torch
_seen = set()

def run(x):
    values = x.reshape(-1).sort().values
    key = values.to(torch.float64).numpy().tobytes()
    if key in _seen:
        raise RuntimeError("a rotation of inputs that were there before")
    _seen.add(key)
    return values.to(torch.float32).view(x.shape)
"""


@pytest.mark.parametrize(
    ("name", "dtype", "op_type"),
    [
        ("tokens", "int64", "sort"),
        ("variance", "float32", "sort"),  # of a role whose values are positive
        ("A_log", "float32", "sort"),
        ("probs", "float32", "sampling"),
        ("attn_weights", "bfloat16", "sort"),
        ("x", "float8_e4m3fn", "sort"),
    ],
)
async def test_inputs_that_cannot_be_blended_are_drawn_anew_for_every_call(
    name: str, dtype: str, op_type: str, tmp_path: Path
) -> None:
    reference = "def run(x):\n    return x.reshape(-1).to(torch.float32).sort().values.view(x.shape)\n"
    definition = Definition(
        name="sorted",
        op_type=op_type,
        axes={"rows": VarAxis(), "cols": ConstAxis(value=64)},
        inputs={name: TensorSpec(dtype, ["rows", "cols"])},
        outputs={"out": TensorSpec("float32", ["rows", "cols"])},
        reference="import torch\n\n\n" + reference.replace("(x)", f"({name})").replace("x.", f"{name}."),
    )
    workloads = [Workload(uuid="w", axes={"rows": 16}, inputs={}, tolerance=Tolerance())]
    problem = Problem(definition=definition, workloads=workloads)
    answer = await judged(problem, SORTED.replace("x.reshape", "x.to(torch.float32).reshape"), tmp_path)
    assert answer.verdict == "PASS", (answer.reason, answer.detail)


def test_calls_that_share_a_slot_share_its_inputs() -> None:
    calls = round_inputs(5, 2, by_slot=True)
    assert [call.slot for call in calls] == [0, 1, 0, 1, 0]
    assert len({call.seed for call in calls}) == 2 and calls[0] == calls[2] == calls[4]
    assert len({call.seed for call in round_inputs(5, by_slot=True)}) == 5


def test_a_block_holds_as_many_calls_as_inputs_can_be_made_for() -> None:
    assert [calls_to_draw(30, seconds) for seconds in (0.0, 0.001, 0.015, 0.5)] == [30, 30, 6, 1]


@pytest.mark.asyncio(loop_scope="module")
async def test_beside_an_input_lies_nothing_that_can_be_read(
    bench: ProcessBench, candidate: Callable[..., Solution]
) -> None:
    body = (
        "try:\n    torch.as_strided(x, (x.numel() + 1,), (1,))\nexcept RuntimeError:\n"
        "    return torch.softmax(x, dim=-1) * scale + y\nreturn torch.zeros_like(x)"
    )
    answer = await bench.evaluate(candidate(body=body), TIMED)
    assert answer.verdict == "PASS", (answer.reason, answer.detail)
