"""``problems import``: other collections → problem folders that the loader accepts."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import BadInput
from engine.problems.load import read_problem

FORMATS = ("sol-execbench", "flashinfer", "kernelbench")


class Draft(msgspec.Struct, kw_only=True):
    """One problem on its way in: documents to write, or why there are none."""

    name: str
    definition: dict[str, Any] = {}
    workloads: list[dict[str, Any]] = []
    notes: list[str] = []
    error: str = ""
    extra_files: dict[str, str] = {}  # file name → path of a file to copy


class ImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """``path`` is where the problem now is; empty if it was refused."""

    name: str
    path: str
    ok: bool
    errors: list[str] = []
    notes: list[str] = []


def import_problems(source: Path | str, format_: str | None, out: Path | str | None = None) -> list[ImportResult]:
    """Convert everything in ``source`` and write what passes the loader's checks below ``out``.

    Without a format it is told by the files. ``out`` defaults to the user's own problems. An existing folder with
    other content is never overwritten.
    Raises :class:`BadInput` if ``source`` is nothing of that format at all.
    """
    from engine.problems.library import user_problems_dir

    target = Path(out) if out is not None else user_problems_dir()
    return [_store(draft, target) for draft in _drafts(Path(source), format_)]


def format_of(source: Path) -> str:
    """The format that the files of ``source`` are in.

    What is in ``source`` tells, and only where that says nothing the folders around it.
    Raises :class:`BadInput` if its files are in no format, or in several.
    """
    from engine.problems.flashinfer import dataset_root, is_dataset
    from engine.problems.kernelbench import holds_problem

    if source.suffix == ".py":
        return "kernelbench"
    found = []
    if _any(source, "definition.json") or _any(source, "*.parquet"):
        found.append("sol-execbench")
    if is_dataset(source):
        found.append("flashinfer")
    # Other Python files are no sign: a problem's folder may hold solutions, a dataset its tools.
    if source.is_dir() and holds_problem(source):
        found.append("kernelbench")
    if not found and dataset_root(source) is not None:
        found.append("flashinfer")
    if not found and _any(source, "*.py"):
        found.append("kernelbench")  # whose importer says what is wrong with them
    if len(found) == 1:
        return found[0]
    what = (
        f"holds problems of several formats: {', '.join(found)}"
        if found
        else "holds no problems of a known format"
    )
    raise BadInput(what, where=str(source), fix=f"say --format {'|'.join(found or FORMATS)}")


def _any(source: Path, pattern: str) -> bool:
    """Whether ``source`` is such a file, or holds one."""
    return source.match(pattern) or next(source.rglob(pattern), None) is not None


def _drafts(source: Path, format_: str | None) -> Iterable[Draft]:
    if not source.exists():
        raise BadInput("no such file or folder", where=str(source))
    format_ = format_ or format_of(source)
    if format_ == "flashinfer":
        from engine.problems.flashinfer import flashinfer_drafts

        return flashinfer_drafts(source)
    if format_ == "kernelbench":
        from engine.problems.kernelbench import kernelbench_drafts

        return kernelbench_drafts(source)
    if format_ == "sol-execbench":
        from engine.problems.sol_dataset import sol_drafts

        return sol_drafts(source)
    raise BadInput(f"unknown format {format_!r}", fix=f"use one of {', '.join(FORMATS)}")


def safe_name(name: str) -> str:
    """A folder name made of letters, digits, ``.``, ``_`` and ``-``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:120] or "problem"


def jsonl(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _store(draft: Draft, target: Path) -> ImportResult:
    if draft.error:
        return ImportResult(name=draft.name, path="", ok=False, errors=[draft.error], notes=draft.notes)
    folder = target / safe_name(draft.name)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target, prefix=".import-") as scratch:
            staged = Path(scratch) / folder.name
            _write(draft, staged)
            reading = read_problem(staged)
            notes = [*draft.notes, *reading.notes]
            errors = [error.message.replace(str(staged), folder.name) for error in reading.errors]
            if not errors:
                errors = _move(staged, folder)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(folder)) from None
    ok = not errors
    return ImportResult(name=draft.name, path=str(folder) if ok else "", ok=ok, errors=errors, notes=notes)


def _write(draft: Draft, folder: Path) -> None:
    folder.mkdir()
    definition = msgspec.json.format(msgspec.json.encode(draft.definition), indent=2)
    (folder / "definition.json").write_bytes(definition + b"\n")
    (folder / "workload.jsonl").write_bytes(jsonl(draft.workloads))
    for name, path in draft.extra_files.items():
        shutil.copyfile(path, folder / name)


def _move(staged: Path, folder: Path) -> list[str]:
    if not folder.exists():
        staged.rename(folder)
        return []
    same = all(
        (folder / file.name).is_file() and (folder / file.name).read_bytes() == file.read_bytes()
        for file in staged.iterdir()
    )
    return [] if same else [f"{folder} exists with other content; remove it or give another --out"]


def guarded(drafts: Iterator[Draft], name: str) -> Iterator[Draft]:
    """Turns a clear refusal of one problem into its draft's error, so that the others still come in."""
    try:
        yield from drafts
    except BadInput as error:
        yield Draft(name=name, error=error.message)
