"""What the screens show of one campaign at one moment: a plain record, made by the follower or the replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.records import AgentState, CampaignState, Sample
from engine.store.rows import LiveRow, MemoryRow, is_pausing
from engine.store.summary import AgentSummary, Note, Summary
from kernelarc_tui.themes import AGENT_COLORS

ENDED = (CampaignState.FINISHED, CampaignState.STOPPED)
NEW_BEST = "best.new"  # code of the note that the engine leaves with every new best
WAITS = "inbox.waits"  # code of the note that an agent waits for a person's file

Point = tuple[int, str, str, float | None]
"""One judged candidate, for the plot: (number, agent, outcome, latency_ms)."""


@dataclass(frozen=True)
class View:
    """``now`` is the clock that durations are shown against: the wall clock, or the moment of a replay."""

    summary: Summary = field(default_factory=Summary)
    state: CampaignState = CampaignState.STARTING
    now: float = 0.0
    live: Mapping[str, LiveRow] = field(default_factory=dict)
    samples: Mapping[str, Sequence[Sample]] = field(default_factory=dict)  # by device, oldest first
    memory: Sequence[MemoryRow] = ()  # in recall now, newest first
    points: Sequence[Point] = ()  # append-only while a campaign is followed
    last_seq: int = 0
    problem: str = ""  # why the store cannot be read now

    @property
    def running(self) -> bool:
        return self.state in (CampaignState.RUNNING, CampaignState.STARTING)

    @property
    def agents(self) -> list[AgentSummary]:
        return sorted(self.summary.agents.values(), key=lambda agent: agent.spec.ordinal)


def label_of(summary: Summary, agent: str) -> str:
    """An agent's short label: its number in the campaign, from 1."""
    found = summary.agents.get(agent)
    return str(found.spec.ordinal + 1) if found else ""


def style_of(summary: Summary, agent: str) -> str:
    """The theme variable of an agent's colour."""
    found = summary.agents.get(agent)
    return f"agent-{found.spec.ordinal % AGENT_COLORS + 1}" if found else "muted"


def pausing(view: View) -> bool:
    """The campaign is paused, and the device is not given back yet."""
    return is_pausing(view.state, view.live.values())


def doing(view: View, agent: AgentSummary) -> tuple[str, float | None]:
    """What an agent is doing: its state, and for how many seconds where that says something."""
    if agent.stopped is not None:
        return f"stopped {agent.stopped_for}", None
    live = view.live.get(agent.spec.name)
    if agent.paused:
        broken = live is not None and live.state == AgentState.BROKEN
        automatic = not agent.paused.startswith("user")
        return (AgentState.BROKEN if broken or automatic else AgentState.PAUSED), None
    paused = view.state is CampaignState.PAUSED
    if paused and not (live is not None and live.benches):
        return AgentState.PAUSED, None
    if live is None or not (view.running or paused):
        return "", None
    return live.state, max(0.0, view.now - live.since) if live.since else None


def attention(view: View) -> list[Note]:
    """Standing notes, the most urgent and newest first. A new best is news only while the campaign goes on.

    An inbox agent that waits for a file is one too: nothing happens until a person writes it.
    """
    order = {"error": 0, "warning": 1, "info": 2}
    notes = [note for note in view.summary.attention if view.running or note.code != NEW_BEST]
    if view.state is CampaignState.RUNNING:
        notes += [
            Note(code=WAITS, text=live.detail, level="info", agent=agent.spec.name, at=live.since)
            for agent in view.agents
            if agent.spec.proposer == "inbox"
            and (live := view.live.get(agent.spec.name)) is not None
            and live.state == AgentState.PROPOSING
            and live.detail
        ]
    return sorted(notes, key=lambda note: (order.get(note.level, 3), -note.at))
