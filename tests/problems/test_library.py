"""Problems by name or path."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.errors import BadInput
from engine.problems.library import find_problem, list_problems, user_problems_dir
from engine.problems.show import problem_text


def _install(folder: Path, name: str) -> Path:
    target = user_problems_dir() / name
    shutil.copytree(folder, target)
    return target


def test_by_path_and_by_name(make_problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_problem()
    assert find_problem(str(folder)).name == "scaled_bias_gelu_c256"
    _install(folder, "my_gelu")
    monkeypatch.chdir(folder)
    for ref in ("my_gelu", "scaled_bias_gelu_c256", ".", "definition.json"):
        assert find_problem(ref).name == "scaled_bias_gelu_c256"
    (entry,) = [entry for entry in list_problems() if entry.origin == "user"]
    assert (entry.name, entry.workloads, entry.op_type, entry.dtypes) == ("my_gelu", 2, "elementwise", "float32")


def test_unknown_names_suggest_the_nearest(make_problem: Any) -> None:
    _install(make_problem(), "my_gelu")
    with pytest.raises(BadInput, match=r"no problem named 'my_gleu'; did you mean my_gelu"):
        find_problem("my_gleu")
    with pytest.raises(BadInput, match="no such file or folder"):
        find_problem("./my_gelu")


def test_a_broken_problem_is_listed_with_its_error(make_problem: Any) -> None:
    target = _install(make_problem(), "bad")
    (target / "workload.jsonl").write_text("{}\n")
    (entry,) = [entry for entry in list_problems() if entry.name == "bad"]
    assert "workload.jsonl:1: missing field uuid" in entry.error
    with pytest.raises(BadInput, match="missing field uuid"):
        find_problem("bad")


def test_a_problem_as_text(make_problem: Any) -> None:
    text = problem_text(find_problem(str(make_problem())))
    for part in ("half = cols // 2", "scale: float32 number", "r1000", "rows=1000", "def run(x, bias, scale):"):
        assert part in text
