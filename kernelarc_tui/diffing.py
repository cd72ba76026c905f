"""Two texts as the lines of a diff, unified or side by side. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from kernelarc_tui.paint import Line, fold

CONTEXT = 3
MAX_LINES = 20_000  # difflib is quadratic in the worst case; longer texts are compared line by line


@dataclass(frozen=True)
class Row:
    """``kind``: `` `` the same, ``-`` only left, ``+`` only right, ``~`` replaced, ``@`` lines left out."""

    kind: str
    left: int | None = None  # 0-based line numbers
    right: int | None = None
    skipped: int = 0


def rows(old: Sequence[str], new: Sequence[str], context: int | None = CONTEXT) -> list[Row]:
    """Aligned rows; unchanged stretches beyond ``context`` lines become one ``@`` row (``None``: keep all)."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=len(old) + len(new) > 4000)
    found: list[Row] = []
    codes = matcher.get_opcodes()
    for position, (tag, a0, a1, b0, b1) in enumerate(codes):
        if tag == "equal":
            found += _equal(a0, a1, b0, context, first=position == 0, last=position == len(codes) - 1)
            continue
        pairs = max(a1 - a0, b1 - b0)
        for index in range(pairs):
            left = a0 + index if a0 + index < a1 else None
            right = b0 + index if b0 + index < b1 else None
            kind = "~" if left is not None and right is not None else "-" if right is None else "+"
            found.append(Row(kind, left, right))
    return found


def _equal(a0: int, a1: int, b0: int, context: int | None, *, first: bool, last: bool) -> list[Row]:
    size = a1 - a0
    same = [Row(" ", a0 + index, b0 + index) for index in range(size)]
    if context is None:
        return same
    head, tail = (0 if first else context), (0 if last else context)
    if size <= head + tail + 1:
        return same
    return [*same[:head], Row("@", skipped=size - head - tail), *same[size - tail :]]


def changes(found: Sequence[Row]) -> tuple[int, int]:
    """(added, removed) lines."""
    added = sum(1 for row in found if row.kind in "+~")
    return added, sum(1 for row in found if row.kind in "-~")


def unified(found: Sequence[Row], old: Sequence[Line], new: Sequence[Line]) -> list[Line]:
    """Removed lines of a block first, then the added ones, with both line numbers."""
    lines: list[Line] = []
    pending: list[Row] = []
    for row in (*found, Row("@")):
        if row.kind in "-+~":
            pending.append(row)
            continue
        lines += [_unified("-", r.left, None, old) for r in pending if r.left is not None]
        lines += [_unified("+", None, r.right, new) for r in pending if r.right is not None]
        pending = []
        if row.kind == "@":
            if row.skipped:
                lines.append(_gap(row.skipped))
        elif row.left is not None and row.right is not None:
            lines.append(_unified(" ", row.left, row.right, new))
    return lines


def split(found: Sequence[Row], old: Sequence[Line], new: Sequence[Line], width: int) -> list[Line]:
    """Side by side in ``width`` cells; long lines are folded within their half."""
    half = max(12, (width - 3) // 2)
    lines = []
    for row in found:
        if row.kind == "@":
            lines.append(_gap(row.skipped))
            continue
        left = _half(row.left, old, half, "-" if row.kind in "-~" else " ")
        right = _half(row.right, new, half, "+" if row.kind in "+~" else " ")
        for index in range(max(len(left), len(right))):
            line = Line().extend(left[index] if index < len(left) else Line(" " * half))
            lines.append(line.add(" │ ", "faint").extend(right[index] if index < len(right) else Line()))
    return lines


def _gap(skipped: int) -> Line:
    return Line(f"      ⋯ {skipped} line{'s' if skipped != 1 else ''} the same", "faint")


def _unified(sign: str, left: int | None, right: int | None, texts: Sequence[Line]) -> Line:
    index = right if right is not None else left
    line = Line(base={"-": "on diff-removed", "+": "on diff-added"}.get(sign, ""))
    line.fit("" if left is None else str(left + 1), 4, "faint", right=True)
    line.fit("" if right is None else str(right + 1), 5, "faint", right=True)
    line.add(f" {sign} ", {"-": "bold verdict-reject", "+": "bold verdict-keep"}.get(sign, ""))
    return line.extend(texts[index]) if index is not None else line


def _half(index: int | None, texts: Sequence[Line], width: int, sign: str) -> list[Line]:
    """One side of one row: its number, its sign, its text folded into ``width`` cells."""
    if index is None:
        return [Line(" " * width)]
    back = {"-": " on diff-removed", "+": " on diff-added"}.get(sign, "")
    rows = []
    for position, part in enumerate(fold(texts[index], width - 7)):
        first = position == 0
        line = Line().fit(str(index + 1) if first else "", 4, f"faint{back}", right=True)
        line.add(
            f" {sign if first else ' '} ",
            ({"-": "bold verdict-reject", "+": "bold verdict-keep"}.get(sign, "") + back).strip(),
        )
        for text, style in part.pieces:
            line.add(text, (style + back).strip())
        rows.append(line.add(" " * max(0, width - line.width), back.strip()))
    return rows
