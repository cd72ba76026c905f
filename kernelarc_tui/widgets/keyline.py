"""The last row: what the keys do here; for a few seconds after a command, the engine's answer instead.

An answer that is longer than the row takes more rows: its end often says what can be done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.timer import Timer

from kernelarc_tui.paint import Line, wrap
from kernelarc_tui.safe import one_line
from kernelarc_tui.widgets.painted import Painted

ANSWER_S = 6.0
READ_PER_S = 15.0  # characters; a long answer stays for as long as it takes to read
ROWS = 4  # of an answer, at most
_ASCII_KEYS = {"⏎": "ret", "← →": "<- ->", "+ −": "+ -"}


class KeyLine(Painted):
    """``hints`` are (key, word, action); the last one sits flush right. A click runs the action."""

    DEFAULT_CSS: ClassVar[str] = "KeyLine { height: 1; padding: 0 1; dock: bottom; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.hints: Sequence[tuple[str, str, str]] = ()
        self.answer = ""
        self.answer_style = ""
        self._timer: Timer | None = None
        self._spans: list[tuple[int, int, str]] = []

    def show(self, hints: Sequence[tuple[str, str, str]]) -> None:
        self.hints = hints
        self._show_or_hide()
        self.repaint()

    def say(self, text: str, style: str = "", *, seconds: float = ANSWER_S) -> None:
        """Show ``text`` for a while; a newer text replaces it."""
        self.answer, self.answer_style = one_line(text, 600), style
        if self._timer is not None:
            self._timer.stop()
        seconds = max(seconds, len(self.answer) / READ_PER_S) if seconds else 0.0
        self._timer = self.set_timer(seconds, self._forget) if seconds else None
        self._show_or_hide()
        self.repaint()

    def paint(self, width: int, height: int) -> list[Line]:
        if self.answer:
            self._spans = []
            rows = wrap(self.answer, width)
            rows[height - 1 :] = [" ".join(rows[height - 1 :])] if len(rows) >= height else []
            return [Line().fit(row, width, self.answer_style) for row in rows]
        if getattr(self.app, "ascii", False):
            self.hints = [(_ASCII_KEYS.get(key, key), word, action) for key, word, action in self.hints]
        line, self._spans = hint_row(self.hints, width)
        return [line]

    def render_line(self, y: int) -> Strip:
        """Make the hints clickable."""
        strip = super().render_line(y)
        segments: list[Segment] = []
        column = 0
        for segment in strip:
            action = next((name for start, end, name in self._spans if start <= column < end), "")
            style = segment.style or Style()
            if action:
                style = style + Style.from_meta({"@click": action})
            segments.append(Segment(segment.text, style))
            column += segment.cell_length
        return Strip(segments, strip.cell_length)

    def _forget(self) -> None:
        self.answer = ""
        self._show_or_hide()
        self.repaint()

    def _show_or_hide(self) -> None:
        """Who wants no hints gets the row back, but still sees every answer."""
        width = max(20, self.app.size.width - self.gutter.width)
        self.styles.height = min(ROWS, len(wrap(self.answer, width))) if self.answer else 1
        settings = getattr(self.app, "settings", None)
        self.display = bool(self.answer) or settings is None or settings.footer


def hint_row(hints: Sequence[tuple[str, str, str]], width: int) -> tuple[Line, list[tuple[int, int, str]]]:
    """As many hints as fit before the last, how to leave, which is always there; and where each is clicked."""
    tail = Line()
    for key, word, _ in hints[-1:]:
        tail.add(key, "bold rule-focus").add(f" {word}", "muted")
    line, spans = Line(), []
    for key, word, action in hints[:-1]:
        gap = 2 if line.width else 0
        if line.width + gap + len(key) + 1 + len(word) + 2 + tail.width > width:
            break
        start = line.add(" " * gap).width
        line.add(key, "bold rule-focus").add(f" {word}", "muted")
        spans.append((start, line.width, action))
    line.end(tail, width)
    if hints:
        spans.append((line.width - tail.width, line.width, hints[-1][2]))
    return line, spans
