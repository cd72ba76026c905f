"""Memory of a GPU is shared by all processes of a session: evaluations wait until theirs fit beside the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Room:
    """Places for processes that hold calls in flight; first come, first served.

    Whoever wants more than there are gets all of them: planned sizes are cautious, and alone is the best there is.
    """

    def __init__(self, places: int) -> None:
        self.places = max(places, 1)
        self._used = 0
        self._queue = asyncio.Lock()
        self._freed = asyncio.Event()

    def is_full(self, wanted: int) -> bool:
        """Whether somebody who wants so many would have to wait."""
        return self._queue.locked() or self._used + min(wanted, self.places) > self.places

    @contextlib.asynccontextmanager
    async def taken(self, wanted: int) -> AsyncIterator[None]:
        wanted = min(wanted, self.places)
        async with self._queue:
            while self._used + wanted > self.places:
                self._freed.clear()
                await self._freed.wait()
            self._used += wanted
        try:
            yield
        finally:
            self._used -= wanted
            self._freed.set()
