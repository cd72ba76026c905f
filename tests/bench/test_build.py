"""C++ solutions: built by a process of ours, once, with compiler errors as a status."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest

from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.bench.build import architecture
from engine.guard.gate import check
from engine.problems.model import Problem
from engine.problems.solution import Solution, SolutionSpec, SourceFile
from engine.problems.solution_io import solution_from_cpp

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


PLAIN = """
#include <math.h>
#include <stdint.h>
#include <stddef.h>
{linkage} int run(void *const *tensors, const int64_t *const *shapes, void *stream) {{
    const float *x = (const float *)tensors[0], *y = (const float *)tensors[1];
    const double scale = *(const double *)tensors[2];
    float *out = (float *)tensors[3];
    const int64_t rows = shapes[0][0], cols = shapes[3][1];
    if (shapes[2] != NULL || stream != NULL) return 7;
    for (int64_t i = 0; i < rows; i++) {{
        float most = x[i * cols], sum = 0.0f;
        for (int64_t j = 1; j < cols; j++) most = fmaxf(most, x[i * cols + j]);
        for (int64_t j = 0; j < cols; j++) sum += out[i * cols + j] = expf(x[i * cols + j] - most);
        for (int64_t j = 0; j < cols; j++)
            out[i * cols + j] = out[i * cols + j] / sum * (float)scale + y[i * cols + j];
    }}
    return {code};
}}
"""


def plain(problem: Problem, file: str, linkage: str, code: int = 0) -> Solution:
    return solution_from_cpp(PLAIN.format(linkage=linkage, code=code), problem, name="plain", path=file)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
async def test_a_plain_c_entry_needs_no_binding(problem: Problem, tmp_path: Path) -> None:
    bench = ProcessBench(problem, "cpu", tmp_path / "scratch")
    try:
        answers = [
            await bench.evaluate(solution, QUICK)
            for solution in (
                plain(problem, "kernel.c", ""),
                plain(problem, "kernel.cpp", 'extern "C"'),
                plain(problem, "kernel.cpp", 'extern "C"', code=3),
                plain(problem, "kernel.cpp", ""),
            )
        ]
    finally:
        await bench.close()
    assert [answer.reason for answer in answers[:2]] == ["", ""], answers[0].detail
    assert answers[2].reason == "wrong.exception" and "run returned 3" in answers[2].detail
    assert not check(plain(problem, "kernel.cpp", ""), problem).ok or answers[3].verdict == "FAIL"


def test_a_plain_c_entry_is_recognised_and_writes_into_its_outputs(problem: Problem) -> None:
    found = plain(problem, "kernel.cu", 'extern "C"')
    assert (found.spec.binding, found.entry_function) == ("c", "run")
    assert found.spec.destination_passing_style and check(found, problem).ok
    returning = msgspec.structs.replace(
        found, spec=msgspec.structs.replace(found.spec, destination_passing_style=False)
    )
    assert check(returning, problem).reason == "gate.language"
    assert solution_from_cpp(GOOD, problem, name="bound", path="kernel.cpp").spec.binding == "torch"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
async def test_a_greedy_source_ends_as_a_compile_error(problem: Problem, tmp_path: Path) -> None:
    """Neither a flood of errors nor a file that only root can read comes out of a compiler."""
    flood = "#define A(x) x x x x x x x x\n" + "A(A(A(A(A(A(error)))))) " * 4
    shadow = '#include "/etc/shadow"\n'
    bench = ProcessBench(problem, "cpu", tmp_path / "scratch")
    try:
        answers = [await bench.evaluate(plain_source(problem, text), QUICK) for text in (flood, shadow)]
    finally:
        await bench.close()
    assert [answer.reason for answer in answers] == ["compile.failed"] * 2
    assert all(len(answer.detail) < 2500 for answer in answers)
    assert not re.search(r"root:[*$!x]", answers[1].detail)
    assert not list((tmp_path / "scratch").glob("build-*"))


def plain_source(problem: Problem, text: str) -> Solution:
    return solution_from_cpp(
        f'{text}\nextern "C" int run(void) {{ return 0; }}', problem, name="greedy", path="kernel.cpp"
    )
