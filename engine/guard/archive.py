"""Best and accepted archives, veto and leaderboard. Pure, over rows in the order they were written.

The *best* archive holds every KEEP of an agent, the *accepted* archive its working points (every KEEP and ACCEPT).
Rows are never removed or changed but for the veto mark. Candidate number 0 is the seed: the best of an agent that
has no KEEP left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from engine.records import Outcome

SEED = 0


class ArchiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """One archived candidate. Latency in milliseconds; ``speedup`` against the reference."""

    agent: str
    kind: str  # best | accepted
    candidate: int
    latency_ms: float | None = None
    speedup: float | None = None
    vetoed: bool = False


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the campaign leaderboard."""

    agent: str
    candidate: int
    latency_ms: float
    speedup: float | None = None


class VetoEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What a veto changes: the rows, and the best and working point that the agent has afterwards."""

    rows: tuple[ArchiveRow, ...]
    agent: str
    best: int
    was_best: bool  # the vetoed candidate was the agent's current best


def rows_for(
    outcome: Outcome, agent: str, candidate: int, latency_ms: float | None = None, speedup: float | None = None
) -> tuple[ArchiveRow, ...]:
    """The rows that a verdict adds: a KEEP one to each archive, an ACCEPT one to the accepted archive."""
    kinds = {Outcome.KEEP: ("best", "accepted"), Outcome.ACCEPT: ("accepted",)}.get(outcome, ())
    return tuple(
        ArchiveRow(agent=agent, kind=kind, candidate=candidate, latency_ms=latency_ms, speedup=speedup)
        for kind in kinds
    )


def best_row(rows: Iterable[ArchiveRow], agent: str) -> ArchiveRow | None:
    """The agent's current best: its latest KEEP that was not vetoed. ``None``: the seed."""
    found = None
    for row in rows:
        if row.agent == agent and row.kind == "best" and not row.vetoed:
            found = row
    return found


def best_of(rows: Iterable[ArchiveRow], agent: str) -> int:
    row = best_row(rows, agent)
    return SEED if row is None else row.candidate


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
        elif outcome is Outcome.KEEP:
            best = working = number
        elif outcome is Outcome.ACCEPT:
            working = number
        elif outcome is Outcome.REVERT:
            working = best
    return working


def veto(rows: Sequence[ArchiveRow], candidate: int) -> VetoEffect | None:
    """Mark every row of ``candidate``; ``None`` if it was never kept or is already vetoed.

    The best returns to the agent's previous KEEP that stands, or to the seed. Vetoing an older KEEP leaves the
    current best alone: what was measured against it stays measured.
    """
    owner = next((r.agent for r in rows if r.candidate == candidate and r.kind == "best" and not r.vetoed), None)
    if owner is None:
        return None
    was_best = best_of(rows, owner) == candidate
    marked = tuple(msgspec.structs.replace(r, vetoed=True) if r.candidate == candidate else r for r in rows)
    return VetoEffect(rows=marked, agent=owner, best=best_of(marked, owner), was_best=was_best)


def leaderboard(rows: Iterable[ArchiveRow]) -> list[Standing]:
    """Each agent's best, fastest first; equal times in order of candidate. Agents without a KEEP are absent."""
    latest = {row.agent: row for row in rows if row.kind == "best" and not row.vetoed}
    lines = [
        Standing(agent=r.agent, candidate=r.candidate, latency_ms=r.latency_ms, speedup=r.speedup)
        for r in latest.values()
        if r.latency_ms is not None
    ]
    return sorted(lines, key=lambda line: (line.latency_ms, line.candidate))


def siblings(rows: Iterable[ArchiveRow], agent: str, latency_ms: float | None) -> list[Standing]:
    """Other agents' bests that are faster than ``latency_ms`` (``None``: all of them), fastest first."""
    return [
        line
        for line in leaderboard(rows)
        if line.agent != agent and (latency_ms is None or line.latency_ms < latency_ms)
    ]
