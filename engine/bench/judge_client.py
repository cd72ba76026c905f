"""The engine's side of the judge: one question at a time, and what a failure to answer means."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from engine.bench import judge_wire as jw
from engine.bench import wire
from engine.bench.processes import Helper, ending, taken_note_of
from engine.errors import Fault

T = TypeVar("T")


class JudgeClient:
    """One judge process. One question at a time."""

    def __init__(self, helper: Helper) -> None:
        self.helper = helper
        self.specs: list[wire.WorkloadSpec] = []
        self.draw_s: dict[int, float] = {}  # what making one set of inputs took last time, by workload
        self.compare_s: dict[int, float] = {}  # what comparing one call took at least, by workload
        self._lock = asyncio.Lock()
        self._left: set[asyncio.Future[Any]] = set()  # exchanges that nobody waits for any more

    async def stop(self) -> None:
        """End the process, and what was still to be read from it: an event loop must not end before it."""
        await self.helper.stop()
        if self._left:
            await asyncio.wait(self._left)

    async def _ask(self, request: msgspec.Struct, kind: type[T], timeout_s: float, fds: Sequence[int] = ()) -> T:
        """Whoever asks may be cancelled; the answer is read all the same, or the next one would get it."""
        exchange = asyncio.ensure_future(self._exchange(request, kind, timeout_s, fds))
        try:
            return await asyncio.shield(exchange)
        except asyncio.CancelledError:
            exchange.add_done_callback(taken_note_of)
            self._left.add(exchange)
            exchange.add_done_callback(self._left.discard)
            raise

    async def _exchange(
        self, request: msgspec.Struct, kind: type[T], timeout_s: float, fds: Sequence[int] = ()
    ) -> T:
        runs_reference = isinstance(request, jw.Fill | jw.Check)
        async with self._lock:
            try:
                await self.helper.send(request, fds)
                decoder = msgspec.msgpack.Decoder(kind)
                async with asyncio.timeout(timeout_s):
                    return await wire.read_frame(self.helper.reader, decoder)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self.helper.process.kill()  # what it may still say would be taken for another answer
                reason, who = (
                    ("fault.reference", "reference") if runs_reference else ("fault.judge", "judge process")
                )
                raise Fault(reason, f"the {who} did not answer within {timeout_s:.0f} s") from None
            except (EOFError, ConnectionError, wire.ProtocolError):
                raise await self._ended(runs_reference=runs_reference) from None

    async def _ended(self, *, runs_reference: bool) -> Fault:
        """The judge's own faults leave a traceback and status 1; else what it ran ended it, or somebody."""
        code, said = await self.helper.code(), self.helper.last_words()
        if code is None or not runs_reference or (code == 1 and said):
            return Fault("fault.judge", f"the judge process ended: {said or ending(code)}")
        detail = f"the process that runs the reference ended, {ending(code)}"
        return Fault("fault.reference", f"{detail}: {said}" if said else detail)

    async def open(self, request: jw.Open) -> jw.Opened:
        opened = await self._ask(request, jw.Opened, 120.0)
        if opened.reason:
            raise Fault(opened.reason, opened.detail)
        self.specs = opened.specs
        return opened

    async def attach(self, side: int, arenas: tuple[int, int], input_bytes: int, output_bytes: int) -> None:
        """Raises :class:`Fault` ``needs.memory`` where so much cannot be mapped."""
        request = jw.Attach(side=side, input_bytes=input_bytes, output_bytes=output_bytes)
        attached = await self._ask(request, jw.Filled, 30.0, arenas)
        if attached.reason:
            raise Fault(attached.reason, attached.detail)

    async def fill(
        self, sides: list[int], workload: int, calls: list[jw.Inputs], timeout_s: float, *, told: bool = False
    ) -> jw.Filled:
        """Raises :class:`Fault` too where the problem's own code fails."""
        request = jw.Fill(sides=sides, workload=workload, calls=calls, told=told)
        filled = await self._ask(request, jw.Filled, timeout_s)
        if filled.reason:
            raise Fault(filled.reason, filled.detail)
        if math.isfinite(filled.draw_s) and filled.draw_s > 0:
            self.draw_s[workload] = filled.draw_s
        return filled

    async def forget(self, side: int) -> None:
        await self._ask(jw.Forget(side=side), jw.Filled, 30.0)

    async def check(
        self, side: int, workload: int, calls: list[jw.Inputs], collected: wire.Report, timeout_s: float
    ) -> jw.Checked:
        request = jw.Check(
            side=side, workload=workload, calls=calls, digests=collected.digests, strides=collected.strides
        )
        checked = await self._ask(request, jw.Checked, timeout_s)
        if checked.reason:
            raise Fault(checked.reason, checked.detail)
        if calls and math.isfinite(checked.seconds):
            self.compare_s[workload] = min(checked.seconds / len(calls), self.compare_s.get(workload, math.inf))
        return checked
