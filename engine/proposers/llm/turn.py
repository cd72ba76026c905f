"""One proposal in progress, and the wall-clock deadline that nothing in it can exceed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from engine.proposers.base import Context, LiveSink
from engine.proposers.llm.failures import ModelFailure
from engine.proposers.llm.money import Price
from engine.proposers.llm.pool import Served
from engine.proposers.llm.window import Window
from engine.records import Usage

CANCEL_GRACE_S = 0.5

T = TypeVar("T")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asked in this turn, at what price, and how much it can take in and give out."""

    model: Served
    price: Price | None
    window: Window


class Turn:
    """Its context, what it has cost, when it must end."""

    def __init__(self, context: Context, live: LiveSink, seconds: float) -> None:
        self.context, self.live = context, live
        self.seconds = seconds
        self.end = time.monotonic() + seconds
        self.usage = Usage(model="")
        self.rng = random.Random(f"llm/{context.seed}/{context.agent}/{context.position}")
        self.started = time.monotonic()
        self.last: ModelFailure | None = None
        self.waiting = self.waited = False  # for money that other calls hold: now, ever

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    def bill(self) -> Usage | None:
        """What was used so far; ``None`` if no call was made."""
        if not self.usage.model:
            return None
        return msgspec.structs.replace(self.usage, seconds=time.monotonic() - self.started)


class DeadlinePassed(Exception):
    """The time of a proposal is over."""


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``; :class:`DeadlinePassed` after ``seconds`` even if it does not heed cancellation.

    A cancellation from outside is passed on at once and not waited for. One that nobody here asked for (client
    libraries cancel what they gave up themselves) is no reason to end an agent: it is a :class:`ModelFailure`.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieved)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.cancelled():
            raise ModelFailure("model.failed", "the client library cancelled the call", billed=True)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
    except asyncio.CancelledError:
        task.cancel()
        raise
    raise DeadlinePassed


def _retrieved(task: asyncio.Future[Any]) -> None:
    """Nobody may be left to look at the result of a call that was given up."""
    if not task.cancelled():
        task.exception()
