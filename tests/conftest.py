"""Fixtures that every room's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.load_profile("same")
"""The same examples in every run; ``pytest --hypothesis-profile=default`` looks further."""

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State, configuration and sockets of every test are its own."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("KERNELARC_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    runtime = home / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    return home


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Research material beside the checkout; a user's clone does not have it."""
    folder = ROOT.parent / "shared"
    if not (folder / "problems").is_dir():
        pytest.skip("needs the problem and corpus collection in ../shared, which is not part of the product")
    return folder


@pytest.fixture(scope="session")
def shared_problems(shared_dir: Path) -> list[Path]:
    return sorted(p for p in (shared_dir / "problems").iterdir() if (p / "definition.json").is_file())
