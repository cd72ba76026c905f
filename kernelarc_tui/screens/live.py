"""The live campaign: who leads, who does what, why the last one failed, what needs a person."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from engine.records import CampaignState
from engine.text import counted
from kernelarc_tui import clock, fmt
from kernelarc_tui.feed import FeedFilter
from kernelarc_tui.glyphs import LEVELS, OUTCOMES
from kernelarc_tui.safe import one_line
from kernelarc_tui.screens.campaign import CampaignScreen, Hint
from kernelarc_tui.view import ENDED, View, attention, label_of, pausing
from kernelarc_tui.widgets.agents import AgentsTable
from kernelarc_tui.widgets.device import DevicePanel
from kernelarc_tui.widgets.header import Header
from kernelarc_tui.widgets.keyline import KeyLine
from kernelarc_tui.widgets.memory import MemoryPanel
from kernelarc_tui.widgets.painted import retitle
from kernelarc_tui.widgets.plot import TrajectoryPlot
from kernelarc_tui.widgets.row_list import RowList
from kernelarc_tui.widgets.stream import OutcomeStream

ENDED_HINTS: tuple[Hint, ...] = (
    ("⏎", "open", "screen.open_row"),
    ("l", "leaderboard", "screen.open_leaders"),
    ("m", "memory", "screen.open_memory"),
    ("u", "campaigns", "screen.open_home"),
    ("/", "filter", "screen.filter"),
    ("?", "help", "app.help"),
)
ZOOMS = ("zoom-plot", "zoom-stream", "zoom-right")  # what of the layout makes room for the zoomed pane


class Live(CampaignScreen):
    AUTO_FOCUS = "#agents"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", show=False, id="live.filter", tooltip="filter the outcome stream"),
        Binding(
            "f", "cycle_outcome", "Outcome", show=False, id="live.outcome", tooltip="only one kind of outcome"
        ),
        Binding("e", "everything", "Events", show=False, id="live.events", tooltip="all events, or outcomes only"),
        Binding("x", "axis", "Axis", show=False, id="live.axis", tooltip="plot over candidates, time or dollars"),
        Binding("y", "log", "Log", show=False, id="live.log", tooltip="linear or logarithmic plot"),
        Binding("z", "zoom", "Zoom", show=False, id="live.zoom", tooltip="the focused pane alone, and back"),
        Binding("n", "notes", "Notes", show=False, id="live.notes", tooltip="what needs a person, in full"),
        Binding("1", "pane('agents')", "Agents", show=False, id="live.agents", tooltip="to the agents"),
        Binding("2", "pane('stream')", "Outcomes", show=False, id="live.stream", tooltip="to the outcomes"),
        Binding("3", "pane('memory')", "Memory", show=False, id="live.memory", tooltip="to the memory"),
    ]
    hints: ClassVar[tuple[Hint, ...]] = (
        ("p", "pause", "screen.pause"),
        ("d", "draft", "screen.draft"),
        ("h", "hint", "screen.hint"),
        ("v", "veto", "screen.veto"),
        ("s", "stop", "screen.stop"),
        ("⏎", "open", "screen.open_row"),
        ("/", "filter", "screen.filter"),
        ("?", "help", "app.help"),
        ("q", "leave running", "screen.back"),
    )

    def compose(self) -> ComposeResult:
        app = self.kernelarc
        yield Header(id="header")
        with Vertical(id="body"):
            with Horizontal(id="top"):
                plot = TrajectoryPlot(id="plot", ascii=app.ascii)
                plot.axis, plot.log_scale = app.settings.axis, app.settings.log_scale
                yield plot
                with Vertical(id="right"):
                    yield AgentsTable(id="agents")
                    yield DevicePanel(id="device", ascii=app.ascii)
                    yield MemoryPanel(id="memory")
            yield OutcomeStream(id="stream")
        yield KeyLine(id="keys")

    def on_mount(self) -> None:
        for name in ("plot", "stream", "agents", "device", "memory"):
            self.query_one(f"#{name}").add_class("pane")
        super().on_mount()
        stream = self.query_one(OutcomeStream)
        stream.attach(self.session.feed(FeedFilter(everything=self.kernelarc.settings.events)), self.view.summary)
        self.show_view(self.view)
        self.set_interval(1.0, self._tick)

    def show_view(self, view: View) -> None:
        agents = self.query_one(AgentsTable)
        self.query_one(Header).show(view, self.session.tag)
        agents.show(view)
        device = self.query_one(DevicePanel)
        device.show(view, rows_each=2 if self.size.height >= 36 else 1)
        retitle(device, device.heading)
        memory = self.query_one(MemoryPanel)
        memory.show(view.memory)
        plot = self.query_one(TrajectoryPlot)
        plot.show(view)
        self.query_one(OutcomeStream).show(view.summary, view.last_seq)
        self._titles(view)
        self.query_one(KeyLine).show(self.key_hints())

    def key_hints(self) -> tuple[Hint, ...]:
        """What ``p`` and ``q`` do depends on the state."""
        view = self.view
        depth = sum(not screen.is_modal for screen in self.app.screen_stack)
        if view.state in ENDED:
            return (*ENDED_HINTS, ("q", "back" if depth > 1 else "leave", "screen.back"))
        words = {"p": "resume" if not view.running else "pause"}
        going = view.running or view.state is CampaignState.PAUSED
        words["q"] = "back" if depth > 1 else "leave running" if going else "leave"
        shown = [hint for hint in self.hints if hint[0] != "v" or self.size.width >= 90]
        return tuple((key, words.get(key, word), action) for key, word, action in shown)

    def chosen_agent(self) -> str:
        selected = self.query_one(AgentsTable).selected
        return selected.spec.name if selected else super().chosen_agent()

    def chosen_candidate(self) -> int:
        stream = self.query_one(OutcomeStream)
        row = stream.selected if stream.has_focus else None
        return row.number if row and row.word == "keep" else 0

    def _titles(self, view: View) -> None:
        plot, stream = self.query_one(TrajectoryPlot), self.query_one(OutcomeStream)
        scale = " · log" if plot.log_scale else ""
        over = "" if plot.axis == "candidates" else f" over {plot.axis}"
        newer = stream.above
        titles = {
            "plot": f"best so far, ms{scale}" if not over else f"best ms{over}{scale}",
            "stream": (f"outcomes · {stream.filter.words}" if stream.filter.words else "outcomes")
            + (f" · {newer} newer above (g)" if newer else ""),
            "agents": self.query_one(AgentsTable).heading(self.query_one(AgentsTable).row_width),
            "memory": f"memory · {counted(view.summary.wins, 'win')} · {counted(view.summary.traps, 'trap')}",
        }
        for name, text in titles.items():
            retitle(self.query_one(f"#{name}"), text)

    def on_resize(self) -> None:
        """Another width may have another kind of frame."""
        self.after_layout(lambda: self.show_view(self.view))

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        """How many rows are above is in the stream's title."""
        self._titles(self.view)

    def _tick(self) -> None:
        """The clock, once a second while the campaign runs or comes to its pause."""
        view = self.session.view
        if self.session.player is None and (view.running or pausing(view)) and self.is_current:
            now = replace(view, now=clock.now())
            self.query_one(Header).show(now, self.session.tag)
            self.query_one(AgentsTable).show(now)

    # Keys

    def action_pane(self, name: str) -> None:
        pane = self.query_one(f"#{name}")
        if self.has_class("zoomed"):
            self._zoom(name)
        self.set_focus(pane)  # at once: the next key may be waiting already

    def action_zoom(self) -> None:
        if self.has_class("zoomed"):
            self.remove_class("zoomed", *ZOOMS)
            return
        focused = self.focused
        self._zoom(focused.id if focused is not None and focused.id else "plot")

    def _zoom(self, name: str) -> None:
        for pane in self.query(".pane"):
            pane.set_class(pane.id == name, "shown")
        self.remove_class(*ZOOMS)
        self.add_class("zoomed", f"zoom-{name}" if f"zoom-{name}" in ZOOMS else "zoom-right")

    def action_back_soft(self) -> None:
        stream = self.query_one(OutcomeStream)
        if self.has_class("zoomed"):
            self.action_zoom()
        elif stream.filter != (unfiltered := FeedFilter(everything=stream.filter.everything)):
            self._filter(unfiltered)
        else:
            super().action_back_soft()

    def action_axis(self) -> None:
        self.kernelarc.keep("axis", self.query_one(TrajectoryPlot).cycle_axis())
        self._titles(self.view)

    def action_log(self) -> None:
        self.kernelarc.keep("log_scale", self.query_one(TrajectoryPlot).toggle_log())
        self._titles(self.view)

    def action_notes(self) -> None:
        lines = []
        for note in attention(self.view):
            who = f"agent {label_of(self.view.summary, note.agent)}: " if note.agent else ""
            lines.append(
                f"{LEVELS.get(note.level, LEVELS['warning'])[0]} {fmt.wall(note.at)} {who}{one_line(note.text)}"
            )
        self.tell("Notes", "\n".join(lines) or "nothing needs you")

    def action_everything(self) -> None:
        chosen = self.query_one(OutcomeStream).filter
        self.kernelarc.keep("events", not chosen.everything)
        self._filter(replace(chosen, everything=not chosen.everything, outcome=""))

    def action_cycle_outcome(self) -> None:
        chosen = self.query_one(OutcomeStream).filter
        order = ("", *(str(outcome) for outcome in OUTCOMES))
        following = order[(order.index(chosen.outcome) + 1) % len(order)]
        self._filter(replace(chosen, outcome=following))
        if not following:
            self.kernelarc.say("all outcomes again", "muted")

    @work(group="ask")
    async def action_filter(self) -> None:
        from kernelarc_tui.screens.modal import Ask

        stream = self.query_one(OutcomeStream)
        detail = (
            "Words anywhere in an event; keep, accept, revert, reject or error for an outcome; a2 for agent 2."
        )
        text = await self.app.push_screen_wait(Ask("Filter outcomes", detail, value=filter_words(stream.filter)))
        if text is not None:
            self._filter(parse_filter(text, self.view, everything=stream.filter.everything))
            self.action_pane("stream")

    def _filter(self, chosen: FeedFilter) -> None:
        stream = self.query_one(OutcomeStream)
        stream.attach(self.session.feed(chosen), self.view.summary)
        self._titles(self.view)

    def action_open_row(self) -> None:
        focused = self.focused
        if isinstance(focused, RowList):
            focused.action_open()

    def on_row_list_opened(self, event: RowList.Opened) -> None:
        event.stop()
        if isinstance(event.rows, OutcomeStream):
            row = event.rows.selected
            if row is not None and row.number:
                self.open_candidate(row.number)
            elif row is not None:
                self.tell_row(row)
        elif isinstance(event.rows, AgentsTable):
            self.action_open_agent()
        elif isinstance(event.rows, MemoryPanel) and event.rows.selected is not None:
            from kernelarc_tui.screens.memory import MemoryScreen

            self.app.push_screen(MemoryScreen(event.rows.selected.id))


def parse_filter(text: str, view: View, *, everything: bool = False) -> FeedFilter:
    """``keep a2 epilogue`` → that outcome, that agent, that text."""
    words, outcome, agent = [], "", ""
    labels = {f"a{item.spec.ordinal + 1}": item.spec.name for item in view.agents}
    names = {word: str(name) for name, (_, word, _) in OUTCOMES.items()}
    for word in text.split():
        lower = word.lower()
        if lower in names and not outcome:
            outcome = names[lower]
        elif lower in labels and not agent:
            agent = labels[lower]
        else:
            words.append(word)
    return FeedFilter(everything=everything, agent=agent, outcome=outcome, text=" ".join(words))


def filter_words(chosen: FeedFilter) -> str:
    """The text that :func:`parse_filter` reads back."""
    parts = [OUTCOMES[chosen.outcome][1] if chosen.outcome else "", chosen.text]
    return " ".join(part for part in parts if part)
