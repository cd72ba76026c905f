"""Shape-gated dispatch: per shape the fastest by more than the margin, one fallback, or nothing to gain."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from engine.guard.gate import check
from engine.problems.model import Problem
from engine.problems.solution import Solution, python_solution
from engine.recipes.dispatch import Measured, compose
from engine.recipes.subject import axis_lines
from engine.reports.dispatch_table import dispatch_table
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


@pytest.mark.parametrize(
    ("first", "axis", "shown"),
    [
        ("float4_e2m1", "k", "scale.shape[0]"),  # two values a byte: the other input shows it as it is
        ("float4_e2m1", "n", "2 * x.shape[1]"),
        ("float4_e2m1", "rows", "x.shape[0]"),
        ("float4_e2m1fn_x2", "n", "x.shape[1]"),  # declared in bytes
    ],
)
def test_axes_of_packed_inputs_count_values(first: str, axis: str, shown: str) -> None:
    problem = small_problem(
        "def run(x, w, scale):\n    return scale\n",
        {"x": ("rows n", first), "w": ("rows k", first), "scale": ("k", "float32")},
        {"y": ("k", "float32")},
        {"rows": None, "n": None, "k": None},
        [{"rows": 2, "n": 4, "k": 8}],
    )
    assert axis_lines(problem.definition, [axis]) == [f"{axis} = {shown}"]


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


def test_the_table_is_read_off_the_source_for_an_export() -> None:
    found = compose(PROBLEM, [measured(1, 1.0, 5.0, 9.0), measured(2, 4.0, 2.0, 3.0, style=False)])
    assert found is not None
    table = dispatch_table(found.solution)
    assert table is not None and table["axes"] == ["rows"]
    files = {source.path: source.content for source in found.solution.sources}
    assert files[table["fallback"]] == variant(2, style=False).entry_source
    assert [row["shape"] for row in table["table"]] == [{"rows": 1}]
    assert files[table["table"][0]["runs"]] == variant(1).entry_source


@pytest.mark.parametrize(
    ("old", "new"),
    [("TABLE = {", "TABLE = make() or {"), ("TABLE.get(", "lookup("), ("(1,):", "rows:"), ("def run", "def run(")],
)
def test_whatever_is_no_literal_table_has_none(old: str, new: str) -> None:
    found = compose(PROBLEM, [measured(1, 1.0, 5.0, 9.0), measured(2, 4.0, 2.0, 3.0)])
    assert found is not None and old in found.solution.entry_source
    sources = [
        msgspec.structs.replace(s, content=s.content.replace(old, new)) if s.path == "kernel.py" else s
        for s in found.solution.sources
    ]
    assert dispatch_table(msgspec.structs.replace(found.solution, sources=sources)) is None
    assert dispatch_table(variant(1)) is None
