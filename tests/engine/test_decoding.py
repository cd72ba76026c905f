"""Files that somebody wrote by hand or by machine: what cannot be is one line with file, line and remedy."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.decoding import MissingFile, decode_json, parse_yaml, read_yaml
from engine.errors import BadInput

DEEP = "[" * 100_000 + "]" * 100_000


class Nested(msgspec.Struct):
    inner: Nested | None = None


class Document(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""


IMPOSSIBLE = {
    "a date": ("2026-13-45", "timestamp"),
    "a time": ("2026-01-01T99:99:99", "timestamp"),
    "an offset": ("2026-01-01T00:00:00+99:99", "timestamp"),
    "a number": ("!!int x", "int"),
    "a number without digits": ("0x_", "int"),
    "a number of nothing": ("!!int ''", "int"),
    "a number too long to read": ("1" * 5000, "int"),
    "a fraction": ("!!float x", "float"),
    "a flag": ("!!bool x", "bool"),
    "a moment": ("!!timestamp x", "timestamp"),
    "another language's object": ("!!python/object:os.system x", "tag"),
    "an open list": ("[1, 2", "line 3"),
    "a key a second time": ("1\nmore: 2", "line 3: 'more' is written twice"),
    "a key of a level below a second time": ("{a: 1, b: 2, a: 3}", "line 2: 'a' is written twice"),
    "a control character": ("\x01", "control"),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_yaml_that_cannot_be_names_file_line_and_remedy(what: str, tmp_path: Path) -> None:
    value, why = IMPOSSIBLE[what]
    file = tmp_path / "mine.yaml"
    file.write_text(f"name: x\nmore: {value}\n")
    with pytest.raises(BadInput) as error:
        read_yaml(file)
    said = error.value.message
    assert said.startswith(f"{file}: is not valid YAML (") and why in said and said.endswith("may need quotes")
    assert ("line 2" in said or "line 3" in said or what == "a control character") and len(said) < 400


def test_a_byte_order_mark_is_no_part_of_a_document(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: x\n", encoding="utf-8-sig")
    assert read_yaml(file, Document).name == "x"
    assert decode_json(b'\xef\xbb\xbf{"a": 1}', where="x") == decode_json('\ufeff{"a": 1}', where="x") == {"a": 1}


def test_merged_yaml_keys_may_be_replaced() -> None:
    text = "base: &b {x: 1, y: 2}\nmine: {<<: *b, x: 3}\n"
    assert parse_yaml(text, where="x") == {"base": {"x": 1, "y": 2}, "mine": {"x": 3, "y": 2}}


def test_yaml_nested_too_deeply_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for text in (DEEP, "- " * 20_000 + "1", "{a: " * 20_000):
        file.write_text(text)
        with pytest.raises(BadInput, match=r"mine\.yaml: is not valid YAML \(.*(nest|deep)"):
            read_yaml(file)
    with pytest.raises(BadInput, match="nested too deeply"):
        parse_yaml("&a {inner: *a}", Nested, where="what holds itself")


def test_a_wrong_field_and_an_unreadable_file_are_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("names: x\n")
    with pytest.raises(BadInput, match=r"unknown field `names`; see the manual"):
        read_yaml(file, Document, fix="see the manual")
    file.write_bytes(b"name: \xff\n")
    with pytest.raises(BadInput, match=r"not UTF-8 text \(byte 6\); save it as UTF-8"):
        read_yaml(file)
    with pytest.raises(BadInput, match="cannot be read"):
        read_yaml(tmp_path)
    with pytest.raises(MissingFile, match=r"none\.yaml: cannot be read"):
        read_yaml(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (DEEP, "nested too deeply"),
        (f'{{"more": {DEEP}}}', "nested too deeply"),
        ("{", "truncated"),
        ("1" * 5000, "range"),
        ('"\ud800"', "surrogates"),
        (b'"\xff"', "UTF-8"),
    ],
    ids=["deep", "deep in a field nobody knows", "half", "a huge number", "half a character", "no text"],
)
def test_json_that_cannot_be_is_bad_input(text: str | bytes, why: str) -> None:
    with pytest.raises(BadInput, match=f"here: not JSON: .*{why}.*; mend it"):
        decode_json(text, where="here", what="not JSON", fix="mend it")


def test_json_is_skipped_as_deep_as_it_is_read() -> None:
    with pytest.raises(BadInput, match="nested too deeply"):
        decode_json(f'{{"more": {DEEP}}}', where="here", kind=dict[str, msgspec.Raw])


# The readers of such files


def test_deep_json_in_every_file_that_is_read(tmp_path: Path) -> None:
    import struct

    from engine.problems.blobs import blob_header
    from engine.problems.flashinfer import flashinfer_drafts
    from engine.problems.load import problem_from_json
    from engine.problems.sol_dataset import draft_of_row, sol_drafts
    from engine.problems.solution_io import solution_from_json
    from engine.proposers.replay import read_lines

    deep = DEEP.encode()
    recording = tmp_path / "recording.jsonl"
    recording.write_bytes(b'{"reply": "x"}\n{"parameters": {"a": ' + deep + b"}}\n")
    blob = tmp_path / "blob.safetensors"
    blob.write_bytes(struct.pack("<Q", len(deep) + 6) + b'{"a":' + deep + b"}")
    for read, where in (
        (lambda: read_lines(recording), "recording.jsonl:2"),
        (lambda: blob_header(blob), "blob.safetensors"),
        (lambda: problem_from_json(b'{"a":' + deep + b"}"), "problem.json"),
        (lambda: solution_from_json(deep), "solution.json"),
    ):
        with pytest.raises(BadInput, match=f"{where}: .*nested too deeply"):
            read()

    problem = tmp_path / "set" / "problem"
    problem.mkdir(parents=True)
    (problem / "definition.json").write_bytes(b"{}")
    (problem / "workload.jsonl").write_bytes(b"{}\n" + deep)
    (draft,) = sol_drafts(tmp_path / "set")
    assert "workload.jsonl:2: nested too deeply" in draft.error
    assert "column axes is not JSON: nested too deeply" in draft_of_row({"name": "a", "axes": DEEP}, "row 1").error

    definitions, workloads = tmp_path / "flash" / "definitions" / "op", tmp_path / "flash" / "workloads" / "op"
    definitions.mkdir(parents=True)
    workloads.mkdir(parents=True)
    (definitions / "a.json").write_bytes(b"{}")
    (workloads / "a.jsonl").write_bytes(b'{"workload": ' + deep + b"}")
    (definitions / "b.json").write_bytes(b'{"a": ' + deep + b"}")
    first, second = flashinfer_drafts(tmp_path / "flash")
    assert "a.jsonl:1: cannot be read: nested too deeply" in first.error
    assert "b.json: cannot be read: nested too deeply" in second.error


def test_a_deep_bounds_file_counts_as_absent(tmp_path: Path) -> None:
    from engine.hardware.roofline import file_bounds
    from engine.problems.library import find_problem

    problem = msgspec.structs.replace(find_problem("rmsnorm_residual_fp32"), root=str(tmp_path))
    (tmp_path / "bounds.json").write_text(f'{{"hardware": "NVIDIA H200", "more": {DEEP}}}')
    assert problem.folder == tmp_path and file_bounds(problem, "NVIDIA H200") == {}
