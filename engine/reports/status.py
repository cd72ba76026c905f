"""A campaign's state as one JSON document and as one screen of plain text."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from engine.records import AgentState, CampaignState, Outcome
from engine.store.campaigns import campaign_state, engine_alive, running_s, told_state
from engine.store.reader import StoreReader
from engine.store.rows import CandidateRow, LiveRow, is_pausing
from engine.store.summary import AgentSummary, Summary
from engine.text import counted, cut, one_line

WIDTH = 79
_OUTCOMES = (Outcome.REJECT, Outcome.KEEP, Outcome.ACCEPT, Outcome.REVERT)
_LETTERS = {"KEEP": "K", "ACCEPT": "A", "REVERT": "R", "REJECT": "x"}


def status_json(reader: StoreReader, folder: Path) -> dict[str, Any]:
    """The documented ``status --json`` object. Numbers that are not known yet are ``null``."""
    summary = reader.summary()
    live = {row.agent: row for row in reader.live()}
    state = campaign_state(folder, summary)
    alive = engine_alive(folder)
    return {
        "campaign": summary.name or folder.name,
        "state": told_state(state),
        "stop_reason": summary.stop_reason.value if summary.stop_reason else None,
        "problem": summary.problem,
        "device": summary.device,
        "config": summary.config,
        "elapsed_s": round(running_s(folder, summary), 3),
        "candidates": summary.candidates,
        "budget": summary.budget,
        "outcomes": {outcome.value: summary.outcomes.get(outcome.value, 0) for outcome in _OUTCOMES},
        "errors": summary.errors,
        "reference_ms": summary.reference_ms,
        "seed_ms": summary.seed_ms,
        "best_ms": summary.best_ms,
        "speedup": summary.best_speedup,
        "seed_speedup": summary.best_over_seed,
        "sol_score": summary.sol_score,
        "sol_basis": sol_basis(summary),
        "cost_usd": round(summary.cost_usd, 6),
        "tokens": summary.tokens,
        "agents": [
            {
                "name": name,
                "strategy": agent.strategy,
                "model": agent.model,
                "state": agent_state(agent, live.get(name), state, alive),
                "candidates": agent.candidates,
                "best_ms": agent.best_ms,
                "r": agent.r,
                "mode": agent.mode.value,
            }
            for name, agent in summary.agents.items()
        ],
        "wins": summary.wins,
        "traps": summary.traps,
    }


def status_text(reader: StoreReader, folder: Path, now: float | None = None) -> str:
    """At most 79 columns and about 20 lines, no colour, no control characters."""
    now = time.time() if now is None else now
    summary = reader.summary()
    live = {row.agent: row for row in reader.live()}
    state = campaign_state(folder, summary)
    word = "pausing" if is_pausing(state, live.values()) else told_state(state)
    lines = [*_head(summary, word, running_s(folder, summary), folder.name), ""]
    lines.append("agent  strategy             state                    best     used  r   mode")
    alive = engine_alive(folder)
    lines += [
        _agent_line(name, agent, live.get(name), state, alive, now) for name, agent in summary.agents.items()
    ]
    recent = reader.candidates(limit=5)
    if recent:
        lines += ["", "last candidates"]
        for row in recent:
            latency = f"{row.latency_ms:.4f} ms" if row.latency_ms is not None else ""
            change = f"{(math.exp(-row.log_ratio) - 1) * 100:+.1f} %" if row.log_ratio is not None else ""
            why = one_line(_why(row), WIDTH)
            text = f"{_clock(row.at)} {row.agent} #{row.number} {_LETTERS[row.outcome]} {row.outcome.lower():<6}"
            lines.append(f" {text} {latency:>11} {change:>8}  {why}")
    notes = [note for note in summary.attention if note.level != "info"]
    lines += ["", *(f"! {one_line(note.text, WIDTH)}" for note in notes[-3:])] if notes else []
    hints = _next_steps(state, folder.name, found=bool(summary.best))
    lines += ["", *hints] if hints else []
    return "\n".join(cut(line, WIDTH).rstrip() for line in lines)


def _why(row: CandidateRow) -> str:
    """What a candidate was judged for; of a comparison the numbers stand beside it, so what it tried follows."""
    room, _, code = row.reason.partition(".")
    if row.hypothesis and (room == "keep" or not row.reason):
        return ": ".join(part for part in (code.replace("-", " "), row.hypothesis) if part)
    return ": ".join(part for part in (row.reason, row.detail) if part)


def agent_state(agent: AgentSummary, live: LiveRow | None, state: CampaignState, alive: bool) -> str:
    """What an agent does now: decisions (stopped, paused) before what its live row last said."""
    if agent.stopped is not None or state in (CampaignState.STOPPED, CampaignState.FINISHED):
        return AgentState.STOPPED.value
    if not alive:
        return CampaignState.INTERRUPTED.value
    if agent.paused:
        return (AgentState.PAUSED if agent.paused.startswith("user") else AgentState.BROKEN).value
    return live.state if live else AgentState.STARTING.value


def sol_basis(summary: Summary) -> dict[str, str] | None:
    """What the score stands on; only said where there is a score."""
    if summary.sol_score is None or summary.sol_bound is None or summary.sol_baseline is None:
        return None
    return {"bound": summary.sol_bound, "baseline": summary.sol_baseline}


def duration(seconds: float) -> str:
    """``hh:mm:ss``."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _head(summary: Summary, state: str, elapsed_s: float, name: str) -> list[str]:
    budget = f"/{summary.budget}" if summary.budget is not None else ""
    cap = f" of {summary.max_cost_usd:g}" if summary.max_cost_usd is not None else ""
    least = "≥" if summary.cost_unknown else ""
    money = "" if not summary.cost_usd and not summary.tokens else f"  {least}${summary.cost_usd:.2f}{cap}"
    per_keep = summary.cost_per_keep_usd
    why = f" ({summary.why_ended})" if summary.why_ended else ""
    device = summary.device_name or summary.device
    lines = [
        f"{name}: {summary.problem} · {device}",
        f"{state}{why}  {duration(elapsed_s)}  {summary.candidates}{budget} candidates{money}",
    ]
    if summary.best_ms is None:
        lines.append("the reference and the seed are being measured")
    else:
        speedup = f"  {summary.best_speedup:.2f}x reference" if summary.best_speedup else ""
        share = f"  {summary.roofline_ms / summary.best_ms:.0%} of bound" if summary.roofline_ms else ""
        if summary.ceiling_ms:
            share += f"  {summary.ceiling_ms / summary.best_ms:.0%} of measured ceiling"
        owner = f"  agent {summary.best_agent} #{summary.best}" if summary.best else "  the seed"
        lines.append(f"best {summary.best_ms:.4f} ms{speedup}{share}{owner}")
    counts = "  ".join(f"{o.value.lower()} {summary.outcomes.get(o.value, 0)}" for o in _OUTCOMES)
    learnt = f"{counted(summary.wins, 'win')}  {counted(summary.traps, 'trap')}"
    lines.append(f"{counts}  errors {summary.errors}  ·  {learnt}")
    if summary.tokens:
        lines.append(f"{summary.tokens} tokens" + (f"  {least}${per_keep:.2f} per KEEP" if per_keep else ""))
    return lines


def _agent_line(
    name: str, agent: AgentSummary, live: LiveRow | None, state: CampaignState, alive: bool, now: float
) -> str:
    doing = agent_state(agent, live, state, alive)
    if agent.stopped is not None:
        doing = f"{doing}: {agent.stopped_for}"
    elif live is not None and doing == live.state and alive:
        doing = f"{doing} {max(0.0, now - live.since):.0f} s"
    best = f"{agent.best_ms:.4f}" if agent.best_ms is not None else "-"
    used = f"{agent.candidates}/{agent.budget}" if agent.budget is not None else str(agent.candidates)
    strategy, doing = cut(agent.strategy, 20), cut(doing, 20)
    return f"{name:<6} {strategy:<20} {doing:<20} {best:>8} {used:>8}  {agent.r:<3} {agent.mode.value}"


def _clock(at: float) -> str:
    return time.strftime("%H:%M", time.localtime(at))


def _next_steps(state: CampaignState, name: str, *, found: bool) -> list[str]:
    if state is CampaignState.INTERRUPTED:
        return ["the engine is gone; to go on from the store:", f"  kernelarc resume {name}"]
    if state in (CampaignState.STOPPED, CampaignState.FINISHED):
        return [f"  kernelarc report {name}", *([f"  kernelarc export {name}"] if found else [])]
    return []
