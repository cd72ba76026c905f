"""The pure fold: events in, summary out. One small function per kind of event, no clock and no table.

``fold`` never changes the summary it is given, and depends on nothing but its arguments, so that the stored
summary, a snapshot plus its tail, and a replay from the first event are the same record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from engine.records import CampaignState, Mode, Outcome
from engine.store import events as ev
from engine.store.summary import AgentSummary, Keep, Note, Summary, TrajectoryPoint

NOTES_LIMIT = 32
ENDED = (CampaignState.STOPPED, CampaignState.FINISHED)


def fold(summary: Summary, at: float, event: ev.Event) -> Summary:
    """The summary after one more event that happened ``at`` (Unix seconds)."""
    step = _STEPS.get(type(event))
    after = step(summary, at, event) if step else summary
    return replace(after, seq=summary.seq + 1, last_at=at)


# Campaign


def _started(summary: Summary, at: float, event: ev.CampaignStarted) -> Summary:
    agents = {
        spec.name: AgentSummary(spec=spec, strategy=spec.strategy, model=spec.model, budget=spec.budget)
        for spec in event.agents
    }
    begun = replace(
        summary,
        name=event.name,
        problem=event.problem,
        device=event.device,
        device_name=event.device_name,
        kernel_type=event.kernel_type,
        config=event.config,
        created_at=at,
        budget=event.budget,
        minutes=event.minutes,
        max_cost_usd=event.max_cost_usd,
        target_speedup=event.target_speedup,
        r_draft=event.r_draft,
        r_stop=event.r_stop,
        margin=event.margin,
        agents=agents,
    )
    return _with_leader(begun)  # nothing that was kept before is any of these agents'


def _attached(summary: Summary, at: float, event: ev.EngineAttached) -> Summary:
    """After a crash the clock stood still from the last event of the old engine to this one."""
    summary = _stop_clock(summary, summary.last_at)
    if summary.state in (*ENDED, CampaignState.PAUSED):
        return summary
    return replace(summary, state=_going(summary), running_since=at)


def _baselines(summary: Summary, at: float, event: ev.BaselinesMeasured) -> Summary:
    state = summary.state
    summary = replace(
        summary,
        state=CampaignState.RUNNING if state is CampaignState.STARTING else state,
        reference_ms=event.reference_ms,
        seed_ms=event.seed_ms,
        seed_speedup=event.seed_speedup,
        noise=event.noise,
        timer=event.timer,
        roofline_ms=event.roofline_ms,
        ceiling_ms=event.ceiling_ms,
        compile_ms=event.compile_ms,
        seed_sol_score=event.sol_score,
        sol_bound=event.sol_bound,
        sol_baseline=event.sol_baseline,
        kernel_type=event.kernel_type or summary.kernel_type,
        device_name=event.device_name or summary.device_name,
    )
    agents = {name: _with_seed(summary, agent, at) for name, agent in summary.agents.items()}
    return _with_leader(replace(summary, agents=agents))


def _noise(summary: Summary, at: float, event: ev.NoiseMeasured) -> Summary:
    noise = event.noise if event.candidate == 0 else summary.noise
    return replace(summary, noise=noise, noise_of=summary.noise_of | {event.candidate: event.noise})


def _paused(summary: Summary, at: float, event: ev.CampaignPaused) -> Summary:
    if summary.state in ENDED:
        return summary
    return replace(_stop_clock(summary, at), state=CampaignState.PAUSED)


def _resumed(summary: Summary, at: float, event: ev.CampaignResumed) -> Summary:
    """Also takes an ended campaign up again, with larger budgets for instance."""
    since = summary.running_since if summary.running_since is not None else at
    return replace(summary, state=_going(summary), running_since=since, stop_reason=None, stop_detail="")


def _ended(summary: Summary, at: float, event: ev.CampaignEnded) -> Summary:
    state = CampaignState.STOPPED if event.state == CampaignState.STOPPED else CampaignState.FINISHED
    summary = _stop_clock(summary, at)
    return replace(summary, state=state, stop_reason=event.reason, stop_detail=event.detail)


def _budget(summary: Summary, at: float, event: ev.BudgetChanged) -> Summary:
    agents = {
        name: replace(agent, budget=event.agents[name]) if name in event.agents else agent
        for name, agent in summary.agents.items()
    }
    return replace(
        summary,
        agents=agents,
        budget=summary.budget if event.candidates is None else event.candidates,
        minutes=summary.minutes if event.minutes is None else event.minutes,
        max_cost_usd=summary.max_cost_usd if event.max_cost_usd is None else event.max_cost_usd,
    )


def _attention(summary: Summary, at: float, event: ev.Attention) -> Summary:
    others = [n for n in summary.attention if (n.code, n.agent) != (event.code, event.agent)]
    if not event.clear:
        others.append(Note(code=event.code, text=event.text, level=event.level, agent=event.agent, at=at))
    return replace(summary, attention=others[-NOTES_LIMIT:])


# Verdicts


def _verdict(summary: Summary, at: float, event: ev.Verdict) -> Summary:
    summary = _spend(summary, event.agent, event.cost_usd or 0.0, event.tokens)
    summary = replace(summary, candidates=summary.candidates + 1, outcomes=_count(summary.outcomes, event.outcome))
    if event.cost_usd is None and event.tokens:
        summary = replace(summary, cost_unknown=True)
    agent = summary.agents.get(event.agent)
    if agent is None:
        return summary
    agent = replace(
        agent,
        strategy=event.strategy or agent.strategy,
        model=event.model or agent.model,
        candidates=agent.candidates + 1,
        outcomes=_count(agent.outcomes, event.outcome),
        error_streak=0,
        r=event.r,
        draft_due=event.draft_due,
        draft_line=event.draft_line,
        mode=_mode_after(agent, event),
    )
    if event.outcome is not Outcome.KEEP:
        return _with_agent(summary, agent)
    keep = Keep(event.number, event.latency_ms, event.speedup, event.sol_score)
    agent = _with_best(replace(agent, keeps=[*agent.keeps, keep]), summary, at)
    return _with_leader(_with_agent(summary, agent))


def _mode_after(agent: AgentSummary, event: ev.Verdict) -> Mode:
    if event.outcome is Outcome.REJECT:  # moves neither r nor the draft line
        return Mode.DRAFT if event.draft_due else agent.mode
    return Mode.DRAFT if event.draft_due or event.draft_line else Mode.REFINE


def _error(summary: Summary, at: float, event: ev.CandidateError) -> Summary:
    summary = _spend(summary, event.agent, event.cost_usd or 0.0, event.tokens)
    summary = replace(summary, errors=summary.errors + 1)
    if event.cost_usd is None and event.tokens:
        summary = replace(summary, cost_unknown=True)
    return _change(summary, event.agent, lambda a: replace(a, errors=a.errors + 1, error_streak=event.streak))


def _vetoed(summary: Summary, at: float, event: ev.Vetoed) -> Summary:
    summary = replace(summary, wins=max(0, summary.wins - len(event.expired)))
    agent = summary.agents.get(event.agent)
    if agent is None or event.number not in agent.kept:
        return summary
    was_best = agent.best == event.number
    agent = replace(agent, keeps=[keep for keep in agent.keeps if keep.number != event.number])
    if was_best:
        agent = _with_best(agent, summary, at)
    return _with_leader(_with_agent(summary, agent))


def _charged(summary: Summary, at: float, event: ev.ModelCharged) -> Summary:
    return _spend(summary, event.agent, event.cost_usd, event.tokens)


# Agents


def _strategy(summary: Summary, at: float, event: ev.StrategyChosen) -> Summary:
    return _change(summary, event.agent, lambda a: replace(a, strategy=event.strategy))


def _model(summary: Summary, at: float, event: ev.ModelChosen) -> Summary:
    return _change(summary, event.agent, lambda a: replace(a, model=event.model))


def _line_opened(summary: Summary, at: float, event: ev.DraftLineOpened) -> Summary:
    return _change(summary, event.agent, lambda a: replace(a, mode=Mode.DRAFT, draft_due=False, draft_line=0))


def _line_closed(summary: Summary, at: float, event: ev.DraftLineClosed) -> Summary:
    return _change(
        summary,
        event.agent,
        lambda a: replace(a, mode=Mode.DRAFT if a.draft_due else Mode.REFINE, draft_line=0),
    )


def _agent_paused(summary: Summary, at: float, event: ev.AgentPaused) -> Summary:
    text = f"{event.by}: {event.why}" if event.why else event.by
    return _change(summary, event.agent, lambda a: replace(a, paused=text))


def _agent_resumed(summary: Summary, at: float, event: ev.AgentResumed) -> Summary:
    return _change(
        summary,
        event.agent,
        lambda a: replace(a, paused="", error_streak=0, stopped=None, stopped_detail=""),
    )


def _agent_restarted(summary: Summary, at: float, event: ev.AgentRestarted) -> Summary:
    return _change(summary, event.agent, lambda a: replace(a, restarts=event.crashes))


def _agent_stopped(summary: Summary, at: float, event: ev.AgentStopped) -> Summary:
    return _change(summary, event.agent, lambda a: replace(a, stopped=event.reason, stopped_detail=event.detail))


# Memory


def _memory_added(summary: Summary, at: float, event: ev.MemoryAdded) -> Summary:
    return summary if event.merged_into is not None else _memories(summary, event.memory, 1)


def _memory_expired(summary: Summary, at: float, event: ev.MemoryExpired) -> Summary:
    return _memories(summary, event.memory, -1)


def _memories(summary: Summary, kind: str, change: int) -> Summary:
    if kind == "win":
        return replace(summary, wins=max(0, summary.wins + change))
    if kind == "trap":
        return replace(summary, traps=max(0, summary.traps + change))
    return summary


# Shared steps


def _going(summary: Summary) -> CampaignState:
    return CampaignState.STARTING if summary.reference_ms is None else CampaignState.RUNNING


def _stop_clock(summary: Summary, at: float) -> Summary:
    return replace(summary, elapsed_before_s=summary.elapsed_s(at), running_since=None)


def _count(outcomes: dict[str, int], outcome: Outcome) -> dict[str, int]:
    return {**outcomes, outcome.value: outcomes.get(outcome.value, 0) + 1}


def _with_agent(summary: Summary, agent: AgentSummary) -> Summary:
    return replace(summary, agents={**summary.agents, agent.spec.name: agent})


def _change(summary: Summary, name: str, step: Callable[[AgentSummary], AgentSummary]) -> Summary:
    agent = summary.agents.get(name)
    return summary if agent is None else _with_agent(summary, step(agent))


def _spend(summary: Summary, name: str, cost_usd: float, tokens: int) -> Summary:
    if not cost_usd and not tokens:
        return summary
    summary = replace(summary, cost_usd=summary.cost_usd + cost_usd, tokens=summary.tokens + tokens)
    return _change(summary, name, lambda a: replace(a, cost_usd=a.cost_usd + cost_usd, tokens=a.tokens + tokens))


def _with_seed(summary: Summary, agent: AgentSummary, at: float) -> AgentSummary:
    """Until its first KEEP the seed is an agent's best."""
    return agent if agent.keeps else _with_best(agent, summary, at)


def _with_best(agent: AgentSummary, summary: Summary, at: float) -> AgentSummary:
    """The last KEEP that stands is the best, else the seed; its trajectory steps there."""
    best = agent.keeps[-1] if agent.keeps else Keep(0, summary.seed_ms, summary.seed_speedup, None)
    trajectory = agent.trajectory
    if best.latency_ms is not None:
        point = TrajectoryPoint(summary.candidates, summary.elapsed_s(at), summary.cost_usd, best.latency_ms)
        trajectory = [*trajectory, point]
    return replace(
        agent,
        best=best.number,
        best_ms=best.latency_ms,
        best_speedup=best.speedup,
        trajectory=trajectory,
    )


def _with_leader(summary: Summary) -> Summary:
    """The campaign's best: the fastest agent's, the earlier candidate on a tie, the seed before any KEEP."""
    leaders = [
        (agent.best_ms, agent.best, name)
        for name, agent in summary.agents.items()
        if agent.keeps and agent.best_ms is not None
    ]
    if not leaders:
        return replace(
            summary,
            best_agent="",
            best=0,
            best_ms=summary.seed_ms,
            best_speedup=summary.seed_speedup,
            sol_score=summary.seed_sol_score,
        )
    best_ms, number, name = min(leaders)
    keep = summary.agents[name].keeps[-1]
    return replace(
        summary,
        best_agent=name,
        best=number,
        best_ms=best_ms,
        best_speedup=keep.speedup,
        sol_score=keep.sol_score,
    )


_STEPS: dict[type, Callable[[Summary, float, Any], Summary]] = {
    ev.CampaignStarted: _started,
    ev.EngineAttached: _attached,
    ev.BaselinesMeasured: _baselines,
    ev.NoiseMeasured: _noise,
    ev.CampaignPaused: _paused,
    ev.CampaignResumed: _resumed,
    ev.CampaignEnded: _ended,
    ev.Verdict: _verdict,
    ev.CandidateError: _error,
    ev.StrategyChosen: _strategy,
    ev.ModelChosen: _model,
    ev.DraftLineOpened: _line_opened,
    ev.DraftLineClosed: _line_closed,
    ev.AgentPaused: _agent_paused,
    ev.AgentResumed: _agent_resumed,
    ev.AgentRestarted: _agent_restarted,
    ev.AgentStopped: _agent_stopped,
    ev.Vetoed: _vetoed,
    ev.MemoryAdded: _memory_added,
    ev.MemoryExpired: _memory_expired,
    ev.BudgetChanged: _budget,
    ev.Attention: _attention,
    ev.ModelCharged: _charged,
}
"""Events that are not here (hints, pins, notes, answers, reloads) are history only and change no summary."""
