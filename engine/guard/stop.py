"""The stop rule: when an agent, and when the whole campaign, is done. Pure.

Precedence when several hold at once, strongest first: user, target, cost, time, candidates, plateau. A
person's word comes first; reaching the goal is success whatever ran out in the same moment; money and time
end everybody, so they outrank what ends one agent; an agent that used its last position on its r_stop-th
failure was given its full budget, which says more than the plateau.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine.records import StopReason

PRECEDENCE = (
    StopReason.USER,
    StopReason.TARGET,
    StopReason.COST,
    StopReason.TIME,
    StopReason.CANDIDATES,
    StopReason.PLATEAU,
    StopReason.FAULT,
)


CONFIRM_GRACE_S = 60.0
"""How long a campaign whose time or money is up still waits for wins that are being confirmed."""


class CampaignStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What counts for everybody. A limit of ``None`` is no limit; times in seconds, money in US dollars."""

    best_speedup: float | None = None  # of a KEEP, against the reference; ``None`` before the first
    target_speedup: float | None = None
    candidates: int = 0  # judged so far
    cost_usd: float = 0.0
    max_cost_usd: float | None = None
    tokens: int = 0
    max_tokens: int | None = None  # takes the place of money where a price is unknown
    elapsed_s: float = 0.0  # running time, pauses left out
    limit_s: float | None = None


class AgentStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What counts for one agent."""

    candidates: int = 0  # positions used
    budget: int | None = None
    plateau: bool = False  # PlateauState.stop
    r: int = 0


class Stop(msgspec.Struct, frozen=True):
    reason: StopReason
    detail: str


def campaign_stop(standing: CampaignStanding) -> Stop | None:
    """Why the whole campaign is over, or ``None``."""
    target, best = standing.target_speedup, standing.best_speedup
    if target is not None and best is not None and best >= target:
        return Stop(StopReason.TARGET, f"{best:.3f}× reached, the target was {target:g}×")
    if standing.max_cost_usd is not None and standing.cost_usd >= standing.max_cost_usd:
        return Stop(StopReason.COST, f"{standing.cost_usd:.2f} of {standing.max_cost_usd:.2f} USD spent")
    if standing.max_tokens is not None and standing.tokens >= standing.max_tokens:
        return Stop(StopReason.COST, f"{standing.tokens} of {standing.max_tokens} tokens used")
    if standing.limit_s is not None and standing.elapsed_s >= standing.limit_s:
        used = f"{standing.limit_s / 60:g} minutes of running time used"
        if not standing.candidates:
            used += " before a candidate was judged: measuring the reference takes its share, give more --minutes"
        return Stop(StopReason.TIME, used)
    return None


def confirmation_grace_s(reason: StopReason) -> float:
    """Seconds. What is being confirmed has been found and paid for; a person's word and a fault do not wait, and
    once the target is reached nothing more is needed."""
    return CONFIRM_GRACE_S if reason in (StopReason.TIME, StopReason.COST) else 0.0


def agent_stop(standing: AgentStanding) -> Stop | None:
    """Why one agent is done on its own account, or ``None``."""
    if standing.budget is not None and standing.candidates >= standing.budget:
        return Stop(StopReason.CANDIDATES, f"all {standing.budget} positions used")
    if standing.plateau:
        return Stop(StopReason.PLATEAU, f"{standing.r} benched tries in a row without an improvement")
    return None


def stop_reason(agent: AgentStanding, campaign: CampaignStanding) -> Stop | None:
    """Why this agent must stop before its next proposal, by the precedence above."""
    found = [stop for stop in (campaign_stop(campaign), agent_stop(agent)) if stop is not None]
    return min(found, key=lambda stop: PRECEDENCE.index(stop.reason), default=None)


def campaign_reason(reasons: Iterable[StopReason]) -> StopReason:
    """One reason for a campaign whose agents have all stopped: the strongest of theirs.

    A plateau outranks a used-up budget here only if every agent reached one: as long as one agent was still able
    to go on, it was the budget that ended the campaign.
    """
    given = set(reasons)
    return next((reason for reason in PRECEDENCE if reason in given), StopReason.CANDIDATES)


def split_budget(total: int | None, agents: int) -> list[int | None]:
    """Positions per agent: evenly, the remainder to the first agents; ``None`` is no limit.

    What a stopped agent leaves is not redistributed.
    """
    if agents < 1:
        return []
    if total is None:
        return [None] * agents
    share, rest = divmod(max(total, 0), agents)
    return [share + (1 if ordinal < rest else 0) for ordinal in range(agents)]
