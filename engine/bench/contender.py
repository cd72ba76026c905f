"""One side of a comparison: a solution, the live process that runs it, and blocks of calls on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

import msgspec

from engine.bench import judge_wire as jw
from engine.bench import wire
from engine.bench.plan_calls import (
    AFTER_TIMEOUT_S,
    FIRST_CALL_S,
    REFERENCE_S,
    block_timeout_s,
    calls_of,
)
from engine.bench.processes import Child, to_its_end
from engine.bench.reasons import reason_of
from engine.bench.session import Session, Side
from engine.errors import Fault
from engine.problems.solution import Solution

_TIMED_NICE = -15
_GPU_COMPILE = 3.0  # first calls there compile and tune


class Failure(Exception):
    """What the candidate did wrong: a stable reason code and a text for a person (not yet cleaned)."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class Block(msgspec.Struct, frozen=True):
    """One block of calls: the child's claims and the keeper's own clocks, nanoseconds.

    ``cpu_ns`` 0: the processor time of the block is not known.
    """

    workload: int
    claimed_ns: list[int]
    wall_ns: int
    cpu_ns: int = 0

    @property
    def mean_ms(self) -> float:
        """Per call. The mean, not the median: work moved between the calls of a block must not vanish."""
        return max(sum(self.claimed_ns), 1) / len(self.claimed_ns) / 1e6


class Collected(msgspec.Struct, frozen=True):
    """Outputs that lie ready for the judge."""

    workload: int
    calls: list[jw.Inputs]
    report: wire.Report


class Contender:
    """``role`` is ``candidate``, ``incumbent``, ``reference`` or ``noop``."""

    def __init__(self, session: Session, solution: Solution, role: str) -> None:
        self.session, self.solution, self.role = session, solution, role
        self._side: Side | None = None
        self.library = b""  # of a C++ solution, once it is built
        self.child: Child | None = None
        self.call_s: dict[int, float] = {}  # what one call took last time, by workload
        self.start_s = 0.0
        self.output = b""
        self.timer = ""  # which clock its claims come from
        self.parallel = False  # has been seen with more than one thread or process
        self.reuses_output = False  # returns one buffer again and again: only a block's last call can be checked
        self.makes_inputs = not session.inputs_travel  # where the problem's own code does; else their bytes travel
        self._warm: set[int] = set()
        self._timeouts = 0
        self._cores: list[int] = session.cores.work

    async def start(self) -> None:
        """A fresh process with the solution imported. Raises :class:`Failure` or :class:`Fault`."""
        if self.child is not None and self.child.alive and self.child.in_step:
            return
        if self.child is not None:
            await self.child.close()
        begin = time.monotonic()
        if self._side is None:
            self._side = self.session.take_side()
        renewing = asyncio.ensure_future(self.session.renew(self._side))
        try:
            await self._spawn_and_load(self._side)
            await renewing
        finally:
            await asyncio.wait([renewing])
            _ = renewing.cancelled() or renewing.exception()  # known, also where spawning failed first
            self.start_s += time.monotonic() - begin

    async def _spawn_and_load(self, side: Side) -> None:
        self.child = await self.session.spawn(side, self.solution)
        self._warm.clear()
        try:
            load = self.session.load_of(self.solution, self._first_call_s, self.library)
            report = await self._ask(load, self._first_call_s)
            self.session.layers.update(report.facts)
            self.timer = report.text.decode("ascii", "replace")[:16]
            if self._cores != self.session.cores.work:
                await self._ask(wire.Affinity(cores=self._cores, nice=self._nice), 5.0)
        except Failure:
            await self.child.close()
            raise

    @property
    def has_side(self) -> bool:
        return self._side is not None

    @property
    def number(self) -> int:
        """Of the arenas, as the judge knows them."""
        assert self._side is not None
        return self._side.number

    @property
    def _first_call_s(self) -> float:
        if self._timeouts:
            return AFTER_TIMEOUT_S
        return FIRST_CALL_S * (_GPU_COMPILE if self.session.on_gpu else 1.0)

    async def _ask(self, record: wire.ToKeeper, timeout_s: float) -> wire.Report:
        assert self.child is not None
        report = await self.child.ask(record, timeout_s)
        self.output = bytes(self.child.output.kept)
        if report.event == "lost":
            raise Fault(
                "fault.zygote", "the process that candidates are forked from ended: killed, or out of memory"
            )
        reason, detail = reason_of(report)
        if reason:
            if reason == "resource.timeout":
                self._timeouts += 1
            raise Failure(reason, detail)
        return report

    async def save_compiled(self) -> str:
        """After the compile phase: what this process compiled is kept for later ones of the same source."""
        if self.child is None or not self.child.alive:
            return ""
        report = await self._ask(wire.SaveCache(), 60.0)
        return report.facts.get("cache", "")

    @property
    def _nice(self) -> int:
        """While it is timed a process goes before whatever else wants its core, where we may say so."""
        return _TIMED_NICE if self._cores == self.session.cores.timing else 0

    async def pin(self, cores: list[int]) -> None:
        self._cores = cores
        if self.child is not None and self.child.alive:
            await self._ask(wire.Affinity(cores=cores, nice=self._nice), 5.0)

    async def call(
        self,
        workload: int,
        inputs: list[jw.Inputs],
        filled: jw.Filled,
        style: int,
        *,
        jitter: bool = False,
        prelude: int = 0,
    ) -> Block:
        """One measured window over inputs that the judge has written. Raises :class:`Failure`.

        ``prelude``: a block for the outside clock, see :mod:`engine.bench.device_harness`.
        """
        first = workload not in self._warm
        timeout_s = self._first_call_s if first else block_timeout_s(len(inputs), self.call_s.get(workload, 0.0))
        calls = calls_of(inputs, filled, style)
        record = wire.Run(workload=workload, calls=calls, timeout_s=timeout_s, jitter=jitter, prelude=prelude)
        report = await self._ask(record, timeout_s)
        if len(report.rows) != len(inputs):
            raise Failure("hack.forged-report", "the number of calls reported is not the number asked for")
        self._warm.add(workload)
        self.reuses_output = self.reuses_output or report.aliased
        self.parallel = self.parallel or report.parallel
        if not jitter and not prelude:
            self.call_s[workload] = report.wall_ns / len(inputs) / 1e9
        return Block(workload, [ns for _, ns in report.rows], report.wall_ns, report.cpu_ns)

    async def run(
        self, workload: int, inputs: list[jw.Inputs], style: int, *, jitter: bool = False, prelude: int = 0
    ) -> Block:
        """Fill, then one window, in a process that is started if need be. Raises :class:`Failure` or `Fault`."""
        await self.start()
        filled = await fill([self], workload, inputs)
        return await self.call(workload, inputs, filled, style, jitter=jitter, prelude=prelude)

    async def check(self, workload: int, inputs: list[jw.Inputs], named: list[int]) -> jw.Checked:
        """The judge's findings for the named calls of the last block, which was called on ``inputs``.

        Raises :class:`Failure` if their outputs cannot be read, :class:`Fault` of the judge.
        """
        return await self.compare(await self.collect(workload, inputs, named))

    async def collect(self, workload: int, inputs: list[jw.Inputs], named: list[int]) -> Collected:
        """The named calls' outputs, where the judge can read them; those of the last collection are gone."""
        chosen = [inputs[index] for index in named]
        if self.session.own_inputs:  # outputs are copied there on request: the first slots will do
            chosen = [msgspec.structs.replace(call, slot=slot) for slot, call in enumerate(chosen)]
        calls = [(index, call.slot) for index, call in zip(named, chosen, strict=True)]
        report = await self._ask(wire.Collect(workload=workload, calls=calls), FIRST_CALL_S)
        return Collected(workload=workload, calls=chosen, report=report)

    async def compare(self, collected: Collected) -> jw.Checked:
        return await self.session.judge.check(
            self.number, collected.workload, collected.calls, collected.report, REFERENCE_S
        )

    async def close(self) -> None:
        """Its process has ended and its arenas are given back, also for whoever is cancelled meanwhile."""
        if self.child is not None or self._side is not None:
            await to_its_end(self._ended())

    async def _ended(self) -> None:
        if self.child is not None:
            await self.child.close()
            self.child = None
        if self._side is not None:
            self.session.return_side(self._side)
            self._side = None


async def close_all(sides: Iterable[Contender]) -> None:
    """Side by side, none of them left out by a cancellation."""
    await to_its_end(asyncio.gather(*(side.close() for side in sides)))


async def fill(sides: Sequence[Contender], workload: int, inputs: list[jw.Inputs]) -> jw.Filled:
    """The inputs of a block where all these sides of one session find them. Raises :class:`Fault`."""
    session = sides[0].session
    told = session.told(workload, made_there=all(side.makes_inputs for side in sides))
    return await session.judge.fill([side.number for side in sides], workload, inputs, REFERENCE_S, told=told)
