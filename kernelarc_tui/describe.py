"""Events as one line for a person: sign, word, text. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.records import Outcome, StopReason
from engine.store import events as ev
from engine.text import counted
from kernelarc_tui import fmt
from kernelarc_tui.glyphs import OUTCOMES
from kernelarc_tui.safe import one_line

MAIN_KINDS = (
    "Verdict",
    "CandidateError",
    "CommandAnswered",
    "Vetoed",
    "AgentPaused",
    "AgentStopped",
    "CampaignEnded",
)
"""What the stream shows unless all events are asked for: outcomes, faults, and what a person did."""

SAID = ("hint", "veto", "memory.note")
"""Commands with words of a person's own, which are shown before the answer to them."""


@dataclass(frozen=True)
class EventRow:
    """One row of the outcome stream. ``number`` is the candidate, 0 for other events."""

    seq: int
    at: float
    agent: str
    number: int
    letter: str
    word: str
    style: str
    latency: str
    delta: str
    strategy: str
    text: str


def describe(stored: ev.Stored) -> EventRow:
    event = stored.event
    if isinstance(event, ev.Verdict):
        return _verdict(stored.seq, stored.at, event)
    letter, word, style, text = _OTHERS.get(type(event), _unknown)(event)
    return EventRow(
        seq=stored.seq,
        at=stored.at,
        agent=getattr(event, "agent", "") or _agent_of(event),
        number=getattr(event, "number", 0) or 0,
        letter=letter,
        word=word,
        style=style,
        latency="",
        delta="",
        strategy="",
        text=one_line(text, 300),
    )


def _verdict(seq: int, at: float, event: ev.Verdict) -> EventRow:
    letter, word, style = OUTCOMES[event.outcome]
    return EventRow(
        seq=seq,
        at=at,
        agent=event.agent,
        number=event.number,
        letter=letter,
        word=word,
        style=style,
        latency=fmt.ms(event.latency_ms) if event.latency_ms is not None else "",
        delta=fmt.delta(event.log_ratio) if event.latency_ms is not None else "",
        strategy=one_line(event.strategy, 60),
        text=why(event.outcome, event.reason, event.detail, event.hypothesis),
    )


COMPARED = {  # reasons of a candidate that is right: the numbers say by how much
    "keep.slower": "slower",
    "keep.near-best": "no gain",
    "keep.unproven": "gain not proven",
    "keep.unconfirmed": "gain not confirmed",
}


def why(outcome: str, reason: str, detail: str, hypothesis: str = "") -> str:
    """One line: why it was not kept, and what it tried where the numbers beside it say the rest."""
    if reason in COMPARED and hypothesis:
        return one_line(f"{COMPARED[reason]}: {hypothesis}", 300)
    if outcome in (Outcome.KEEP, Outcome.ACCEPT):
        return one_line(hypothesis or detail or reason, 300)
    room = reason.partition(".")[0]
    if reason and detail:
        return one_line(f"{room}: {detail}", 300)
    return one_line(detail or reason or hypothesis, 300)


def judged(reason: str, detail: str, ratio: float | None, low: float | None, high: float | None) -> str:
    """The reason in a sentence. Of a comparison: the latency against the agent's best of that time.

    ``ratio``, ``low``, ``high``: ln(best / candidate) and its interval.
    """
    if ratio is not None and (reason in COMPARED or not reason):
        words = f"latency {fmt.delta(ratio)} against its best"
        if low is not None and high is not None:
            words += f" (95 %: {fmt.delta(high)} to {fmt.delta(low)})"
        return f"{COMPARED[reason]}: {words}" if reason else words
    return f"{reason}: {detail}" if reason and detail else detail or reason


def _agent_of(event: Any) -> str:
    return str(event.args.get("agent") or "") if isinstance(event, ev.CommandAnswered) else ""


def _started(event: ev.CampaignStarted) -> tuple[str, str, str, str]:
    return "·", "start", "muted", f"{event.problem} on {event.device_name or event.device}, {event.config}"


def _attached(event: ev.EngineAttached) -> tuple[str, str, str, str]:
    return "·", "engine", "muted", f"{'resumed' if event.resumed else 'started'}, process {event.pid}"


def _baselines(event: ev.BaselinesMeasured) -> tuple[str, str, str, str]:
    text = f"reference {fmt.ms(event.reference_ms)} ms, seed {fmt.ms(event.seed_ms)} ms"
    noise = "" if event.noise is None else f", noise {event.noise:.2%}"
    return "·", "base", "muted", text + noise


def _noise(event: ev.NoiseMeasured) -> tuple[str, str, str, str]:
    return "·", "noise", "muted", f"of #{event.candidate}: {event.noise:.2%} from process to process"


def _ended(event: ev.CampaignEnded) -> tuple[str, str, str, str]:
    return "■", "end", "bold", f"{event.state}, {_because(event.reason, event.detail)}"


def _error(event: ev.CandidateError) -> tuple[str, str, str, str]:
    letter, word, style = OUTCOMES[Outcome.ERROR]
    return letter, word, style, f"{event.reason}: {event.detail}" if event.detail else event.reason


def _answered(event: ev.CommandAnswered) -> tuple[str, str, str, str]:
    style = "primary" if event.ok else "bold warning"
    word = "switch" if event.verb in ("strategy", "model") else event.verb.removeprefix("memory.")
    said = event.args.get("text") if event.verb in SAID else None
    return (">" if event.ok else "!"), word, style, f'"{said}": {event.text}' if said else event.text


def _vetoed(event: ev.Vetoed) -> tuple[str, str, str, str]:
    back = f"best is #{event.best}" if event.best else "best is the seed"
    return "v", "veto", "bold warning", f"#{event.number} taken back, {back} at {fmt.ms(event.best_ms)} ms"


def _paused(event: ev.AgentPaused) -> tuple[str, str, str, str]:
    style = "muted" if event.by == "user" else "bold error"
    return "‖", "pause", style, f"by {event.by}{': ' + event.why if event.why else ''}"


def _stopped(event: ev.AgentStopped) -> tuple[str, str, str, str]:
    return "■", "stop", "muted", _because(event.reason, event.detail)


def _because(reason: StopReason, detail: str) -> str:
    return f"{reason.value}: {detail}" if detail else reason.value


def _attention(event: ev.Attention) -> tuple[str, str, str, str]:
    style = {"error": "bold error", "warning": "bold warning"}.get(event.level, "primary")
    return "!", "clear" if event.clear else "note", style, event.text or event.code


def _memory(event: ev.MemoryAdded) -> tuple[str, str, str, str]:
    sign = "+" if event.memory == "win" else "−"
    text = event.strategy if event.merged_into is None else f"{event.strategy} (merged into {event.merged_into})"
    return sign, event.memory, "verdict-keep" if event.memory == "win" else "verdict-reject", text


def _plain(letter: str, word: str, text: Callable[[Any], str]) -> Callable[[Any], tuple[str, str, str, str]]:
    return lambda event: (letter, word, "muted", text(event))


def _unknown(event: Any) -> tuple[str, str, str, str]:
    return "·", "event", "muted", type(event).__name__


def _budget(event: ev.BudgetChanged) -> str:
    parts = []
    if event.candidates is not None:
        parts.append(counted(event.candidates, "candidate"))
    if event.minutes is not None:
        parts.append(f"{event.minutes:g} minute{'s' if event.minutes != 1 else ''}")
    if event.max_cost_usd is not None:
        parts.append(f"${event.max_cost_usd:g}")
    return ", ".join(parts)


_OTHERS: dict[type, Callable[[Any], tuple[str, str, str, str]]] = {
    ev.CampaignStarted: _started,
    ev.EngineAttached: _attached,
    ev.BaselinesMeasured: _baselines,
    ev.NoiseMeasured: _noise,
    ev.CampaignEnded: _ended,
    ev.CandidateError: _error,
    ev.CommandAnswered: _answered,
    ev.Vetoed: _vetoed,
    ev.AgentPaused: _paused,
    ev.AgentStopped: _stopped,
    ev.Attention: _attention,
    ev.MemoryAdded: _memory,
    ev.CampaignPaused: _plain("‖", "pause", lambda e: f"campaign, by {e.by}"),
    ev.CampaignResumed: _plain("▶", "resume", lambda e: f"campaign, by {e.by}"),
    ev.StrategyChosen: _plain("·", "skill", lambda e: f"{e.strategy}: {e.why}"),
    ev.ModelChosen: _plain("·", "model", lambda e: f"{e.model}: {e.why}"),
    ev.DraftLineOpened: _plain("·", "draft", lambda e: "draft line opened" + (" by force" if e.forced else "")),
    ev.DraftLineClosed: _plain(
        "·", "draft", lambda e: f"draft line closed, {'kept' if e.kept else 'nothing kept'}"
    ),
    ev.AgentResumed: _plain("▶", "resume", lambda e: f"by {e.by}"),
    ev.AgentRestarted: _plain(
        "·", "restart", lambda e: f"{e.why} ({e.crashes} crash{'es' if e.crashes != 1 else ''})"
    ),
    ev.HintGiven: _plain("·", "hint", lambda e: e.text),
    ev.HintDelivered: _plain("·", "hint", lambda e: f"delivered: {e.text}"),
    ev.MemoryExpired: _plain("·", "expire", lambda e: f"memory {e.id}, {e.why}"),
    ev.MemoryPinned: _plain("·", "pin", lambda e: f"memory {e.id}{'' if e.pinned else ' unpinned'}"),
    ev.MemoryNoted: _plain("·", "note", lambda e: f"memory {e.id}: {e.note}"),
    ev.BudgetChanged: _plain("·", "budget", _budget),
    ev.ModelCharged: _plain("·", "charge", lambda e: f"{fmt.money(e.cost_usd)} {e.why}"),
    ev.CandidateProfiled: _plain("·", "profile", lambda e: f"#{e.number}: {(e.lines or [e.reason])[0]}"),
    ev.SkillReloaded: _plain("·", "skill", lambda e: f"{e.name} {'reloaded' if e.ok else 'broken: ' + e.detail}"),
}
