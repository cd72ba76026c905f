"""Solutions and traces in SOL-ExecBench's own form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import BadInput
from engine.problems.load import load_problem
from engine.problems.solution import Solution, SolutionSpec, SourceFile, solution_sha
from engine.problems.solution_io import (
    guess_languages,
    load_solution,
    solution_from_json,
    solution_json,
    write_solution,
)
from engine.problems.trace import STATUSES, status_of_reason, traces
from engine.records import Evaluation, WorkloadResult

SOLUTION: dict[str, Any] = {
    "name": "eager_v0",
    "definition": "scaled_bias_gelu_c256",
    "author": "someone",
    "spec": {
        "languages": ["pytorch"],
        "target_hardware": ["LOCAL"],
        "entry_point": "kernel.py::run",
        "destination_passing_style": True,
    },
    "sources": [{"path": "kernel.py", "content": "def run(x, bias, scale, y):\n    y.copy_(x)\n"}],
}


def _bent(**changes: Any) -> bytes:
    document = json.loads(json.dumps(SOLUTION))
    for path, value in changes.items():
        target = document
        *keys, last = path.split("__")
        for key in keys:
            target = target[int(key)] if isinstance(target, list) else target[key]
        target[last] = value
    return json.dumps(document).encode()


def test_a_round_trip_keeps_everything(make_problem: Any, tmp_path: Path) -> None:
    problem = load_problem(make_problem())
    solution = solution_from_json(_bent(spec__compile_options={"cuda_cflags": ["-O2"]}, spec__binding="torch"))
    assert solution.spec.compile_options is not None
    assert solution.spec.compile_options.ld_flags == ["-lcuda"], "defaults apply once the object is there"
    files = write_solution(solution, tmp_path / "out")
    assert [file.name for file in files] == ["solution.json", "kernel.py"]
    assert load_solution(tmp_path / "out", problem) == solution
    document = json.loads(solution_json(solution))
    assert set(document) == {"name", "definition", "author", "description", "spec", "sources"}
    assert solution_from_json(_bent()).spec.compile_options is None


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"name": ""}, "name is empty"),
        ({"author": 3}, "author"),
        ({"sources": []}, "sources is empty"),
        ({"sources__0__path": "../kernel.py"}, "not a plain relative path"),
        ({"sources__0__path": "/kernel.py"}, "not a plain relative path"),
        ({"sources": [SOLUTION["sources"][0]] * 2}, "given twice"),
        ({"sources__0__content": ""}, "content is empty"),
        ({"sources__0__path": "other.py"}, "'kernel.py' is not among the sources"),
        ({"spec__entry_point": "kernel.py"}, "not file::function"),
        ({"spec__entry_point": "kernel.py::a::b"}, "not file::function"),
        ({"spec__entry_point": "kernel.cu::run"}, "does not fit the languages pytorch"),
        ({"spec__languages": ["cuda_cpp"]}, "does not fit the languages cuda_cpp"),
        ({"spec__languages": ["pytorch", "cuda_cpp"]}, "mixes pytorch and cuda_cpp"),
        ({"spec__languages": ["tritn"]}, "did you mean 'triton'"),
        ({"spec__target_hardware": []}, "target_hardware is empty"),
        ({"spec__target_hardware": ["H200"]}, "use LOCAL or B200"),
        ({"spec__binding": "tvm-ffi"}, "use torch, c or null"),
    ],
)
def test_broken_rules_are_one_clear_line(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(BadInput) as caught:
        solution_from_json(_bent(**changes))
    assert part in caught.value.message and "\n" not in caught.value.message


def test_lower_case_local_and_the_sister_format(tmp_path: Path) -> None:
    assert solution_from_json(_bent(spec__target_hardware=["local"])).spec.target_hardware == ["LOCAL"]
    document = json.loads(_bent())
    document["spec"] = {"language": "triton", "target_hardware": ["NVIDIA H100"], "entry_point": "kernel.py::run"}
    solution = solution_from_json(json.dumps(document).encode())
    assert solution.spec.languages == ["triton"] and solution.spec.destination_passing_style


def test_a_solution_for_another_problem_is_refused(make_problem: Any, tmp_path: Path) -> None:
    (tmp_path / "solution.json").write_bytes(_bent(definition="other"))
    with pytest.raises(BadInput, match="the solution is for 'other'"):
        load_solution(tmp_path / "solution.json", load_problem(make_problem()))


def test_empty_content_comes_from_the_file_beside(tmp_path: Path) -> None:
    (tmp_path / "solution.json").write_bytes(_bent(sources__0__content=""))
    (tmp_path / "kernel.py").write_text("def run(): pass\n")
    assert load_solution(tmp_path).sources[0].content == "def run(): pass\n"


@pytest.mark.parametrize(
    ("source", "destination_passing"),
    [
        ("def run(x, bias, scale): ...", False),
        ("def run(x, bias, scale, y): ...", True),
        ("def run(x, b, s, y): ...", True),
        ("def run(x, bias, scale, out): ...", False),
        ("def run(*args): ...", False),
        ("run = print", False),
        ("def run(x, bias:", False),
    ],
)
def test_style_of_a_bare_file(make_problem: Any, tmp_path: Path, source: str, destination_passing: bool) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source)
    solution = load_solution(file, load_problem(make_problem()))
    assert solution.spec.destination_passing_style is destination_passing
    assert solution.spec.entry_point == "mine.py::run"
    assert solution.name == "mine" and solution.definition == "scaled_bias_gelu_c256"


def test_languages_of_a_bare_file() -> None:
    assert guess_languages("import torch") == ("pytorch",)
    assert guess_languages("import torch\ndef run():\n    import triton.language as tl") == ("triton",)
    assert guess_languages("from cuda import tile") == ("cutile",)
    assert guess_languages("import cutlass.cute as cute") == ("cute_dsl",)
    assert guess_languages("# import triton\nx = 'import triton'") == ("pytorch",)
    assert guess_languages("import tritonish") == ("pytorch",)


@pytest.mark.parametrize(
    ("parameters", "destination_passing"),
    [
        ("torch::Tensor x, torch::Tensor bias, double scale", False),
        ("torch::Tensor x, std::map<int, int> bias, double scale, torch::Tensor y", True),
    ],
)
def test_a_bare_cuda_file(make_problem: Any, tmp_path: Path, parameters: str, destination_passing: bool) -> None:
    file = tmp_path / "gemm.cu"
    source = f'void launch({parameters}) {{ }}\nPYBIND11_MODULE(m, m) {{{{ m.def("run", &launch); }}}}\n'
    file.write_text(source)
    solution = load_solution(file, load_problem(make_problem()))
    assert solution.spec.languages == ["cuda_cpp"] and solution.spec.binding == "torch"
    assert solution.spec.entry_point == "gemm.cu::run"
    assert solution.spec.destination_passing_style is destination_passing
    assert solution_from_json(solution_json(solution)) == solution


def test_files_that_cannot_be_a_solution(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.py").write_bytes(b"# \xe9\n")
    (tmp_path / "c.py").write_text("  \n")
    (tmp_path / "d.json").write_text("{")
    for name, part in [
        ("a.txt", "unknown kind"),
        ("b.py", "UTF-8"),
        ("c.py", "empty"),
        ("d.json", "JSON"),
        ("e.py", "no such file"),
    ]:
        with pytest.raises(BadInput, match=part):
            load_solution(tmp_path / name)


def test_identity_covers_style_and_options() -> None:
    base = solution_from_json(_bent())
    for change in ({"spec__destination_passing_style": False}, {"spec__compile_options": {}}):
        assert solution_sha(solution_from_json(_bent(**change))) != solution_sha(base)
    assert solution_sha(solution_from_json(_bent(author="other"))) == solution_sha(base)


def _result(uuid: str, status: str, **fields: Any) -> WorkloadResult:
    return WorkloadResult(uuid=uuid, status=status, **fields)


def test_traces_obey_the_consistency_rule(make_problem: Any) -> None:
    problem = load_problem(make_problem())
    solution = solution_from_json(_bent())
    evaluation = Evaluation(
        verdict="FAIL",
        workloads=[
            _result(
                "r64", "PASSED", latency_ms=0.5, reference_latency_ms=1.0, max_abs_error=1e-6, max_rel_error=2e-6
            ),
            _result(
                "r1000", "INCORRECT_NUMERICAL", reason="wrong.nan", max_abs_error=float("inf"), detail="a\x1b[31m"
            ),
        ],
    )
    lines = traces(
        problem, solution, evaluation, hardware="cpu", libs={"torch": "2.13"}, timestamp="2026-01-01T00:00:00"
    )
    passed, wrong = (json.loads(line) for line in lines)
    assert passed["definition"] == "scaled_bias_gelu_c256" and passed["solution"] == "eager_v0"
    assert passed["workload"]["tolerance"]["max_error_cap"] is None
    assert passed["workload"]["inputs"]["x"] == {"type": "random"}
    assert passed["evaluation"]["performance"] == {
        "latency_ms": 0.5,
        "reference_latency_ms": 1.0,
        "speedup_factor": 2.0,
    }
    assert passed["evaluation"]["correctness"]["max_relative_error"] == 2e-6
    assert wrong["evaluation"]["performance"] is None
    assert wrong["evaluation"]["correctness"]["has_nan"] is True
    assert wrong["evaluation"]["correctness"]["extra"]["not_finite"] == ["relative", "absolute"]
    assert "\x1b" not in wrong["evaluation"]["log"]


def test_every_workload_gets_a_line(make_problem: Any) -> None:
    problem = load_problem(make_problem())
    solution = solution_from_json(_bent())
    crashed = Evaluation(
        verdict="FAIL",
        reason="resource.timeout",
        detail="over 10 s",
        workloads=[_result("r64", "RUNTIME_ERROR", reason="crash.signal")],
    )
    first, second = (json.loads(line) for line in traces(problem, solution, crashed, hardware="cpu"))
    assert first["evaluation"]["status"] == "RUNTIME_ERROR" and second["evaluation"]["status"] == "TIMEOUT"
    assert second["evaluation"]["correctness"] is None and second["evaluation"]["performance"] is None
    untimed = Evaluation(verdict="PASS", workloads=[_result("r64", "PASSED"), _result("r1000", "PASSED")])
    assert [json.loads(line)["evaluation"] for line in traces(problem, solution, untimed, hardware="cpu")] == [
        None
    ] * 2
    for reason in (
        "gate.syntax",
        "gate.forbidden-import",
        "compile.failed",
        "hack.cached-output",
        "crash.signal",
        "",
    ):
        assert status_of_reason(reason) in STATUSES


@pytest.mark.parametrize(
    ("languages", "path", "word"),
    [
        (["pytorch"], "kernel.py", "python"),
        (["cute_dsl"], "kernel.py", "python"),
        (["pytorch", "triton"], "kernel.py", "triton"),
        (["cuda_cpp"], "kernel.cu", "cuda"),
        (["cutlass", "cublas"], "kernel.cu", "cuda"),
        (["cuda_cpp"], "kernel.cpp", "cpp"),
    ],
)
def test_one_document_for_both_benchmarks(languages: list[str], path: str, word: str) -> None:
    """Required fields and enumerations of SOL-ExecBench's and flashinfer-bench's solution models."""
    spec = SolutionSpec(
        languages=languages, entry_point=f"{path}::run", binding="torch" if path != "kernel.py" else None
    )
    solution = Solution(
        name="n", definition="d", author="a", spec=spec, sources=[SourceFile(path=path, content="x")]
    )
    document = json.loads(solution_json(solution))
    assert document["spec"]["languages"] == languages and document["spec"]["language"] == word
    assert word in ("python", "triton", "cpp", "cuda", "tilelang")
    assert document["spec"]["target_hardware"] == ["LOCAL"] and document["spec"]["binding"] in (None, "torch")
    assert document["spec"]["entry_point"].count("::") == 1
    assert solution_from_json(solution_json(solution)) == solution, "and ours reads it back unchanged"


def test_names_are_words_for_a_screen() -> None:
    """Control sequences, keys and endless names end at the door: whatever shows a solution shows its name."""
    raw = {
        "name": "evil\x1b[2J\x1b]0;own\x07 sk-canary-0123456789abcdef\u202e" + "A" * 5000,
        "definition": "d",
        "author": "\x1b[31mx\ny",
        "spec": {"languages": ["pytorch"], "target_hardware": ["LOCAL"], "entry_point": "k.py::run"},
        "sources": [{"path": "k.py", "content": "def run(): pass"}],
    }
    solution = solution_from_json(json.dumps(raw).encode())
    assert solution.name.startswith("evil [redacted]A") and len(solution.name) <= 200
    assert solution.author == "x y" and solution.name.isprintable()
