"""Which timed calls are compared. Pure, apart from the secret choice.

A candidate that is wrong in a share f of its timed calls gains 1 / (1 - f) and is found with a probability of
1 - (1 - f) ** n by n compared ones: a gain of 1.3 passes 24 of them in two of a thousand evaluations.
"""

from __future__ import annotations

import math
import secrets

WANTED = 24  # compared calls per workload by the time that a decision may be made, where the judge can afford them


def falls_on(each_s: float, room_s: float) -> bool:
    """Whether a block is looked at: always while that is cheap, else by lot, so that its share of time is kept.

    ``each_s``: what comparing one call takes (0: unknown). ``room_s``: judge's time that this block may take.
    """
    return room_s > 0.0 and secrets.SystemRandom().random() * each_s < room_s


def spot_checks(calls: int, min_pairs: int, each_s: float, room_s: float) -> int:
    """How many calls of a block of ``calls`` are compared: one at any price, more while they are cheap.

    ``each_s``: what comparing one took so far (0: unknown). ``room_s``: judge's time that this block may take.
    """
    wanted = math.ceil(WANTED / max(min_pairs, 1))
    affordable = wanted if each_s <= 0 else int(room_s / each_s)
    return max(1, min(calls, wanted, affordable))


def chosen(calls: int, count: int) -> list[int]:
    """``count`` different indices below ``calls``, known to nobody beforehand, in order."""
    return sorted(secrets.SystemRandom().sample(range(calls), count))
