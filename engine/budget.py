"""What the budgets of a running campaign say at a moment. Pure; the stop rule is :mod:`engine.guard.stop`."""

from __future__ import annotations

from engine.config import CampaignConfig
from engine.guard.stop import AgentStanding, CampaignStanding
from engine.store.summary import Summary

COST_WARNING = 0.9
"""Share of the cost budget at which a person is told."""
SHARE = 0.1
"""Of the time budget that one thing may take which is no search: a baseline, another look at a win."""


def campaign_standing(summary: Summary, config: CampaignConfig, now: float) -> CampaignStanding:
    """What counts for everybody at ``now`` (Unix seconds). The target counts from the first KEEP on."""
    unpriced = config.max_tokens_total is not None and (summary.cost_unknown or config.max_cost is None)
    return CampaignStanding(
        best_speedup=summary.best_speedup if summary.best else None,
        target_speedup=summary.target_speedup,
        candidates=summary.candidates,
        cost_usd=summary.cost_usd,
        max_cost_usd=summary.max_cost_usd,
        tokens=summary.tokens,
        max_tokens=config.max_tokens_total if unpriced else None,
        elapsed_s=summary.elapsed_s(now),
        limit_s=None if summary.minutes is None else summary.minutes * 60,
    )


def agent_standing(summary: Summary, agent: str, *, plateau: bool) -> AgentStanding:
    """What counts for one agent; ``plateau`` is its ``PlateauState.stop``."""
    known = summary.agents[agent]
    return AgentStanding(candidates=known.candidates, budget=known.budget, plateau=plateau, r=known.r)


def seconds_left(summary: Summary, now: float) -> float | None:
    """Running time until the time budget ends; ``None`` without one or while the clock stands still."""
    if summary.minutes is None or summary.running_since is None:
        return None
    return max(0.0, summary.minutes * 60 - summary.elapsed_s(now))


def nearly_spent(summary: Summary) -> bool:
    """True from 90 % of the cost budget on."""
    limit = summary.max_cost_usd
    return limit is not None and summary.cost_usd >= COST_WARNING * limit


def share_s(minutes: float | None, most_s: float) -> float:
    """Seconds for one thing among many: ``most_s``, or a tenth of the time budget where that is less."""
    return most_s if minutes is None else min(most_s, SHARE * 60 * minutes)
