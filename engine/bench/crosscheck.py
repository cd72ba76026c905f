"""Does the claimed time agree with a clock that the candidate cannot reach?

The keeper's own clock covers everything a block did: building arguments, the calls, copying outputs. A no-op in
the same kind of process says what of that is overhead. Two questions are asked, because a liar may hide a share
of every call or a fixed amount of every block:

* slope: (wall of 2k calls - wall of k calls) / k - claimed - overhead (:func:`engine.bench.stats.check_timing`);
* rest: (outside time of a block - claimed sum - that of a no-op block of that size), per call.

What may be missing is the allowance plus what the no-op itself varies by: a busy machine is no proof of anything.
Interference only ever adds to a wall time, so the smallest of a size counts.

On the CPU the timed blocks themselves are asked (:func:`cross_check`). Where every process of the candidate lived
through the block, the processor time that they used on their one core is a second clock: hidden work costs it,
waiting for a busy core does not; the smaller of the two answers is believed.

On a GPU a claim is device time, while a timed block spends most of its time launching and being woken up. Blocks
of another kind are asked there (:func:`device_check`): with a prelude queued before each call and no waiting
before the block's end, so that launching hides behind the device's work and only device time adds to the slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import msgspec

from engine.bench.contender import Block
from engine.bench.overhead import Overhead, per_call_ms, quartile, spread_ms, typical_ms
from engine.bench.stats import TimingCheck, check_timing

_BLOCK_SLACK_MS = 0.3
"""By how much two processes may differ in what a block costs beside its calls."""


_LONE = 3  # blocks, where all are of one size: of a candidate that hands out one buffer again and again


def cross_check(blocks: Sequence[Block], k: int, overhead: Overhead, bound_ms: float | None) -> TimingCheck | None:
    """From timed blocks of k and 2k calls on the CPU. ``None`` if there is too little to say anything."""
    small = [b for b in blocks if len(b.claimed_ns) == k]
    large = [b for b in blocks if len(b.claimed_ns) == 2 * k]
    seen = all(block.cpu_ns for block in blocks) and overhead.cpu_known
    if not small or (not large and len(small) < _LONE):
        return None
    base = overhead.beyond_calls(use_cpu=seen)

    def missing_ms(group: Sequence[Block]) -> float:
        """What blocks of one size took beyond what they claim; never less than a no-op does."""
        wall = min((b.wall_ns - sum(b.claimed_ns)) / 1e6 for b in group)
        least = typical_ms(base, len(group[0].claimed_ns))
        if not seen:
            return max(wall, least)
        # Being preempted in a call adds to the claim but not to the processor time: the upper blocks say most.
        cpu = quartile([(b.cpu_ns - sum(b.claimed_ns)) / 1e6 for b in group], 3)
        return max(min(wall, cpu), least)

    # Each block against its own claim: on a busy machine claims vary by more than what is looked for.
    claimed_ms = fmean([block.mean_ms for block in (*small, *large)])
    missing = {len(group[0].claimed_ns): missing_ms(group) for group in (small, large) if group}
    outside = {calls: calls * claimed_ms + value for calls, value in missing.items()}
    check = check_timing(
        claimed_ms,
        outside[k],
        # With blocks of one size there is no slope: what the no-op took counts as what a block always costs.
        outside.get(2 * k, 2 * outside[k] - typical_ms(base, k)),
        k,
        overhead_ms=per_call_ms(base, k),
        bound_ms=bound_ms,
    )
    allowed_ms = check.allowed_ms + spread_ms(base)
    rest_ms = min((value - typical_ms(base, calls)) / calls - claimed_ms for calls, value in outside.items())
    excess_ms = max(check.excess_ms, rest_ms)
    suspect = check.below_bound or excess_ms > allowed_ms
    return msgspec.structs.replace(check, suspect=suspect, excess_ms=excess_ms, allowed_ms=allowed_ms)


def device_check(
    blocks: Sequence[Block], claimed_ms: float, k: int, overhead: Overhead, bound_ms: float | None
) -> TimingCheck | None:
    """From blocks of k and 2k calls with a prelude, of the candidate and of a no-op, in pairs. ``None``: too few.

    The host's own time varies by half a millisecond from block to block, so only what every pair of blocks agrees
    on is believed: the candidate's smallest slope against the no-op's largest, its quickest blocks against the
    no-op's slowest. ``weak`` where that could hide as much as is claimed.
    """
    slopes = _slopes([b.wall_ns / 1e6 for b in blocks], [len(b.claimed_ns) for b in blocks], k)
    idle_pairs = zip(overhead.wall.get(k, []), overhead.wall.get(2 * k, []), strict=False)
    idle = [(large - small) / k for small, large in idle_pairs]
    if not slopes or not idle:
        return None
    check = check_timing(claimed_ms, 0.0, k * min(slopes), k, overhead_ms=max(idle), bound_ms=bound_ms)
    longest = 2 * k
    quickest = min(b.wall_ns / 1e6 for b in blocks if len(b.claimed_ns) == longest)
    rest_ms = (quickest - max(overhead.wall[longest]) - _BLOCK_SLACK_MS) / longest - claimed_ms
    excess_ms = max(check.excess_ms, rest_ms)
    # A slope below the claim is an error of the clock, as much as pairs that differ are.
    error_ms = max(median(slopes) - min(slopes), -check.excess_ms, 0.0)
    blind_ms = error_ms + (max(idle) - median(idle)) + check.allowed_ms
    return msgspec.structs.replace(
        check,
        slope_ms=median(slopes),
        suspect=check.below_bound or excess_ms > check.allowed_ms,
        weak=check.weak or blind_ms > claimed_ms,
        excess_ms=excess_ms,
    )


def _slopes(walls_ms: Sequence[float], calls: Sequence[int], k: int) -> list[float]:
    """Milliseconds per call from each block of k calls and the block of 2k calls that followed it."""
    steps = zip(walls_ms, walls_ms[1:], calls, calls[1:], strict=False)
    return [(large - small) / k for small, large, few, many in steps if (few, many) == (k, 2 * k)]
