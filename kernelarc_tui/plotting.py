"""Step lines in braille or plain characters: the trajectories of a campaign, drawn into rows of styled text.

Pure: values in, :class:`~kernelarc_tui.paint.Line` out. A braille cell holds 2×4 dots, so eight rows resolve
32 levels; in ASCII a line is drawn with its series' label.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernelarc_tui.glyphs import OUTCOME_RANK, OUTCOMES
from kernelarc_tui.paint import Line

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # braille bit of (column, row) within a cell
MARKERS = "●◆▲■▼★✚◉"


@dataclass(frozen=True)
class Series:
    """A step line: ``points`` are (x, y) with rising x; the line holds the last y up to ``end``."""

    label: str
    style: str
    points: Sequence[tuple[float, float]]
    end: float
    marker: str = "●"


@dataclass(frozen=True)
class Level:
    """A horizontal line over the whole plot, such as the reference or the bound."""

    label: str
    y: float
    style: str


Attempt = tuple[int, str, str, float | None]
"""(x, agent, outcome, latency or ``None``) of one judged candidate."""


@dataclass(frozen=True)
class Picture:
    """``attempts`` become faint dots and the letters along the x axis; a column shows its best outcome."""

    series: Sequence[Series] = ()
    levels: Sequence[Level] = ()
    attempts: Sequence[Attempt] = ()
    x_max: float = 1.0
    x_format: Callable[[float], str] = lambda value: f"{value:.0f}"
    x_least: float = 1.0  # between two labels: what ``x_format`` can tell apart
    log: bool = False
    ascii: bool = False


@dataclass
class _Grid:
    width: int
    height: int
    chars: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    bits: dict[tuple[int, int], int] = field(default_factory=dict)
    owner: dict[tuple[int, int], str] = field(default_factory=dict)

    def row(self, y: int) -> list[tuple[str, str]]:
        cells = []
        for x in range(self.width):
            at = (x, y)
            if at in self.chars:
                cells.append(self.chars[at])
            elif at in self.bits:
                cells.append((chr(0x2800 + self.bits[at]), self.owner[at]))
            else:
                cells.append((" ", ""))
        return cells


@dataclass(frozen=True)
class _Scale:
    """Values to fractions of the height: 0 is the bottom."""

    low: float
    high: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(max(value, 1e-12)), math.log(low), math.log(high)
        return (value - low) / (high - low) if high > low else 0.5


def draw(picture: Picture, width: int, height: int) -> list[Line]:
    """The picture in ``height`` rows of ``width`` cells; empty when there is no room for a plot."""
    if width < 16 or height < 4:
        return []
    scale = _scale(picture)
    if scale is None:
        return []
    rows = height - 2
    ticks = _ticks(scale, rows)
    margin = max(len(text) for _, text in ticks)
    ends = _end_labels(picture, scale, rows, most=1 if width < 30 else 2 if width < 70 else 4)
    labels = 1 + max(len(row) for row in ends.values()) if ends else 0
    grid = _Grid(width - margin - 1 - labels, rows)
    if grid.width < 8:
        return []
    _draw_attempts(grid, scale, picture)
    for level in picture.levels:
        _draw_level(grid, level, scale, picture)
    for series in picture.series:
        _draw_series(grid, series, scale, picture)
    for level in picture.levels:
        _name_level(grid, level, scale)
    return _rows(grid, picture, ticks, margin, ends) + _axis(picture, grid.width, margin, width)


def visible_levels(levels: Sequence[Level], series: Sequence[Series], *, log: bool) -> list[Level]:
    """Levels near enough to the lines to be drawn without flattening them."""
    values = [y for line in series for _, y in line.points]
    if not values:
        return list(levels)
    low, high = min(values), max(values)
    reach = 30.0 if log else 2.5
    return [level for level in levels if low / reach <= level.y <= high * reach]


def _scale(picture: Picture) -> _Scale | None:
    values = [y for series in picture.series for _, y in series.points]
    values += [level.y for level in picture.levels]
    values = [value for value in values if value > 0 and math.isfinite(value)]
    if not values:
        return None
    low, high = min(values), max(values)
    if low == high:
        low, high = low * 0.9, high * 1.1
    if picture.log:
        pad = (high / low) ** 0.06
        return _Scale(low / pad, high * pad, True)
    pad = (high - low) * 0.06
    return _Scale(max(low - pad, 0.0), high + pad, False)


def _ticks(scale: _Scale, rows: int) -> list[tuple[int, str]]:
    """(row, label) from the top down, at most one per two rows."""
    wanted = max(2, min(5, rows // 2))
    low, high = scale.low, scale.high
    step = nice((high - low) / wanted)
    if scale.log and high / low > 4:
        values = _log_values(low, high)
    else:
        first = math.ceil(low / step)
        values = [index * step for index in range(first, int(high / step) + 1)]
    decimals = max(0, -math.floor(math.log10(step))) if step < 1 else 0
    taken: dict[int, str] = {}
    for value in reversed(values):
        row = round((1 - scale(value)) * (rows - 1))
        if 0 <= row < rows and row not in taken and row - 1 not in taken:
            taken[row] = f"{value:g}" if scale.log and high / low > 4 else f"{value:.{decimals}f}"
    if not taken:
        taken = {0: f"{high:.3g}", rows - 1: f"{low:.3g}"}
    return sorted(taken.items())


def _log_values(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    return [value for value in values if low <= value <= high]


def nice(step: float) -> float:
    """The next of 1, 2, 5 × 10ⁿ."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if step <= factor * power * 1.0001)


def _column(x: float, picture: Picture, columns: int) -> int:
    return max(0, min(columns - 1, int(x / picture.x_max * (columns - 1) + 0.5)))


def _put(grid: _Grid, column: int, fraction: float, char: str, style: str) -> None:
    if 0.0 <= fraction <= 1.0:
        grid.chars[column, round((1 - fraction) * (grid.height - 1))] = (char, style)


def _draw_attempts(grid: _Grid, scale: _Scale, picture: Picture) -> None:
    char, last = "." if picture.ascii else "·", grid.width - 1
    per_x, low, high = last / picture.x_max, scale.low, scale.high
    cell = (char, "faint")
    for x, _, _, latency in picture.attempts:
        if latency is not None and low <= latency <= high:
            row = round((1 - scale(latency)) * (grid.height - 1))
            grid.chars[min(last, int(x * per_x + 0.5)), row] = cell


def _draw_level(grid: _Grid, level: Level, scale: _Scale, picture: Picture) -> None:
    fraction = scale(level.y)
    if not 0.0 <= fraction <= 1.0:
        return
    for column in range(grid.width):
        _put(grid, column, fraction, "." if picture.ascii else "┄", level.style)


def _name_level(grid: _Grid, level: Level, scale: _Scale) -> None:
    """The level's name on its line, at the right end or where no trajectory runs through it."""
    fraction = scale(level.y)
    text = f" {level.label} "
    if not 0.0 <= fraction <= 1.0 or len(text) > grid.width:
        return
    row = round((1 - fraction) * (grid.height - 1))
    last = grid.width - len(text)
    free = (
        start for start in range(last, -1, -1) if not any((start + i, row) in grid.owner for i in range(len(text)))
    )
    start = next(free, last)
    for offset, char in enumerate(text.rstrip() if start == last else text):
        grid.chars[start + offset + (start == last), row] = (char, level.style)


def _draw_series(grid: _Grid, series: Series, scale: _Scale, picture: Picture) -> None:
    if not series.points:
        return
    xs = [x for x, _ in series.points]
    per_cell, levels = (1, grid.height) if picture.ascii else (2, grid.height * 4)
    dots = grid.width * per_cell
    step = picture.x_max / max(1, dots - 1)
    before: int | None = None
    for dot in range(dots):
        x = dot * step
        index = bisect_right(xs, x + step / 2) - 1
        if index < 0 or x > series.end + step / 2:
            continue
        fraction = min(1.0, max(0.0, scale(series.points[index][1])))
        level = round((1 - fraction) * (levels - 1))
        reach = range(min(before, level), max(before, level) + 1) if before is not None else (level,)
        for y in reach:
            if picture.ascii:
                grid.chars[dot, y] = (series.label[:1], series.style)
            else:
                at = (dot // 2, y // 4)
                grid.bits[at] = grid.bits.get(at, 0) | _DOTS[dot % 2][y % 4]
                grid.owner[at] = series.style
                grid.chars.pop(at, None)
        before = level
    if not picture.ascii:
        for x, value in series.points[1:]:
            _put(grid, _column(x, picture, grid.width), scale(value), series.marker, series.style)


Ends = dict[int, list[tuple[str, str]]]
"""Row → the (label, style) of the lines that end there."""


def _end_labels(picture: Picture, scale: _Scale, height: int, *, most: int) -> Ends:
    """Which lines end on which row, at most ``most`` named on one; others move to the nearest row with room."""
    ends: Ends = {}
    lines = sorted((s for s in picture.series if s.points), key=lambda s: (-s.points[-1][1], s.label))
    for series in lines:
        fraction = min(1.0, max(0.0, scale(series.points[-1][1])))
        want = round((1 - fraction) * (height - 1))
        near = sorted(range(height), key=lambda row: (abs(row - want), -row))
        row = next((row for row in near if len(ends.get(row, ())) < most), None)
        if row is not None:
            ends.setdefault(row, []).append((series.label, series.style))
    return ends


def _rows(
    grid: _Grid,
    picture: Picture,
    ticks: list[tuple[int, str]],
    margin: int,
    ends: Ends,
) -> list[Line]:
    named = dict(ticks)
    rows = []
    for y in range(grid.height):
        line = Line().fit(named.get(y, ""), margin, "muted", right=True)
        bar = ("+" if y in named else "|") if picture.ascii else ("┤" if y in named else "│")
        line.add(bar, "faint")
        _add_runs(line, grid.row(y))
        if y in ends:
            line.add(" ")
            for text, style in ends[y]:
                line.add(text, f"bold {style}")
        rows.append(line)
    return rows


def _axis(picture: Picture, columns: int, margin: int, width: int) -> list[Line]:
    """The x axis, carrying the outcome marks, and its labels."""
    rule, corner = ("-", "+") if picture.ascii else ("─", "└")
    cells: list[tuple[str, str]] = [(rule, "faint")] * columns
    ranks = [-1] * columns
    per_x = (columns - 1) / picture.x_max
    for x, _, outcome, _ in picture.attempts:
        column = min(columns - 1, int(x * per_x + 0.5))
        rank = OUTCOME_RANK.get(outcome, 0)
        if rank > ranks[column]:
            letter, _, style = OUTCOMES[outcome]
            ranks[column], cells[column] = rank, (letter, style)
    axis = Line(" " * margin).add(corner, "faint")
    _add_runs(axis, cells)
    text = [" "] * width
    for value in _x_values(picture.x_max, columns, picture.x_least):
        label = picture.x_format(value)
        start = min(width - len(label), max(0, margin + 1 + _column(value, picture, columns) - len(label) // 2))
        if all(char == " " for char in text[max(0, start - 1) : start + len(label) + 1]):
            text[start : start + len(label)] = label
    return [axis, Line("".join(text), "muted")]


def _x_values(x_max: float, columns: int, least: float) -> list[float]:
    step = max(least, nice(x_max / max(2, min(8, columns // 7))))
    return [index * step for index in range(int(x_max / step + 1e-9) + 1)]


def _add_runs(line: Line, cells: list[tuple[str, str]]) -> None:
    """Neighbouring cells of one style as one piece."""
    run, style = "", ""
    for char, cell_style in cells:
        if cell_style != style and run:
            line.add(run, style)
            run = ""
        style = cell_style
        run += char
    line.add(run, style)
