"""The compiled reference as a baseline: one graph per shape, within its time, never a campaign's fault."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from engine.bench.api import EvaluationPlan
from engine.bench.compiled import LEAST_S, MODES, compiled_reference, measure_compiled
from engine.problems.solution import Solution
from engine.records import Evaluation, WorkloadResult
from tests.bench.conftest import make_problem

PROBLEM = make_problem()


@pytest.mark.parametrize("mode", MODES)
def test_the_source_keeps_the_references_parameters_and_lifts_the_limit_on_graphs(mode: str) -> None:
    source = compiled_reference(PROBLEM, mode).entry_source
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert [[argument.arg for argument in function.args.args] for function in functions] == [
        ["x", "y", "scale"]
    ] * 2
    assert f'mode="{mode}", dynamic=False' in source and "recompile_limit" in source
    assert source.index("torch.softmax") < source.index("_torch.compile(run")


class Clock:
    """Every evaluation takes the next of the given seconds."""

    def __init__(self, *takes: float) -> None:
        self.now, self.takes, self.asked = 0.0, list(takes), []

    def __call__(self) -> float:
        return self.now

    def evaluate(self, *answers: Evaluation) -> Callable[[Solution, EvaluationPlan], object]:
        left = list(answers)

        async def run(solution: Solution, plan: EvaluationPlan) -> Evaluation:
            self.asked.append((solution.name, plan.deadline_s))
            self.now += self.takes.pop(0)
            return left.pop(0)

        return run


def passed(ms: float, speedup: float) -> Evaluation:
    rows = [WorkloadResult(uuid=uuid, status="PASSED", latency_ms=ms) for uuid in ("w16", "w48")]
    return Evaluation(verdict="PASS", workloads=rows, geomean_speedup=speedup)


FAILED = Evaluation(verdict="FAIL", reason="compile.timeout", detail="too slow")


async def test_the_faster_mode_counts_and_both_are_noted() -> None:
    clock = Clock(20.0, 30.0)
    found = await measure_compiled(PROBLEM, clock.evaluate(passed(2.0, 1.5), passed(1.0, 3.0)), 120.0, clock)  # type: ignore[arg-type]
    assert (found.mode, found.latency_ms) == (MODES[1], {"w16": 1.0, "w48": 1.0})
    assert found.notes == [
        "torch.compile (default): 1.50x the eager reference",
        "torch.compile (max-autotune-no-cudagraphs): 3.00x the eager reference",
    ]
    assert clock.asked == [("compile-default", 120.0), (f"compile-{MODES[1]}", 100.0)]


async def test_the_slower_mode_is_tried_only_where_there_is_time_for_it() -> None:
    clock = Clock(35.0)
    found = await measure_compiled(PROBLEM, clock.evaluate(passed(2.0, 1.5)), 120.0, clock)  # type: ignore[arg-type]
    assert found.mode == "default" and len(clock.asked) == 1


async def test_a_failure_is_a_note_and_a_later_one_takes_nothing_away() -> None:
    clock = Clock(1.0, 1.0)
    found = await measure_compiled(PROBLEM, clock.evaluate(passed(2.0, 1.5), FAILED), 60.0, clock)  # type: ignore[arg-type]
    assert found.mode == "default"
    assert (
        found.notes[1] == "torch.compile (max-autotune-no-cudagraphs) was not measured: compile.timeout too slow"
    )
    slow = Clock(50.0)
    none = await measure_compiled(PROBLEM, slow.evaluate(FAILED), 60.0, slow)  # type: ignore[arg-type]
    assert none.latency_ms == {} and none.mode == ""


async def test_too_little_time_is_said() -> None:
    found = await measure_compiled(PROBLEM, Clock().evaluate(), LEAST_S / 2)  # type: ignore[arg-type]
    assert found.latency_ms == {} and "was not measured: 10 s of the time budget" in found.notes[0]
