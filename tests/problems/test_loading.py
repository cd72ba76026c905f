"""Good problems load, with notes for what is merely odd."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from engine.errors import BadInput
from engine.problems.axes import input_bytes, output_bytes, resolve_axes, shape_of
from engine.problems.check import check_problem, problem_paths
from engine.problems.load import load_problem, problem_from_json, problem_to_json
from engine.problems.model import RandomInput, Tolerance


def test_the_small_problem(make_problem: Any) -> None:
    problem = load_problem(make_problem())
    first = problem.workloads[0]
    assert problem.name == "scaled_bias_gelu_c256"
    assert first.tolerance == Tolerance()
    axes = resolve_axes(problem.definition, first)
    assert axes == {"rows": 64, "cols": 256, "half": 128}
    assert shape_of(problem.definition.inputs["x"], axes) == (64, 256)
    assert shape_of(problem.definition.inputs["scale"], axes) is None
    assert input_bytes(problem.definition, axes) == 4 * (64 * 256 + 256)
    assert output_bytes(problem.definition, axes) == 4 * 64 * 128


def test_what_the_format_allows(make_problem: Any) -> None:
    def change(definition: dict[str, Any], workloads: list[dict[str, Any]]) -> None:
        definition["inputs"]["x"]["shape"] = ["rows", "256"]
        definition["inputs"]["bias"]["shape"] = []
        workloads[0]["axes"] = {"rows": 3.0, "cols": 256}
        workloads[0]["inputs"] = {"x": {}}
        workloads[1]["axes"]["rows"] = 0

    folder = make_problem(change)
    problem = load_problem(folder / "definition.json")
    assert problem.workloads[0].axes["rows"] == 3
    assert problem.workloads[0].inputs["x"] == RandomInput()
    axes = resolve_axes(problem.definition, problem.workloads[1])
    assert axes["rows"] == 0
    assert shape_of(problem.definition.inputs["bias"], axes) == ()
    assert problem.notes == []


def test_notes_not_errors(make_problem: Any) -> None:
    def change(definition: dict[str, Any], workloads: list[dict[str, Any]]) -> None:
        definition["constraints"] = ["rows > 0"]
        workloads[0]["axes"] |= {"cols": 128, "ghost": 1}
        workloads[0]["inputs"]["ghost"] = {"type": "random"}
        workloads[0]["inputs"]["bias"] = {"type": "safetensors", "path": "a/b.safetensors", "tensor_key": "bias"}
        workloads[1]["tolerance"] = {"max_atol": 5.0, "required_match_ratio": 1.0}

    result = check_problem(make_problem(change))
    assert result.ok
    text = "\n".join(result.notes)
    for part in (
        "'constraints'",
        "'tolerance.required_match_ratio' (did you mean 'required_matched_ratio'?)",
        "axes.cols replaces the const value 256",
        "axes.ghost is not an axis",
        "inputs.ghost is not an input",
        "1 of 2 workloads need safetensors files that are not here (1 files, first 'a/b.safetensors')",
        "1 of 2 workloads have a loose tolerance",
    ):
        assert part in text


def test_a_frozen_copy_is_the_same_problem(make_problem: Any) -> None:
    problem = load_problem(make_problem())
    assert problem_from_json(problem_to_json(problem)) == problem
    with pytest.raises(BadInput, match="not a stored problem"):
        problem_from_json(b'{"definition": 1}')


def _blob(path: Path, name: str, dtype: str, shape: list[int], size: int) -> None:
    header = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


@pytest.mark.parametrize("folder", ["", "blob", "data/trace/blob"])
def test_blobs_are_found_by_stripping_leading_parts(
    make_problem: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    def change(_: Any, workloads: list[dict[str, Any]]) -> None:
        source = {"type": "safetensors", "path": "data/trace/blob/b.safetensors", "tensor_key": "bias"}
        workloads[0]["inputs"]["bias"] = source

    problem = make_problem(change)
    assert any("safetensors files" in note for note in load_problem(problem).notes)
    monkeypatch.setenv("FLASHINFER_TRACE_DIR", str(tmp_path / "dataset"))
    _blob(tmp_path / "dataset" / folder / "b.safetensors", "bias", "F32", [256], 1024)
    assert load_problem(problem).notes == []


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "part"),
    [
        ("bias", "F16", [256], "the file holds float16, the definition says float32"),
        ("bias", "F32", [128], "the file holds shape [128], the workload needs [256]"),
        ("bia", "F32", [256], "no tensor 'bias' (did you mean 'bia'?)"),
        ("", "", [], "not a safetensors file"),
    ],
)
def test_a_blob_that_does_not_fit(make_problem: Any, name: str, dtype: str, shape: list[int], part: str) -> None:
    def change(_: Any, workloads: list[dict[str, Any]]) -> None:
        workloads[0]["inputs"]["bias"] = {"type": "safetensors", "path": "b.safetensors", "tensor_key": "bias"}

    folder = make_problem(change)
    if name:
        _blob(folder / "b.safetensors", name, dtype, shape, 2048)
    else:
        (folder / "b.safetensors").write_bytes(b"hello")
    with pytest.raises(BadInput) as caught:
        load_problem(folder)
    assert part in caught.value.message


@pytest.mark.shared
def test_every_shared_problem_is_read_unchanged(shared_problems: list[Path]) -> None:
    assert len(shared_problems) == 29
    for folder in shared_problems:
        result = check_problem(folder)
        assert result.ok, result.errors
        problem = load_problem(folder)
        raw = json.loads((folder / "definition.json").read_text())
        assert problem.definition.reference == raw["reference"]
        assert list(problem.definition.inputs) == list(raw["inputs"])
        assert len(problem.workloads) == len((folder / "workload.jsonl").read_text().split("\n{"))
        assert problem_from_json(problem_to_json(problem)) == problem
    assert problem_paths(shared_problems[0].parent) == shared_problems


@pytest.mark.shared
def test_missing_blobs_are_a_note(shared_dir: Path) -> None:
    result = check_problem(
        shared_dir / "problems" / "FlashInfer-Bench-014_gqa_paged_prefill_causal_h32_kv4_d128_ps1"
    )
    assert result.ok
    assert any("30 of 30 workloads need safetensors files" in note for note in result.notes)
