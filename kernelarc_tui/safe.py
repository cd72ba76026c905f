"""The last border before the screen: text that a model, candidate or problem file wrote, made one harmless line.

The engine cleans what it stores; sources, prompts and replies are stored as they came and are cleaned here.
"""

from __future__ import annotations

import unicodedata

_TAB = "    "
# Zero-width and variation characters change a glyph's width in some terminals and not in others.
_DROPPED = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_MAX_MARKS = 1  # combining marks in a row; more would climb into the lines above


def one_line(text: str, limit: int = 400) -> str:
    """``text`` as one printable line of at most ``limit`` characters; line ends become `` / ``."""
    head = text[: limit * 2 + 64]
    cut = len(text) > len(head)
    if not (head.isascii() and head.isprintable()):
        joined = " / ".join(part for part in head.splitlines() if part.strip())
        head = _printable(joined.replace("\t", " "))
    head = head.strip()
    if len(head) > limit:
        head, cut = head[:limit], True
    return f"{head.rstrip()}…" if cut else head


def source_lines(text: str, limit: int = 2000, max_lines: int = 20_000) -> list[str]:
    """``text`` as printable lines for a source or reply view: tabs expanded, over-long lines cut."""
    lines = text.split("\n", max_lines)
    more = len(lines) > max_lines
    shown = [_source_line(line, limit) for line in lines[:max_lines]]
    if shown and not shown[-1]:
        shown.pop()
    if more:
        shown.append("… more lines are not shown; export the candidate to see them all")
    return shown


def _source_line(line: str, limit: int) -> str:
    cut = len(line) > limit
    head = line[:limit].rstrip("\r")
    if "\t" in head:
        head = head.expandtabs(len(_TAB))
    if not (head.isascii() and head.isprintable()):
        head = _printable(head)
    return f"{head} … {len(line) - limit} more characters" if cut else head


def _printable(text: str) -> str:
    """Control, format and bidirectional characters dropped, stacked combining marks thinned out."""
    kept: list[str] = []
    marks = 0
    for char in unicodedata.normalize("NFC", text):
        category = unicodedata.category(char)
        if category in _DROPPED or "\ufe00" <= char <= "\ufe0f":
            continue
        if category in ("Mn", "Me", "Mc"):
            marks += 1
            if marks > _MAX_MARKS or not kept:
                continue
        else:
            marks = 0
        kept.append(" " if category == "Zs" else char)
    return "".join(kept)
