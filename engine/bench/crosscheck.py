"""Does the claimed time agree with a clock that the candidate cannot reach?

The keeper's own clock covers everything a block did: building arguments, the calls, copying outputs. A no-op in
the same kind of process says what of that is overhead. Two questions are asked, because a liar may hide a share
of every call or a fixed amount of every block:

* slope: (wall of 2k calls - wall of k calls) / k - claimed - overhead (:func:`engine.bench.stats.check_timing`);
* rest: (outside time of a block - claimed sum - that of a no-op block of that size), per call.

What may be missing is the allowance plus what the no-op itself varies by: a busy machine is no proof of anything.
Interference only ever adds to a wall time, so the smallest of a size counts. Where every process of the candidate
lived through the block, the processor time that they used on their one core is a second clock: hidden work costs
it, waiting for a busy core does not; the smaller of the two answers is believed. On a GPU a claim is device time,
and the outside clock is what the process spent waiting: wall minus processor time (its waits sleep), which
launching from Python does not lengthen.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from engine.bench.contender import Block
from engine.bench.overhead import Overhead, per_call_ms, quartile, spread_ms, typical_ms
from engine.bench.stats import TimingCheck, check_timing

# What a process that waits for the device is late to notice. Measured on an H200 between honest kernels of 5 µs:
# 60 µs and more in two fresh runs, so anything less says nothing.
_GPU_FLOOR_MS = 0.1


def cross_check(
    blocks: Sequence[Block], k: int, overhead: Overhead, bound_ms: float | None, *, on_gpu: bool = False
) -> TimingCheck | None:
    """``None`` if there is too little to say anything."""
    small = [b for b in blocks if len(b.claimed_ns) == k]
    large = [b for b in blocks if len(b.claimed_ns) == 2 * k]
    seen = all(block.cpu_ns for block in blocks) and overhead.cpu_known
    if not small or not large or (on_gpu and not seen):
        return None
    base = overhead.waiting() if on_gpu else overhead.beyond_calls(use_cpu=seen)

    def missing_ms(group: Sequence[Block]) -> float:
        """What blocks of one size took beyond what they claim; never less than a no-op does."""
        wall = min((b.wall_ns - (b.cpu_ns if on_gpu else 0) - sum(b.claimed_ns)) / 1e6 for b in group)
        least = typical_ms(base, len(group[0].claimed_ns))
        if on_gpu or not seen:
            return max(wall, least)
        # Being preempted in a call adds to the claim but not to the processor time: the upper blocks say most.
        cpu = quartile([(b.cpu_ns - sum(b.claimed_ns)) / 1e6 for b in group], 3)
        return max(min(wall, cpu), least)

    # Each block against its own claim: on a busy machine claims vary by more than what is looked for.
    claimed_ms = fmean([block.mean_ms for block in (*small, *large)])
    missing = {k: missing_ms(small), 2 * k: missing_ms(large)}
    check = check_timing(
        claimed_ms,
        k * claimed_ms + missing[k],
        2 * k * claimed_ms + missing[2 * k],
        k,
        overhead_ms=per_call_ms(base, k),
        bound_ms=bound_ms,
    )
    allowed_ms = max(check.allowed_ms, _GPU_FLOOR_MS if on_gpu else 0.0) + spread_ms(base)
    rest_ms = min((missing[calls] - typical_ms(base, calls)) / calls for calls in missing)
    excess_ms = max(check.excess_ms, rest_ms)
    suspect = check.below_bound or excess_ms > allowed_ms
    return msgspec.structs.replace(check, suspect=suspect, excess_ms=excess_ms, allowed_ms=allowed_ms)
