"""Best-so-far lines as text: a step plot of a few series, in box-drawing characters or ASCII."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

AXIS_WIDTH = 9


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Steps ``(x, y)``, x ascending; the line runs on at its last y. ``mark`` is one character."""

    label: str
    mark: str
    points: list[tuple[float, float]]


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A horizontal line, for instance the reference or the bound."""

    label: str
    y: float


def step_plot(
    series: Sequence[Series],
    levels: Sequence[Level] = (),
    *,
    width: int = 76,
    height: int = 14,
    unit: str = "",
    x_label: str = "",
    ascii_only: bool = False,
) -> str:
    """The plot with its axes and legend. Values that are not finite are left out; no points, no plot."""
    drawn = [s for s in series if any(math.isfinite(y) for _, y in s.points)]
    if not drawn:
        return "(nothing measured yet)"
    ys = [y for s in drawn for _, y in s.points if math.isfinite(y)] + [level.y for level in levels]
    low, high = min(ys), max(ys)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = low - pad, high + pad
    right = max(max(x for x, _ in s.points) for s in drawn) or 1.0
    columns = width - AXIS_WIDTH - 1
    grid = [[" "] * columns for _ in range(height)]

    def row_of(y: float) -> int:
        return min(height - 1, max(0, round((high - y) / (high - low) * (height - 1))))

    for level in levels:
        grid[row_of(level.y)] = ["." if ascii_only else "┄"] * columns
    for s in drawn:
        _draw(grid, s, row_of, right, "-" if ascii_only else "─", "|" if ascii_only else "│")
    lines = [_axis(i, height, low, high, ascii_only) + "".join(row) for i, row in enumerate(grid)]
    for level in levels:
        index = row_of(level.y)
        lines[index] = lines[index][: width - len(level.label) - 1] + " " + level.label
    ruler = f"0{x_label.center(columns - 1 - len(f'{right:g}'))}{right:g}"
    legend = "   ".join(f"{s.mark} {s.label}" for s in drawn)
    head = [unit] if unit else []
    return "\n".join([*head, *(line.rstrip() for line in lines), " " * (AXIS_WIDTH + 1) + ruler, legend])


def _draw(
    grid: list[list[str]], series: Series, row_of: Callable[[float], int], right: float, flat: str, upright: str
) -> None:
    columns = len(grid[0])
    points = [(x, y) for x, y in series.points if math.isfinite(y)]
    steps = [(min(columns - 1, int(x / right * (columns - 1))), row_of(y)) for x, y in points]
    for i, (column, row) in enumerate(steps):
        end = steps[i + 1][0] if i + 1 < len(steps) else columns
        if i:
            previous = steps[i - 1][1]
            for between in range(min(previous, row) + 1, max(previous, row)):
                grid[between][column] = upright
        for c in range(column, end):
            grid[row][c] = flat
    for column, row in steps:
        grid[row][column] = series.mark


def _axis(index: int, height: int, low: float, high: float, ascii_only: bool) -> str:
    bar = "|" if ascii_only else "┤"
    if index % max(1, (height - 1) // 4) and index != height - 1:
        return " " * AXIS_WIDTH + bar
    value = high - (high - low) * index / (height - 1)
    return f"{value:>{AXIS_WIDTH - 1}.4g} {bar}"
