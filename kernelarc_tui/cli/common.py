"""What several verbs share: JSON output, options, tables."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from engine.text import cut, one_line

CELL_LIMIT = 300
WIDE = 160  # columns of a list with descriptions that goes to a file or a pipe
LEAST = 24  # columns that a last column is given before others are left out
F = TypeVar("F", bound=Callable[..., Any])

json_option: Callable[[F], F] = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout."
)


def emit_json(value: object) -> None:
    """One JSON document on standard output and nothing else there. NaN and infinity become ``null``.

    In ASCII, so that it is the same document whatever the terminal's encoding or a file's name.
    """
    plain = msgspec.to_builtins(value)
    click.echo(json.dumps(_finite(plain), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and value not in (float("inf"), float("-inf")) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[int] = (),
    spare: Sequence[int] = (),
    width: int | None = None,
) -> str:
    """Plain aligned columns, one line a row; ``right`` names the right-aligned ones.

    Where ``width`` columns (see :func:`terminal_width`) are too few, the last column is cut, and if that does not
    leave it ``LEAST``, the ``spare`` ones are left out, in that order.
    """
    cells = [[one_line(str(cell), CELL_LIMIT) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    shown = list(range(len(head)))
    for column in spare:
        others = sum(widths[i] + 2 for i in shown[:-1])
        if width is not None and others + min(LEAST, widths[shown[-1]]) > width:
            shown.remove(column)
    if width is not None and spare:
        last = shown[-1]
        widths[last] = max(1, min(widths[last], width - sum(widths[i] + 2 for i in shown[:-1])))
    lines = []
    for row in cells:
        parts = [row[i].rjust(widths[i]) if i in right else cut(row[i], widths[i]).ljust(widths[i]) for i in shown]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; ``None`` for a pipe or a file, which take any width."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def no_screen() -> str:
    """Why the screen cannot be opened here; empty if it can."""
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        return "standard input or output is not a terminal"
    return "TERM is dumb" if os.environ.get("TERM") == "dumb" else ""


def say_no_screen(instead: str) -> None:
    """One line on standard error, where the screen was asked for and cannot be."""
    if why := no_screen():
        click.echo(f"kernelarc: no screen here ({why}); {instead}", err=True)


def ms(value: float | None) -> str:
    """A latency in four significant digits, or a dash."""
    return "–" if value is None else f"{value:.4g} ms"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


IDENTITY = click.IntRange(0, 2**53)
"""A candidate's number or a memory entry's id: what the database and JSON can hold."""


def campaign_argument(command: F) -> F:
    return click.argument("campaign", required=False, default=None)(command)


def resolve(campaign: str | None) -> Path:
    """A campaign's folder by name or path; the newest without one. Raises ``BadInput``."""
    from engine.store.campaigns import resolve_campaign

    return resolve_campaign(campaign)


class Positive(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A finite number above zero (``nan`` and ``inf`` are numbers to Python)."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            self.fail(f"{value!r} is not a number above 0", param, ctx)
        return number


class CountOrAll(click.ParamType):  # type: ignore[type-arg]
    """``16`` or ``all`` (``None`` in the configuration)."""

    name = "N|all"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if isinstance(value, int):
            return value
        if value == "all":
            return "all"
        if isinstance(value, str) and re.fullmatch(r"\d{1,6}", value):
            return int(value)
        self.fail(f"{value!r} is neither a number nor 'all'", param, ctx)
