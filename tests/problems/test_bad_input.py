"""Every defect of a problem's files is one clear line that names file, field and fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import BadInput
from engine.problems.check import check_problem
from engine.problems.load import load_problem


def _set(path: str, value: Any) -> Any:
    """A change that sets one dotted field: ``d.`` in the definition, ``w0.`` in the first workload."""

    def change(definition: dict[str, Any], workloads: list[dict[str, Any]]) -> None:
        head, *keys = path.split(".")
        target: Any = definition if head == "d" else workloads[int(head[1:])]
        for key in keys[:-1]:
            target = target.setdefault(key, {})
        if value is DELETE:
            del target[keys[-1]]
        else:
            target[keys[-1]] = value

    return change


DELETE = object()
_TENSOR = {"dtype": "float32", "shape": ["rows"]}
_RUN = "def run(x, bias, scale): return x\n"

CASES = [
    # (id, change, parts that the line must hold)
    (
        "unknown dtype",
        _set("d.inputs.x.dtype", "float23"),
        ["definition.json", "inputs.x.dtype", "'float23'", "use one of"],
    ),
    ("uint8 is not in the format", _set("d.outputs.y.dtype", "uint8"), ["outputs.y.dtype", "'uint8'", "'int8'"]),
    ("unknown axis in a shape", _set("d.inputs.x.shape", ["row", "cols"]), ["inputs.x.shape", "'row'", "'rows'"]),
    ("expression in a shape", _set("d.inputs.x.shape", ["rows * 2"]), ["inputs.x.shape", "axis of its own"]),
    ("number in a shape", _set("d.inputs.x.shape", ["rows", 4]), ["inputs.x", "Expected `str`", "in quotes"]),
    ("shape missing", _set("d.inputs.x", {"dtype": "float32"}), ["inputs.x", "missing shape"]),
    ("axis kind", _set("d.axes.rows.type", "dynamic"), ["axes.rows.type", "'dynamic'", "const, var or expr"]),
    ("const without value", _set("d.axes.cols", {"type": "const"}), ["axes.cols", "value"]),
    ("negative const", _set("d.axes.cols.value", -1), ["axes.cols.value", "-1"]),
    ("fractional const", _set("d.axes.cols.value", 2.5), ["axes.cols", "int"]),
    ("bad expression", _set("d.axes.half.expression", "cols //"), ["axes.half.expression", "not an arithmetic"]),
    (
        "call in an expression",
        _set("d.axes.half.expression", "max(cols, 2)"),
        ["definition.json", "half", "'max'"],
    ),
    (
        "later axis",
        _set(
            "d.axes",
            {
                "half": {"type": "expr", "expression": "cols // 2"},
                "rows": {"type": "var"},
                "cols": {"type": "const", "value": 256},
            },
        ),
        ["half", "'cols'", "later"],
    ),
    (
        "unknown axis in an expression",
        _set("d.axes.half.expression", "colls // 2"),
        ["'colls'", "did you mean 'cols'"],
    ),
    (
        "fractional expression",
        _set("d.axes.half.expression", "cols / 3"),
        ["workload.jsonl:1", "half", "not whole"],
    ),
    ("division by zero", _set("d.axes.half.expression", "cols // 0"), ["half", "division by zero"]),
    ("huge power", _set("d.axes.half.expression", "cols ** cols"), ["half", "too large"]),
    ("input named like an axis", _set("d.inputs", {"x": _TENSOR, "rows": _TENSOR}), ["inputs.rows", "axis"]),
    ("output named like an input", _set("d.outputs.x", _TENSOR), ["outputs.x", "input"]),
    ("no outputs", _set("d.outputs", {}), ["outputs is empty"]),
    ("empty name", _set("d.name", " "), ["name is empty"]),
    ("name is a number", _set("d.name", 3), ["name must be a string"]),
    ("reference missing", _set("d.reference", DELETE), ["missing field reference"]),
    ("reference does not parse", _set("d.reference", "def run(:\n"), ["reference line 1", "valid Python"]),
    ("reference with a null byte", _set("d.reference", "a\0b"), ["reference", "valid Python"]),
    ("no run", _set("d.reference", "def go(x): pass\n"), ["no top-level function run", "def run(x, bias, scale)"]),
    (
        "wrong order",
        _set("d.reference", "def run(bias, x, scale): pass\n"),
        ["run(bias, x, scale)", "def run(x, bias"],
    ),
    ("one parameter too many", _set("d.reference", "def run(x, bias, scale, eps): pass\n"), ["eps", "inputs"]),
    ("async run", _set("d.reference", f"async {_RUN}"), ["run is async"]),
    ("keyword nobody passes", _set("d.reference", "def run(x, bias, scale, *, k): pass\n"), ["keyword-only k"]),
    (
        "entry point missing",
        _set("d.custom_inputs_entrypoint", "gen"),
        ["custom_inputs_entrypoint 'gen'", "device"],
    ),
    ("entry point no identifier", _set("d.custom_inputs_entrypoint", "a.b"), ["'a.b'", "identifier"]),
    ("uuid missing", _set("w1.uuid", DELETE), ["workload.jsonl:2", "missing field uuid"]),
    ("duplicate uuid", _set("w1.uuid", "r64"), ["workload.jsonl:2", "'r64'", "line 1", "its own uuid"]),
    ("inputs missing", _set("w0.inputs", DELETE), ["workload.jsonl:1", "missing field inputs"]),
    ("var axis missing", _set("w0.axes", {}), ["workload.jsonl:1", "'rows'", 'add "rows"']),
    ("axis is text", _set("w0.axes.rows", "64"), ["workload.jsonl:1", "axes.rows", "whole number"]),
    ("negative axis", _set("w0.axes.rows", -3), ["axes.rows", "-3"]),
    ("input kind", _set("w0.inputs.x", {"type": "zeros"}), ["inputs.x.type", "'zeros'", "random, scalar"]),
    (
        "scalar for a tensor",
        _set("w0.inputs.x", {"type": "scalar", "value": 1}),
        ["inputs.x", "declared as a tensor"],
    ),
    ("scalar without value", _set("w0.inputs.scale", {"type": "scalar"}), ["inputs.scale", "value"]),
    ("blob without key", _set("w0.inputs.x", {"type": "safetensors", "path": "a"}), ["inputs.x", "tensor_key"]),
    (
        "custom without entry point",
        _set("w0.inputs", {n: {"type": "custom"} for n in ("x", "bias", "scale")}),
        ["inputs.x", "no custom_inputs_entrypoint"],
    ),
    ("tolerance null", _set("w0.tolerance", None), ["tolerance", "not null", "leave it out"]),
    ("negative tolerance", _set("w0.tolerance", {"max_atol": -1e-3}), ["tolerance.max_atol", "-0.001"]),
    ("ratio of seven", _set("w0.tolerance", {"required_matched_ratio": 7.0}), ["required_matched_ratio", "7.0"]),
    ("ratio of zero", _set("w0.tolerance", {"required_matched_ratio": 0}), ["required_matched_ratio", "(0, 1]"]),
    (
        "tolerance beyond float32",
        _set("w0.tolerance", {"max_atol": 1e300}),
        ["tolerance.max_atol", "1e+300", "float32"],
    ),
    ("nine dimensions", _set("d.outputs.y.shape", ["1"] * 9), ["outputs.y.shape", "9 dimensions, at most 8"]),
    ("65 dimensions", _set("d.inputs.x.shape", ["1"] * 65), ["inputs.x.shape", "65 dimensions, at most 64"]),
    ("no such memory", _set("d.axes.cols.value", 10**18), ["workload.jsonl:1", "inputs.x", "128 TiB", "the axes"]),
    ("axis of 400 digits", _set("w0.axes.rows", 10**400), ["workload.jsonl:1", "axes.rows", "more than"]),
    ("const of 400 digits", _set("d.axes.cols.value", 10**400), ["axes.cols", "value"]),
    ("scalar of 400 digits", _set("w0.inputs.scale.value", 10**400), ["inputs.scale", "64 bits"]),
    ("shape of 5000 digits", _set("d.inputs.x.shape", ["9" * 5000]), ["inputs.x.shape", "unknown axis"]),
    ("endless expression", _set("d.axes.half.expression", "+".join("1" * 9999)), ["half", "longer than 400"]),
    ("endless uuids", lambda _, w: [x.update(uuid="u" * 9999) for x in w], ["workload.jsonl:2", "on line 1"]),
    ("endless name of an axis", _set("w0.axes", {"x" * 9999: -1}), ["workload.jsonl:1", "is negative"]),
    (
        "blob out of the folder",
        _set("w0.inputs.x", {"type": "safetensors", "path": "../../../etc/passwd", "tensor_key": "x"}),
        ["workload.jsonl:1", "inputs.x", "'../../../etc/passwd'", "leads out", "FLASHINFER_TRACE_DIR"],
    ),
    ("tolerance is text", _set("w0.tolerance", {"max_rtol": "1e-2"}), ["tolerance.max_rtol", "float"]),
]


@pytest.mark.parametrize(("change", "parts"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_defect_is_one_clear_line(make_problem: Any, change: Any, parts: list[str]) -> None:
    folder = make_problem(change)
    with pytest.raises(BadInput) as caught:
        load_problem(folder)
    line = caught.value.message
    assert "\n" not in line
    assert str(folder) in line, "names the file"
    for part in parts:
        assert part in line, line
    assert len(line) < 1200
    assert not check_problem(folder).ok


def test_custom_is_all_or_nothing(make_problem: Any) -> None:
    def change(definition: dict[str, Any], workloads: list[dict[str, Any]]) -> None:
        definition["custom_inputs_entrypoint"] = "make"
        workloads[0]["inputs"] = {"x": {"type": "custom"}, "scale": {"type": "scalar", "value": 1.0}}

    with pytest.raises(BadInput, match=r"workload\.jsonl:1: inputs\.bias: not custom although 'x' is"):
        load_problem(make_problem(change))


def test_files_that_are_missing_or_no_json(make_problem: Any, tmp_path: Path) -> None:
    for path, part in [
        (tmp_path / "nowhere", "no such file or folder"),
        (make_problem(name="no_workloads"), "missing file"),
        (make_problem(name="broken_line"), "workload.jsonl:2: not valid JSON"),
        (make_problem(name="broken"), "definition.json: not valid JSON"),
        (make_problem(name="list"), "must hold one JSON object, not a list"),
        (make_problem(name="empty"), "no workload"),
        (make_problem(name="binary"), "not valid JSON"),
    ]:
        match path.name:
            case "no_workloads":
                (path / "workload.jsonl").unlink()
            case "broken_line":
                with (path / "workload.jsonl").open("r+") as stream:
                    first = stream.readline()
                    stream.seek(0)
                    stream.write(first + '{"uuid": "x", \n')
                    stream.truncate()
            case "broken":
                (path / "definition.json").write_text('{"name": "x"')
            case "list":
                (path / "definition.json").write_text("[]")
            case "empty":
                (path / "workload.jsonl").write_text("\n\n")
            case "binary":
                (path / "definition.json").write_bytes(b"\x89PNG\xff\xfe")
        with pytest.raises(BadInput) as caught:
            load_problem(path)
        assert part in caught.value.message


def test_check_collects_every_defect(make_problem: Any) -> None:
    def change(definition: dict[str, Any], workloads: list[dict[str, Any]]) -> None:
        definition["inputs"]["x"]["dtype"] = "half"
        definition["outputs"]["y"]["shape"] = ["nope"]
        workloads[1]["axes"] = {"rows": "many"}

    result = check_problem(make_problem(change))
    assert not result.ok
    assert len(result.errors) == 3
    assert any("workload.jsonl:2" in line for line in result.errors)


def test_text_in_a_line_cannot_reach_the_terminal_raw(make_problem: Any) -> None:
    with pytest.raises(BadInput) as caught:
        load_problem(make_problem(_set("d.inputs.x.dtype", "\x1b]0;owned\x07\nsecond line")))
    assert "\x1b" not in caught.value.message and "\n" not in caught.value.message
