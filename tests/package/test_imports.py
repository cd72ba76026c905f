"""Imports point one way (screen → engine → formats), and nothing heavy is loaded before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "litellm", "textual", "optuna", "jinja2", "triton", "numpy")
LIGHT = [
    "engine.records",
    "engine.config",
    "engine.problems.model",
    "engine.problems.load",
    "engine.problems.library",
    "engine.problems.solution",
    "engine.problems.solution_io",
    "engine.guard.gate",
    "engine.store.reader",
    "engine.store.campaigns",
    "engine.control.client",
    "engine.reports.status",
    "engine.launch",
    "engine.skills",
]


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name.split(".")[0] for name in found}


def test_the_engine_never_imports_the_screen() -> None:
    guilty = [
        str(p) for p in (ROOT / "engine").rglob("*.py") if imported(p) & {"textual", "kernelarc_tui", "rich"}
    ]
    assert guilty == []


def test_the_formats_and_the_store_know_nothing_of_the_campaign() -> None:
    upper = (
        "engine.campaign",
        "engine.agent",
        "engine.launch",
        "engine.commands",
        "engine.proposers",
        "engine.bench",
    )
    guilty = []
    for room in ("problems", "store", "control", "hardware", "tracing"):
        for path in (ROOT / "engine" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                module = node.module if isinstance(node, ast.ImportFrom) else None
                if module and module.startswith(upper) and not module.startswith("engine.bench.sandbox"):
                    guilty.append(f"{path.relative_to(ROOT)}: {module}")
    assert guilty == []


@pytest.mark.parametrize("module", LIGHT)
def test_light_rooms_stay_light(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
