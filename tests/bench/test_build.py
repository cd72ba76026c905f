"""C++ solutions: built by a process of ours, once, with compiler errors as a status."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.bench.build import architecture
from engine.problems.model import Problem
from engine.problems.solution import Solution, SolutionSpec, SourceFile

QUICK = EvaluationPlan(rounds=1, timing=False, unlisted_shape=False)
GOOD = """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
torch::Tensor run(torch::Tensor x, torch::Tensor y, double scale) { return torch::softmax(x, -1) * scale + y; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


def cpp(problem: Problem, source: str, file: str = "kernel.cpp") -> Solution:
    spec = SolutionSpec(
        languages=["cuda_cpp"], entry_point=f"{file}::run", destination_passing_style=False, binding="torch"
    )
    return Solution(name="cpp", definition=problem.name, author="t", spec=spec, sources=[SourceFile(file, source)])


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
async def test_a_compiler_error_is_the_candidates(problem: Problem, tmp_path: Path) -> None:
    bench = ProcessBench(problem, "cpu", tmp_path / "scratch")
    try:
        answer = await bench.evaluate(cpp(problem, "int broken( {"), QUICK)
    finally:
        await bench.close()
    assert (answer.verdict, answer.reason) == ("FAIL", "compile.failed")
    assert "kernel.cpp" in answer.detail and {w.status for w in answer.workloads} == {"COMPILE_ERROR"}


async def test_cuda_sources_need_a_gpu(problem: Problem, tmp_path: Path) -> None:
    bench = ProcessBench(problem, "cpu", tmp_path / "scratch")
    try:
        answer = await bench.evaluate(cpp(problem, "__global__ void k() {}", "kernel.cu"), QUICK)
    finally:
        await bench.close()
    assert (answer.verdict, answer.reason) == ("ERROR", "needs.cuda")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
async def test_an_extension_is_built_once(problem: Problem, tmp_path: Path) -> None:
    bench = ProcessBench(problem, "cpu", tmp_path / "scratch")
    try:
        first = await bench.evaluate(cpp(problem, GOOD), QUICK)
        second = await bench.evaluate(cpp(problem, GOOD), QUICK)
    finally:
        await bench.close()
    assert first.verdict == second.verdict == "PASS", (first.reason, first.detail)
    assert second.phases_s["compile"] < first.phases_s["compile"] / 3


def test_builds_are_for_exactly_one_architecture() -> None:
    assert architecture((9, 0)) == "9.0a" and architecture((8, 6)) == "8.6" and architecture(None) == ""
