"""Proposers by name. Each is imported only when a campaign uses it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import BadInput

if TYPE_CHECKING:
    from engine.proposers.base import Proposer
    from engine.session import AgentControl, Session

PATIENT = frozenset({"inbox"})
"""Proposers that wait for a person: no deadline per proposal."""


def build_proposer(session: Session, control: AgentControl) -> Proposer:
    """The proposer of one agent, by its specification. Raises :class:`BadInput` if it cannot work."""
    spec = control.spec
    match spec.proposer:
        case "recipes":
            from engine.proposers.recipes import RecipeProposer

            return RecipeProposer(session)
        case "replay":
            from engine.proposers.replay import ReplayProposer, lines_for

            lines = lines_for(session.config.replay or "", spec.name, spec.ordinal, len(session.summary.agents))
            return ReplayProposer(lines)
        case "inbox":
            from engine.proposers.inbox import InboxProposer

            return InboxProposer(inbox_folder(session, spec.name), session.reader.reply)
        case "llm":
            from engine.proposers.llm import build_llm

            return build_llm(session, control)
    raise BadInput(f"unknown proposer {spec.proposer!r}", where=f"agent {spec.name}")


def warm_proposers(session: Session) -> None:
    """Begin what agents will need and what can go on while the reference is traced."""
    if any(
        agent.spec.proposer == "recipes" and agent.stopped is None for agent in session.summary.agents.values()
    ):
        from engine.proposers.recipes import begin_tracing

        begin_tracing(session)


def inbox_folder(session: Session, agent: str) -> Path:
    """Where an inbox agent watches: the given folder (one below it per agent if several do), or its own."""
    given = session.config.inbox
    if given is None:
        return session.folder / "agents" / agent
    inboxes = [a for a in session.summary.agents.values() if a.spec.proposer == "inbox"]
    return Path(given) if len(inboxes) == 1 else Path(given) / agent
