"""Names that came with a problem, a solution or an inbox: what they may stand for, and what reading them costs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from engine.decoding import decode_json
from engine.errors import BadInput
from engine.problems.blobs import resolve_blob
from engine.problems.files import is_plain, read_file
from engine.problems.importing import import_problems
from engine.problems.load import MAX_WORKLOADS, load_problem
from engine.problems.solution_io import load_solution, solution_from_json

SOLUTION: dict[str, Any] = {
    "name": "n",
    "definition": "d",
    "author": "a",
    "spec": {"languages": ["pytorch"], "entry_point": "k.py::run", "target_hardware": ["LOCAL"]},
    "sources": [{"path": "k.py", "content": "def run(): pass\n"}],
}


def _with_source(folder: Path, path: str) -> Path:
    """A solution whose second source is to be read from the file beside it."""
    document = {**SOLUTION, "sources": [*SOLUTION["sources"], {"path": path, "content": ""}]}
    folder.mkdir(exist_ok=True)
    (folder / "solution.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("name", ["pipe", "zeros", "environment", "folder", "loop", "too long", "NUL"])
def test_only_regular_files_are_read_and_nothing_waits_or_runs_on(tmp_path: Path, name: str) -> None:
    file = tmp_path / "given"
    match name:
        case "pipe":
            os.mkfifo(file)
        case "zeros":
            file.symlink_to("/dev/zero")
        case "environment":
            file.symlink_to("/proc/self/environ")
        case "folder":
            file.mkdir()
        case "loop":
            file.symlink_to(file)
        case "too long":
            file = tmp_path / ("a" * 5000)
        case "NUL":
            file = tmp_path / "a\0b"
    with pytest.raises(BadInput, match=r"not a regular file|cannot be read|not the name"):
        read_file(file, 1 << 20)
    assert not is_plain(file)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * (1 << 20))
    assert len(read_file(tmp_path / "a", 1 << 20)) == 1 << 20
    with pytest.raises(BadInput, match="larger than 0 MiB; split it"):
        read_file(tmp_path / "a", (1 << 20) - 1, fix="split it")
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "b", 1)


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/."])
def test_links_of_a_download_cache_are_followed_however_its_folder_is_written(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blobs" / "0").write_bytes(b"tensors")
    (tmp_path / "snapshot" / "a.safetensors").symlink_to("../blobs/0")
    monkeypatch.setenv("FLASHINFER_TRACE_DIR", form.format(tmp_path / "snapshot"))
    assert resolve_blob("a.safetensors", tmp_path / "problem") is not None


def test_what_can_be_chosen_is_listed_whole_and_what_others_wrote_is_cut() -> None:
    names = ", ".join(f"setting_{n}" for n in range(60))
    line = BadInput("x" * 900, where="y" * 900, fix=f"known: {names}").message
    assert names in line and "x" * 301 not in line and "y" * 301 not in line


def test_a_link_may_lead_about_inside_the_folder_and_not_out_of_it(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a").write_text("mine")
    (inner / "near").symlink_to("a")
    (tmp_path / "secret").write_text("theirs")
    (inner / "far").symlink_to("../secret")
    (inner / "up").symlink_to(tmp_path)
    assert read_file(inner / "near", 100, inside=inner) == b"mine"
    assert read_file(inner / "far", 100) == b"theirs"  # named by a person, who may link as they like
    for name in ("far", "up/secret", "../secret"):
        with pytest.raises(BadInput, match="leads out of its folder"):
            read_file(inner / name, 100, inside=inner)


def test_a_folder_that_is_a_link_itself_is_no_way_out(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_text("mine")
    (tmp_path / "named").symlink_to("real")
    assert read_file(tmp_path / "named" / "a", 100, inside=tmp_path / "named") == b"mine"


@pytest.mark.parametrize("target", ["/proc/self/environ", "../secret.txt", "/dev/zero"])
def test_a_solution_cannot_take_a_secret_for_a_source(tmp_path: Path, target: str) -> None:
    (tmp_path / "secret.txt").write_text("KEY=canary")
    folder = _with_source(tmp_path / "s", "env.txt")
    (folder / "env.txt").symlink_to(target)
    with pytest.raises(BadInput, match=r"env\.txt") as caught:
        load_solution(folder)
    assert "canary" not in caught.value.message


@pytest.mark.parametrize("path", ["a" * 5000 + ".py", "/".join(["a" * 250] * 30) + ".py"])
def test_a_source_whose_name_no_file_can_have_is_a_short_line(tmp_path: Path, path: str) -> None:
    with pytest.raises(BadInput, match="no such file lies beside it") as caught:
        load_solution(_with_source(tmp_path / "s", path.removeprefix("/")))
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize("name", ["k.py", "k.json", "k.cu"])
def test_a_pipe_is_no_solution(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(BadInput, match="not a regular file"):
        load_solution(tmp_path / name)


@pytest.mark.parametrize("name", ["definition.json", "workload.jsonl"])
def test_a_pipe_is_no_part_of_a_problem(make_problem: Any, name: str) -> None:
    folder = make_problem()
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(BadInput, match=f"{name}: not a regular file"):
        load_problem(folder)


def test_a_problem_from_a_download_cache_is_made_of_links(make_problem: Any, tmp_path: Path) -> None:
    folder = make_problem()
    for name in ("definition.json", "workload.jsonl"):
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
    assert load_problem(folder).name == "scaled_bias_gelu_c256"


def test_more_workloads_than_anybody_waits_for(make_problem: Any) -> None:
    folder = make_problem()
    line = json.loads((folder / "workload.jsonl").read_text().splitlines()[0])
    lines = [json.dumps({**line, "uuid": str(i)}) for i in range(MAX_WORKLOADS + 1)]
    (folder / "workload.jsonl").write_text("\n".join(lines[:-1]))
    assert len(load_problem(folder).workloads) == MAX_WORKLOADS
    (folder / "workload.jsonl").write_text("\n".join(lines))
    with pytest.raises(BadInput, match=f"workload.jsonl: more than {MAX_WORKLOADS} workloads"):
        load_problem(folder)


def test_stored_tensors_stay_in_the_problem_or_in_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy = pytest.importorskip("numpy")
    problem, dataset, elsewhere = (tmp_path / name for name in ("problem", "dataset", "elsewhere"))
    for folder in (problem, dataset, elsewhere):
        folder.mkdir()
    save_file({"x": numpy.zeros(2, dtype="float32")}, elsewhere / "x.safetensors")
    for name in ("problem", "dataset"):
        (tmp_path / name / f"{name}.safetensors").symlink_to(elsewhere / "x.safetensors")
    monkeypatch.setenv("FLASHINFER_TRACE_DIR", str(dataset))
    assert (
        resolve_blob("dataset.safetensors", problem) == dataset / "dataset.safetensors"
    )  # a download cache's link
    # As download caches have it; a problem's own folder is nobody's cache.
    assert resolve_blob("dataset.safetensors", problem) == dataset / "dataset.safetensors"
    assert resolve_blob("problem.safetensors", problem) is None
    # As imports write it.
    assert resolve_blob(str(elsewhere / "x.safetensors"), problem) == elsewhere / "x.safetensors"
    assert resolve_blob("/proc/self/environ", problem) is None
    assert resolve_blob("a/" * 5000, problem) is None
    with pytest.raises(BadInput, match="leads out of its folder"):
        resolve_blob("../elsewhere/x.safetensors", problem)


def test_an_import_reads_no_file_that_only_a_link_brings_in(tmp_path: Path) -> None:
    source = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"
    (tmp_path / "secret.py").write_text(source)
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "1_k.py").symlink_to(tmp_path / "secret.py")
    os.mkfifo(tmp_path / "given" / "2_k.py")
    results = import_problems(tmp_path / "given", "kernelbench", tmp_path / "out")
    assert [result.ok for result in results] == [False, False] and not (tmp_path / "out").exists()
    assert "leads out of its folder" in results[0].errors[0] and "not a regular file" in results[1].errors[0]


@pytest.mark.parametrize("lone", ["\\ud800", "\\uDFFF", "\\ud83d\\ud83d", "\\\\\\udc00"])
def test_half_a_surrogate_pair_is_called_what_it_is(lone: str) -> None:
    document = json.dumps(SOLUTION).replace("pass", f"'{lone}'").encode()
    with pytest.raises(BadInput, match="half of a surrogate pair"):
        solution_from_json(document)


@pytest.mark.parametrize("fine", ['["\\ud83d\\ude00"', '["\\\\ud800"', '["a"'])
def test_other_errors_of_a_document_keep_their_own_words(fine: str) -> None:
    with pytest.raises(BadInput, match="truncated"):
        decode_json(fine, where="a document")
