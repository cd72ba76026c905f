"""A list of rows of any length that holds none of them: rows are painted when they come into view.

The base of every table and stream here. Appending, scrolling and moving the cursor cost the visible rows only.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kernelarc_tui.paint import Line
from kernelarc_tui.widgets.painted import changed_region, palette_of


class RowList(ScrollView, can_focus=True):
    """Subclasses implement :meth:`row_count` and :meth:`row_line`, and :meth:`header_line` where there is one."""

    DEFAULT_CSS: ClassVar[str] = """
    RowList { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; scrollbar-gutter: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "Down", show=False, id="list.down", tooltip="next row"),
        Binding("k,up", "move(-1)", "Up", show=False, id="list.up", tooltip="previous row"),
        Binding("g,home", "edge(-1)", "First", show=False, id="list.first", tooltip="first row"),
        Binding("G,end", "edge(1)", "Last", show=False, id="list.last", tooltip="last row"),
        Binding("ctrl+d,pagedown", "page(1)", "Page down", show=False, id="list.page-down", tooltip="page down"),
        Binding("ctrl+u,pageup", "page(-1)", "Page up", show=False, id="list.page-up", tooltip="page up"),
        Binding("enter", "open", "Open", show=False, id="list.open", tooltip="open the selected row"),
    ]

    class Opened(Message):
        """A row was opened with enter or a double click."""

        def __init__(self, rows: RowList, index: int) -> None:
            super().__init__()
            self.rows, self.index = rows, index

        @property
        def control(self) -> RowList:
            return self.rows

    class Moved(Message):
        """The cursor is on another row."""

        def __init__(self, rows: RowList, index: int) -> None:
            super().__init__()
            self.rows, self.index = rows, index

        @property
        def control(self) -> RowList:
            return self.rows

    show_cursor_blurred: ClassVar[bool] = True
    """Whether the cursor row stays marked while another widget has the focus."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.cursor = 0
        self._shown: dict[int, Strip] = {}
        self._under: Style | None = None
        self._shown_for: tuple[object, ...] = ()

    # What subclasses say.

    @abstractmethod
    def row_count(self) -> int:
        """How many rows there are now."""

    @abstractmethod
    def row_line(self, index: int, width: int, *, selected: bool) -> Line:
        """Row ``index``, in at most ``width`` cells."""

    def has_header(self, width: int) -> bool:
        """Whether there is a row above the rows that does not scroll: :meth:`header_line`."""
        return False

    def header_line(self, width: int) -> Line:
        return Line()

    def empty_line(self, width: int) -> Line:
        """Shown when there are no rows."""
        return Line()

    # What callers do.

    def rows_changed(self) -> None:
        """The rows behind the list changed: redraw what looks different, keep the cursor in range."""
        count = self.row_count()
        self.cursor = min(self.cursor, max(0, count - 1))
        self._resize_virtual()
        if not self.is_attached or not self.size.area or self._shown_for != self._view_key():
            self._shown.clear()
            self.refresh()
            return
        regions = []
        for y, was in list(self._shown.items()):
            now = self._strip_at(y)
            region = changed_region(was, now, y)
            if region is not None:
                self._shown[y] = now
                regions.append(region)
        if regions:
            self.refresh(*regions)

    def move_to(self, index: int, *, notify: bool = True) -> None:
        """Put the cursor on row ``index`` and scroll it into view."""
        count = self.row_count()
        if not count:
            return
        target = max(0, min(count - 1, index))
        moved = target != self.cursor
        self.cursor = target
        self._reveal()
        self.rows_changed()
        if moved and notify:
            self.post_message(self.Moved(self, target))

    # Keys and mouse.

    def action_move(self, step: int) -> None:
        self.move_to(self.cursor + step)

    def action_page(self, direction: int) -> None:
        self.move_to(self.cursor + direction * max(1, self._body_height() - 1))

    def action_edge(self, direction: int) -> None:
        self.move_to(0 if direction < 0 else self.row_count() - 1)

    def action_open(self) -> None:
        if self.row_count():
            self.post_message(self.Opened(self, self.cursor))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        index = offset.y + self.scroll_offset.y - self._header_height()
        if offset.y >= self._header_height() and 0 <= index < self.row_count():
            self.move_to(index)
            if event.chain == 2:
                self.action_open()

    def on_focus(self) -> None:
        self.rows_changed()

    def on_blur(self) -> None:
        self.rows_changed()

    def on_resize(self) -> None:
        self._resize_virtual()
        self._reveal()

    def on_mount(self) -> None:
        self._resize_virtual()

    # Painting.

    @property
    def row_width(self) -> int:
        return self.scrollable_content_region.width

    def render_line(self, y: int) -> Strip:
        if self._under is None:
            self._under = self.rich_style
        key = self._view_key()
        if key != self._shown_for:
            self._shown.clear()
            self._shown_for = key
        strip = self._shown[y] = self._strip_at(y)
        return strip

    def notify_style_update(self) -> None:
        self._under = None
        super().notify_style_update()

    def _strip_at(self, y: int) -> Strip:
        palette, under = palette_of(self), self._under or self.rich_style
        width = self.row_width
        header = self._header_height()
        if y < header:
            return self.header_line(width).strip(palette, width, under)
        index = self.scroll_offset.y + y - header
        count = self.row_count()
        if index >= count:
            line = self.empty_line(width) if count == 0 and y == header else Line()
            return line.strip(palette, width, under)
        selected = index == self.cursor and (self.has_focus or self.show_cursor_blurred)
        if selected:
            under = under + palette["on cursor" if self.has_focus else "on panel"]
        return self.row_line(index, width, selected=selected).strip(palette, width, under)

    def _view_key(self) -> tuple[object, ...]:
        return (self.row_width, self.size.height, self.scroll_offset.y, id(palette_of(self)), self._under)

    def _header_height(self) -> int:
        return int(self.has_header(self.row_width))

    def _body_height(self) -> int:
        return max(1, self.scrollable_content_region.height - self._header_height())

    def _resize_virtual(self) -> None:
        size = Size(self.row_width, self.row_count() + self._header_height())
        if size != self.virtual_size:
            self.virtual_size = size

    def _reveal(self) -> None:
        top, height = self.scroll_offset.y, self._body_height()
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)
