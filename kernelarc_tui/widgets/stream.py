"""The outcome stream: every verdict, fault and command, newest on top, straight from the store."""

from __future__ import annotations

from typing import ClassVar

from engine.store.summary import Summary
from engine.text import counted
from kernelarc_tui import fmt
from kernelarc_tui.describe import EventRow
from kernelarc_tui.feed import Feed, FeedFilter
from kernelarc_tui.glyphs import short_strategy
from kernelarc_tui.paint import Line
from kernelarc_tui.view import label_of, style_of
from kernelarc_tui.widgets.row_list import RowList


class OutcomeStream(RowList):
    """While the cursor is on the newest row it stays there; elsewhere it stays on its row."""

    DEFAULT_CSS: ClassVar[str] = "OutcomeStream { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.feed: Feed | None = None
        self.summary = Summary()

    def attach(self, feed: Feed, summary: Summary) -> None:
        """Show another feed, from its newest row."""
        self.feed, self.summary = feed, summary
        self.cursor = 0
        self.scroll_to(y=0, animate=False)
        self.rows_changed()

    def show(self, summary: Summary, last_seq: int) -> None:
        before, self.summary = self.summary, summary
        if self.feed is None:
            return
        added = self.feed.catch_up(last_seq)
        if not added and before.agents.keys() == summary.agents.keys():
            return
        if added and self.cursor > 0:
            self.cursor += added
            self._resize_virtual()
            self.scroll_to(y=self.scroll_offset.y + added, animate=False)
        self.rows_changed()

    @property
    def above(self) -> int:
        """Rows that came while the cursor stands on an older one, out of sight."""
        return self.scroll_offset.y if self.cursor > 0 else 0

    @property
    def filter(self) -> FeedFilter:
        return self.feed.filter if self.feed is not None else FeedFilter()

    @property
    def selected(self) -> EventRow | None:
        if self.feed is None or self.cursor >= len(self.feed):
            return None
        return self.feed.row(self.cursor)

    def row_count(self) -> int:
        return len(self.feed) if self.feed is not None else 0

    def empty_line(self, width: int) -> Line:
        return Line().fit(nothing_text(self.filter, self.summary), width, "muted")

    def row_line(self, index: int, width: int, *, selected: bool) -> Line:
        if self.feed is None:
            return Line()
        if not self.feed.complete and index >= len(self.feed) - 100:
            self.call_later(self._backfill)
        row = self.feed.row(index)
        return Line("…", "faint") if row is None else stream_line(row, self.summary, width)

    def action_edge(self, direction: int) -> None:
        while direction > 0 and self.feed is not None and not self.feed.complete:
            self.feed.backfill()
        super().action_edge(direction)

    def _backfill(self) -> None:
        if self.feed is not None and self.feed.backfill():
            self.rows_changed()


def nothing_text(chosen: FeedFilter, summary: Summary) -> str:
    """What an empty stream says: that nothing has happened, or that it is the filter."""
    others = sum(summary.outcomes.values()) + summary.errors
    if chosen.outcome and not (chosen.text or chosen.agent) and others:
        return f"no {chosen.outcome} yet ({counted(others, 'other')})"
    narrowed = chosen.outcome or chosen.text or (chosen.agent and not chosen.everything)
    return f"nothing matches {chosen.words}" if narrowed else "no outcome yet"


def stream_line(row: EventRow, summary: Summary, width: int) -> Line:
    """One row: when, who, outcome, strategy, numbers, why; narrow, what has no numbers gives their room to why."""
    wide = width >= 70
    line = Line().add(fmt.wall(row.at, seconds=width >= 100), "faint").add(" ")
    line.fit(
        label_of(summary, row.agent), 1 if len(summary.agents) < 10 else 2, f"bold {style_of(summary, row.agent)}"
    )
    line.add(" ").fit(f"#{row.number}" if row.number else "", 5 if summary.candidates > 999 else 4, "muted")
    line.add(" ").add(row.letter, f"bold {row.style}" if "bold" not in row.style else row.style)
    line.add(" ").fit(row.word, 7 if wide else 6, row.style)
    if wide and row.strategy:
        size = 10 if width < 130 else 25
        name = row.strategy if len(row.strategy) <= size else short_strategy(row.strategy)
        line.add(" ").fit(name, size, "muted")
    elif width >= 110:
        line.add(" " * (11 if width < 130 else 26))
    if row.latency:
        line.add(" ").fit(row.latency, 6, right=True)
        faster = row.delta.startswith("−")
        line.add(" ").fit(row.delta, 8, "verdict-keep" if faster else "muted", right=True)
    elif width >= 110:
        line.add(" " * 16)
    if width - line.width < 8:
        return line
    line.add("  " if wide and (row.latency or width >= 110) else " ")
    return line.fit(row.text, width - line.width, "" if row.letter != "·" else "muted")
