"""A row of tabs: digits and clicks pick one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.message import Message

from kernelarc_tui.paint import Line
from kernelarc_tui.widgets.painted import Painted


class TabRow(Painted):
    DEFAULT_CSS: ClassVar[str] = "TabRow { height: 1; padding: 0 1; }"

    class Picked(Message):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, names: Sequence[str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.names = list(names)
        self.active = 0
        self.note = ""
        self._spans: list[tuple[int, int]] = []

    def pick(self, index: int, note: str = "") -> None:
        self.active, self.note = index, note
        self.repaint()

    def paint(self, width: int, height: int) -> list[Line]:
        line = Line()
        self._spans = []
        for index, name in enumerate(self.names):
            start = line.width
            active = index == self.active
            line.add(str(index + 1), "bold rule-focus" if active else "faint")
            line.add(f" {name}", "bold underline foreground" if active else "muted")
            self._spans.append((start, line.width))
            line.add("   " if width >= 90 else "  ")
        return [line.end(Line(self.note, "muted"), width)]

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        for index, (start, end) in enumerate(self._spans):
            if offset is not None and start <= offset.x < end:
                self.post_message(self.Picked(index))
