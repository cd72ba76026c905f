"""Two lines that answer: is it running, what leads, what did it cost, does anything need a person."""

from __future__ import annotations

from typing import ClassVar

from engine.records import CampaignState, StopReason
from engine.store.summary import Note, Summary
from engine.text import cut, cut_middle
from kernelarc_tui import fmt
from kernelarc_tui.glyphs import LEVELS, OUTCOMES, STATES
from kernelarc_tui.paint import Line, width_of
from kernelarc_tui.safe import one_line
from kernelarc_tui.view import NEW_BEST, WAITS, View, attention, label_of, pausing, style_of
from kernelarc_tui.widgets.painted import Painted

NARROW = 60  # columns under which the first row begins with how the campaign stands


class Header(Painted):
    DEFAULT_CSS: ClassVar[str] = "Header { height: 2; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view = View()
        self.tag = ""  # "replay", "read-only"

    def show(self, view: View, tag: str = "") -> None:
        self.view, self.tag = view, tag
        self.repaint()

    def paint(self, width: int, height: int) -> list[Line]:
        return [first_line(self.view, self.tag, width), second_line(self.view, width)]


def first_line(view: View, tag: str, width: int) -> Line:
    """Problem and device on the left; state, time, candidates and cost on the right."""
    summary = view.summary
    right = _progress(view, width)
    if width < NARROW:
        return _narrow(right, tag, one_line(summary.problem, 120), width)
    room = max(8, width - right.width - 2)
    device = one_line(summary.device_name or summary.device, 40)
    name = one_line(summary.problem, 120)
    extra = len(device) + 3 if device else 0
    left = Line()
    if tag:
        left.add(f"{tag} ", "bold warning")
        room -= left.width
    if width_of(name) + extra <= room:
        left.add(name, "bold").add(f" · {device}" if device else "", "muted")
    else:
        left.fit(name, min(room, width_of(name)), "bold")
    return left.end(right, width)


def _narrow(progress: Line, tag: str, name: str, width: int) -> Line:
    """How it stands first, then what is left of the row for the name, cut where names are alike."""
    line = progress.add("  ").add(f"{tag} " if tag else "", "bold warning")
    room = max(0, width - line.width)
    return line.fit(cut_middle(name, room), room, "bold")


def _progress(view: View, width: int) -> Line:
    """Narrow rows leave out what the state, the time and the candidates have no room beside."""
    summary = view.summary
    sign, word, style = STATES[view.state]
    if view.state is CampaignState.FINISHED and summary.stop_reason is StopReason.FAULT:
        sign, word, style = "!", "failed", "error"
    elif pausing(view):
        word = "pausing"
    line = Line(f"{sign} ", f"bold {style}")
    quiet = view.state in (CampaignState.RUNNING, CampaignState.STARTING)
    if width >= 110 or (width >= 44 and not quiet):
        line.add(f"{word} ", style)
    if view.state is CampaignState.FINISHED and summary.stop_reason and width >= 96:
        line.add(f"({cut(summary.why_ended, 40)}) ", "muted")
    elapsed = summary.elapsed_s(view.now)
    line.add(fmt.clock(elapsed))
    ended = view.state in (CampaignState.FINISHED, CampaignState.STOPPED)
    if summary.minutes and not ended and width >= NARROW:
        line.add(f" {fmt.span(max(0.0, summary.minutes * 60 - elapsed))} left", "muted")
    line.add("  ").add(str(summary.candidates), "bold")
    if summary.budget:
        line.add(f"/{summary.budget}", "muted")
    line.add(" candidates" if width >= 78 else " cand." if width >= 40 else "", "muted")
    if summary.errors and width >= 110:
        line.add("  ").add(f"{summary.errors} error{'s' if summary.errors != 1 else ''}", "verdict-error")
    if summary.cost_usd or summary.max_cost_usd or summary.tokens:
        near = bool(summary.max_cost_usd) and summary.cost_usd >= 0.9 * (summary.max_cost_usd or 0)
        line.add("  ").add(
            fmt.money(summary.cost_usd, unknown=summary.cost_unknown), "bold warning" if near else ""
        )
        if summary.max_cost_usd and width >= NARROW:
            line.add(f" of ${summary.max_cost_usd:g}", "muted")
    if summary.tokens and width >= 130:
        line.add(f"  {fmt.count(summary.tokens)} tokens", "muted")
    return line


def second_line(view: View, width: int) -> Line:
    """The best and who holds it on the left, what needs a person on the right."""
    summary = view.summary
    notes = attention(view)
    ended = view.state in (CampaignState.FINISHED, CampaignState.STOPPED)
    line = Line("nothing was measured", "muted") if ended and summary.best_ms is None else _best(summary, width)
    if notes:
        line.end(_attention(notes, view, width - line.width - 2), width)
    elif width >= 110:
        line.end(_counts(summary), width)
    return line


def _best(summary: Summary, width: int) -> Line:
    if summary.best_ms is None:
        return Line("measuring the reference and the seed …", "muted")
    line = Line("best ", "muted").add(f"{fmt.ms(summary.best_ms)} ms", "bold")
    if summary.best_speedup is not None:
        line.add("  ").add(fmt.times(summary.best_speedup), "bold verdict-keep" if summary.best else "bold")
        line.add(" ref", "muted")
    if width >= 100 and summary.best and summary.best_over_seed is not None:
        line.add(f"  {fmt.times(summary.best_over_seed)}").add(" seed", "muted")
    if summary.roofline_ms:
        line.add(f"  {summary.roofline_ms / summary.best_ms * 100:.0f} %").add(" of bound", "muted")
    if width >= 120 and summary.ceiling_ms:
        line.add(f"  {summary.ceiling_ms / summary.best_ms * 100:.0f} %").add(" of measured ceiling", "muted")
    if summary.best:
        who = label_of(summary, summary.best_agent)
        line.add("  ").add(f"agent {who}" if width >= 60 else who, style_of(summary, summary.best_agent))
        line.add(f" #{summary.best}", "muted")
    elif summary.best_ms is not None:
        line.add("  the seed", "muted")
    return line


def _attention(notes: list[Note], view: View, room: int) -> Line:
    note, summary = notes[0], view.summary
    sign, style = LEVELS.get(note.level, LEVELS["warning"])
    more = f" +{len(notes) - 1}" if len(notes) > 1 else ""
    who = f"agent {label_of(summary, note.agent)}: " if note.agent and label_of(summary, note.agent) else ""
    text = one_line(f"{who}{note.text}", 200)
    if note.code == NEW_BEST:  # which one it is stands on the left already
        text = f"new best {fmt.span(max(0.0, view.now - note.at))} ago"
    line = Line(f"{sign} ", style)
    space = room - line.width - len(more)
    if space < 6:
        return Line(f"{sign}{len(notes)}", style)
    if note.code == WAITS:  # the end of the folder says which it is
        text = cut_middle(text, space)
    return line.fit(text, min(space, width_of(text)), style.removeprefix("bold ")).add(more, "muted")


def _counts(summary: Summary) -> Line:
    line = Line()
    for outcome in ("KEEP", "ACCEPT", "REVERT", "REJECT"):
        letter, _, style = OUTCOMES[outcome]
        line.add(f"  {letter} ", style).add(str(summary.outcomes.get(outcome, 0)))
    if summary.errors:
        line.add("  E ", "verdict-error").add(str(summary.errors))
    per_keep = summary.cost_per_keep_usd
    if per_keep:
        line.add(f"  {fmt.money(per_keep, unknown=summary.cost_unknown)} per KEEP", "muted")
    return line
