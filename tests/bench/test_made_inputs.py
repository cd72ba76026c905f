"""Inputs that a problem's own code makes in the candidate's process (the GPU's protocol, on the CPU device)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import torch

from engine.bench import bench as bench_module
from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.bench.device_claims import travelling
from engine.bench.made_inputs import MadeInputs
from engine.bench.session import Session
from engine.bench.wire import WorkloadSpec
from engine.problems.axes import resolve_axes
from engine.problems.inputs import make_inputs
from engine.problems.load import problem_from_json
from engine.problems.model import CustomInput, Problem, RandomInput, Tolerance
from engine.problems.solution import Solution, python_solution

from .conftest import make_problem

UNTIMED = EvaluationPlan(rounds=8, timing=False)  # this stand-in has no fills that would hide making inputs
MAKES = """
import os
_counted = []

def _often(count):
    _counted.append(1)
    return len(_counted) <= count

def get_inputs(axes_and_scalars, device):
    rows, cols = axes_and_scalars["rows"], axes_and_scalars["cols"]
    assert not torch.backends.cuda.matmul.allow_tf32  # raises where two settings contradict each other
    return {"scale": 0.5 + float(torch.rand(())), "x": torch.rand(rows, cols) + EXTRA}
"""

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
        (
            "torch.set_float32_matmul_precision('high')",
            "assert torch.get_float32_matmul_precision() == 'high'",
            "",
        ),
        (
            "torch.use_deterministic_algorithms(True, warn_only=True)",
            "assert torch.is_deterministic_algorithms_warn_only_enabled()",
            "",
        ),
        ("", "x.mul_(2)", "wrong.input-mutation"),
        ("_first = {}", "x = _first.setdefault('x', x.clone())", "wrong."),
        ("torch.rand = lambda *a, **k: torch.zeros(*a)", "", "wrong.input-mutation"),
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
        answer = await bench.evaluate(python_solution(source, definition=problem.name, name="it"), UNTIMED)
    assert answer.reason == reason or (reason == "wrong." and answer.reason.startswith(("wrong.", "hack."))), (
        answer.reason,
        answer.detail,
    )


def solution_of(problem: Problem, body: str = "", before: str = "") -> Solution:
    source = f"import torch\n{before}\n\ndef run(x, y, scale):\n    {body or 'pass'}\n"
    return python_solution(
        source + "    return torch.softmax(x, dim=-1) * scale + y\n", definition=problem.name, name="it"
    )


@pytest.mark.parametrize(
    "extra",
    [
        "hash('seed') % 100003 / 1000",  # another number in every process that was not forked from the same
        "0.0 if os.getuid() == 0 else 1 / 0",  # it fails there
        "0.0 if os.getuid() == 0 else exit()",
        "0.0 if os.getuid() == 0 or _often(3) else 1 / 0",  # there, after a while
        "0.0, \"scale\": 0.5 + hash('number') % 100003",  # only a number differs
    ],
)
async def test_nobody_is_blamed_for_what_the_problems_code_makes_elsewhere(opened: OpenBench, extra: str) -> None:
    problem = problem_that_makes(extra=extra)
    async with opened(problem) as bench:
        right = await bench.evaluate(solution_of(problem), UNTIMED)
        wrong = await bench.evaluate(solution_of(problem, "x.mul_(2)"), UNTIMED)
        await bench.suspend()
        after = await bench.evaluate(solution_of(problem), UNTIMED)
    assert right.verdict == "PASS", (right.reason, right.detail)
    assert any("they travel" in note for note in right.notes)
    assert wrong.reason == "wrong.input-mutation", (wrong.reason, wrong.detail)
    # Learnt once: nobody is tried twice again.
    assert after.verdict == "PASS" and not any("they travel" in note for note in after.notes)


@pytest.mark.parametrize(
    "body", ["x.mul_(2)", "_calls.append(1)\n    if len(_calls) > 12: x.mul_(2)", "raise RuntimeError('no')"]
)
async def test_who_fails_by_itself_is_judged_once_and_changes_nothing_for_others(
    opened: OpenBench, body: str
) -> None:
    problem = problem_that_makes()
    seen: list[str] = []
    async with opened(problem) as bench:
        solution = solution_of(problem, body, "_calls = []")
        wrong = await bench.evaluate(solution, UNTIMED, None, lambda phase, detail: seen.append(phase))
        right = await bench.evaluate(solution_of(problem), UNTIMED)
        session = (await bench.opened()).session
    assert wrong.verdict == "FAIL" and not session.inputs_travel and seen.count("compiling") == 1
    assert right.verdict == "PASS" and not any("they travel" in note for note in right.notes)


async def test_an_incumbent_that_breaks_the_problems_code_changes_nothing(opened: OpenBench) -> None:
    problem = problem_that_makes()
    digest = hashlib.sha256(problem.definition.reference.encode()).hexdigest()[:12]
    breaks = f"sys.modules['kernelarc_reference_{digest}'].get_inputs.__code__ = (lambda a, d: 1 / 0).__code__"
    spiteful = solution_of(problem, before=f"import sys\n{breaks}")
    async with opened(problem) as bench:
        answer = await bench.evaluate(solution_of(problem), EvaluationPlan(), spiteful)
        session = (await bench.opened()).session
    assert answer.reason == "fault.inputs" and not session.inputs_travel, (answer.reason, answer.detail)


@pytest.mark.parametrize(("slots", "told", "different"), [(None, True, 5), (2, True, 5), (2, False, 2)])
async def test_no_seed_comes_twice_in_a_block_that_is_told_its_seeds(
    opened: OpenBench, slots: int | None, told: bool, different: int
) -> None:
    async with opened(problem_that_makes()) as bench:
        calls = (await bench.opened()).session.draw(0, 5, slots, made_there=told)
    assert len({call.seed for call in calls}) == different


async def test_children_know_neither_names_nor_tolerances(opened: OpenBench) -> None:
    problem = problem_that_makes()
    async with opened(problem) as bench:
        session = (await bench.opened()).session
        told = problem_from_json(session.load_of(solution_of(problem), 1.0).inputs)
    assert [workload.uuid for workload in told.workloads] == [str(n) for n in range(len(told.workloads))]
    assert {workload.tolerance for workload in told.workloads} == {Tolerance()}


def spec(size: int, *, made: bool = True) -> WorkloadSpec:
    return WorkloadSpec("", [], [], size, 0, made=made, told=True)


def test_inputs_of_a_few_small_workloads_travel_for_the_outside_clock() -> None:
    specs = [spec(9) for _ in range(9)]
    chosen = [frozenset(travelling(specs, [8] * 9, range(9))) for _ in range(40)]
    assert {len(some) for some in chosen} == {3} and len(set(chosen)) > 1
    assert travelling([spec(1 << 30), spec(1 << 29)], [8, 8], [0, 1]) == {1}  # the smallest of large ones
    assert travelling([spec(1 << 30), spec(1 << 29)], [8, 1], [0, 1]) == {0}  # one call at a time fits
    assert not travelling([spec(9, made=False)], [8], [0])


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
