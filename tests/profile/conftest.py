"""Device locks of a test's own, and a look at what it left behind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.bench import device_lock
from engine.profile import run, sanitize


@pytest.fixture
def own_device_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(device_lock, "lock_dir", lambda: folder)
    made: list[str] = []

    def recorded(prefix: str) -> str:
        made.append(tempfile.mkdtemp(prefix=prefix))
        return made[-1]

    for module in (run, sanitize):
        monkeypatch.setattr(module, "mkdtemp", recorded)
    yield
    assert not [place for place in made if Path(place).exists()], "nothing is left behind"
