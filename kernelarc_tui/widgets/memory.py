"""Wins and traps in a few rows: what worked with its speed-up, what failed and why. Newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from engine.store.rows import MemoryRow
from kernelarc_tui import fmt
from kernelarc_tui.paint import Line
from kernelarc_tui.safe import one_line
from kernelarc_tui.widgets.row_list import RowList


class MemoryPanel(RowList):
    DEFAULT_CSS: ClassVar[str] = "MemoryPanel { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.entries: Sequence[MemoryRow] = ()

    def show(self, entries: Sequence[MemoryRow]) -> None:
        """The same sequence as before means: nothing changed."""
        if entries is not self.entries:
            self.entries = entries
            self.rows_changed()

    @property
    def selected(self) -> MemoryRow | None:
        return self.entries[self.cursor] if self.cursor < len(self.entries) else None

    def row_count(self) -> int:
        return len(self.entries)

    def empty_line(self, width: int) -> Line:
        return Line().fit("nothing learnt yet", width, "muted")

    def row_line(self, index: int, width: int, *, selected: bool) -> Line:
        return memory_line(self.entries[index], width)


def memory_line(entry: MemoryRow, width: int) -> Line:
    """``+ strategy  1.08×`` or ``− strategy: why it failed``. The factor is against the reference, as recorded."""
    win = entry.kind == "win"
    line = Line("+ " if win else "− ", "bold verdict-keep" if win else "bold verdict-reject")
    if entry.pinned:
        line.add("★ ", "warning")
    gone = entry.expired_at is not None
    text = entry.strategy if win else trap_text(entry)
    right = fmt.times(entry.speedup) if win and entry.speedup is not None else ""
    if width >= 60 and entry.candidate:
        right = f"{right:>6} {'#' + str(entry.candidate):>5}"
    room = width - line.width - (len(right) + 1 if right else 0)
    line.fit(one_line(text, 300), room, "strike faint" if gone else "")
    if right:
        line.add(" ").add(right[:6], "verdict-keep").add(right[6:], "muted")
    return line


def trap_text(entry: MemoryRow) -> str:
    """A trap in one line: what was tried, and why it is a dead end."""
    why = entry.reflection or entry.error
    return f"{entry.strategy}: {why}" if why else entry.strategy
