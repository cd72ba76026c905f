"""Shape-gated dispatch: per shape the fastest by more than the margin, one fallback, or nothing to gain."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.guard.gate import check
from engine.problems.model import Problem
from engine.problems.solution import Solution, python_solution
from engine.recipes.dispatch import Measured, compose
from tests.content.helpers import small_problem

PROBLEM = small_problem(
    "def run(x):\n    return x + 1\n",
    {"x": ("rows cols", "float32")},
    {"y": ("rows cols", "float32")},
    {"rows": None, "cols": 4},
    [{"rows": 1}, {"rows": 64}, {"rows": 4096}],
)


def variant(number: int, style: bool = True) -> Solution:
    body = f"y.fill_({number})" if style else f"return x * 0 + {number}"
    source = f"def run(x{', y' if style else ''}):\n    {body}\n"
    return python_solution(source, definition=PROBLEM.name, name=str(number), destination_passing=style)


def measured(number: int, *latencies: float, style: bool = True) -> Measured:
    return Measured(
        label=f"#{number}",
        solution=variant(number, style),
        latencies_ms=dict(zip(("w0", "w1", "w2"), latencies, strict=True)),
    )


def test_each_shape_gets_its_fastest() -> None:
    found = compose(PROBLEM, [measured(1, 1.0, 5.0, 9.0), measured(2, 4.0, 2.0, 3.0)])
    assert found is not None
    assert found.table == {"w0": "#1", "w1": "#2", "w2": "#2"}
    assert found.predicted_ms == pytest.approx(6 ** (1 / 3)) and found.best_single_ms == pytest.approx(
        24 ** (1 / 3)
    )


def test_a_lead_within_the_margin_does_not_count() -> None:
    assert compose(PROBLEM, [measured(1, 1.0, 1.0, 1.0), measured(2, 0.995, 2.0, 2.0)]) is None
    assert compose(PROBLEM, [measured(1, 1.0, 1.0, 1.0), measured(2, 0.9, 2.0, 2.0)]) is not None


def test_nothing_to_combine() -> None:
    assert compose(PROBLEM, [measured(1, 1.0, 1.0, 1.0)]) is None
    incomplete = Measured(label="#2", solution=variant(2), latencies_ms={"w0": 0.1})
    assert compose(PROBLEM, [measured(1, 1.0, 1.0, 1.0), incomplete]) is None


def test_the_solution_passes_the_gate_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    found = compose(PROBLEM, [measured(1, 1.0, 5.0, 9.0), measured(2, 4.0, 2.0, 3.0, style=False)])
    assert found is not None and check(found.solution, PROBLEM).ok
    for source in found.solution.sources:
        (tmp_path / source.path).write_text(source.content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    namespace: dict[str, object] = {}
    exec((tmp_path / "kernel.py").read_text(), namespace)
    for rows, expected in ((1, 1.0), (64, 2.0), (4096, 2.0), (77, 2.0)):
        y = torch.zeros(rows, 4)
        namespace["run"](torch.zeros(rows, 4), y)  # type: ignore[operator]
        assert y.unique().tolist() == [expected]


def test_workloads_of_one_shape_are_one_entry() -> None:
    problem: Problem = small_problem(
        "def run(x, s):\n    return x * s\n",
        {"x": ("rows cols", "float32"), "s": (None, "float32")},
        {"y": ("rows cols", "float32")},
        {"rows": None, "cols": 4},
        [{"rows": 8}, {"rows": 8}, {"rows": 9}],
        {"s": 2.0},
    )
    one = [Measured(label="a", solution=variant(1), latencies_ms={"w0": 1.0, "w1": 1.0, "w2": 9.0})]
    two = [Measured(label="b", solution=variant(2), latencies_ms={"w0": 0.5, "w1": 3.0, "w2": 1.0})]
    found = compose(problem, one + two)
    assert found is not None and found.table["w0"] == found.table["w1"]
