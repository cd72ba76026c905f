"""Exclusive use of a device, against other campaigns and other users of the box; dies with the process.

One file per device in :func:`engine.paths.lock_dir`, mode 0666 in a sticky folder, never a symlink, never
inherited by a child. Held only around timed regions (and, on CUDA, whatever else occupies the GPU).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import heapq
import os
import re
import stat
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from weakref import WeakKeyDictionary

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


_TURN_S = 2.0  # after which another process has the device, if one waits
_OWN_TURN_S = 30.0  # after which the next task of this process has it: a verdict now is better than two later
_PAUSE_S = 3 * _POLL_S


class _Queue:
    """The tasks of one event loop that want one device: urgent ones first, each kind in the order of asking."""

    def __init__(self) -> None:
        self.since = self.left = 0.0  # monotonic: handed from task to task since when; last given back when
        self._busy = False
        self._asked = count()
        self._waiting: list[tuple[bool, int, asyncio.Future[None]]] = []

    async def acquire(self, *, urgent: bool) -> None:
        if not self._busy:
            self._busy = True
            return
        mine = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (not urgent, next(self._asked), mine))
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # it was handed over in the moment of the cancellation
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            *_, first = heapq.heappop(self._waiting)
            if not first.done():
                first.set_result(None)
                return
        self._busy = False


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Queue]] = WeakKeyDictionary()


class Turn:
    """The device as one task holds it. :meth:`breathe` lets others in once in a while."""

    def __init__(self, lock: DeviceLock, fd: int, *, urgent: bool) -> None:
        self._lock, self._fd, self._urgent = lock, fd, urgent
        self._queue = _queues.setdefault(asyncio.get_running_loop(), {}).setdefault(str(lock.path), _Queue())
        self._queued = False
        self._began = 0.0
        self.uses: list[Held] = []

    async def take(self) -> None:
        """Waits for the tasks before this one, then for other processes."""
        asked, queue = time.monotonic(), self._queue
        await queue.acquire(urgent=self._urgent)
        self._queued = True
        handed_on = time.monotonic() - queue.left < _PAUSE_S
        if handed_on and time.monotonic() - queue.since > _TURN_S:
            await asyncio.sleep(_PAUSE_S)  # other processes poll: without a pause they would never get in
            handed_on = False
        use = await self._acquire(asked)
        queue.since = queue.since if handed_on else use.acquired
        self._began = use.acquired

    async def _acquire(self, asked: float) -> Held:
        await self._lock.wait(self._fd)
        use = Held(device=self._lock.uuid, asked=asked, acquired=time.monotonic())
        self.uses.append(use)
        return use

    def _release(self) -> None:
        if self.uses and self.uses[-1].released is None:
            self.uses[-1].released = self._queue.left = time.monotonic()
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def give(self) -> None:
        self._release()
        if self._queued:
            self._queued = False
            self._queue.release()

    async def breathe(self) -> None:
        """Between two timed blocks: after a turn whoever waits has the device first."""
        now = time.monotonic()
        if now - self._began >= _OWN_TURN_S:
            self.give()
            await self.take()
        elif now - self.uses[-1].acquired >= _TURN_S:
            self._release()
            await asyncio.sleep(_PAUSE_S)
            self._queue.since = (await self._acquire(now)).acquired


class DeviceLock:
    """``async with lock.held() as turn`` waits without blocking the loop; a turn knows its ``uses``."""

    def __init__(self, uuid: str, *, folder: Path | None = None) -> None:
        self.uuid = uuid
        self.path = (folder or lock_dir()) / f"{_NAME.sub('_', uuid)}.lock"

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
    async def held(self, *, urgent: bool = False) -> AsyncIterator[Turn]:
        """``urgent``: before tasks of this process that are not. Raises :class:`Fault` ``fault.device-lock`` if
        the lock file cannot be used.
        """
        fd = self._open()
        try:
            # flock belongs to the open file: every task opens its own, so tasks exclude each other as well.
            turn = Turn(self, fd, urgent=urgent)
            try:
                await turn.take()
                yield turn
            finally:
                turn.give()
        finally:
            os.close(fd)
