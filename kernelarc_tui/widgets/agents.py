"""The agents of a campaign, one row each: what it does now, its best, and how far it is from its plateau."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from engine.records import AgentState, Mode, StopReason
from engine.store.summary import AgentSummary
from kernelarc_tui import fmt
from kernelarc_tui.glyphs import AGENT_STATES, gauge, short_strategy
from kernelarc_tui.paint import Line
from kernelarc_tui.safe import one_line
from kernelarc_tui.view import View, doing, label_of, style_of
from kernelarc_tui.widgets.row_list import RowList

TIMED = (AgentState.PROPOSING, AgentState.WAITING_MODEL, AgentState.WAITING_DEVICE, AgentState.COMPILING)
_STOPPED: dict[str, str] = {StopReason.CANDIDATES: "budget", StopReason.USER: "by user"}
WRITING = (AgentState.PROPOSING, AgentState.WAITING_MODEL)
_SHORT: dict[str, str] = {  # beside seconds in a narrow column
    AgentState.PROPOSING: "propose",
    AgentState.WAITING_MODEL: "model",
    AgentState.WAITING_DEVICE: "device",
    AgentState.COMPILING: "compile",
}


@dataclass(frozen=True)
class Column:
    """``least``: the panel width from which the column is shown."""

    title: str
    width: int
    least: int
    cell: Callable[[View, AgentSummary, int], Line]
    right: bool = False


def _strategy(view: View, agent: AgentSummary, width: int) -> Line:
    name = agent.strategy or agent.spec.strategy
    text = name if len(name) <= width else short_strategy(name)
    return Line().fit(one_line(text, 40), width)


def _state(view: View, agent: AgentSummary, width: int) -> Line:
    state, seconds = doing(view, agent)
    style = AGENT_STATES.get(state, "muted" if state.startswith("stopped") else "")
    text = state
    if seconds is not None and state in TIMED:
        text = f"{state} {fmt.span(seconds)}"
        if len(text) > width:
            text = f"{_SHORT[state]} {fmt.span(seconds)}"
        live = view.live.get(agent.spec.name)
        tokens = f" {fmt.count(live.tokens)} tk" if live and live.tokens and state in WRITING else ""
        if tokens and len(text) + len(tokens) <= width:
            text += tokens
    elif agent.stopped is not None and len(text) > width:
        text = f"■ {_STOPPED.get(agent.stopped_for, agent.stopped_for)}"
    return Line().fit(text, width, style)


def _best(view: View, agent: AgentSummary, width: int) -> Line:
    leads = bool(view.summary.best) and agent.spec.name == view.summary.best_agent
    return Line().fit(fmt.ms(agent.best_ms), width, "bold verdict-keep" if leads else "", right=True)


def _speedup(view: View, agent: AgentSummary, width: int) -> Line:
    return Line().fit(fmt.times(agent.best_speedup), width, "muted", right=True)


def _gauge(view: View, agent: AgentSummary, width: int) -> Line:
    """r against r_draft, or the draft line once it is due; wide: against r_stop with the number."""
    summary = view.summary
    drafting = agent.mode is Mode.DRAFT or agent.draft_due
    style = "warning" if drafting else "muted" if agent.r == 0 else ""
    if width < 12:
        return Line().fit("DRAFT" if drafting else gauge(agent.r, summary.r_draft, 5), width, style)
    cells = min(width - 6, summary.r_stop)
    line = Line(gauge(agent.r, summary.r_stop, cells), style).add(f" {agent.r}/{summary.r_stop}", "muted")
    return line.to(width)


def _mode(view: View, agent: AgentSummary, width: int) -> Line:
    if agent.draft_line:
        return Line().fit(f"draft {agent.draft_line}/3", width, "warning")
    drafting = agent.mode is Mode.DRAFT or agent.draft_due
    return Line().fit("draft" if drafting else "refine", width, "warning" if drafting else "muted")


def _candidates(view: View, agent: AgentSummary, width: int) -> Line:
    text = f"{agent.candidates}/{agent.budget}" if agent.budget else str(agent.candidates)
    return Line().fit(text, width, "muted", right=True)


def _outcomes(view: View, agent: AgentSummary, width: int) -> Line:
    counts = (agent.outcomes.get(name, 0) for name in ("KEEP", "ACCEPT", "REVERT", "REJECT"))
    return Line().fit("/".join(str(value) for value in counts), width, "muted", right=True)


def _model(view: View, agent: AgentSummary, width: int) -> Line:
    return Line().fit(one_line(agent.model or agent.spec.proposer, 60), width, "muted")


def _tokens(view: View, agent: AgentSummary, width: int) -> Line:
    return Line().fit(fmt.count(agent.tokens) if agent.tokens else fmt.NONE, width, "muted", right=True)


HEADER_LEAST = 56
COLUMNS = (
    Column("strategy", 9, 0, _strategy),
    Column("doing", 11, 0, _state),
    Column("best ms", 7, 0, _best, right=True),
    Column("speed-up", 8, 56, _speedup, right=True),
    Column("plateau", 5, 0, _gauge),
    Column("mode", 9, 64, _mode),
    Column("tried", 7, 74, _candidates, right=True),
    Column("K/A/R/x", 11, 104, _outcomes, right=True),
    Column("tokens", 7, 112, _tokens, right=True),
    Column("model", 12, 88, _model),
)
# What is left over goes here, in this order, up to these widths.
_GROWTH = (("doing", 13), ("plateau", 14), ("doing", 20), ("plateau", 21), ("strategy", 25), ("model", 28))


def columns_for(width: int) -> list[tuple[Column, int]]:
    """The columns that a panel of this width shows, with their widths; what is left over goes where it helps."""
    shown = [column for column in COLUMNS if width >= column.least]
    widths = {column.title: column.width for column in shown}
    spare = width - 4 - sum(widths.values()) - (len(shown) - 1)
    if width < HEADER_LEAST:
        spare = max(0, spare - 2)  # the title that names the columns ends before the edge
    for title, useful in _GROWTH:
        if title in widths and widths[title] < useful:
            grow = min(spare, useful - widths[title])
            if title == "plateau" and widths[title] + grow < 12:
                continue  # the long gauge needs room for its number
            widths[title] += grow
            spare -= grow
    return [(column, widths[column.title]) for column in shown]


class AgentsTable(RowList):
    DEFAULT_CSS: ClassVar[str] = "AgentsTable { height: auto; min-height: 1; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view = View()

    def show(self, view: View) -> None:
        before, self.view = len(self.view.agents), view
        if len(view.agents) != before:
            self.refresh(layout=True)
        self.rows_changed()

    @property
    def selected(self) -> AgentSummary | None:
        agents = self.view.agents
        return agents[self.cursor] if self.cursor < len(agents) else None

    def row_count(self) -> int:
        return len(self.view.summary.agents)

    def has_header(self, width: int) -> bool:
        return width >= HEADER_LEAST

    def header_line(self, width: int) -> Line:
        line = Line("    ")
        for index, (column, size) in enumerate(columns_for(width)):
            line.add(" " if index else "").fit(column.title, size, "faint", right=column.right)
        return line

    def heading(self, width: int) -> str:
        """The pane's title; where there is no room for a header row it names the columns."""
        if self.has_header(width) or width < 30:
            return "agents"
        columns = columns_for(width)
        line = Line("agents").to(2 + columns[0][1])  # the title starts two cells into the pane
        for column, size in columns[1:]:
            title = "stuck" if column.title == "plateau" else column.title
            line.add(" ").fit(title, size, right=column.right)
        return line.text.rstrip()

    def row_line(self, index: int, width: int, *, selected: bool) -> Line:
        agent = self.view.agents[index]
        summary = self.view.summary
        style = style_of(summary, agent.spec.name)
        line = Line("▸" if selected else " ", "rule-focus")
        line.fit(label_of(summary, agent.spec.name), 2 if len(summary.agents) > 9 else 1, f"bold {style}")
        leads = bool(summary.best) and agent.spec.name == summary.best_agent
        line.add("★" if leads else " ", "bold verdict-keep").to(4)
        for position, (column, size) in enumerate(columns_for(width)):
            line.add(" " if position else "").extend(column.cell(self.view, agent, size))
        return line
