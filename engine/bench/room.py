"""Memory of a GPU is shared by all processes of a session: evaluations wait until theirs fit beside the others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from bisect import insort
from collections.abc import AsyncIterator
from typing import NamedTuple

SUCCESSION_S = 0.05
"""How long a place that a search leaves is kept for the confirmation that may follow from it."""


class _Waiting(NamedTuple):
    """In the order in which they are let in."""

    late: bool
    number: int
    wanted: int
    admitted: asyncio.Future[None]


class Room:
    """Places for processes that hold calls in flight: the urgent first, then who came first.

    Whether a search leads to a confirmation is known a moment after it has left: admitting the next search at once
    would have every confirmation wait for one.

    Whoever wants more than there are gets all of them: planned sizes are cautious, and alone is the best there is.
    """

    def __init__(self, places: int, *, succession_s: float = SUCCESSION_S) -> None:
        self.places = max(places, 1)
        self._succession_s = succession_s
        self._used = 0
        self._waiting: list[_Waiting] = []
        self._numbers = itertools.count()

    def is_full(self, wanted: int) -> bool:
        """Whether somebody who wants so many would have to wait."""
        return bool(self._waiting) or self._used + min(wanted, self.places) > self.places

    @contextlib.asynccontextmanager
    async def taken(self, wanted: int, *, urgent: bool = False) -> AsyncIterator[None]:
        wanted = min(wanted, self.places)
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        insort(self._waiting, _Waiting(not urgent, next(self._numbers), wanted, admitted))
        self._admit()
        try:
            await admitted
            yield
        finally:
            was_inside = admitted.done() and not admitted.cancelled()
            if was_inside:
                self._used -= wanted
            self._waiting = [waiting for waiting in self._waiting if waiting.admitted is not admitted]
            if was_inside and not urgent and self._waiting:
                asyncio.get_running_loop().call_later(self._succession_s, self._admit)
            else:
                self._admit()

    def _admit(self) -> None:
        while self._waiting and self._used + self._waiting[0].wanted <= self.places:
            waiting = self._waiting.pop(0)
            if not waiting.admitted.done():  # else whoever waited has given up
                self._used += waiting.wanted
                waiting.admitted.set_result(None)
