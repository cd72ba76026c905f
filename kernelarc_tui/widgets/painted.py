"""The base of widgets that draw their own rows: only cells that changed are sent to the terminal."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from rich.style import Style
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from kernelarc_tui.paint import Line, Palette, fill


def palette_of(widget: Widget) -> Palette:
    """The active theme's palette; every KernelArc app has one, a foreign app gets plain text."""
    found = getattr(widget.app, "palette", None)
    return found if isinstance(found, Palette) else Palette({})


def retitle(widget: Widget, text: str) -> None:
    """Set a pane's title, only if it changed: a new title repaints the whole pane. ``text`` is never markup."""
    boxed = bool(widget.styles.border_left[0])
    title = Content(text if boxed else f" {text} ")  # a box pads its title itself, a rule does not
    if widget.border_title != title.markup:
        widget.border_title = title  # type: ignore[assignment]


def changed_region(was: Strip, now: Strip, y: int) -> Region | None:
    """The cells of row ``y`` that differ between two strips of the same width, or ``None``.

    The compositor repaints whole regions, so a ticking clock should not send its entire row.
    """
    if was == now:
        return None
    old, new = list(was), list(now)
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    left = sum(segment.cell_length for segment in new[:start])
    right = sum(segment.cell_length for segment in new[len(new) - end :])
    return Region(left, y, max(1, now.cell_length - left - right), 1)


class Painted(Widget):
    """A widget of fixed rows. Subclasses implement :meth:`paint`; callers say :meth:`repaint` after a change."""

    DEFAULT_CSS: ClassVar[str] = "Painted { height: 1; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._strips: list[Strip] | None = None
        self._painted_for: tuple[object, ...] = ()
        self._under: Style | None = None

    @abstractmethod
    def paint(self, width: int, height: int) -> list[Line]:
        """The rows to show, at most ``height``; each is cut or padded to ``width`` cells."""

    def repaint(self) -> None:
        """Draw again; cells that look the same as before are not sent."""
        if not self.is_attached or not self.size.area:
            self._strips = None
            return
        fits = self._painted_for == self._key()
        old, new = self._strips, self._draw()
        if old is None or not fits:
            self.refresh()
            return
        pairs = enumerate(zip(old, new, strict=True))
        regions = [region for y, (was, now) in pairs if (region := changed_region(was, now, y))]
        if regions:
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        if self._strips is None or self._painted_for != self._key():
            self._draw()
        strips = self._strips or []
        return strips[y] if y < len(strips) else Strip.blank(self.size.width, self.rich_style)

    def notify_style_update(self) -> None:
        self._under = None
        super().notify_style_update()

    def _key(self) -> tuple[object, ...]:
        return (self.size, id(palette_of(self)), self._under)

    def _draw(self) -> list[Strip]:
        width, height = self.size
        palette = palette_of(self)
        under = self._under = self._under or self.rich_style
        self._strips = [line.strip(palette, width, under) for line in fill(self.paint(width, height), height)]
        self._painted_for = self._key()
        return self._strips
