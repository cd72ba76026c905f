"""The outside clock over blocks with a prelude: how long do calls really keep the GPU busy?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.bench.contender import Block, Contender
from engine.bench.correctness import check_one
from engine.bench.crosscheck import device_check
from engine.bench.idle import prelude_block
from engine.bench.plan_calls import HIDDEN
from engine.bench.stats import TimingCheck

if TYPE_CHECKING:
    from engine.bench.evaluation import Trial

_PAIRS = 4  # blocks of each size, at most
_CALLS, _CALLS_IF_LARGE = 16, 4
_BLOCK_S = 0.15  # of the shorter blocks, about
_FEW_CALLS, _SLOW_BLOCK_S = 4, 1.0
HIDDEN_MS = 8.0
"""About what the longest prelude hides of a call's host time. A call that takes more beside its kernels' time
cannot be told from one that hides its work from the clock: neither a lie nor fit to be timed on a GPU."""
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
    checks: dict[int, TimingCheck] = {}
    try:
        for workload, claim in claimed_ms.items():
            await trial.breathe()
            check = None
            for prelude in PRELUDES:
                if check is not None and check.excess_ms > HIDDEN_MS and prelude != PRELUDES[-1]:
                    continue  # only the longest can still hide what such a call takes
                check = await _asked(trial, candidate, workload, claim, prelude, fresh=fresh)
                if check is not None:
                    checks[workload] = check
                if check is None or not check.suspect or check.below_bound:
                    break
    finally:
        await trial.idle.rest()
    return checks


async def _asked(
    trial: Trial, candidate: Contender, workload: int, claim_ms: float, prelude: int, *, fresh: bool
) -> TimingCheck | None:
    """Pairs of blocks until one says that the claim may be true: only what all of them deny is called a lie.

    A first block, as large as any, is run for its allocations only. One secretly chosen call of every block that
    counts is compared: a block that skips its work looks quick, and wrong.
    """
    style = candidate.solution.spec.destination_passing_style
    k = calls_of_check(
        trial.session.slots[workload],
        drawing_s=trial.session.draw_s(workload)
        + min(side.call_s.get(workload, 0.0) for side in (trial.candidate, *trial.rivals)),
        call_s=trial.candidate.call_s.get(workload, 0.0),
    )
    await prelude_block(candidate, workload, 2 * k, prelude)
    blocks: list[Block] = []
    check = None
    for index in range(2 * _PAIRS):
        block, inputs = await prelude_block(candidate, workload, k * (1 + index % 2), prelude)
        blocks.append(block)
        result = trial.results[workload]
        if not await check_one(candidate, workload, inputs, result, HIDDEN, "a call for the outside clock"):
            return check
        if index % 2 == 0:
            continue
        for waits in (False, True) if index > 1 else (False,):
            anew = fresh and index == 1
            overhead = await trial.idle.overhead(style, workload, k, prelude, waits=waits, anew=anew)
            check = device_check(blocks, claim_ms, k, overhead, trial.session.bound_ms(workload))
            if check is None or not check.suspect or check.below_bound:
                return check
        if check is not None and check.excess_ms > HIDDEN_MS:
            return check  # more pairs would only hold the device
    return check


def calls_of_check(slots: int, *, drawing_s: float, call_s: float) -> int:
    """k. Slots are used again within a block, in the stream's order; few calls where the outputs are large.

    Fewer where drawing the inputs takes long, which is what every side's calls take at least (``drawing_s``). What
    only the candidate's calls take (``call_s``) counts for less: one that dawdled while it was timed would be
    asked about so few calls that the clock's slack covers a lie. Halved, so that what is known of the no-op serves
    the next candidate as well.
    """
    k = _CALLS if slots >= _CALLS else max(1, min(_CALLS_IF_LARGE, slots // 2))
    while k > 1 and k * drawing_s > _BLOCK_S:
        k //= 2
    while k > _FEW_CALLS and k * call_s > _SLOW_BLOCK_S:
        k //= 2
    return k
