"""What one source compiled, kept for later processes of the same source and for nobody else.

A child compiles into its own private folder. When the compile phase is over, the keeper (not the candidate)
copies that folder into the store under the source's key; later children of that key start from a private copy.
So nothing is ever shared between sources, and nothing that runs after the compile phase can change what a later
process is given. The store lies under the state directory and is mounted into the zygote's sandbox only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from engine.problems.solution import Solution, solution_sha

MOUNT = "KERNELARC_COMPILE_CACHE"  # environment variable of the zygote: where the store is inside the sandbox
MAX_BYTES = 256 << 20
MAX_FILES = 20_000  # and folders
MAX_STORE_BYTES = 2 << 30
"""Of all sources' entries together, each file and folder counted as a block at least. A campaign's working set is
well below it; beyond it the entries that were used longest ago go, and what they held is compiled again."""
_BLOCK = 4096
_ABANDONED_S = 3600.0  # a copy that was begun and never finished
_KEY = re.compile(r"[0-9a-f]{16,64}")


def key_of(solution: Solution, versions: Mapping[str, str], device: str) -> str:
    """What a compiled artefact depends on: sources and options, versions of what compiles, device."""
    facts = (solution_sha(solution), sorted(versions.items()), device, platform.machine())
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:32]


class Store:
    """The entry of one key, reached through a descriptor that stays valid when the mount is hidden."""

    def __init__(self, root: int, key: str) -> None:
        self._root, self._key = root, key

    @classmethod
    def open(cls, key: str) -> Store | None:
        folder = os.environ.get(MOUNT, "")
        if not folder or not _KEY.fullmatch(key):
            return None
        try:
            return cls(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), key)
        except OSError:
            return None

    def _path(self, name: str) -> Path:
        return Path(f"/proc/self/fd/{self._root}/{name}")

    def restore(self, target: str, uid: int) -> None:
        """Fills a child's cache folder from the store. ``uid`` ≥ 0: who owns the copies."""
        source = self._path(self._key)
        if not source.is_dir():
            return
        self._used()
        copied = copy_regular(source, Path(target))
        if uid >= 0:
            for path in copied:
                os.chown(path, uid, uid, follow_symlinks=False)

    def save(self, source: str) -> str:
        """Keeps a child's cache folder under the key unless there is one already; says what was done."""
        if self._path(self._key).is_dir():
            self._used()
            return "present"
        temporary = self._path(f".{self._key}.{secrets.token_hex(4)}")
        try:
            if not copy_regular(Path(source), temporary):
                temporary.rmdir()
                return "empty"
            temporary.rename(self._path(self._key))
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            return f"not kept: {error}"
        self._make_room()
        return "kept"

    def _used(self) -> None:
        with suppress(OSError):
            os.utime(self._path(self._key))

    def _make_room(self) -> None:
        """Entries that were used longest ago go until the rest fits. Never ours, which has just been kept."""
        entries: list[tuple[float, str, int]] = []
        for entry in self._path(".").iterdir():
            with suppress(OSError):
                entries.append((entry.stat().st_mtime, entry.name, _size_of(entry)))
        total = sum(size for _, _, size in entries)
        for used, name, size in sorted(entries):
            if name == self._key:
                continue
            begun = name.startswith(".")
            if begun and time.time() - used < _ABANDONED_S:  # somebody is at it
                continue
            if not begun and total <= MAX_STORE_BYTES:
                continue
            total -= size
            # Under another name first: who looks for it now finds all of it or nothing.
            doomed = self._path(f".{secrets.token_hex(8)}")
            with suppress(OSError):
                self._path(name).rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)


def _size_of(folder: Path) -> int:
    """On disk, about: links are not followed, and whatever there is takes a block."""
    total = 0
    for here, names, files in os.walk(folder):
        total += _BLOCK * (len(names) + len(files) + 1)
        for name in files:
            with suppress(OSError):
                total += os.lstat(f"{here}/{name}").st_size
    return total


def copy_regular(source: Path, target: Path) -> list[Path]:
    """Copies regular files and the folders that hold them, never following a link; returns what was made.

    Raises ``OSError`` beyond the limits on size and on how much there is to look at.
    """
    made: list[Path] = []
    total = looked_at = 0
    target.mkdir(mode=0o755, exist_ok=True)
    for folder, names, files in os.walk(source):
        here = target / Path(folder).relative_to(source)
        looked_at += len(names) + len(files)
        if looked_at > MAX_FILES:
            raise OSError(f"a compile cache beyond {MAX_FILES} files and folders")
        for name in files:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            try:
                fd = os.open(Path(folder) / name, flags)
            except OSError:
                continue
            with os.fdopen(fd, "rb") as reader:
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode):
                    continue
                total += info.st_size
                if total > MAX_BYTES:
                    raise OSError(f"a compile cache beyond {MAX_BYTES >> 20} MiB")
                made += _folders(here, target)
                with (here / name).open("wb") as writer:
                    shutil.copyfileobj(reader, writer)
            (here / name).chmod(0o755 if info.st_mode & 0o100 else 0o644)
            made.append(here / name)
    return made


def _folders(folder: Path, top: Path) -> list[Path]:
    """Makes what is missing between ``top`` and ``folder``, itself included."""
    missing: list[Path] = []
    while folder != top and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    missing.reverse()
    for made in missing:
        made.mkdir(mode=0o755)
    return missing
