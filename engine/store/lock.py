"""One writer per campaign: a ``flock`` that the kernel drops when its process dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from engine.errors import BadInput, StoreError

LOCK_NAME = "engine.lock"
ENGINE, EDIT = "engine", "edit"
"""What a lock is held for: a campaign's run, or a change of milliseconds by somebody without an engine."""
LOOK_S, EDIT_S = 0.5, 5.0
"""How long a look and an edit are waited for: they take microseconds and milliseconds."""
_held: set[Path] = set()


class CampaignLock:
    """Exclusive ownership of a campaign's database and control socket.

    The descriptor is close-on-exec, so no child of the engine can keep a dead engine's lock alive.
    """

    def __init__(self, folder: Path, *, purpose: str = ENGINE) -> None:
        self.folder = folder.resolve()
        self._purpose = purpose
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock; somebody who only looks whether an engine is there, and an edit, are waited for.

        Raises:
            BadInput: an engine holds it, or an edit that does not end.
            StoreError: the folder cannot be written.
        """
        if self._fd is not None:
            return
        path = self.folder / LOCK_NAME
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreError(f"{path}: cannot be locked ({error.strerror})") from error
        try:
            taken = _try_for(fd, self.folder)
        except OSError as error:
            os.close(fd)
            raise StoreError(
                f"{path}: this file system has no locks ({error.strerror}); use a local KERNELARC_HOME"
            ) from error
        if not taken:
            os.close(fd)
            raise self._refusal()
        note = f"{os.getpid()} {self._purpose}\n".encode()
        os.pwrite(fd, note, 0)
        os.ftruncate(fd, len(note))
        self._fd = fd
        _held.add(self.folder)

    def _refusal(self) -> BadInput:
        holder = lock_holder(self.folder)
        who = f"process {holder}" if holder else "another process"
        if being_edited(self.folder):
            return BadInput(f"{who} is changing this campaign", where=self.folder.name, fix="try again")
        return BadInput(
            f"{who} already runs this campaign", where=self.folder.name, fix="open it with `kernelarc attach`"
        )

    def release(self) -> None:
        if self._fd is not None:
            _held.discard(self.folder)
            os.close(self._fd)
            self._fd = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def __enter__(self) -> CampaignLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def held_here(folder: Path) -> bool:
    """Whether this process holds the campaign's lock."""
    return folder.resolve() in _held


def engine_alive(folder: Path) -> bool:
    """Whether some process, this one included, holds the campaign's lock."""
    if held_here(folder):
        return True
    try:
        fd = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks cannot have a living engine
        return False
    finally:
        os.close(fd)
    return False


def lock_holder(folder: Path) -> int | None:
    """The process id that the last holder wrote down; only meaningful while the lock is held."""
    try:
        return int(_note(folder)[0])
    except (IndexError, ValueError):
        return None


def being_edited(folder: Path) -> bool:
    """Whether the last holder took the lock for an edit; only meaningful while the lock is held."""
    return _note(folder)[1:] == [EDIT]


def _note(folder: Path) -> list[str]:
    try:
        return (folder / LOCK_NAME).read_text().split()
    except OSError:
        return []


def _try_for(fd: int, folder: Path) -> bool:
    """Whether the lock came free while it was worth waiting."""
    begun = time.monotonic()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - begun
            if waited >= (EDIT_S if being_edited(folder) else LOOK_S):
                return False
            time.sleep(0.02)
        else:
            return True
