"""Painting lines of cells: styled pieces of text that know their width, and the theme's colours by name.

Widgets of this package draw through the Line API: a :class:`Line` per row, turned into a Textual strip with the
styles of a :class:`Palette`. Text is never parsed as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.strip import Strip

_ATTRIBUTES = frozenset(("bold", "dim", "italic", "underline", "reverse", "strike"))


def width_of(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def clip(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells, an ellipsis for what is cut."""
    if width_of(text) <= width:
        return text
    if width <= 1:
        return "…"[: max(0, width)]
    return set_cell_size(text, width - 1).rstrip() + "…"


class Palette:
    """Named styles of the active theme. A name is a theme variable, attributes may precede it.

    ``palette["bold verdict-keep on cursor"]`` is a Rich style; unknown variables fall back to no colour.
    """

    def __init__(self, variables: Mapping[str, str], *, ansi: bool = False) -> None:
        self._variables = variables
        self._cache: dict[str, Style] = {}
        self.ansi = ansi

    def __getitem__(self, spec: str) -> Style:
        found = self._cache.get(spec)
        if found is None:
            found = self._cache[spec] = self._build(spec)
        return found

    def color(self, name: str) -> Color | None:
        value = self._variables.get(name, "")
        return Color.parse(value) if value and not value.startswith("auto") else None

    def _build(self, spec: str) -> Style:
        foreground: Color | None = None
        background: Color | None = None
        attributes: dict[str, bool] = {}
        to_background = False
        for word in spec.split():
            if word in _ATTRIBUTES:
                attributes[word] = True
            elif word == "on":
                to_background = True
            elif to_background:
                background, to_background = self.color(word), False
                if word == "cursor" and self.ansi:  # a 16-colour or colourless terminal has no faint background
                    background, attributes["reverse"] = None, True
            else:
                foreground = self.color(word)
        return Style(
            color=foreground.rich_color if foreground else None,
            bgcolor=background.rich_color if background else None,
            **attributes,  # type: ignore[arg-type]
        )


class Line:
    """One row under construction: pieces of (text, style name), and how many cells they take so far.

    ``base`` is a style under all pieces, to the end of the row.
    """

    __slots__ = ("base", "pieces", "width")

    def __init__(self, text: str = "", style: str = "", *, base: str = "") -> None:
        self.pieces: list[tuple[str, str]] = []
        self.width = 0
        self.base = base
        if text:
            self.add(text, style)

    def add(self, text: str, style: str = "") -> Line:
        if text:
            self.pieces.append((text, style))
            self.width += width_of(text)
        return self

    def fit(self, text: str, width: int, style: str = "", *, right: bool = False) -> Line:
        """``text`` in exactly ``width`` cells."""
        if width <= 0:
            return self
        shown = clip(text, width)
        blank = " " * (width - width_of(shown))
        return self.add(blank + shown if right else shown + blank, style)

    def to(self, column: int) -> Line:
        """Blank up to ``column``."""
        return self.add(" " * (column - self.width)) if column > self.width else self

    def extend(self, other: Line) -> Line:
        self.pieces += other.pieces
        self.width += other.width
        return self

    def end(self, other: Line, width: int) -> Line:
        """``other`` flush right in a row of ``width`` cells; dropped when it does not fit."""
        if self.width + 1 + other.width <= width:
            self.to(width - other.width).extend(other)
        return self

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)

    def strip(self, palette: Palette, width: int, under: Style) -> Strip:
        """Exactly ``width`` cells. ``under`` is the style beneath all pieces: the widget's or the cursor row's."""
        if self.base:
            under = under + palette[self.base]
        # Reversed colours would each become another background: a reversed row is of one piece.
        plain = bool(under.reverse)
        segments = [
            Segment(text, under + (palette[name].without_color if plain else palette[name]) if name else under)
            for text, name in self.pieces
        ]
        strip = Strip(segments, self.width)
        return strip.adjust_cell_length(width, under)


def fold(line: Line, width: int) -> list[Line]:
    """A row folded to ``width`` cells, its styles kept; at least one row."""
    rows = [Line(base=line.base)]
    for text, style in line.pieces:
        rest = text
        while rest:
            room = width - rows[-1].width
            if width_of(rest) <= room:
                rows[-1].add(rest, style)
                break
            head = set_cell_size(rest, room).rstrip("\x00") if room > 0 else ""
            taken = _shared(head, rest)
            if not taken and rows[-1].width == 0:
                taken = 1  # a wide character in a row of one cell
            rows[-1].add(rest[:taken], style)
            rest = rest[taken:]
            if rest:
                rows.append(Line(base=line.base))
    return rows


def _shared(head: str, text: str) -> int:
    """How many characters of ``text`` are in ``head``, which may end in padding."""
    count = min(len(head), len(text))
    while count and head[:count] != text[:count]:
        count -= 1
    return count


def fill(lines: Iterable[Line], height: int) -> list[Line]:
    """Exactly ``height`` lines."""
    shown = list(lines)[:height]
    return shown + [Line() for _ in range(height - len(shown))]


def wrap(text: str, width: int) -> list[str]:
    """Words folded to ``width`` cells; words longer than a row are cut into pieces."""
    rows: list[str] = []
    for paragraph in text.split("\n"):
        row = ""
        for word in paragraph.split(" "):
            while width_of(word) > width > 0:
                room = width - (width_of(row) + 1 if row else 0)
                if room <= 0:
                    rows.append(row)
                    row = ""
                    continue
                head = set_cell_size(word, room).rstrip() or word[:1]
                rows.append(f"{row} {head}" if row else head)
                word, row = word[len(head) :], ""
            joined = f"{row} {word}" if row else word
            if width_of(joined) <= width:
                row = joined
            else:
                rows.append(row)
                row = word
        rows.append(row)
    return rows
