"""Calls into a driver, from a thread that may hang in it without anybody waiting: not even the process's end."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from engine.hardware.nvml import NvmlUnavailable

T = TypeVar("T")
_Order = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Aside:
    """One daemon thread, started with the first call; calls are made one after the other.

    (The event loop's own threads are waited for when it closes: one that never returns keeps the process alive.)
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: asyncio.Future[Any] | None = None
        self._since = 0.0

    @property
    def silent_s(self) -> float:
        """For how long a call has not been answered; 0 if all are."""
        if self._last is None or self._last.done():
            return 0.0
        return time.monotonic() - self._since

    async def ask(self, call: Callable[[], T], answer_s: float) -> T:
        """What ``call`` returns or, a :class:`NvmlUnavailable`, raises. ``TimeoutError`` if that takes longer."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        if not self.silent_s:
            self._since = time.monotonic()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._last = answer
        self._orders.put((call, answer))
        done, _ = await asyncio.wait([answer], timeout=answer_s)
        if not done:
            raise TimeoutError(f"the driver has not answered for {max(self.silent_s, answer_s):.0f} s")
        return answer.result()

    def stop(self) -> None:
        """The thread ends after what it was asked, if ever."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread = None

    def _serve(self) -> None:
        while (order := self._orders.get()) is not None:
            call, future = order
            result, error = None, None
            try:
                result = call()
            except NvmlUnavailable as unavailable:
                error = unavailable
            try:
                future.get_loop().call_soon_threadsafe(_deliver, future, result, error)
            except RuntimeError:  # the loop has closed meanwhile
                return


def _deliver(future: asyncio.Future[Any], result: Any, error: NvmlUnavailable | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
        future.exception()  # known, also where nobody waits any more
    else:
        future.set_result(result)
