"""The problems a person can name: those that ship with the product and their own."""

from __future__ import annotations

import difflib
from collections import Counter
from pathlib import Path

import msgspec

from engine.errors import BadInput
from engine.paths import home
from engine.problems.load import load_problem, read_problem
from engine.problems.model import Problem
from engine.resources import resource_dir


class ProblemEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of the library. ``name`` is its folder's, ``error`` says why it cannot be used."""

    name: str
    path: str
    origin: str  # bundled | user
    definition: str = ""
    op_type: str | None = None
    description: str = ""
    workloads: int = 0
    dtypes: str = ""  # of inputs and outputs, most common first
    error: str = ""


def user_problems_dir() -> Path:
    """Where ``problems import`` puts problems and where a person's own are found by name."""
    return home() / "problems"


def problem_folders() -> list[tuple[str, Path]]:
    """(bundled or user, folder) of everything that looks like a problem; a user's own shadows a bundled one."""
    found: dict[str, tuple[str, Path]] = {}
    try:
        bundled: Path | None = resource_dir("tasks")
    except FileNotFoundError:
        bundled = None
    for source, folder in (("bundled", bundled), ("user", user_problems_dir())):
        if folder is None or not folder.is_dir():
            continue
        for definition in sorted(folder.rglob("definition.json")):
            found[definition.parent.name] = (source, definition.parent)
    return [found[name] for name in sorted(found)]


def list_problems() -> list[ProblemEntry]:
    """Every library problem, by name; a broken one is listed with its error."""
    return [_entry(origin, folder) for origin, folder in problem_folders()]


def find_problem(ref: str) -> Problem:
    """A problem by path (folder or ``definition.json``) or by the name of a library problem.

    A name is its folder's or its definition's. Raises :class:`BadInput`: unknown with the nearest names, or
    the first defect of the files.
    """
    if not ref.strip():
        raise BadInput("no problem is named", fix="see kernelarc problems list, or give a folder")
    path = Path(ref).expanduser()
    folders = problem_folders()
    by_name = {folder.name: folder for _, folder in folders}
    looks_like_path = "/" in ref or ref in (".", "..") or path.name == "definition.json"
    if ref in by_name and not looks_like_path and not (path / "definition.json").is_file():
        return load_problem(by_name[ref])
    if looks_like_path or path.exists():
        return load_problem(path)
    entries = list_problems()
    for entry in entries:
        if entry.definition == ref:
            return load_problem(entry.path)
    names = sorted({name for entry in entries for name in (entry.name, entry.definition) if name})
    raise BadInput(f"no problem named {ref!r}", fix=_meant(ref, names))


def problem_folder(ref: str) -> Path:
    """The folder that is meant: one that is there, or a library problem's. Raises :class:`BadInput`."""
    if ref.strip() and Path(ref).exists():
        return Path(ref)
    folders = {folder.name: folder for _, folder in problem_folders()}
    if ref not in folders:
        raise BadInput(f"no folder and no library problem {ref!r}", fix=_meant(ref, sorted(folders)))
    return folders[ref]


def _meant(ref: str, names: list[str]) -> str:
    close = difflib.get_close_matches(ref, names, n=3, cutoff=0.5) or [n for n in names if ref and ref in n][:3]
    return f"did you mean {', '.join(close)}?" if close else "see kernelarc problems list, or give a folder"


def _entry(origin: str, folder: Path) -> ProblemEntry:
    reading = read_problem(folder)
    if reading.problem is None:
        error = reading.errors[0].message
        return ProblemEntry(name=folder.name, path=str(folder), origin=origin, error=error)
    definition = reading.problem.definition
    specs = (*definition.inputs.values(), *definition.outputs.values())
    dtypes = Counter(spec.dtype for spec in specs if spec.shape is not None)
    return ProblemEntry(
        name=folder.name,
        path=str(folder),
        origin=origin,
        definition=definition.name,
        op_type=definition.op_type,
        description=" ".join((definition.description or "").split()),
        workloads=len(reading.problem.workloads),
        dtypes=" ".join(dtype for dtype, _ in dtypes.most_common()),
    )
