"""The door in front of the bench: shut while the campaign is paused, so that the device can be given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


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
        await self._open.wait()

    async def emptied(self) -> None:
        """Wait until nobody is inside."""
        await self._empty.wait()

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._empty.set()
