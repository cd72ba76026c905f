"""What the agents of a replay were doing: worked out from when their next candidate was judged, and its bench.

The store keeps no history of the ``live`` rows. It does keep each candidate's bench phases, so between two
verdicts of an agent everything before its bench is proposing, and the bench is cut by its own phases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.records import AgentState, Evaluation
from engine.store.reader import StoreReader
from engine.store.rows import CandidateRow, LiveRow
from engine.store.summary import Summary

PHASES = {  # in the order in which a bench goes through them
    "start": AgentState.GATING,
    "compile": AgentState.COMPILING,
    "wait": AgentState.WAITING_DEVICE,
    "correctness": AgentState.BENCHING,
    "timing": AgentState.BENCHING,
}


@dataclass(frozen=True)
class _Next:
    """What an agent works on once candidate ``after`` is judged; ``row`` is ``None`` if nothing came of it."""

    after: int
    row: CandidateRow | None
    began: float
    phases: Mapping[str, float]
    reply: str


def state_at(now: float, began: float, judged: float, phases: Mapping[str, float]) -> tuple[AgentState, float]:
    """(state, since when) at ``now``, for a candidate begun at ``began`` and judged at ``judged``. Pure."""
    spans = [(state, max(0.0, phases.get(name, 0.0))) for name, state in PHASES.items()]
    at = max(began, judged - sum(seconds for _, seconds in spans))
    state, since = AgentState.PROPOSING, began
    for name, seconds in spans:
        if now < at or at >= judged:
            break
        if seconds > 0:
            since = since if name is state else at
            state = name
        at += seconds
    return state, since


class Doings:
    """Reads one candidate an agent ahead of the replay."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._next: dict[str, _Next] = {}

    def at(self, summary: Summary, now: float) -> dict[str, LiveRow]:
        """By agent; one that proposes nothing any more has no row."""
        rows: dict[str, LiveRow] = {}
        if summary.best_ms is None:
            return {name: LiveRow(agent=name, state=AgentState.STARTING) for name in summary.agents}
        for name, agent in summary.agents.items():
            if agent.stopped is not None:
                continue
            coming = self._coming(name, summary)
            if coming.row is None:
                continue
            state, since = state_at(now, coming.began, coming.row.at, coming.phases)
            proposed = state is not AgentState.PROPOSING
            rows[name] = LiveRow(
                agent=name,
                state=state,
                since=since,
                strategy=coming.row.strategy,
                mode=coming.row.mode,
                hypothesis=coming.row.hypothesis if proposed else "",
                reply=coming.reply if proposed else "",
                updated_at=now,
            )
        return rows

    def _coming(self, agent: str, summary: Summary) -> _Next:
        number, known = summary.candidates, self._next.get(agent)
        if known is not None and known.after <= number and (known.row is None or number < known.row.number):
            return known
        row = next(iter(self._reader.candidates_after(number, 1, agent)), None)
        before = next(iter(self._reader.candidates(number + 1, 1, agent)), None)
        evaluation: Evaluation | None = self._reader.evaluation(row.number) if row else None
        found = _Next(
            after=before.number if before else 0,
            row=row,
            began=before.at if before else summary.created_at,
            phases=evaluation.phases_s if evaluation else {},
            reply=(self._reader.reply(row.number) or "") if row else "",
        )
        self._next[agent] = found
        return found
