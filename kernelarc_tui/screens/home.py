"""All campaigns: what runs, what each found, and what can be done with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from engine.errors import KernelArcError, StoreError
from engine.records import CampaignState, StopReason
from engine.store.campaigns import CampaignEntry, list_campaigns
from engine.text import counted, cut_middle
from kernelarc_tui import clock, fmt
from kernelarc_tui.glyphs import STATES
from kernelarc_tui.paint import Line
from kernelarc_tui.safe import one_line
from kernelarc_tui.screens.base import SizedScreen
from kernelarc_tui.view import ENDED
from kernelarc_tui.widgets.keyline import KeyLine
from kernelarc_tui.widgets.painted import Painted, retitle
from kernelarc_tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from kernelarc_tui.app import KernelArcApp

REFRESH_S = 2.0


class CampaignList(RowList):
    def __init__(self) -> None:
        super().__init__(id="campaigns")
        self.entries: list[CampaignEntry] = []
        self.loaded = False
        self.now = 0.0

    def show(self, entries: list[CampaignEntry], now: float) -> None:
        selected = self.selected
        self.entries, self.now, self.loaded = entries, now, True
        if selected is not None:
            index = next((i for i, entry in enumerate(entries) if entry.folder == selected.folder), self.cursor)
            self.cursor = index
        self.rows_changed()

    @property
    def selected(self) -> CampaignEntry | None:
        return self.entries[self.cursor] if self.cursor < len(self.entries) else None

    def row_count(self) -> int:
        return len(self.entries)

    def empty_line(self, width: int) -> Line:
        if not self.loaded:
            return Line("reading …", "muted")
        return (
            Line("no campaign yet: ", "muted")
            .add("n", "bold rule-focus")
            .add(" starts one here; in the shell, ", "muted")
            .add("kernelarc demo", "bold")
            .add(" shows one", "muted")
        )

    def has_header(self, width: int) -> bool:
        return True

    def header_line(self, width: int) -> Line:
        line = Line("    ").fit("campaign", _name_width(width), "faint").add(" ")
        for title, size, least, right in _COLUMNS:
            if width >= least:
                line.fit(title, size, "faint", right=right).add(" ")
        return line

    def row_line(self, index: int, width: int, *, selected: bool) -> Line:
        entry = self.entries[index]
        sign, _, style = STATES.get(entry.state, ("!", "damaged", "error"))
        line = Line("▸" if selected else " ", "rule-focus").add(f"{sign} ", f"bold {style}").add(" ")
        room = _name_width(width)
        line.fit(cut_middle(one_line(entry.name, 80), room), room, "bold" if selected else "").add(" ")
        if entry.problem_note:
            return line.fit(one_line(entry.problem_note, 300), max(0, width - line.width), "error")
        cells = _cells(entry, self.now)
        for (_, size, least, right), (text, cell_style) in zip(_COLUMNS, cells, strict=True):
            if width >= least:
                line.fit(text, size, cell_style, right=right).add(" ")
        return line


_COLUMNS = (
    ("state", 11, 0, False),
    ("problem", 26, 118, False),
    ("device", 14, 96, False),
    ("candidates", 10, 0, True),
    ("best ms", 8, 76, True),
    ("speed-up", 8, 0, True),
    ("cost", 7, 108, True),
    ("age", 5, 0, True),
)


def _name_width(width: int) -> int:
    taken = sum(size + 1 for _, size, least, _ in _COLUMNS if width >= least)
    return max(14, min(44, width - 5 - taken))


def _cells(entry: CampaignEntry, now: float) -> list[tuple[str, str]]:
    _, word, style = STATES.get(entry.state, ("!", "damaged", "error"))
    used = f"{entry.candidates}/{entry.budget}" if entry.budget else str(entry.candidates)
    improved = entry.kept and (entry.speedup or 0.0) > 1.0
    return [
        (word, style),
        (one_line(entry.problem, 60), ""),
        (one_line(entry.device_name or entry.device, 40), "muted"),
        (used, "muted"),
        (fmt.ms(entry.best_ms), ""),
        (fmt.times(entry.speedup if entry.kept else None), "verdict-keep" if improved else "muted"),
        (fmt.money(entry.cost_usd) if entry.cost_usd else fmt.NONE, "muted"),
        (fmt.span(now - entry.created_at) if entry.created_at else "", "muted"),
    ]


_ORDER: dict[str, int] = {CampaignState.RUNNING: 0, CampaignState.STARTING: 0, CampaignState.PAUSED: 1}


class CampaignFacts(Painted):
    """Two lines about the selected campaign."""

    DEFAULT_CSS: ClassVar[str] = "CampaignFacts { height: 2; padding: 0 1; }"

    def __init__(self) -> None:
        super().__init__(id="facts")
        self.entry: CampaignEntry | None = None

    def show(self, entry: CampaignEntry | None) -> None:
        self.entry = entry
        self.repaint()

    def paint(self, width: int, height: int) -> list[Line]:
        if self.entry is None:
            return []
        entry = self.entry
        device = one_line(entry.device_name or entry.device, 24)
        first = Line(one_line(entry.problem, 60), "bold").add(
            f"  {device}  {one_line(entry.kernel_type, 20)}", "muted"
        )
        first.add(
            f"  {one_line(entry.config, 20)}  {counted(entry.agents, 'agent')}  ran {fmt.clock(entry.elapsed_s)}",
            "muted",
        )
        if entry.stop_reason:
            first.end(Line(f"ended: {entry.stop_reason}", "muted"), width)
        return [first, Line().fit(one_line(entry.folder, 300), width, "faint")]


class Home(SizedScreen):
    AUTO_FOCUS = "#campaigns"
    BINDING_GROUP_TITLE = "Campaigns"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "new", "New", show=False, id="home.new", tooltip="start a campaign"),
        Binding(
            "r", "resume", "Resume", show=False, id="home.resume", tooltip="continue a paused or interrupted one"
        ),
        Binding("y", "replay", "Replay", show=False, id="home.replay", tooltip="watch it again as it happened"),
        Binding("x", "delete", "Delete", show=False, id="home.delete", tooltip="delete it (asks)"),
        Binding("slash", "filter", "Filter", show=False, id="home.filter", tooltip="only campaigns with a text"),
        Binding("q,escape", "back", "Back", show=False, id="home.back", tooltip="back, or leave"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[CampaignEntry] = []
        self._text = ""

    @property
    def kernelarc(self) -> KernelArcApp:
        return self.app  # type: ignore[return-value]

    def compose(self) -> ComposeResult:
        yield CampaignList()
        yield CampaignFacts()
        yield KeyLine(id="keys")

    def on_mount(self) -> None:
        table = self.query_one(CampaignList)
        table.add_class("pane")
        retitle(table, "campaigns")
        self.query_one(KeyLine).show(
            (
                ("⏎", "open", "screen.open_row"),
                ("n", "new", "screen.new"),
                ("r", "resume", "screen.resume"),
                ("y", "replay", "screen.replay"),
                ("x", "delete", "screen.delete"),
                ("/", "filter", "screen.filter"),
                ("?", "help", "app.help"),
                ("q", "leave" if len(self.app.screen_stack) == 1 else "back", "screen.back"),
            )
        )
        self.refresh_list()
        self.set_interval(REFRESH_S, self._again)

    def _again(self) -> None:
        if self.is_current and self.app.app_focus:
            self.refresh_list()

    @work(group="list", exclusive=True)
    async def refresh_list(self) -> None:
        try:
            self._entries = await asyncio.to_thread(list_campaigns)
        except StoreError as error:
            self.kernelarc.say(f"! {error.message}", "bold warning")
            return
        self._show()

    def _show(self) -> None:
        wanted = self._text.lower()
        shown = [e for e in self._entries if wanted in f"{e.name} {e.problem} {e.state}".lower()]
        shown.sort(key=lambda entry: _ORDER.get(entry.state, 2))  # newest first within each
        table = self.query_one(CampaignList)
        table.show(shown, clock.now())
        running = sum(1 for entry in self._entries if entry.state == CampaignState.RUNNING)
        words = ["campaigns", f"{running} running" if running else "", f"“{self._text}”" if self._text else ""]
        retitle(table, " · ".join(word for word in words if word))
        self.query_one(CampaignFacts).show(table.selected)

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        event.stop()
        self.query_one(CampaignFacts).show(self.query_one(CampaignList).selected)

    def on_row_list_opened(self, event: RowList.Opened) -> None:
        event.stop()
        self.action_open_row()

    # Keys

    def action_open_row(self) -> None:
        entry = self._selected()
        if entry is not None:
            self.open_campaign(Path(entry.folder))

    def open_campaign(self, folder: Path, *, replay: bool = False) -> None:
        """Open a campaign on top of this list; the one that was open before is closed."""
        app = self.kernelarc
        try:
            app.open_session(folder, replay=replay)
        except StoreError as error:
            app.say(f"! {error.message}", "bold warning")
            return
        while len(app.screen_stack) > 1 and app.screen is not self:
            app.pop_screen()
        if replay:
            from kernelarc_tui.screens.replay import Replay

            app.push_screen(Replay())
        else:
            from kernelarc_tui.screens.live import Live

            app.push_screen(Live())

    def action_replay(self) -> None:
        entry = self._selected()
        if entry is not None:
            self.open_campaign(Path(entry.folder), replay=True)

    def action_resume(self) -> None:
        entry = self._selected()
        if entry is None or self._refused():
            return
        if entry.state in (CampaignState.RUNNING, CampaignState.STARTING):
            self.kernelarc.say(f"{entry.name} is running; enter opens it", "muted")
        elif entry.state == CampaignState.PAUSED:
            self.open_campaign(Path(entry.folder))
            self.kernelarc.command("resume")
        elif entry.state in ENDED and entry.stop_reason != StopReason.FAULT:
            self.kernelarc.say(
                f"! {entry.name} has ended ({entry.stop_reason}); n starts a new one", "bold warning"
            )
        else:
            self.kernelarc.start_engine(Path(entry.folder))

    @work(group="ask")
    async def action_delete(self) -> None:
        from engine.store.offline import delete_campaign
        from kernelarc_tui.screens.modal import Choice, Choose

        entry = self._selected()
        if entry is None or self._refused():
            return
        detail = f"{entry.folder}\n\nIts archive, memory and report go with it. This cannot be undone."
        choices = (Choice("n", "no, keep it", ""), Choice("y", "yes, delete it", "yes", "verdict-reject"))
        if not await self.app.push_screen_wait(Choose(f"Delete {entry.name}?", detail, choices)):
            return
        session = self.kernelarc.session
        if session is not None and session.folder == Path(entry.folder):
            self.kernelarc.close_session()
        try:
            await asyncio.to_thread(delete_campaign, Path(entry.folder))
        except KernelArcError as error:
            self.kernelarc.say(f"! {error.message}", "bold warning")
            return
        self.kernelarc.say(f"✓ {entry.name} is deleted", "verdict-keep")
        self.refresh_list()

    @work(group="ask")
    async def action_filter(self) -> None:
        from kernelarc_tui.screens.modal import Ask

        text = await self.app.push_screen_wait(
            Ask("Filter campaigns", "Name, problem or state.", value=self._text)
        )
        if text is not None:
            self._text = text.strip()
            self._show()

    @work(group="ask")
    async def action_new(self) -> None:
        from kernelarc_tui.screens.start import StartForm

        if self._refused():
            return
        folder = await self.app.push_screen_wait(StartForm())
        if folder is not None:
            self.open_campaign(folder)

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 1 and self.kernelarc.session is not None:
            self.app.pop_screen()
        else:
            self.kernelarc.action_leave()

    def _selected(self) -> CampaignEntry | None:
        return self.query_one(CampaignList).selected

    def _refused(self) -> bool:
        if self.kernelarc.read_only:
            self.kernelarc.say("! opened read-only: nothing was changed", "bold warning")
        return self.kernelarc.read_only
