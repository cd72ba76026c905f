"""Does the claimed time agree with a clock that the candidate cannot reach?

The keeper's own clock covers everything a block did: building arguments, the calls, copying outputs. A no-op in
the same kind of process says what of that is overhead. Two questions are asked, because a liar may hide a share
of every call or a fixed amount of every block:

* slope: (wall of 2k calls - wall of k calls) / k - claimed - overhead (:func:`engine.bench.stats.check_timing`);
* rest: (outside time of a block - claimed sum - that of a no-op block of that size), per call.

What may be missing is the allowance plus what the no-op itself varies by: a busy machine is no proof of anything.

On the CPU the timed blocks themselves are asked (:func:`cross_check`). Where every process of the candidate lived
through the block, the processor time that they used on their one core is a second clock: hidden work costs it,
waiting for a busy core does not; the smaller of the two answers is believed. Whatever comes of it, a claim counts
only as far as that clock covers it (:func:`covered`).

On a GPU a claim is device time, while a timed block spends most of its time launching and being woken up. Blocks
of another kind are asked there (:func:`device_check`): with a prelude queued before each call and no waiting
before the block's end, so that launching hides behind the device's work and only device time adds to the slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import msgspec

from engine.bench.contender import Block
from engine.bench.overhead import ByCalls, Overhead, per_call_ms, spread_ms, typical_ms
from engine.bench.stats import POSSIBLE_SHARE, TimingCheck, check_timing

_BLOCK_SLACK_MS = 0.3
"""By how much two processes may differ in what a block costs beside its calls."""


_COLD_SHARE = 0.5
_LONE = 3  # blocks, where all are of one size: of a candidate that hands out one buffer again and again


def cross_check(
    blocks: Sequence[Block],
    k: int,
    overhead: Overhead,
    bound_ms: float | None,
    *,
    claimed_ms: float | None = None,
) -> TimingCheck | None:
    """From timed blocks of k and 2k calls on the CPU. ``None`` if there is too little to say anything.

    Each block is asked about its own claims (on a busy machine claims vary by more than what is looked for), or
    all about ``claimed_ms`` per call, which another process has claimed. The middle block counts: one honest block
    among many excuses nothing, one disturbed block proves nothing.
    """
    small = [b for b in blocks if len(b.claimed_ns) == k]
    large = [b for b in blocks if len(b.claimed_ns) == 2 * k]
    seen = all(block.cpu_ns for block in blocks) and overhead.cpu_known
    if not small or (not large and len(small) < _LONE):
        return None
    cold = overhead.beyond_calls(use_cpu=seen)
    base = _warm(cold)
    own_ms = fmean([block.mean_ms for block in (*small, *large)])
    told_ms = own_ms if claimed_ms is None else claimed_ms

    def beyond_ms(group: Sequence[Block]) -> list[float]:
        """By block; the first one without what a no-op's first one takes more than its others."""
        if not group:
            return []
        calls = len(group[0].claimed_ns)
        told = None if claimed_ms is None else claimed_ms * calls
        first, *others = (_beyond_ms(block, seen=seen, told_ms=told) for block in group)
        return [first - max(cold[calls][0] - typical_ms(base, calls), 0.0), *others]

    beyond = {calls: beyond_ms(group) for calls, group in ((k, small), (2 * k, large)) if group}
    # Waiting for a busy core only ever adds to a wall time: where that is the only clock and another process's
    # claims are at stake, the quickest block counts (each one's outputs are compared, and :func:`covered` lets no
    # lie pay).
    middle = median if seen or claimed_ms is None else min
    # Never less than a no-op: being preempted in a call adds to the claim but not to the processor time.
    missing = {calls: max(middle(values), typical_ms(base, calls)) for calls, values in beyond.items()}
    outside = {calls: calls * told_ms + value for calls, value in missing.items()}
    check = check_timing(
        told_ms,
        outside[k],
        # With blocks of one size there is no slope: what the no-op took counts as what a block always costs.
        outside.get(2 * k, 2 * outside[k] - typical_ms(base, k)),
        k,
        overhead_ms=per_call_ms(base, k),
        bound_ms=bound_ms,
    )
    allowed_ms = check.allowed_ms + _vague_ms(base, k)
    # Over blocks of both sizes: telling the truth in those of one size is no excuse either.
    rest_ms = middle(
        (value - typical_ms(base, calls)) / calls for calls, values in beyond.items() for value in values
    )
    excess_ms = max(check.excess_ms, rest_ms)
    suspect = check.below_bound or excess_ms > allowed_ms
    return msgspec.structs.replace(check, suspect=suspect, excess_ms=excess_ms, allowed_ms=allowed_ms)


def covered(blocks: Sequence[Block], overhead: Overhead) -> list[Block]:
    """The blocks, with claims that the outside clock covers: what is missing beyond the allowance is added.

    So that nobody gains by lying in some blocks only. A no-op's slowest block of that size is overhead, including
    its first one where a process has not had a block of that size before. Blocks that say the truth are untouched.
    """
    met: set[int] = set()
    counted: list[Block] = []
    by_clock = {seen: overhead.beyond_calls(use_cpu=seen) for seen in (False, True)}
    warmed = {seen: _warm(cold) for seen, cold in by_clock.items()}
    for block in blocks:
        calls = len(block.claimed_ns)
        seen = bool(block.cpu_ns) and overhead.cpu_known
        cold, warm = by_clock[seen], warmed[seen]
        usual = warm if calls in met else cold
        met.add(calls)
        missing_ms = 0.0
        if calls in usual:
            missing_ms = _beyond_ms(block, seen=seen) - max(usual[calls])
        # What is allowed per call of such a claim; no clock was asked yet.
        allowed_ms = check_timing(block.mean_ms, 0.0, 0.0, 1).allowed_ms + _vague_ms(warm, min(cold))
        if missing_ms > calls * allowed_ms:
            extra = int(missing_ms * 1e6 / calls)
            block = msgspec.structs.replace(block, claimed_ns=[ns + extra for ns in block.claimed_ns])
        counted.append(block)
    return counted


def outside_ms(block: Block, *, seen: bool) -> float:
    """What a block took. Waiting for a busy core costs no processor time: where that is known, the less counts."""
    return (min(block.wall_ns, block.cpu_ns) if seen else block.wall_ns) / 1e6


def _beyond_ms(block: Block, *, seen: bool, told_ms: float | None = None) -> float:
    """What a block took beyond its own claims, or beyond ``told_ms``."""
    return outside_ms(block, seen=seen) - (sum(block.claimed_ns) / 1e6 if told_ms is None else told_ms)


def _vague_ms(base: ByCalls, k: int) -> float:
    """How well the no-op says what a call costs beside itself: what it varies by, and the share of it by which
    the harness may have more to do with results that were computed (their memory is written, its own is cold).
    """
    return spread_ms(base) + _COLD_SHARE * per_call_ms(base, k)


def _warm(by_calls: ByCalls) -> ByCalls:
    """Without the first block of each size, which fills page tables and caches."""
    return {calls: values[1:] or values for calls, values in by_calls.items()}


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
    denied = excess_ms > check.allowed_ms
    # Who slows its short blocks has any slope it likes: what a whole long one takes must speak for it as well.
    scatter_ms = max(overhead.wall[longest]) - median(overhead.wall[longest])
    vague_ms = check.allowed_ms + (_BLOCK_SLACK_MS + scatter_ms) / longest
    least_ms = POSSIBLE_SHARE * (bound_ms or 0.0)
    below = check.below_bound and (denied or least_ms - claimed_ms < max(blind_ms, vague_ms))
    return msgspec.structs.replace(
        check,
        slope_ms=median(slopes),
        suspect=below or denied,
        weak=check.weak or blind_ms > claimed_ms,
        excess_ms=excess_ms,
        below_bound=below,
    )


def _slopes(walls_ms: Sequence[float], calls: Sequence[int], k: int) -> list[float]:
    """Milliseconds per call from each block of k calls and the block of 2k calls that followed it."""
    steps = zip(walls_ms, walls_ms[1:], calls, calls[1:], strict=False)
    return [(large - small) / k for small, large, few, many in steps if (few, many) == (k, 2 * k)]
