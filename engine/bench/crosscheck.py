"""Does the claimed time agree with a clock that the candidate cannot reach?

The keeper's own clock covers everything a block did: building arguments, the calls, copying outputs. A no-op in
the same kind of process says what of that is overhead. Two questions are asked, because a liar may hide a share
of every call or a fixed amount of every block:

* slope: (wall of 2k calls - wall of k calls) / k - claimed - overhead (:func:`engine.bench.stats.check_timing`);
* rest: the smallest (wall of a block - claimed sum - wall of a no-op block of that size), per call.

Interference only ever adds to a wall time, so minima over blocks are what both use.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from engine.bench.contender import Block
from engine.bench.overhead import Overhead
from engine.bench.stats import TimingCheck, check_timing


def cross_check(blocks: Sequence[Block], k: int, overhead: Overhead, bound_ms: float | None) -> TimingCheck | None:
    """``None`` if there are too few blocks of either size to say anything."""
    small = [b for b in blocks if len(b.claimed_ns) == k]
    large = [b for b in blocks if len(b.claimed_ns) == 2 * k]
    if not small or not large:
        return None
    claimed_ms = fmean([block.mean_ms for block in (*small, *large)])
    check = check_timing(
        claimed_ms,
        min(b.wall_ns for b in small) / 1e6,
        min(b.wall_ns for b in large) / 1e6,
        k,
        overhead_ms=overhead.per_call_ms(k),
        bound_ms=bound_ms,
    )
    rest_ms = min(
        (b.wall_ns / 1e6 - sum(b.claimed_ns) / 1e6 - overhead.typical_ms(len(b.claimed_ns))) / len(b.claimed_ns)
        for b in (*small, *large)
    )
    if rest_ms <= max(check.excess_ms, check.allowed_ms):
        return check
    return msgspec.structs.replace(check, suspect=True, excess_ms=rest_ms)
