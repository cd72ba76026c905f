"""Wins and traps: find one, read why, jump to the candidate it came from, keep it, drop it, annotate it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from engine.errors import StoreError
from engine.store.reader import PAGE
from engine.store.rows import MemoryRow
from kernelarc_tui import fmt
from kernelarc_tui.paint import Line, wrap
from kernelarc_tui.safe import one_line
from kernelarc_tui.screens.campaign import CampaignScreen, Hint
from kernelarc_tui.view import View, label_of, style_of
from kernelarc_tui.widgets.keyline import KeyLine
from kernelarc_tui.widgets.memory import MemoryPanel
from kernelarc_tui.widgets.painted import retitle
from kernelarc_tui.widgets.row_list import RowList
from kernelarc_tui.widgets.text_pane import TextPane

KINDS = ("", "win", "trap")
SORTS: tuple[tuple[str, Callable[[MemoryRow], float]], ...] = (
    ("newest", lambda entry: -entry.id),
    ("speed-up", lambda entry: -(entry.speedup or 0.0)),
    ("gain", lambda entry: -(entry.gain or 0.0)),
    ("merged", lambda entry: -entry.merged),
)


def matching(
    entries: list[MemoryRow], *, kind: str = "", text: str = "", expired: bool = False, sort: int = 0
) -> list[MemoryRow]:
    """Entries of a kind with a text in any of their words, in the chosen order."""
    wanted = text.lower()
    shown = [
        entry
        for entry in entries
        if (not kind or entry.kind == kind)
        and (expired or entry.expired_at is None)
        and (not wanted or wanted in _words(entry))
    ]
    return sorted(shown, key=SORTS[sort][1])


def _words(entry: MemoryRow) -> str:
    parts = (
        entry.strategy,
        entry.reflection,
        entry.error,
        entry.note,
        entry.kernel_type,
        entry.shapes,
        entry.agent,
    )
    return " ".join(parts).lower()


class MemoryScreen(CampaignScreen):
    AUTO_FOCUS = "#entries"
    BINDING_GROUP_TITLE = "Memory"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", show=False, id="memory.filter", tooltip="only entries with a text"),
        Binding("t", "kind", "Kind", show=False, id="memory.kind", tooltip="wins, traps or both"),
        Binding(
            "o", "sort", "Order", show=False, id="memory.sort", tooltip="newest, speed-up, gain or merged first"
        ),
        Binding("e", "expired", "Expired", show=False, id="memory.expired", tooltip="show expired entries too"),
        Binding("n", "pin", "Pin", show=False, id="memory.pin", tooltip="keep the entry whatever the retention"),
        Binding("x", "expire", "Expire", show=False, id="memory.expire", tooltip="take the entry out of recall"),
        Binding("N", "note", "Note", show=False, id="memory.note", tooltip="write a note on the entry"),
    ]
    hints: ClassVar[tuple[Hint, ...]] = (
        ("/", "filter", "screen.filter"),
        ("t", "kind", "screen.kind"),
        ("o", "order", "screen.sort"),
        ("n", "pin", "screen.pin"),
        ("x", "expire", "screen.expire"),
        ("N", "note", "screen.note"),
        ("⏎", "candidate", "screen.jump"),
        ("?", "help", "app.help"),
        ("q", "back", "screen.back"),
    )

    def __init__(self, entry: int = 0) -> None:
        super().__init__()
        self._start_at = entry
        self._kind = self._sort = 0
        self._text = ""
        self._expired = False
        self._live: Sequence[MemoryRow] = []  # the view's own, once it was shown
        self._gone: list[MemoryRow] = []  # the newest expired ones
        self._pages, self._more = 1, False

    def compose(self) -> ComposeResult:
        with Horizontal(id="body"):
            yield MemoryPanel(id="entries")
            yield TextPane(id="detail")
        yield KeyLine(id="keys")

    def on_mount(self) -> None:
        self.query_one("#entries").add_class("pane")
        self.query_one("#detail").add_class("pane")
        super().on_mount()
        self.show_view(self.view)
        entries = self.query_one(MemoryPanel)
        for index, entry in enumerate(entries.entries):
            if entry.id == self._start_at:
                entries.move_to(index)
        self._show_detail()

    def show_view(self, view: View) -> None:
        """The follower hands over another list only when something was learnt or changed in memory."""
        if view.memory is not self._live:
            self._live = view.memory
            self._show_list()

    def _read_expired(self) -> None:
        """The newest expired entries, as many as were looked at; a replay shows what was in recall then."""
        if self.session.player is not None:
            return
        try:
            found = self.session.reader.expired_memory(limit=self._pages * PAGE + 1)
        except StoreError as error:
            self.kernelarc.say(error.message, "warning")
            return
        self._gone, self._more = found[: self._pages * PAGE], len(found) > self._pages * PAGE

    def _show_list(self) -> None:
        if self._expired:
            self._read_expired()
        entries = [*self._live, *self._gone] if self._expired else list(self._live)
        panel = self.query_one(MemoryPanel)
        selected = panel.selected
        kind = KINDS[self._kind]
        shown = matching(entries, kind=kind, text=self._text, expired=self._expired, sort=self._sort)
        panel.show(shown)
        if selected is not None:
            index = next((i for i, entry in enumerate(shown) if entry.id == selected.id), None)
            if index is not None and index != panel.cursor:
                panel.move_to(index, notify=False)
        words = [kind + "s" if kind else "wins and traps", f"“{self._text}”" if self._text else ""]
        words += ["with expired" if self._expired else "", f"{SORTS[self._sort][0]} first", f"{len(shown)}"]
        title = " · ".join(word for word in words if word)
        retitle(panel, title)
        self._show_detail()

    def _show_detail(self) -> None:
        pane = self.query_one("#detail", TextPane)
        entry = self.query_one(MemoryPanel).selected
        retitle(pane, f"{entry.kind} {entry.id}" if entry else "nothing selected")
        pane.show(detail_lines(entry, self.view, max(20, pane.size.width - 2)) if entry else [])

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        event.stop()
        panel = self.query_one(MemoryPanel)
        if self._expired and self._more and panel.cursor >= len(panel.entries) - 1:
            self._pages += 1
            self._show_list()
        self._show_detail()

    def on_resize(self) -> None:
        self.after_layout(self._show_detail)

    # Keys

    def on_row_list_opened(self, event: RowList.Opened) -> None:
        event.stop()
        self.action_jump()

    def action_jump(self) -> None:
        entry = self.query_one(MemoryPanel).selected
        if entry is not None and entry.candidate:
            self.open_candidate(entry.candidate)
        elif entry is not None:
            self.kernelarc.say(f"it came from {entry.carried_from or 'no candidate of this campaign'}", "muted")

    def action_kind(self) -> None:
        self._kind = (self._kind + 1) % len(KINDS)
        self._show_list()

    def action_sort(self) -> None:
        self._sort = (self._sort + 1) % len(SORTS)
        self._show_list()

    def action_expired(self) -> None:
        self._expired = not self._expired
        self._show_list()

    @work(group="ask")
    async def action_filter(self) -> None:
        from kernelarc_tui.screens.modal import Ask

        text = await self.app.push_screen_wait(
            Ask("Filter memory", "Words anywhere in an entry.", value=self._text)
        )
        if text is not None:
            self._text = text.strip()
            self._show_list()

    def action_pin(self) -> None:
        entry = self.query_one(MemoryPanel).selected
        if entry is not None:
            self.kernelarc.edit("memory.unpin" if entry.pinned else "memory.pin", entry.id)

    @work(group="ask")
    async def action_expire(self) -> None:
        from kernelarc_tui.screens.modal import Choice, Choose

        entry = self.query_one(MemoryPanel).selected
        if entry is None or self.kernelarc.refuse_if_read_only():
            return
        detail = "Agents no longer recall it. The row stays and e shows it; there is no way back into recall."
        choices = (
            Choice("n", "no, keep it", ""),
            Choice("y", f"yes, expire the {entry.kind}", "yes", "verdict-reject"),
        )
        title = f"Expire {one_line(entry.strategy, 44)}?"
        if await self.app.push_screen_wait(Choose(title, detail, choices)):
            self.kernelarc.edit("memory.expire", entry.id)

    @work(group="ask")
    async def action_note(self) -> None:
        from kernelarc_tui.screens.modal import Ask

        entry = self.query_one(MemoryPanel).selected
        if entry is None or self.kernelarc.refuse_if_read_only():
            return
        text = await self.app.push_screen_wait(
            Ask("Note", "Your own words; empty takes it away.", value=entry.note)
        )
        if text is not None:
            self.kernelarc.edit("memory.note", entry.id, text.strip())


def detail_lines(entry: MemoryRow, view: View, width: int) -> list[Line]:
    """Everything about one entry."""
    lines: list[Line] = []

    def section(title: str, text: str, style: str = "") -> None:
        if text.strip():
            lines.append(Line(title, "faint"))
            for part in text.split("\n"):
                lines.extend(Line(f"  {piece}", style) for piece in wrap(one_line(part, 1300), max(16, width - 2)))

    win = entry.kind == "win"
    section("strategy", entry.strategy, "bold verdict-keep" if win else "bold verdict-reject")
    section("why" if win else "what happened and why", entry.reflection)
    section("error", entry.error, "verdict-reject")
    if entry.gain is not None:  # paired; a quotient of latencies from different minutes is none
        section("against the agent's best of its time", fmt.times(1 + entry.gain))
    if entry.before_ms and entry.after_ms:
        section("before → after", f"{fmt.ms(entry.before_ms)} → {fmt.ms(entry.after_ms)} ms, each at its own time")
    if entry.speedup is not None:
        section("against the reference", fmt.times(entry.speedup))
    section("shapes", entry.shapes)
    section("your note", entry.note, "primary")
    line = Line("agent ", "faint").add(
        label_of(view.summary, entry.agent) or entry.agent, style_of(view.summary, entry.agent)
    )
    if entry.candidate:
        line.add(f"  #{entry.candidate}", "muted")
    where = Line(
        f"{one_line(entry.kernel_type, 40)} on {one_line(entry.device, 40)}  {fmt.date(entry.at)}", "muted"
    )
    fits = line.width + 2 + where.width <= width
    lines += [Line(), line.add("  ").extend(where)] if fits else [Line(), line, where]
    facts = [
        f"stands for {entry.merged} of its kind" if entry.merged > 1 else "",
        "pinned" if entry.pinned else "",
    ]
    facts += [f"carried over from {one_line(entry.carried_from, 60)}" if entry.carried_from else ""]
    facts += [f"expired {fmt.wall(entry.expired_at)}: {entry.expired_why}" if entry.expired_at else ""]
    lines += [Line(fact, "warning") for fact in facts if fact]
    return lines
