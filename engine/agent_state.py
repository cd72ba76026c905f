"""What an agent knows of its own past, rebuilt from the store alone. Pure: rows in, records out.

After a crash the state is the fold of the agent's stored verdicts, so a candidate that was in flight leaves no
trace: its position is simply the next one again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from engine.config import CampaignConfig
from engine.guard import archive
from engine.guard import plateau as plateau_policy
from engine.guard.plateau import PlateauConfig, PlateauState
from engine.proposers.base import PastCandidate
from engine.records import Mode, Outcome
from engine.store.events import AgentSpec
from engine.store.rows import CandidateRow
from engine.store.summary import AgentSummary

CORRECT = "keep."
"""Reasons with this prefix are the keep rule's: the candidate was right on every workload."""
FAMILIES = 32
"""How many of the families that were tried last a proposer is told."""


class Mailbox(msgspec.Struct, frozen=True, kw_only=True):
    """What a person left for an agent and is not delivered yet; kept as the agent's memo ``mailbox``."""

    hints: tuple[str, ...] = ()
    draft: bool = False  # a forced draft that has not begun
    strategy: str = ""  # a person's choice, until another or ``auto``
    model: str = ""

    def delivered(self, hints: Sequence[str]) -> Mailbox:
        """Without the hints that a prompt has carried."""
        rest = tuple(hint for hint in self.hints if hint not in hints)
        return msgspec.structs.replace(self, hints=rest)


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """One agent between two proposals. ``best`` and ``working`` are candidate numbers, 0 the seed."""

    name: str
    history: tuple[PastCandidate, ...] = ()
    plateau: PlateauState = PlateauState()
    best: int = 0
    working: int = 0
    vetoed: frozenset[int] = frozenset()
    errors: int = 0  # ERRORs in a row

    @property
    def position(self) -> int:
        """The budget position that the next reply takes: one more than the verdicts that are stored."""
        return len(self.history) + 1

    @property
    def families(self) -> tuple[str, ...]:
        """Distinct families tried, the latest last."""
        latest = dict.fromkeys(past.family for past in reversed(self.history) if past.family)
        return tuple(reversed(list(latest)[:FAMILIES]))


def past_of(row: CandidateRow) -> PastCandidate:
    return PastCandidate(
        number=row.number,
        position=row.position,
        mode=Mode(row.mode),
        strategy=row.strategy,
        family=row.family,
        parameters=row.parameters,
        outcome=Outcome(row.outcome),
        reason=row.reason,
        detail=row.detail,
        latency_ms=row.latency_ms,
        log_ratio=row.log_ratio,
        source_sha=row.source_sha or "",
        hypothesis=row.hypothesis,
    )


def was_correct(past: PastCandidate) -> bool:
    return past.outcome in (Outcome.KEEP, Outcome.ACCEPT) or past.reason.startswith(CORRECT)


def rebuilt(
    name: str, rows: Iterable[CandidateRow], config: PlateauConfig, known: AgentSummary | None, mailbox: Mailbox
) -> AgentState:
    """The state after the agent's stored verdicts (``rows`` in order), and what the summary and mailbox add.

    A forced draft shows in the rows as a draft that was not due; one whose line was announced but has no
    verdict yet shows in the summary only.
    """
    state = AgentState(name=name)
    vetoed = set()
    for row in rows:
        past = past_of(row)
        state = after_verdict(begun(state, past.mode, config), past, config)
        if row.vetoed_at is not None:
            vetoed.add(row.number)
    for number in sorted(vetoed):
        state = without(state, number)
    if known is not None and known.mode is Mode.DRAFT and not known.draft_due:
        state = begun(state, Mode.DRAFT, config)
    if mailbox.draft:
        state = forced(state)
    errors = known.error_streak if known is not None else 0
    return msgspec.structs.replace(state, errors=errors)


def begun(state: AgentState, mode: Mode, config: PlateauConfig) -> AgentState:
    """The state in which a proposal of ``mode`` was made: a draft opens its line if none is open."""
    line = state.plateau
    if mode is Mode.DRAFT and not line.line_open:
        if not plateau_policy.draft_due(line, config):
            line = plateau_policy.force_draft(line)
        line = plateau_policy.before_proposal(line, config)
    return msgspec.structs.replace(state, plateau=line)


def after_verdict(state: AgentState, past: PastCandidate, config: PlateauConfig) -> AgentState:
    """One more verdict: history, r and draft line, best and working point. Clears the error streak."""
    line = plateau_policy.after_verdict(
        state.plateau, past.outcome, config, number=past.number, correct=was_correct(past)
    )
    best, working = archive.after(state.best, state.working, past.number, past.outcome)
    return msgspec.structs.replace(
        state,
        history=(*state.history, past),
        plateau=line,
        best=best,
        working=working,
        errors=0,
    )


def without(state: AgentState, number: int) -> AgentState:
    """The state after a veto of ``number``: best, working point and an open line's base go back."""
    vetoed = state.vetoed | {number}
    keeps = [p.number for p in state.history if p.outcome is Outcome.KEEP and p.number not in vetoed]
    line = state.plateau
    if line.line_base == number:
        line = msgspec.structs.replace(line, line_base=None)
    return msgspec.structs.replace(
        state,
        vetoed=vetoed,
        best=keeps[-1] if keeps else 0,
        working=archive.working_point(((p.number, p.outcome) for p in state.history), vetoed),
        plateau=line,
    )


def forced(state: AgentState) -> AgentState:
    """A person asks for a draft."""
    return msgspec.structs.replace(state, plateau=plateau_policy.force_draft(state.plateau))


def base_number(state: AgentState) -> int:
    """What the next proposal starts from: the draft line's own base, or the working point."""
    return plateau_policy.base_of(state.plateau, state.working, state.best)


def model_of(spec: AgentSpec, mailbox: Mailbox, config: CampaignConfig) -> str:
    """The model an LLM agent asks: a person's choice before the one that it was set up with; empty if none."""
    return mailbox.model or spec.model or next(iter(config.model), "")


def mailbox_from(value: Any) -> Mailbox:
    """The memo of an earlier engine; anything unreadable counts as empty."""
    try:
        return msgspec.convert(value, Mailbox) if value is not None else Mailbox()
    except msgspec.ValidationError:
        return Mailbox()
