"""The outside clock over blocks with a prelude: how long do calls really keep the GPU busy?"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.bench.contender import Block, Contender, Failure
from engine.bench.crosscheck import device_check
from engine.bench.noop import noop_contender, noop_fault, overhead_of
from engine.bench.plan_calls import HIDDEN
from engine.bench.stats import TimingCheck

if TYPE_CHECKING:
    from engine.bench.evaluation import Trial

_PAIRS, _PAIRS_WHILE_SEARCHING = 4, 3  # blocks of each size
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
    pairs = _PAIRS if trial.plan.check_all or fresh else _PAIRS_WHILE_SEARCHING
    noop = noop_contender(session, style) if fresh or trial.noop is None else trial.noop
    checks: dict[int, TimingCheck] = {}
    try:
        for workload, claim in claimed_ms.items():
            k = _calls_of(session.slots[workload])
            for prelude in PRELUDES:
                blocks = await _blocks(trial, candidate, workload, k, prelude, pairs)
                key = (style, workload, k, prelude)
                if fresh or key not in session.overheads:
                    session.overheads[key] = overhead_of(await _idle_blocks(trial, noop, workload, k, prelude))
                check = device_check(blocks, claim, k, session.overheads[key], session.bound_ms(workload))
                if check is not None:
                    checks[workload] = check
                if check is None or not check.suspect or check.below_bound:
                    break
    finally:
        if noop is not trial.noop:
            await noop.close()
    return checks


def _calls_of(slots: int) -> int:
    """k. Slots are used again within a block, in the stream's order; few calls where the outputs are large."""
    return _CALLS if slots >= _CALLS else max(1, min(_CALLS_IF_LARGE, slots // 2))


async def _idle_blocks(trial: Trial, noop: Contender, workload: int, k: int, prelude: int) -> list[Block]:
    try:
        return await _blocks(trial, noop, workload, k, prelude, _PAIRS)
    except Failure as failure:
        raise noop_fault(failure) from None


async def _blocks(trial: Trial, side: Contender, workload: int, k: int, prelude: int, pairs: int) -> list[Block]:
    """Blocks of k and 2k calls, all refilled in secret: allocating would be a difference between blocks.

    A first block is run for its allocations only. One secretly chosen call of a candidate is compared like any.
    """
    blocks: list[Block] = []
    slots = side.session.slots[workload]
    checked = secrets.randbelow(2 * pairs)
    for index in range(-1, 2 * pairs):
        inputs = side.session.draw(workload, k if index % 2 == 0 else 2 * k, slots)
        block = await side.run(workload, inputs, HIDDEN, prelude=prelude)
        if index >= 0:
            blocks.append(block)
        if side.role == "candidate" and index == checked:
            named = len(inputs) - 1 if side.reuses_output else secrets.randbelow(len(inputs))
            found = await side.check(workload, inputs, [named])
            trial.results[workload].absorb(found, HIDDEN, "a call for the outside clock")
    return blocks
