"""Inputs that a problem's own code makes in the candidate's process (the GPU's protocol, on the CPU device)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import torch

from engine.bench import bench as bench_module
from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.bench.made_inputs import MadeInputs
from engine.bench.session import Session
from engine.problems.axes import resolve_axes
from engine.problems.inputs import make_inputs
from engine.problems.model import CustomInput, Problem, RandomInput
from engine.problems.solution import python_solution

from .conftest import make_problem

TIMED = EvaluationPlan(rounds=2, min_pairs=3, max_pairs=4, calls=6)
MAKES = """

def get_inputs(axes_and_scalars, device):
    rows, cols = axes_and_scalars["rows"], axes_and_scalars["cols"]
    return {"x": torch.rand(rows, cols) + EXTRA, "scale": 0.5 + float(torch.rand(()))}
"""
RIGHT = "import torch\n\ndef run(x, y, scale):\n    return torch.softmax(x, dim=-1) * scale + y\n"

OpenBench = Callable[[Problem], AbstractAsyncContextManager[ProcessBench]]


def problem_that_makes(extra: str = "0.0") -> Problem:
    """``x`` and the number ``scale`` come from the problem's own code, ``y`` is drawn as for any other problem."""
    problem = make_problem((16,), name="made_inputs")
    source = problem.definition.reference + MAKES.replace("EXTRA", extra)
    definition = msgspec.structs.replace(
        problem.definition, custom_inputs_entrypoint="get_inputs", reference=source
    )
    inputs = {"x": CustomInput(), "y": RandomInput(), "scale": CustomInput()}
    workloads = [msgspec.structs.replace(workload, inputs=inputs) for workload in problem.workloads]
    return Problem(definition=definition, workloads=workloads)


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenBench:
    monkeypatch.setattr(bench_module, "Session", lambda *a, **k: Session(*a, **k, own_inputs=True))

    @asynccontextmanager
    async def bench(problem: Problem) -> AsyncIterator[ProcessBench]:
        made = ProcessBench(problem, "cpu", tmp_path / "scratch")
        try:
            yield made
        finally:
            await made.close()

    return bench


@pytest.mark.parametrize(
    ("before", "body", "reason"),
    [
        ("", "", ""),
        ("torch.set_default_dtype(torch.float64)", "", ""),
        ("torch.set_default_device('meta')", "", ""),
        ("torch.set_grad_enabled(False)", "torch.manual_seed(7)", ""),
        ("", "x.mul_(2)", "wrong.input-mutation"),
        ("_first = {}", "x = _first.setdefault('x', x.clone())", "wrong."),
        ("torch.rand = lambda *a, **k: torch.zeros(*a)", "", ""),
    ],
)
async def test_the_candidate_has_its_own_settings_and_no_say_in_the_inputs(
    opened: OpenBench, before: str, body: str, reason: str
) -> None:
    problem = problem_that_makes()
    lines = f"    out = torch.softmax(x, dim=-1) * scale + y\n    {body or 'pass'}\n    return out\n"
    if "_first" in before:
        lines = f"    {body}\n    return torch.softmax(x, dim=-1) * scale + y\n"
    source = f"import torch\n{before}\n\ndef run(x, y, scale):\n{lines}"
    async with opened(problem) as bench:
        answer = await bench.evaluate(python_solution(source, definition=problem.name, name="it"), TIMED)
    assert answer.reason == reason or (reason == "wrong." and answer.reason.startswith(("wrong.", "hack."))), (
        answer.reason,
        answer.detail,
    )


async def test_where_the_problems_code_makes_others_elsewhere_their_bytes_travel(
    opened: OpenBench,
) -> None:
    problem = problem_that_makes(extra="hash('seed') % 1000 / 100")
    async with opened(problem) as bench:
        session = await bench._live()
        assert session.makes_inputs(0) and session.specs[0].told
        right = await bench.evaluate(python_solution(RIGHT, definition=problem.name, name="right"), TIMED)
        assert right.verdict == "PASS", (right.reason, right.detail)
        assert not session.makes_inputs(0) and any("they travel" in note for note in right.notes)
        mutating = RIGHT.replace("    return", "    x.mul_(2)\n    return")
        wrong = await bench.evaluate(python_solution(mutating, definition=problem.name, name="wrong"), TIMED)
    assert wrong.reason in ("wrong.input-mutation", "wrong.numerical"), (wrong.reason, wrong.detail)


def test_the_same_seed_makes_what_the_judge_makes_whatever_the_process_is_set_to() -> None:
    problem = problem_that_makes()
    made, axes = (
        MadeInputs(problem, torch.device("cpu")),
        resolve_axes(problem.definition, problem.workloads[0]),
    )
    expected = make_inputs(problem.definition, problem.workloads[0], axes, "cpu", 11)
    torch.set_default_dtype(torch.float64)
    try:
        found = made(0, 11)
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(found[:2], expected[:2], strict=True))
    assert found[2] == expected[2]
    assert not torch.equal(made(0, 12)[0], expected[0])


def test_the_problems_own_settings_stay_with_its_code() -> None:
    problem = problem_that_makes()
    source = "import torch\ntorch.set_default_dtype(torch.float64)\n" + problem.definition.reference
    source = source.replace("torch.rand(rows, cols)", "torch.rand(rows, cols).float()")
    definition = msgspec.structs.replace(problem.definition, reference=source)
    made = MadeInputs(msgspec.structs.replace(problem, definition=definition), torch.device("cpu"))
    assert torch.get_default_dtype() is torch.float32
    assert made(0, 3)[0].dtype is torch.float32 and torch.get_default_dtype() is torch.float32
