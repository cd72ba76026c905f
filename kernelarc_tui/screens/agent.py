"""One agent: what it writes right now, its own trajectory, its log, its last prompt."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from engine.store.summary import AgentSummary, Summary
from kernelarc_tui import fmt
from kernelarc_tui.feed import FeedFilter
from kernelarc_tui.paint import Line, wrap
from kernelarc_tui.safe import one_line, source_lines
from kernelarc_tui.screens.campaign import CampaignScreen, Hint
from kernelarc_tui.view import View, doing, label_of, style_of
from kernelarc_tui.widgets.keyline import KeyLine
from kernelarc_tui.widgets.painted import Painted, retitle
from kernelarc_tui.widgets.plot import TrajectoryPlot
from kernelarc_tui.widgets.row_list import RowList
from kernelarc_tui.widgets.stream import OutcomeStream
from kernelarc_tui.widgets.text_pane import TextPane


class AgentHead(Painted):
    DEFAULT_CSS: ClassVar[str] = "AgentHead { height: 3; padding: 0 1; }"

    def __init__(self, agent: str) -> None:
        super().__init__(id="head")
        self.agent, self.view = agent, View()

    def show(self, agent: str, view: View) -> None:
        self.agent, self.view = agent, view
        self.repaint()

    def paint(self, width: int, height: int) -> list[Line]:
        summary = self.view.summary
        found = summary.agents.get(self.agent)
        if found is None:
            return [Line("there is no such agent", "muted")]
        live = self.view.live.get(self.agent)
        state, seconds = doing(self.view, found)
        first = Line(f"agent {label_of(summary, self.agent)}", f"bold {style_of(summary, self.agent)}")
        first.add(f"  {one_line(found.strategy, 40)}").add(
            f"  {one_line(found.model or found.spec.proposer, 40)}", "muted"
        )
        now = Line(state or "–", "bold")
        if seconds is not None:
            now.add(f" {fmt.span(seconds)}", "muted")
        if live is not None and live.tokens and state.startswith(("proposing", "waiting model")):
            now.add(f"  {fmt.count(live.tokens)} tokens", "muted")
        first.end(now, width)
        second = standing(summary, found, width)
        why = (
            found.stopped_detail
            or found.paused
            or (live.hypothesis if live else "")
            or (live.detail if live else "")
        )
        return [first, second, Line().fit(one_line(why, 300), width, "warning" if found.paused else "")]


def standing(summary: Summary, agent: AgentSummary, width: int) -> Line:
    """Its best, its plateau and its share; what says least gives way where it is narrow."""
    if agent.best_ms is None:
        return Line("nothing is measured yet", "muted")
    share = f"{agent.candidates}/{agent.budget}" if agent.budget else str(agent.candidates)
    line = Line("best ", "muted").add(f"{fmt.ms(agent.best_ms)} ms", "bold")
    line.add(f"  {fmt.times(agent.best_speedup)}")
    line.add(f" ref  #{agent.best}" if agent.best else "  the seed", "muted")
    gain = "without gain" if width >= 60 else "stuck"
    line.add(f"  {agent.r} {gain}", "warning" if agent.r >= summary.r_draft else "muted")
    limits = f" (draft at {summary.r_draft}, stop at {summary.r_stop})"
    if line.width + len(limits) + len(f"  {share}") <= width:
        line.add(limits, "muted")
    line.add(f"  {share}", "muted")
    spent = f"  {fmt.money(agent.cost_usd)}  {fmt.count(agent.tokens)} tokens"
    for text in (" candidates", spent if agent.cost_usd or agent.tokens else ""):
        if line.width + len(text) <= width:
            line.add(text, "muted")
    return line


class AgentScreen(CampaignScreen):
    AUTO_FOCUS = "#stream"
    BINDING_GROUP_TITLE = "Agent"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right_square_bracket", "step(1)", "Next", show=False, id="agent.next", tooltip="the next agent"),
        Binding(
            "left_square_bracket", "step(-1)", "Before", show=False, id="agent.prev", tooltip="the agent before"
        ),
        Binding("o", "prompt", "Prompt", show=False, id="agent.prompt", tooltip="its last prompt and reply"),
    ]
    hints: ClassVar[tuple[Hint, ...]] = (
        ("P", "pause", "screen.pause_agent"),
        ("d", "draft", "screen.draft"),
        ("h", "hint", "screen.hint"),
        ("w", "switch", "screen.switch"),
        ("s", "stop", "screen.stop"),
        ("o", "prompt", "screen.prompt"),
        ("[ ]", "agents", "screen.step(1)"),
        ("?", "help", "app.help"),
        ("q", "back", "screen.back"),
    )

    def __init__(self, agent: str) -> None:
        super().__init__()
        self.agent = agent
        self._reply = ""

    def compose(self) -> ComposeResult:
        yield AgentHead(self.agent)
        with Vertical(id="body"):
            with Horizontal(id="top"):
                yield TextPane(id="reply", follow=True, empty="no reply is being written")
                yield TrajectoryPlot(id="plot", ascii=self.kernelarc.ascii, only=self.agent)
            yield OutcomeStream(id="stream")
        yield KeyLine(id="keys")

    def on_mount(self) -> None:
        for name in ("reply", "stream", "plot"):
            self.query_one(f"#{name}").add_class("pane")
        super().on_mount()
        self._open(self.agent)

    def _open(self, agent: str) -> None:
        self.agent = agent
        self._reply = ""
        plot = self.query_one(TrajectoryPlot)
        plot.only = agent
        self.query_one(TextPane).show([])
        feed = self.session.feed(FeedFilter(everything=True, agent=agent))
        self.query_one(OutcomeStream).attach(feed, self.view.summary)
        self.show_view(self.view)

    def show_view(self, view: View) -> None:
        self.query_one(AgentHead).show(self.agent, view)
        self.query_one(TrajectoryPlot).show(view)
        self.query_one(OutcomeStream).show(view.summary, view.last_seq)
        for name, title in (("reply", "reply"), ("stream", "log"), ("plot", "best so far, ms")):
            retitle(self.query_one(f"#{name}"), title)
        live = view.live.get(self.agent)
        reply = live.reply if live is not None and view.running else ""
        if reply != self._reply:
            self._reply = reply
            pane = self.query_one(TextPane)
            width = max(20, pane.size.width - 1)
            pane.show([Line(part) for line in source_lines(reply) for part in wrap(line, width)])

    def on_resize(self) -> None:
        self._reply = ""
        self.after_layout(lambda: self.show_view(self.view))

    def chosen_agent(self) -> str:
        return self.agent

    def chosen_candidate(self) -> int:
        row = self.query_one(OutcomeStream).selected
        return row.number if row and row.word == "keep" else 0

    def action_step(self, step: int) -> None:
        names = [agent.spec.name for agent in self.view.agents]
        if self.agent in names:
            self._open(names[(names.index(self.agent) + step) % len(names)])

    def action_prompt(self) -> None:
        from kernelarc_tui.screens.candidate import TABS, CandidateScreen

        rows = self.session.reader.candidates(limit=1, agent=self.agent)
        if rows:
            self.app.push_screen(CandidateScreen(rows[0].number, tab=TABS.index("prompt")))
        else:
            self.kernelarc.say("this agent has proposed nothing yet", "muted")

    def on_row_list_opened(self, event: RowList.Opened) -> None:
        event.stop()
        row = self.query_one(OutcomeStream).selected
        if row is not None and row.number:
            self.open_candidate(row.number)
        elif row is not None:
            self.tell_row(row)
