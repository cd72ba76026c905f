"""A pane of painted lines that scrolls both ways: sources, diffs, prompts, replies, documents.

A line that goes on past the edge shows it there, ``›``; left and right scroll.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kernelarc_tui.paint import Line
from kernelarc_tui.widgets.painted import palette_of


class TextPane(ScrollView, can_focus=True):
    """``follow``: stay at the end while lines are added there."""

    DEFAULT_CSS: ClassVar[str] = """
    TextPane { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "scroll_by(1)", "Down", show=False, id="text.down", tooltip="scroll down"),
        Binding("k,up", "scroll_by(-1)", "Up", show=False, id="text.up", tooltip="scroll up"),
        Binding("ctrl+d,pagedown", "scroll_page(1)", "Page", show=False, id="text.page-down", tooltip="page down"),
        Binding("ctrl+u,pageup", "scroll_page(-1)", "Page", show=False, id="text.page-up", tooltip="page up"),
        Binding("g,home", "scroll_edge(-1)", "Top", show=False, id="text.top", tooltip="to the top"),
        Binding("G,end", "scroll_edge(1)", "End", show=False, id="text.end", tooltip="to the end"),
        Binding("left", "scroll_side(-8)", "Left", show=False, id="text.left", tooltip="scroll left"),
        Binding("right", "scroll_side(8)", "Right", show=False, id="text.right", tooltip="scroll right"),
    ]

    def __init__(self, *, id: str | None = None, follow: bool = False, empty: str = "") -> None:
        super().__init__(id=id)
        self.lines: Sequence[Line] = ()
        self.follow, self.empty = follow, empty
        self._found = ""

    def show(self, lines: Sequence[Line], *, top: bool = True) -> None:
        """Show other lines; ``top`` scrolls back to the start, unless the pane follows its end."""
        at_end = self.follow and self.scroll_offset.y >= self.max_scroll_y - 1
        self.lines = lines
        self._resize_virtual()
        if at_end:
            self.scroll_to(y=max(0, len(lines) - self.size.height), animate=False)
        elif top and not self.follow:
            self.scroll_to(0, 0, animate=False)
        self.refresh()

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    def search(self, text: str, *, forward: bool = True) -> bool:
        """Scroll to the next line with ``text`` in it, in upper or lower case, and mark it."""
        self._found = text.lower()
        count = len(self.lines)
        start = self.scroll_offset.y
        order = (
            [(start + step if forward else start - step) % count for step in range(1, count + 1)] if count else []
        )
        for index in order:
            if self._found in self.lines[index].text.lower():
                self.scroll_to(y=index, animate=False)
                self.refresh()
                return True
        self.refresh()
        return False

    def search_again(self, *, forward: bool = True) -> bool:
        return bool(self._found) and self.search(self._found, forward=forward)

    def action_scroll_by(self, rows: int) -> None:
        self.scroll_to(y=self.scroll_offset.y + rows, animate=False)

    def action_scroll_page(self, direction: int) -> None:
        self.scroll_to(y=self.scroll_offset.y + direction * max(1, self.size.height - 1), animate=False)

    def action_scroll_edge(self, direction: int) -> None:
        self.scroll_to(y=0 if direction < 0 else self.max_scroll_y, animate=False)

    def action_scroll_side(self, columns: int) -> None:
        self.scroll_to(x=self.scroll_offset.x + columns, animate=False)

    def on_resize(self) -> None:
        self._resize_virtual()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        under = self.rich_style
        index = self.scroll_offset.y + y
        if not self.lines and y == 0 and self.empty:
            return Line(self.empty, "muted").strip(palette_of(self), width, under)
        if index >= len(self.lines):
            return Strip.blank(width, under)
        line = self.lines[index]
        palette = palette_of(self)
        if self._found and self._found in line.text.lower():
            under = under + palette["on cursor"]
        offset = self.scroll_offset.x
        strip = line.strip(palette, max(line.width, offset + width), under).crop(offset, offset + width)
        if width > 2 and offset and line.width:
            strip = Strip.join([Line("‹", "faint").strip(palette, 1, under), strip.crop(1, width)])
        if width > 2 and line.width > offset + width:
            strip = Strip.join([strip.crop(0, width - 1), Line("›", "faint").strip(palette, 1, under)])
        return strip

    def _resize_virtual(self) -> None:
        widest = max((line.width for line in self.lines), default=0)
        self.virtual_size = Size(widest, len(self.lines))
