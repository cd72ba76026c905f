"""How many calls a block holds, how long it may take, what the calls look like. Pure, apart from the secrets."""

from __future__ import annotations

import math
import secrets

from engine.bench import judge_wire as jw
from engine.bench import wire

FRESH, REFILLED, HIDDEN = range(3)
"""Call styles, as in :mod:`engine.bench.harness` (which the engine cannot import: it loads torch)."""

FIRST_CALL_S = 100.0  # compilation happens in a first call
"""Well below two minutes: what loops for that long must not end now before and now after its deadline."""
REFERENCE_S = 120.0  # for whatever the judge is asked, in which the reference or the inputs' own code runs
AFTER_TIMEOUT_S = 10.0  # what later workloads get once one has run into its deadline
LOOKED_AT = 2
"""Calls of one block that are compared where outputs must be copied off a device to be seen."""
_LARGE_BYTES = 16 << 20
_SLOW_S = 0.04
_LEAST_S = 0.003  # and not shorter than this
_BLOCK_S = 0.25  # a timed block is kept about this short
_DRAW_S = 0.1  # for the inputs of one block, where every call's are made anew
_SLACK_S = 20.0


def block_size(calls: int, min_pairs: int, call_s: float, slots: int) -> int:
    """k: blocks alternate between k and 2k calls, so ``min_pairs`` of them hold at least ``calls`` calls.

    More where calls are short, so that waking up weighs little; fewer where they are long.
    """
    wanted = max(-(-calls * 2 // (min_pairs * 3)), math.ceil(_LEAST_S / max(call_s, 1e-6)))
    affordable = int(_BLOCK_S / max(call_s, 1e-6))
    return max(1, min(wanted, affordable, slots // 2))


def device_block_size(calls: int, min_pairs: int, call_s: float, slots: int, block_s: float = _BLOCK_S) -> int:
    """Calls of a timed block on a GPU: all alike, because the outside clock has blocks of its own there.

    ``block_s``: what a block may take where many workloads share a budget.
    """
    affordable = int(min(block_s, _BLOCK_S) / max(call_s, 1e-6))
    return max(1, min(-(-calls // min_pairs), affordable, slots))


def block_timeout_s(calls: int, call_s: float) -> float:
    return _SLACK_S + 30.0 * calls * call_s


def round_inputs(
    count: int, slots: int | None = None, *, anew: bool = False, by_slot: bool = False
) -> list[jw.Inputs]:
    """Calls of one block: one base set, each call rotated by another secret odd amount, or a set of its own each.

    ``anew``: where a process draws its inputs on its device that costs little, and no call's outputs follow from
    another's. ``by_slot``: what the problem's own code makes and sends cannot be rotated, so each slot has a set
    of its own. Each call has a slot of its own, unless there are only ``slots`` of them to take turns.
    """
    if by_slot:
        sets = [jw.Inputs(slot=n, seed=new_seed(), shift=_new_shift()) for n in range(min(count, slots or count))]
        return [sets[index % len(sets)] for index in range(count)]
    seed = new_seed()
    return [
        jw.Inputs(slot=index % (slots or count), seed=new_seed() if anew else seed, shift=_new_shift())
        for index in range(count)
    ]


def _new_shift() -> int:
    return secrets.randbits(40) | 1


def calls_to_draw(count: int, draw_s: float) -> int:
    """Calls of a block whose inputs are made one call at a time, ``draw_s`` each: so they are few."""
    return max(1, min(count, int(_DRAW_S / max(draw_s, 1e-6))))


def looked_at(output_bytes: int) -> int:
    """Calls of one block whose outputs, so large each, are copied off a device at most."""
    return 1 if output_bytes > _LARGE_BYTES else LOOKED_AT


def calls_to_check(
    count: int, output_bytes: int, *, copied: bool, last_only: bool, compare_s: float = 0.0
) -> list[int]:
    """Which calls of a round's block are compared; the candidate learns it after the block, if at all.

    All of them; where they must be copied off a device at most :data:`LOOKED_AT`, and a single one, chosen in
    secret, of large ones and where the reference is slow (``compare_s``: what the judge took for a call).
    ``last_only``: it hands out the same buffer again, so that only the last call can be seen.
    """
    if last_only:
        return [count - 1]
    if not copied:
        return list(range(count))
    wanted = 1 if compare_s > _SLOW_S else looked_at(output_bytes)
    return sorted(secrets.SystemRandom().sample(range(count), min(wanted, count)))


def style_of_round(index: int) -> int:
    """The first rounds go through all styles, openly refilled inputs first; later ones mix them."""
    order = (REFILLED, HIDDEN, FRESH)
    return order[index] if index < len(order) else secrets.choice(order)


def calls_of(inputs: list[jw.Inputs], filled: jw.Filled, style: int) -> list[wire.Call]:
    """Where the child builds its inputs itself, the round's secret is revealed with the block."""
    return [
        wire.Call(
            slot=item.slot,
            style=style,
            scalars=scalars,
            seed=item.seed if filled.told else 0,
            shift=item.shift if filled.told else 0,
        )
        for item, scalars in zip(inputs, filled.scalars, strict=True)
    ]


def new_seed() -> int:
    return secrets.randbits(62)
