"""The installed wheel serves the same documents as the checkout, and owns only its two import packages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    code = f"import hatchling.build as b; print(b.build_wheel({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


def test_only_our_two_packages_are_importable(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"engine", "kernelarc_tui"}


def shipped(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


@pytest.mark.parametrize("kind", ["skills", "tasks", "themes", "prompts"])
def test_an_installed_wheel_finds_every_shipped_document(wheel: Path, tmp_path: Path, kind: str) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = f"from engine.resources import resource_dir; print(resource_dir({kind!r}))"
    env = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    # -S and -I would hide PYTHONPATH; a plain interpreter started elsewhere sees the extracted wheel first.
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = Path(done.stdout.strip())
    assert found.is_relative_to(tmp_path)
    source = ROOT / "engine" / kind if kind == "prompts" else ROOT / kind
    assert shipped(source), f"{source} ships nothing"
    assert shipped(source) <= shipped(found)
