"""The working point of an agent: what refinement starts from. Pure.

The archives themselves are rows of the store (``best``: every KEEP of an agent, ``accepted``: every KEEP and
ACCEPT); :mod:`engine.store.verdicts` writes and vetoes them, :mod:`engine.store.fold` tells who leads.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.records import Outcome

SEED = 0
"""The candidate number of the seed: the best of an agent that has no KEEP left."""


def working_point(outcomes: Iterable[tuple[int, Outcome]], vetoed: Iterable[int] = ()) -> int:
    """The candidate that refinement starts from, from one agent's (number, outcome) in order.

    A KEEP or an ACCEPT becomes the working point, a REVERT returns it to the best, a REJECT or an ERROR leaves it.
    A vetoed candidate counts for nothing: were it the working point, the best takes its place.
    """
    gone = frozenset(vetoed)
    best = working = SEED
    for number, outcome in outcomes:
        if number in gone:
            working = best if outcome in (Outcome.KEEP, Outcome.ACCEPT, Outcome.REVERT) else working
        else:
            best, working = after(best, working, number, outcome)
    return working


def after(best: int, working: int, number: int, outcome: Outcome) -> tuple[int, int]:
    """(best, working point) after one more outcome."""
    if outcome is Outcome.KEEP:
        return number, number
    if outcome is Outcome.ACCEPT:
        return best, number
    return best, best if outcome is Outcome.REVERT else working
