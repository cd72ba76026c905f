"""Events as lines of plain text, for ``--headless``."""

from __future__ import annotations

import math
import time

from engine.store import events as ev
from engine.store.events import Stored
from engine.text import counted
from kernelarc_tui.cli.common import ms, times


def event_line(stored: Stored) -> str | None:
    """One line for a person, or ``None`` for events that only a screen needs."""
    text = " ".join((_text(stored.event) or "").splitlines())  # details are candidates' words
    return f"{time.strftime('%H:%M:%S', time.localtime(stored.at))} {text}" if text else None


def _text(event: ev.Event) -> str | None:
    match event:
        case ev.CampaignStarted():
            agents = counted(len(event.agents), "agent")
            return f"campaign {event.name}: {event.problem} on {event.device_name}, {agents}"
        case ev.EngineAttached(resumed=True):
            return f"resumed by process {event.pid}"
        case ev.BaselinesMeasured():
            noise = "" if event.noise is None else f"noise {event.noise * 100:.1f} %, "
            return f"reference {ms(event.reference_ms)}, seed {ms(event.seed_ms)}, {noise}timer {event.timer}"
        case ev.NoiseMeasured():
            return f"noise of #{event.candidate} {event.noise * 100:.1f} %"
        case ev.Verdict():
            return _verdict(event)
        case ev.CandidateError():
            return f"{event.agent:<4} ERROR   {event.reason}: {event.detail}"
        case ev.DraftLineOpened():
            return f"{event.agent:<4} drafts {'(forced)' if event.forced else '(plateau)'}"
        case ev.AgentStopped():
            why = f" ({event.detail})" if event.detail else ""
            return f"{event.agent:<4} stopped: {event.reason.value}{why}"
        case ev.AgentPaused():
            return f"{event.agent:<4} paused by {event.by}: {event.why}"
        case ev.AgentRestarted():
            return f"{event.agent:<4} restarted: {event.why}"
        case ev.CampaignPaused():
            return "paused"
        case ev.CampaignResumed():
            return "resumed"
        case ev.CommandAnswered():
            return f"{event.verb}: {event.text}"
        case ev.Vetoed():
            best = f"#{event.best}" if event.best else "the seed"
            return f"#{event.number} vetoed; the best of {event.agent} is {best} again"
        case ev.Attention(clear=False, level="warning" | "error"):
            return f"! {event.text}"
        case ev.CampaignEnded():
            return f"{event.state}: {event.reason.value}{f' ({event.detail})' if event.detail else ''}"
        case _:
            return None


def _verdict(event: ev.Verdict) -> str:
    delta = "" if event.log_ratio is None else f"{(math.exp(-event.log_ratio) - 1) * 100:+.1f} %"
    head = f"{event.agent:<4} #{event.number:<4} {event.outcome.value:<7}"
    body = f"{ms(event.latency_ms):>11} {delta:>8}"
    if event.speedup is not None:
        body += f" {times(event.speedup)}"
    why = f"  {event.reason}" if event.reason else ""
    return f"{head} {body}  {event.strategy}/{event.family}{why}"
