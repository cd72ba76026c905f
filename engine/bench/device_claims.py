"""The outside clock over blocks with a prelude: how long do calls really keep the GPU busy?"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from engine.bench.contender import Block, Contender
from engine.bench.correctness import check_one
from engine.bench.crosscheck import device_check
from engine.bench.idle import prelude_block
from engine.bench.plan_calls import HIDDEN
from engine.bench.stats import TimingCheck
from engine.bench.wire import WorkloadSpec

if TYPE_CHECKING:
    from engine.bench.evaluation import Trial

_PAIRS = 4  # blocks of each size, at most
_CALLS, _CALLS_IF_LARGE = 16, 4
_BLOCK_S = 0.15  # of the shorter blocks, about
_FEW_CALLS, _SLOW_BLOCK_S = 4, 1.0
_SENT, _SENT_BYTES = 3, 16 << 20
_PROVEN_S = 2.0  # of blocks that all deny a claim by more than can be hidden: no machine stutters for so long
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
) -> dict[int, TimingCheck | None]:
    """By workload, ``None`` where blocks are too short to say anything. ``fresh``: the no-op is measured anew too.

    The first run ends with a call that keeps the host so busy that it cannot be timed: such calls take long, and
    it remains to be seen whether the fresh runs agree. Other workloads are then missing.

    Raises :class:`Failure` of the candidate, :class:`engine.errors.Fault` of anything of ours.
    """
    checks: dict[int, TimingCheck | None] = {}
    makes_inputs = candidate.makes_inputs
    travel = travelling(trial.session.specs, trial.session.slots, claimed_ms)
    try:
        for workload, claim in claimed_ms.items():
            await trial.breathe()
            check = None
            candidate.makes_inputs = makes_inputs and workload not in travel
            for prelude in PRELUDES:
                if check is not None and too_busy(check) and prelude != PRELUDES[-1]:
                    continue  # only the longest can still hide what such a call takes
                check = await _asked(trial, candidate, workload, claim, prelude, fresh=fresh)
                if check is not None:
                    hidden = candidate.makes_inputs and _making_ms(trial, workload) > claim
                    check = msgspec.structs.replace(check, weak=check.weak or hidden)
                checks[workload] = check
                if check is None or not check.suspect or blind(check):
                    break
            if check is not None and not fresh and too_busy(check):
                break
    finally:
        candidate.makes_inputs = makes_inputs
        await trial.idle.rest()
    return checks


def too_busy(check: TimingCheck) -> bool:
    """A claim denied by more than the longest prelude hides. Pure."""
    return check.suspect and check.excess_ms > HIDDEN_MS and not check.below_bound


def blind(check: TimingCheck) -> bool:
    """A claim below what is possible, and the clock sees nothing either way: more blocks would not. Pure."""
    return check.below_bound and check.excess_ms <= check.allowed_ms


def travelling(specs: Sequence[WorkloadSpec], slots: Sequence[int], asked: Iterable[int]) -> set[int]:
    """Workloads whose inputs travel while the outside clock is looked at, though processes could make them.

    Time in which the problem's own code makes inputs is subtracted, and a process that makes them faster, or whose
    making scatters, could hide work in it. Copying takes as long for everybody. Some of the small ones, in secret;
    the smallest where all are large. None of which a call at a time fits: two calls would have the same inputs.
    """
    made = [w for w in asked if specs[w].made and specs[w].told and slots[w] > 1]
    small = [w for w in made if specs[w].input_stride <= _SENT_BYTES]
    if not small:
        return {min(made, key=lambda w: specs[w].input_stride)} if made else set()
    return set(secrets.SystemRandom().sample(small, min(_SENT, len(small))))


async def _asked(
    trial: Trial, candidate: Contender, workload: int, claim_ms: float, prelude: int, *, fresh: bool
) -> TimingCheck | None:
    """Pairs of blocks until one says that the claim may be true: only what all of them deny is called a lie.

    A first block, as large as any, is run for its allocations only. One secretly chosen call of every block that
    counts is compared: a block that skips its work looks quick, and wrong. One pair is compared with a no-op that
    does not wait, later ones with one that waits as well; where calls seem too busy to be timed the first one too.
    """
    style = candidate.solution.spec.destination_passing_style
    slots, spec = trial.session.slots[workload], trial.session.specs[workload]
    k = calls_of_check(
        slots,
        drawing_s=trial.session.draw_s(workload, made_there=candidate.makes_inputs) + _least_s(trial, workload),
        call_s=trial.candidate.call_s.get(workload, 0.0),
    )
    if spec.made and not candidate.makes_inputs:
        k = min(k, max(slots // 2, 1))  # what lies in a slot would be there for two calls
    await prelude_block(candidate, workload, 2 * k, prelude)
    blocks: list[Block] = []
    renewed: set[bool] = set()
    check = None
    for index in range(2 * _PAIRS):
        block, inputs = await prelude_block(candidate, workload, k * (1 + index % 2), prelude)
        blocks.append(block)
        result = trial.results[workload]
        if not await check_one(candidate, workload, inputs, result, HIDDEN, "a call for the outside clock"):
            return check
        if index % 2 == 0:
            continue
        for waits in (False, True):
            if waits and index == 1 and check is not None and not too_busy(check):
                break
            overhead = await trial.idle.overhead(
                style,
                workload,
                k,
                prelude,
                waits=waits,
                makes_inputs=candidate.makes_inputs,
                anew=fresh and waits not in renewed,
            )
            renewed.add(waits)
            check = device_check(blocks, claim_ms, k, overhead, trial.session.least_ms(workload))
            if check is None or not check.suspect or blind(check):
                return check
        if check is not None and too_busy(check) and sum(block.wall_ns for block in blocks) > _PROVEN_S * 1e9:
            return check  # more pairs would only hold the device
    return check


def _least_s(trial: Trial, workload: int) -> float:
    """What a call takes at least, whoever runs it: above all drawing or making its inputs."""
    return min(side.call_s.get(workload, 0.0) for side in (trial.candidate, *trial.rivals))


def _making_ms(trial: Trial, workload: int) -> float:
    """What making the inputs of a call takes, where the problem's own code does, by the rivals' calls; else 0."""
    if not trial.session.specs[workload].made or trial.timing is None:
        return 0.0
    blocks = [(side, trial.timing.blocks[side.role][workload]) for side in trial.rivals]
    found = [1e3 * side.call_s[workload] - fmean(b.mean_ms for b in b_all) for side, b_all in blocks if b_all]
    return min(found, default=0.0)


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
