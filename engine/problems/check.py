"""The admission check of a problem's files, without running anything."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine.problems.load import read_problem


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """``ok`` iff there is no error; notes do not refuse a problem."""

    path: str
    name: str
    ok: bool
    errors: list[str] = []
    notes: list[str] = []


def check_problem(path: Path | str) -> CheckResult:
    """Every defect and note of the problem in ``path``, each one line. Never raises for what is in the files."""
    reading = read_problem(path)
    name = reading.problem.name if reading.problem else Path(path).name
    return CheckResult(
        path=str(path),
        name=name,
        ok=reading.problem is not None,
        errors=[error.message for error in reading.errors],
        notes=list(reading.notes),
    )


def problem_paths(path: Path | str) -> list[Path]:
    """The problem folders that a person means by ``path``: itself, or every problem below it."""
    folder = Path(path)
    if folder.is_dir() and not (folder / "definition.json").exists():
        below = sorted(definition.parent for definition in folder.rglob("definition.json"))
        if below:
            return below
    return [folder]
