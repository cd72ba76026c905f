"""Problems from other collections: SOL-ExecBench's dataset, flashinfer-trace, KernelBench."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import BadInput, Fault
from engine.problems.axes import resolve_axes
from engine.problems.importing import format_of, import_problems, safe_name
from engine.problems.inputs import make_inputs
from engine.problems.library import find_problem, user_problems_dir
from engine.problems.load import load_problem
from engine.problems.outputs import normalize_outputs
from engine.problems.reference import load_reference
from engine.problems.sol_dataset import draft_of_row

KERNELBENCH = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, scale):
        super().__init__()
        self.linear = nn.Linear(width, 8)
        self.bn = nn.BatchNorm1d(8)
        self.scale = scale

    def forward(self, x, bias):
        return torch.relu(self.bn(self.linear(x)) * self.scale + bias)


def get_inputs():
    return [torch.rand(16, 32), torch.full((8,), 0.25)]


def get_init_inputs():
    return [32, 2.0]
"""


def test_a_folder_of_problems(make_problem: Any, tmp_path: Path) -> None:
    make_problem(name="in/good")
    bad = make_problem(name="in/bad")
    (bad / "workload.jsonl").write_text('{"uuid": "a", "axes": {}, "inputs": {}}\n')
    by_name = {result.name: result for result in import_problems(tmp_path / "in", "sol-execbench")}
    assert by_name["good"].ok and by_name["good"].path == str(user_problems_dir() / "good")
    assert find_problem("good").name == "scaled_bias_gelu_c256"
    assert not by_name["bad"].ok and "no value for the var axis 'rows'" in by_name["bad"].errors[0]
    assert not (user_problems_dir() / "bad").exists()
    assert import_problems(tmp_path / "in" / "good", "sol-execbench")[0].ok, "the same content again is fine"
    (user_problems_dir() / "good" / "workload.jsonl").write_text("changed")
    (again,) = import_problems(tmp_path / "in" / "good", "sol-execbench")
    assert not again.ok and "exists with other content" in again.errors[0]
    assert not list(user_problems_dir().glob(".import-*"))


def test_a_dataset_row() -> None:
    row = {
        "name": "rope",
        "hf_id": "a/b",
        "description": None,
        "axes": '{"n": {"type": "var"}}',
        "inputs": '{"x": {"shape": ["n"], "dtype": "float32"}}',
        "outputs": '{"y": {"shape": ["n"], "dtype": "float32"}}',
        "reference": "def run(x): return x",
        "workloads": '[{"uuid": "a", "axes": {"n": 3}, "inputs": {}}]',
        "custom_inputs_entrypoint": None,
    }
    draft = draft_of_row(row, "L1.parquet, row 0")
    assert draft.definition["axes"] == {"n": {"type": "var"}} and "description" not in draft.definition
    assert draft.workloads[0]["axes"] == {"n": 3}
    assert "column axes is not JSON" in draft_of_row({**row, "axes": "{"}, "here").error
    assert "column workloads is missing" in draft_of_row({**row, "workloads": None}, "here").error


def test_parquet_without_pyarrow_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "L1.parquet").write_bytes(b"PAR1")
    with pytest.raises(Fault, match=r"needs.pyarrow: .*L1.parquet: Parquet files need.*pip install"):
        import_problems(tmp_path, "sol-execbench")


ROW = {
    "name": "rope",
    "hf_id": "a/b",
    "description": "",
    "axes": '{"n": {"type": "var"}}',
    "inputs": '{"x": {"shape": ["n"], "dtype": "float32"}}',
    "outputs": '{"y": {"shape": ["n"], "dtype": "float32"}}',
    "reference": "def run(x): return x",
    "workloads": '[{"uuid": "a", "axes": {"n": 3}, "inputs": {}}]',
    "custom_inputs_entrypoint": None,
}


def test_parquet_as_downloaded(tmp_path: Path) -> None:
    """Good rows come in whatever the others are; a file that is none is told and stops nothing else."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    source = tmp_path / "data"
    source.mkdir()
    rows = [ROW, {**ROW, "name": "cut", "axes": '{"n"'}, {**ROW, "name": "../out", "reference": "def run(:"}]
    parquet.write_table(arrow.Table.from_pylist(rows), source / "L1.parquet")
    parquet.write_table(arrow.table({"x": [1]}), source / "L2.parquet")
    (source / "Quant.parquet").write_bytes(b"PAR1 no")
    results = import_problems(source, "sol-execbench", tmp_path / "out")
    assert [result.ok for result in results] == [True, False, False, False, False]
    assert load_problem(Path(results[0].path)).workloads[0].axes == {"n": 3}
    said = [result.errors[0] for result in results[1:]]
    assert "row 1: column axes is not JSON" in said[0] and "reference line 1" in said[1]
    assert "column axes is missing" in said[2] and "not a readable Parquet file" in said[3]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rope"]
    with pytest.raises(BadInput, match="not a readable Parquet file"):
        import_problems(source / "Quant.parquet", "sol-execbench", tmp_path / "out")


def _flashinfer(root: Path, reference: str) -> None:
    definition = {
        "name": "scale_n64",
        "op_type": "moe",
        "tags": ["x"],
        "axes": {"rows": {"type": "var"}, "n": {"type": "const", "value": 64}},
        "inputs": {"a": {"shape": ["rows", "n"], "dtype": "float32"}, "b": {"shape": ["n"], "dtype": "float32"}},
        "outputs": {"c": {"shape": ["rows", "n"], "dtype": "float32"}},
        "constraints": ["rows > 0"],
        "reference": reference,
    }
    line = {
        "definition": "scale_n64",
        "solution": None,
        "evaluation": None,
        "workload": {
            "uuid": "w",
            "axes": {"rows": 4},
            "inputs": {
                "a": {"type": "random"},
                "b": {"type": "safetensors", "path": "./blob/workloads/b.safetensors", "tensor_key": "b"},
            },
        },
    }
    for path, text in [
        ("definitions/moe/scale_n64.json", json.dumps(definition)),
        ("workloads/moe/scale_n64.jsonl", json.dumps(line) + "\n"),
    ]:
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(text)


@pytest.mark.parametrize("parameters", ["a, b", "x, weight"])
def test_flashinfer_layout(tmp_path: Path, parameters: str) -> None:
    from safetensors.torch import save_file

    first, second = parameters.split(", ")
    _flashinfer(tmp_path, f"import torch\ndef run({parameters}):\n    return {first} * {second}\n")
    (tmp_path / "blob/workloads").mkdir(parents=True)
    save_file({"b": torch.full((64,), 3.0)}, tmp_path / "blob/workloads/b.safetensors")
    (result,) = import_problems(tmp_path, "flashinfer")
    assert result.ok, result.errors
    assert any("constraints are not checked: rows > 0" in note for note in result.notes)
    problem = find_problem("scale_n64")
    (workload,) = problem.workloads
    assert workload.tolerance.required_matched_ratio == 0.95
    axes = resolve_axes(problem.definition, workload)
    a, b = make_inputs(problem.definition, workload, axes, "cpu", 1, root=problem.root)
    assert b[0] == 3.0
    assert torch.equal(load_reference(problem.definition).run(a, b), a * 3)


def test_flashinfer_without_workloads(tmp_path: Path) -> None:
    _flashinfer(tmp_path, "def run(a, b): return a\n")
    (tmp_path / "workloads/moe/scale_n64.jsonl").unlink()
    (result,) = import_problems(tmp_path, "flashinfer")
    assert not result.ok and "scale_n64.jsonl" in result.errors[0]
    with pytest.raises(BadInput, match="no flashinfer-trace dataset here"):
        import_problems(tmp_path / "workloads", "flashinfer")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    """Editors on other systems write one: Python and JSON without it are what is meant."""
    file = tmp_path / "9_marked.py"
    file.write_text(KERNELBENCH, encoding="utf-8-sig")
    (result,) = import_problems(file, "kernelbench")
    assert result.ok, result.errors
    definition = Path(result.path) / "definition.json"
    for written in (definition, definition.with_name("workload.jsonl")):
        written.write_text(written.read_text(), encoding="utf-8-sig")
    again, ours = import_problems(definition.parent, "sol-execbench", tmp_path / "out"), Path(result.path).name
    assert [result.ok for result in again] == [True] and (tmp_path / "out" / ours).is_dir(), again


def test_kernelbench_parameters_become_inputs(tmp_path: Path) -> None:
    file = tmp_path / "7_Linear_BN_.py"
    file.write_text(KERNELBENCH)
    (result,) = import_problems(file, "kernelbench")
    assert result.ok, result.errors
    problem = load_problem(result.path)
    definition, (workload,) = problem.definition, problem.workloads
    assert list(definition.inputs) == [
        "x",
        "bias",
        "linear_weight",
        "linear_bias",
        "bn_weight",
        "bn_bias",
        "bn_running_mean",
        "bn_running_var",
    ]
    assert definition.outputs["output"].shape == ["16", "8"]
    values = make_inputs(definition, workload, {}, "cpu", 5)
    again = make_inputs(definition, workload, {}, "cpu", 5)
    assert all(torch.equal(one, two) for one, two in zip(values, again, strict=True))
    assert values[0].min() >= 0 and (values[1] == 0.25).all(), "get_inputs' own distributions"
    before = [value.clone() for value in values]
    (output,) = normalize_outputs(definition, load_reference(definition).run(*values), "cpu")
    assert all(torch.equal(one, two) for one, two in zip(values, before, strict=True)), "no input is changed"

    namespace: dict[str, Any] = {}
    exec(KERNELBENCH, namespace)
    model = namespace["Model"](32, 2.0)
    names = {"linear.weight": 2, "linear.bias": 3, "bn.weight": 4, "bn.bias": 5}
    model.load_state_dict({key: values[index] for key, index in names.items()}, strict=False)
    assert torch.allclose(output, model(values[0], values[1]), atol=1e-6)


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (KERNELBENCH.replace("nn.Linear(width, 8)", "nn.Linear(width)"), "TypeError"),
        (KERNELBENCH.replace("return [32, 2.0]", "import os; os._exit(0)"), "ended with code"),
        (KERNELBENCH.replace("torch.rand(16, 32)", "'text'"), "Error"),
    ],
    ids=["raises", "exits", "no tensor"],
)
def test_kernelbench_files_that_cannot_run(tmp_path: Path, source: str, part: str) -> None:
    file = tmp_path / "bad.py"
    file.write_text(source)
    (result,) = import_problems(file, "kernelbench")
    assert not result.ok and part in result.errors[0]


def test_kernelbench_code_runs_without_network_or_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELARC_CANARY_API_KEY", "secret")
    probe = tmp_path / "seen"
    probe.write_text("x")
    check = (
        "import os, pathlib\n"
        "if 'KERNELARC_CANARY_API_KEY' in os.environ: raise ValueError('sees a secret')\n"
        f"if pathlib.Path({str(probe)!r}).exists(): raise ValueError('sees the disk')\n"
    )
    file = tmp_path / "1_probe.py"
    file.write_text(check + KERNELBENCH)
    from engine.bench.sandbox import choose_sandbox

    if choose_sandbox().kind == "none":
        pytest.skip("this box offers no sandbox")
    (result,) = import_problems(file, "kernelbench")
    assert result.ok, result.errors


def test_nothing_to_import(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print(1)\n")
    for format_ in ("kernelbench", "sol-execbench", "flashinfer"):
        with pytest.raises(BadInput):
            import_problems(tmp_path, format_)
    with pytest.raises(BadInput, match="no such file"):
        import_problems(tmp_path / "nowhere", "kernelbench")


def test_safe_names() -> None:
    assert safe_name("../../etc/passwd") == "etc_passwd"
    assert safe_name("a b/c") == "a_b_c"
    assert safe_name("///") == "problem"


def test_the_format_is_told_by_the_files(make_problem: Any, tmp_path: Path) -> None:
    make_problem(name="in/good")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "1_relu.py").write_text(KERNELBENCH)
    (tmp_path / "trace" / "definitions" / "rmsnorm").mkdir(parents=True)
    (tmp_path / "trace" / "definitions" / "rmsnorm" / "x.json").write_text("{}")
    (tmp_path / "trace" / "workloads").mkdir()
    (tmp_path / "level1.parquet").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for source, expected in (
        ("in", "sol-execbench"),
        ("in/good", "sol-execbench"),
        ("level1.parquet", "sol-execbench"),
        ("kernels", "kernelbench"),
        ("kernels/1_relu.py", "kernelbench"),
        ("trace", "flashinfer"),
        ("trace/definitions/rmsnorm/x.json", "flashinfer"),
    ):
        assert format_of(tmp_path / source) == expected
    assert import_problems(tmp_path / "in", None)[0].ok
    with pytest.raises(BadInput, match="no problems of a known format"):
        format_of(tmp_path / "empty")


def test_a_folder_called_definitions_makes_no_trace(make_problem: Any, tmp_path: Path) -> None:
    folder = make_problem(name="definitions/prob")
    kernel = tmp_path / "definitions" / "kernels" / "1_relu.py"
    kernel.parent.mkdir()
    kernel.write_text(KERNELBENCH)
    (tmp_path / "definitions" / "empty").mkdir()
    assert format_of(folder) == "sol-execbench"
    assert format_of(kernel.parent) == "kernelbench"
    assert import_problems(folder, None)[0].ok
    with pytest.raises(BadInput, match="no problems of a known format"):
        format_of(tmp_path / "definitions" / "empty")
    (tmp_path / "workloads").mkdir()
    assert format_of(folder) == "sol-execbench", "what is in a folder says more than what is around it"
    assert format_of(tmp_path / "definitions" / "empty") == "flashinfer"


def test_which_of_several_formats_is_meant_must_be_said(make_problem: Any, tmp_path: Path) -> None:
    folder = make_problem(name="in/good")
    (folder / "solution.py").write_text("def run(x): return x\n")
    assert format_of(tmp_path / "in") == "sol-execbench", "not every Python file is a problem"
    (tmp_path / "in" / "1_relu.py").write_text(KERNELBENCH)
    with pytest.raises(BadInput, match=r"sol-execbench, kernelbench; say --format sol-execbench\|kernelbench"):
        import_problems(tmp_path / "in", None)
    assert import_problems(tmp_path / "in", "sol-execbench")[0].ok
    for name in ("definitions", "workloads"):
        (tmp_path / "in" / name).mkdir()
    with pytest.raises(BadInput, match="several formats: sol-execbench, flashinfer, kernelbench"):
        import_problems(tmp_path / "in", None)


def test_kernelbench_files_that_are_refused_are_told(tmp_path: Path) -> None:
    """A folder of links, as download caches and git-annex make them, and what else cannot be read."""
    store, source = tmp_path / "blobs", tmp_path / "level1"
    store.mkdir()
    source.mkdir()
    (store / "abc").write_text(KERNELBENCH)
    (source / "1_out.py").symlink_to("../blobs/abc")
    (source / "2_gone.py").symlink_to("../blobs/none")
    (source / "3_cut.py").write_text(KERNELBENCH + "def (:\n")
    (source / "4_large.py").write_bytes(b"#" * (8 * 1024 * 1024 + 1))
    (source / "5_latin.py").write_bytes(KERNELBENCH.encode() + b"# \xe9\n")
    (source / "tools.py").write_text("print(1)\n")
    (source / "tools_latin.py").write_bytes(b"# \xe9\n")
    (source / "folder.py").mkdir()
    results = import_problems(source, None, tmp_path / "out")
    assert [(result.name, result.ok) for result in results] == [
        ("1_out", False), ("2_gone", False), ("3_cut", False), ("4_large", False),
        ("5_latin", False),
    ]  # fmt: skip
    said = [result.errors[0] for result in results]
    for text, parts in zip(
        said,
        (
            ("1_out.py: a link that leads out of its folder", "cp -rL"),
            ("2_gone.py: a link to nothing", "git annex get"),
            ("3_cut.py: not Python", "line"),
            ("4_large.py: larger than 8 MiB", ""),
            ("5_latin.py: not UTF-8", ""),
        ),
        strict=True,
    ):
        assert all(part in text for part in parts) and "\n" not in text
