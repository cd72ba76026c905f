"""What blocks of no-op calls take on a GPU. The no-ops live as long as the session: their start is paid once."""

from __future__ import annotations

import asyncio

from engine.bench import judge_wire as jw
from engine.bench.contender import Block, Contender, Failure, close_all
from engine.bench.noop import noop_contender, noop_fault, overhead_of
from engine.bench.overhead import Overhead
from engine.bench.plan_calls import HIDDEN
from engine.bench.session import Session

_PAIRS = 2  # blocks of each size


class IdleCalls:
    """Of a no-op that launches and returns, and of one that waits for the device.

    A call that waits (for a number, or to compute on the host) exposes the harness's own work after it, which
    otherwise hides behind the next prelude. That is no lie, so such a call is compared with a no-op that waits.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._noops: dict[tuple[bool, bool], Contender] = {}
        self._overheads: dict[tuple[bool, int, int, int, bool, bool], Overhead] = {}
        self._starting = asyncio.Lock()

    async def started(self, style: bool, *, waits: bool = False) -> Contender:
        """Its live process. ``style``: destination passing. Raises :class:`engine.errors.Fault`."""
        async with self._starting:
            key = (style, waits)
            if key not in self._noops:
                self._noops[key] = noop_contender(self._session, style, waits=waits)
                await self._noops[key].pin(self._session.timing_cores)
            try:
                await self._noops[key].start()
            except Failure as failure:
                raise noop_fault(failure) from None
            return self._noops[key]

    async def overhead(
        self,
        style: bool,
        workload: int,
        k: int,
        prelude: int,
        *,
        waits: bool,
        makes_inputs: bool,
        anew: bool = False,
    ) -> Overhead:
        """With the device held. ``anew``: whatever is known is measured again."""
        key = (style, workload, k, prelude, waits, makes_inputs)
        if anew or key not in self._overheads:
            noop = await self.started(style, waits=waits)
            noop.makes_inputs = makes_inputs  # as the candidate's: that is part of what a block takes
            try:
                await prelude_block(noop, workload, 2 * k, prelude)
                sizes = (k, 2 * k) * _PAIRS
                blocks = [(await prelude_block(noop, workload, calls, prelude))[0] for calls in sizes]
            except Failure as failure:
                raise noop_fault(failure) from None
            self._overheads[key] = overhead_of(blocks)
        return self._overheads[key]

    async def rest(self) -> None:
        """After an evaluation: large ones give their memory back."""
        if self._session.large:
            await self.close()

    async def close(self) -> None:
        noops, self._noops = list(self._noops.values()), {}
        await close_all(noops)


async def prelude_block(side: Contender, workload: int, calls: int, prelude: int) -> tuple[Block, list[jw.Inputs]]:
    """A block for the outside clock. All calls are refilled in secret: allocating would make blocks differ."""
    slots = side.session.slots[workload]
    inputs = side.session.draw(workload, calls, slots, made_there=side.makes_inputs)
    return await side.run(workload, inputs, HIDDEN, prelude=prelude), inputs
