"""Exclusive use of a device, against other campaigns and other users of the box; dies with the process.

One file per device in :func:`engine.paths.lock_dir`, mode 0666 in a sticky folder, never a symlink, never
inherited by a child. Held only around timed regions (and, on CUDA, whatever else occupies the GPU).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from engine.errors import Fault
from engine.paths import lock_dir

_POLL_S = 0.02
_NAME = re.compile(r"[^A-Za-z0-9_.-]")


class Held(msgspec.Struct):
    """One use of a device: monotonic times in seconds, comparable between processes of one boot."""

    device: str
    asked: float
    acquired: float
    released: float | None = None


_TURN_S = 2.0
_PAUSE_S = 3 * _POLL_S


class Turn:
    """The device as one task holds it. :meth:`breathe` lets others in once in a while."""

    def __init__(self, lock: DeviceLock, fd: int, asked: float) -> None:
        self._lock, self._fd = lock, fd
        self.uses: list[Held] = []
        self._begin(asked)

    def _begin(self, asked: float) -> None:
        self.uses.append(Held(device=self._lock.uuid, asked=asked, acquired=time.monotonic()))
        self._lock.trace.append(self.uses[-1])

    def end(self) -> None:
        self.uses[-1].released = time.monotonic()

    async def breathe(self) -> None:
        """Between two timed blocks: after a turn of two seconds the device is free for a moment."""
        if time.monotonic() - self.uses[-1].acquired < _TURN_S:
            return
        self.end()
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        asked = time.monotonic()
        await asyncio.sleep(_PAUSE_S)
        await self._lock.wait(self._fd)
        self._begin(asked)


class DeviceLock:
    """``async with lock.held() as turn`` waits without blocking the loop. ``trace`` keeps every use."""

    def __init__(self, uuid: str, *, folder: Path | None = None) -> None:
        self.uuid = uuid
        self.path = (folder or lock_dir()) / f"{_NAME.sub('_', uuid)}.lock"
        self.trace: list[Held] = []

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(self.path, flags, 0o666)
        except PermissionError:
            # protected_regular forbids O_CREAT on another user's file in a sticky folder.
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise Fault("fault.device-lock", f"{self.path}: {error.strerror}") from None
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:  # a link could make us open another file's mode
            os.close(fd)
            raise Fault("fault.device-lock", f"{self.path} is not a regular file with one name; remove it")
        if info.st_uid == os.getuid():
            os.fchmod(fd, 0o666)  # the umask must not lock other users out
        return fd

    async def wait(self, fd: int) -> None:
        """Until the lock is ours. Where the file was replaced meanwhile, ``fd`` becomes the new one."""
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(_POLL_S)
                continue
            if self._is_current(fd):
                return
            fresh = self._open()
            try:
                os.dup2(fresh, fd, inheritable=False)
            finally:
                os.close(fresh)

    def _is_current(self, fd: int) -> bool:
        mine = os.fstat(fd)
        try:
            there = self.path.lstat()
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[Turn]:
        """Raises :class:`Fault` ``fault.device-lock`` if the lock file cannot be used."""
        asked = time.monotonic()
        fd = self._open()
        try:
            # flock belongs to the open file: every task opens its own, so tasks exclude each other as well.
            await self.wait(fd)
            turn = Turn(self, fd, asked)
            try:
                yield turn
            finally:
                turn.end()
        finally:
            os.close(fd)
