"""Built libraries: found again, pruned by use, and no reason to fail when the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from engine.bench.library_cache import LibraryCache, compilers
from engine.bench.reasons import system_fault, verdict_of


def test_what_was_kept_is_found_and_what_was_not_is_built(tmp_path: Path) -> None:
    cache = LibraryCache(tmp_path / "built")
    assert cache.read("a") is None
    cache.keep("a", b"library")
    assert cache.read("a") == b"library" and [p.name for p in (tmp_path / "built").iterdir()] == ["a.so"]


def test_those_used_longest_ago_go_first(tmp_path: Path) -> None:
    cache = LibraryCache(tmp_path, max_bytes=25)
    for age, key in ((300, "old"), (200, "used"), (100, "young")):
        cache.keep(key, b"0123456789")
        path = tmp_path / f"{key}.so"
        if path.exists():
            os.utime(path, (path.stat().st_atime - age, path.stat().st_mtime - age))
        cache.read("used")
    assert cache.read("old") is None and cache.read("used") and cache.read("young")


def test_a_library_that_cannot_be_kept_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "built").write_text("a file where the folder should be")
    cache = LibraryCache(tmp_path / "built")
    cache.keep("a", b"library")
    assert cache.read("a") is None and [p.name for p in tmp_path.iterdir()] == ["built"]


def test_another_compiler_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    before = compilers()
    compiler.write_text("#!/bin/sh\n# another version\n")
    assert before and before != compilers()


@pytest.mark.parametrize(
    ("code", "reason"), [(errno.ENOSPC, "fault.disk"), (errno.EROFS, "fault.disk"), (errno.EMFILE, "fault.system")]
)
def test_what_the_system_refuses_us_is_nobodys_verdict(code: int, reason: str) -> None:
    found, detail = system_fault(OSError(code, os.strerror(code), "/somewhere"))
    assert found == reason and verdict_of(found) == "ERROR" and "/somewhere" in detail
