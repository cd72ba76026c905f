"""Proposers by name. Each is imported only when a campaign uses it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import BadInput

if TYPE_CHECKING:
    from engine.proposers.base import Proposer
    from engine.session import AgentControl, Session
    from engine.store.summary import Summary

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

            folders = inbox_folders(session.folder, session.config.inbox, session.summary)
            return InboxProposer(folders[spec.name], session.reader.reply)
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


def inbox_folders(folder: Path, given: str | None, summary: Summary) -> dict[str, Path]:
    """Agent → where it waits for candidates: the given folder (one below it per agent if several do), or its own.

    ``folder`` is the campaign's.
    """
    names = [name for name, agent in summary.agents.items() if agent.spec.proposer == "inbox"]
    if given is None:
        return {name: folder / "agents" / name for name in names}
    return {name: Path(given) if len(names) == 1 else Path(given) / name for name in names}
