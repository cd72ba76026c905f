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

_PAIRS, _IDLE_PAIRS = 4, 3  # blocks of each size, at most: of a candidate, of a no-op
_CALLS, _CALLS_IF_LARGE = 16, 4
PRELUDES = (16, 64, 256)
"""Fills before each call: about 0.5, 2 and 8 ms of an H200. The next is taken while a call looks suspicious.

It may be an honest one whose launching takes longer than the fills that were to hide it. (Processor time does not
tell: a host that has run ahead as far as the launch queue reaches waits busily.)
"""


async def device_checks(
    trial: Trial, candidate: Contender, claimed_ms: Mapping[int, float], *, fresh: bool = False
) -> dict[int, TimingCheck]:
    """By workload. ``fresh``: the no-op is measured anew as well.

    Raises :class:`Failure` of the candidate, :class:`engine.errors.Fault` of anything of ours.
    """
    session, style = trial.session, trial.candidate.solution.spec.destination_passing_style
    noop = noop_contender(session, style) if fresh or trial.noop is None else trial.noop
    checks: dict[int, TimingCheck] = {}
    try:
        for workload, claim in claimed_ms.items():
            k = _calls_of(session.slots[workload])
            for prelude in PRELUDES:
                key = (style, workload, k, prelude)
                if fresh or key not in session.overheads:
                    session.overheads[key] = overhead_of(await _idle_blocks(noop, workload, k, prelude))
                check = await _asked(trial, candidate, workload, claim, k, prelude, session.overheads[key])
                if check is not None:
                    checks[workload] = check
                if check is None or not check.suspect or check.below_bound:
                    break
    finally:
        if noop is not trial.noop:
            await noop.close()
    return checks


async def _asked(
    trial: Trial, candidate: Contender, workload: int, claim_ms: float, k: int, prelude: int, idle: Overhead
) -> TimingCheck | None:
    """Pairs of blocks until one says that the claim may be true: only what all of them deny is called a lie.

    A first block, as large as any, is run for its allocations only. One secretly chosen call of the first pair is
    compared.
    """
    await _block(candidate, workload, 2 * k, prelude)
    blocks: list[Block] = []
    check = None
    checked = secrets.randbelow(2)
    for index in range(2 * _PAIRS):
        block, inputs = await _block(candidate, workload, k * (1 + index % 2), prelude)
        blocks.append(block)
        if index == checked:
            named = len(inputs) - 1 if candidate.reuses_output else secrets.randbelow(len(inputs))
            found = await candidate.check(workload, inputs, [named])
            trial.results[workload].absorb(found, HIDDEN, "a call for the outside clock")
        if index % 2 == 0:
            continue
        check = device_check(blocks, claim_ms, k, idle, trial.session.bound_ms(workload))
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
