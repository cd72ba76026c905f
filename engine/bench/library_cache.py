"""Built libraries of C++ solutions, kept by content: those that were used longest ago go when room is needed."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from engine.paths import cache_dir

MAX_BYTES = 1 << 30
COMPILERS = ("nvcc", "g++")


class LibraryCache:
    """A file per key. What cannot be kept is built again, so that a full disk stops nobody."""

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder, self.max_bytes = folder or cache_dir() / "built", max_bytes

    def read(self, key: str) -> bytes | None:
        path = self.folder / f"{key}.so"
        try:
            library = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        return library

    def keep(self, key: str, library: bytes) -> None:
        temporary = self.folder / f".{secrets.token_hex(8)}"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(library)
            temporary.replace(self.folder / f"{key}.so")
            self._make_room(key)
        except OSError:
            with suppress(OSError):
                temporary.unlink()

    def _make_room(self, kept: str) -> None:
        entries = [(path.stat(), path) for path in self.folder.iterdir()]
        total = sum(facts.st_size for facts, _ in entries)
        for facts, path in sorted(entries, key=lambda entry: entry[0].st_mtime):
            if total <= self.max_bytes or path.name == f"{kept}.so":
                break
            with suppress(FileNotFoundError):  # another campaign makes room as well
                path.unlink()
            total -= facts.st_size


def compilers() -> list[tuple[str, int, int]]:
    """What tells one installed compiler from another, without starting it: file, size, time of change."""
    found = []
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            real = os.path.realpath(path)
            facts = Path(real).stat()
            found.append((real, facts.st_size, facts.st_mtime_ns))
    return found
