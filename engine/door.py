"""The door in front of the bench: shut while the campaign is paused, so that the device can be given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum

from engine.text import one_line


class BenchDoor:
    """Counts who is inside. Shutting lets nobody in; those inside finish what they measure."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._inside = 0

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    @property
    def inside(self) -> int:
        return self._inside

    def shut(self) -> None:
        self._open.clear()

    def reopen(self) -> None:
        self._open.set()

    async def opened(self) -> None:
        """Wait until the door is open."""
        while not self._open.is_set():  # an event wakes its waiters even if it was cleared again meanwhile
            await self._open.wait()

    async def emptied(self) -> None:
        """Wait until nobody is inside."""
        while self._inside:
            await self._empty.wait()

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        await self.opened()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._empty.set()


class Parked(StrEnum):
    """How far the device is from being given back."""

    OPEN = "open"
    EMPTYING = "emptying"  # shut; those inside finish
    SUSPENDING = "suspending"  # the bench ends its processes, which is never cut short
    PARKED = "parked"  # shut, and the device is given back unless ``failure`` says otherwise
    CLOSED = "closed"  # the campaign has ended


class DeviceParking:
    """Keeps the door shut as long as there is a reason, and the device given back while it is shut.

    | state \\ what happens | a reason comes | the last one goes | nobody is inside | suspended |
    |---|---|---|---|---|
    | open | emptying | | | |
    | emptying | | open | suspending | |
    | suspending | | | | parked, or open if no reason is left |
    | parked | | open | | |

    ``told`` is called when a suspension has ended; ``failure`` says why the device could not be given back.
    """

    def __init__(
        self, door: BenchDoor, suspend: Callable[[], Awaitable[None]], told: Callable[[], None] = lambda: None
    ) -> None:
        self.state = Parked.OPEN
        self.failure = ""
        self._door, self._suspend, self._told = door, suspend, told
        self._reasons: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def shut(self, why: str) -> None:
        """``why`` keeps the door shut until it is given to :meth:`open`."""
        self._reasons.add(why)
        if self.state is Parked.OPEN:
            self.state = Parked.EMPTYING
            self._door.shut()
            self._task = asyncio.create_task(self._park(), name="park")
            self._task.add_done_callback(self._parked)

    def open(self, why: str) -> None:
        """``why`` is no reason any more. The door opens with the last one, during a suspension at its end."""
        self._reasons.discard(why)
        if not self._reasons and self.state in (Parked.EMPTYING, Parked.PARKED):
            self._reopen()

    async def close(self) -> None:
        """Give up whatever is going on: the bench is closed next."""
        task, self._task, self.state = self._task, None, Parked.CLOSED
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task})

    def _reopen(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self.state, self.failure = Parked.OPEN, ""
        self._door.reopen()

    async def _park(self) -> None:
        await self._door.emptied()
        self.state = Parked.SUSPENDING
        await self._suspend()

    def _parked(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if task is not self._task:  # the door was opened before it was empty, or the campaign has ended
            return
        if task.cancelled():
            self.failure = "giving it back was cancelled"
        elif error is not None:
            self.failure = one_line(f"{type(error).__name__}: {error}")
        self.state = Parked.PARKED
        if not self._reasons:
            self._reopen()
        self._told()
