"""Keeping telemetry and timing apart: no device is asked anything while a block is being timed.

The bench closes :data:`QUIET` around every timed block, the sampler takes no reading meanwhile. Both are
coroutines of one process; the gate belongs to no event loop, so it serves whichever one runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class QuietGate:
    """Closed by any number of timed blocks at once, nested ones too."""

    def __init__(self) -> None:
        self._closed = 0
        self._readings = 0
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Inside no reading is under way and none begins."""
        self._closed += 1
        try:
            while self._readings:
                await self._change()
            yield
        finally:
            self._closed -= 1
            self._wake()

    async def opened(self) -> None:
        """Wait until no block is being timed. Begin the reading without another await in between."""
        while self._closed:
            await self._change()

    @contextmanager
    def reading(self) -> Iterator[None]:
        self._readings += 1
        try:
            yield
        finally:
            self._readings -= 1
            self._wake()

    async def _change(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


QUIET = QuietGate()
