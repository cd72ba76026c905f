"""The outside clock over blocks with a prelude: how long do calls really keep the GPU busy?"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.bench import judge_wire as jw
from engine.bench.contender import Block, Contender, Failure
from engine.bench.crosscheck import device_check
from engine.bench.noop import noop_contender, noop_fault, overhead_of
from engine.bench.overhead import Overhead
from engine.bench.plan_calls import HIDDEN
from engine.bench.stats import TimingCheck

if TYPE_CHECKING:
    from engine.bench.evaluation import Trial

_PAIRS, _IDLE_PAIRS = 4, 2  # blocks of each size, at most: of a candidate, of a no-op
_CALLS, _CALLS_IF_LARGE = 16, 4
PRELUDES = (16, 64, 256)
"""Fills before each call: about 0.5, 2 and 8 ms of an H200. The next is taken while a call looks suspicious.

It may be an honest one whose launching takes longer than the fills that were to hide it. (Processor time does not
tell: a host that has run ahead as far as the launch queue reaches waits busily.)
"""


async def device_checks(
    trial: Trial, candidate: Contender, claimed_ms: Mapping[int, float], *, fresh: bool = False
) -> dict[int, TimingCheck]:
    """By workload. ``fresh``: the no-ops are measured anew as well.

    Raises :class:`Failure` of the candidate, :class:`engine.errors.Fault` of anything of ours.
    """
    idle = _Idle(trial, fresh=fresh)
    checks: dict[int, TimingCheck] = {}
    try:
        for workload, claim in claimed_ms.items():
            k = _calls_of(trial.session.slots[workload])
            for prelude in PRELUDES:
                check = await _asked(trial, candidate, workload, claim, k, prelude, idle)
                if check is not None:
                    checks[workload] = check
                if check is None or not check.suspect or check.below_bound:
                    break
    finally:
        await idle.close()
    return checks


class _Idle:
    """What blocks of no-ops take: of one that launches and returns, and of one that waits for the device.

    A call that waits (for a number, or to compute on the host) exposes the harness's own work after it, which
    otherwise hides behind the next prelude. That is no lie, so such a call is compared with a no-op that waits.
    """

    def __init__(self, trial: Trial, *, fresh: bool) -> None:
        self._session, self._style = trial.session, trial.candidate.solution.spec.destination_passing_style
        self._known = {} if fresh else trial.session.overheads
        self._lent = None if fresh else trial.noop
        self._noops: dict[bool, Contender] = {}

    async def overhead(self, workload: int, k: int, prelude: int, *, waits: bool) -> Overhead:
        key = (self._style, workload, k, prelude, waits)
        if key not in self._known:
            self._known[key] = overhead_of(await _idle_blocks(self._noop(waits), workload, k, prelude))
        return self._known[key]

    def _noop(self, waits: bool) -> Contender:
        if self._lent is not None and not waits:
            return self._lent
        if waits not in self._noops:
            self._noops[waits] = noop_contender(self._session, self._style, waits=waits)
        return self._noops[waits]

    async def close(self) -> None:
        for noop in self._noops.values():
            await noop.close()


async def _asked(
    trial: Trial, candidate: Contender, workload: int, claim_ms: float, k: int, prelude: int, idle: _Idle
) -> TimingCheck | None:
    """Pairs of blocks until one says that the claim may be true: only what all of them deny is called a lie.

    A first block, as large as any, is run for its allocations only. One secretly chosen call of every block that
    counts is compared: a block that skips its work looks quick, and wrong.
    """
    await _block(candidate, workload, 2 * k, prelude)
    blocks: list[Block] = []
    check = None
    for index in range(2 * _PAIRS):
        block, inputs = await _block(candidate, workload, k * (1 + index % 2), prelude)
        blocks.append(block)
        named = len(inputs) - 1 if candidate.reuses_output else secrets.randbelow(len(inputs))
        found = await candidate.check(workload, inputs, [named])
        if not trial.results[workload].absorb(found, HIDDEN, "a call for the outside clock"):
            return check
        if index % 2 == 0:
            continue
        for waits in (False, True) if index > 1 else (False,):
            overhead = await idle.overhead(workload, k, prelude, waits=waits)
            check = device_check(blocks, claim_ms, k, overhead, trial.session.bound_ms(workload))
            if check is None or not check.suspect or check.below_bound:
                return check
    return check


def _calls_of(slots: int) -> int:
    """k. Slots are used again within a block, in the stream's order; few calls where the outputs are large."""
    return _CALLS if slots >= _CALLS else max(1, min(_CALLS_IF_LARGE, slots // 2))


async def _idle_blocks(noop: Contender, workload: int, k: int, prelude: int) -> list[Block]:
    try:
        await _block(noop, workload, 2 * k, prelude)
        return [(await _block(noop, workload, k * (1 + i % 2), prelude))[0] for i in range(2 * _IDLE_PAIRS)]
    except Failure as failure:
        raise noop_fault(failure) from None


async def _block(side: Contender, workload: int, calls: int, prelude: int) -> tuple[Block, list[jw.Inputs]]:
    """All refilled in secret: allocating would be a difference between blocks."""
    inputs = side.session.draw(workload, calls, side.session.slots[workload])
    return await side.run(workload, inputs, HIDDEN, prelude=prelude), inputs
