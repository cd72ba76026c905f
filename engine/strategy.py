"""Which strategy an agent tries next: a seeded bandit with a floor, over the eligible skills only. Pure.

The random state comes from (seed, agent, position) alone, so a resumed campaign chooses as the first one would
have. Rewards come from guard verdicts: what a KEEP gained; everything else that was judged counts as a miss.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from engine.proposers.base import PastCandidate
from engine.records import Mode, Outcome

MEMORY = 0.93
"""Weight of a verdict against the next newer one: gains dry up, so old ones should fade."""
GAIN_SCALE = 0.05
"""The gain at which a KEEP counts three quarters of a full success; the smallest counts half."""
FLOOR = 0.5
"""Every strategy keeps at least this share of an equal turn, so that the choice never collapses to one."""


class Choice(msgspec.Struct, frozen=True):
    strategy: str
    why: str


def choose(
    eligible: Sequence[str],
    history: Sequence[PastCandidate],
    *,
    seed: int,
    agent: str,
    ordinal: int,
    position: int,
    mode: Mode,
    line: bool = False,
    of: int = 0,
) -> Choice:
    """One of ``eligible`` (in the skills' order of promise) for the reply at ``position`` (1-based).

    ``of``: how many fit the kernel, where the proposer can serve ``eligible`` only.

    First proposal: agents start spread over the list. Then Thompson sampling over discounted successes, unless
    a strategy has fallen below its floor. A draft leaves the strategy of the last try, if there is another; in a
    ``line`` that has had a try it goes on with it.
    """
    if not eligible:
        return Choice("", "no strategy is eligible here")
    if len(eligible) == 1:
        served = f"the only one of {of} that fit with a recipe made for this problem"
        return Choice(eligible[0], served if of > 1 else "the only one that fits")
    if not history:
        return Choice(eligible[ordinal % len(eligible)], f"agents start spread over {len(eligible)} strategies")
    last = history[-1].strategy
    if line and last in eligible:
        return Choice(last, "its draft line goes on")
    pool = [name for name in eligible if name != last] if mode is Mode.DRAFT else list(eligible)
    starved = _starved(pool, eligible, history)
    if starved:
        return Choice(starved, f"had less than half of an equal turn in {len(history)} tries")
    rng = random.Random(f"strategy/{seed}/{agent}/{position}")
    draws = {name: rng.betavariate(*posterior(name, history)) for name in pool}
    best = max(pool, key=lambda name: draws[name])
    hits, misses = posterior(best, history)
    left = f", a draft leaves {last}" if mode is Mode.DRAFT and last in eligible else ""
    return Choice(best, f"drew {draws[best]:.2f} from {hits - 1:.1f} successes, {misses - 1:.1f} misses{left}")


def posterior(strategy: str, history: Sequence[PastCandidate]) -> tuple[float, float]:
    """Beta parameters (1 + successes, 1 + misses) of a strategy, newer verdicts weighing more."""
    hits = misses = 0.0
    weight = 1.0
    for past in reversed(history):
        if past.strategy == strategy:
            value = reward(past)
            hits += weight * value
            misses += weight * (1.0 - value)
        weight *= MEMORY
    return 1.0 + hits, 1.0 + misses


def reward(past: PastCandidate) -> float:
    """0 for anything but a KEEP; for a KEEP 0.5 upwards to 1, by what it gained over the best of its time."""
    if past.outcome is not Outcome.KEEP:
        return 0.0
    gain = max(0.0, past.log_ratio or 0.0)
    return 0.5 + 0.5 * gain / (gain + GAIN_SCALE)


def _starved(pool: Sequence[str], eligible: Sequence[str], history: Sequence[PastCandidate]) -> str:
    """The least tried strategy below its floor, or ``''``. The floor starts once an equal turn is two tries."""
    turn = len(history) / len(eligible)
    if turn < 2:
        return ""
    counts = {name: sum(past.strategy == name for past in history) for name in pool}
    least = min(pool, key=lambda name: (counts[name], pool.index(name)))
    return least if counts[least] < FLOOR * turn else ""
