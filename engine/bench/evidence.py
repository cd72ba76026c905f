"""What is kept of an evaluation, so that its verdict can be audited later: one folder per solution."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from pathlib import Path
from typing import Any

import msgspec

from engine.problems.load import problem_to_json
from engine.problems.model import Problem
from engine.problems.solution import Solution, solution_sha
from engine.problems.solution_io import solution_json
from engine.records import DeviceFacts, Evaluation


def fingerprint(device: DeviceFacts) -> dict[str, Any]:
    """The environment that a number was measured in. No user names, paths or variables."""
    return {
        "device": msgspec.to_builtins(device),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cores": sorted(os.sched_getaffinity(0)),
        "load": list(os.getloadavg()),
    }


def write_evidence(folder: Path, index: int, problem: Problem, solution: Solution, evaluation: Evaluation) -> Path:
    """Writes ``<index>-<name>/``: solution, sources, problem, the whole evaluation and the hashes of all of it."""
    name = re.sub(r"[^\w.-]", "_", solution.name)[:60] or "solution"
    place = folder / f"{index:03d}-{name}"
    place.mkdir(parents=True, exist_ok=True)
    files: dict[str, bytes] = {
        "solution.json": solution_json(solution),
        "problem.json": problem_to_json(problem),
        "evaluation.json": msgspec.json.format(msgspec.json.encode(evaluation), indent=2),
    }
    for source in solution.sources:
        files[f"sources/{source.path}"] = source.content.encode("utf-8", "surrogateescape")
    for relative, content in files.items():
        target = place / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    sums = {relative: hashlib.sha256(content).hexdigest() for relative, content in sorted(files.items())}
    manifest = {"solution_sha": solution_sha(solution), "verdict": evaluation.verdict, "sha256": sums}
    (place / "manifest.json").write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    return place
