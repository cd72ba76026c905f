"""Parameters as a proposer or a recording names them: untrusted until they are plain values. Pure."""

from __future__ import annotations

from typing import Any

from engine.text import one_line

MAX_PARAMETERS = 32
MAX_NAME, MAX_TEXT = 40, 80
LARGEST = 2**53
"""Beyond it a JSON reader may see another number, and Python refuses to print the longest ones."""


def plain_parameters(value: Any) -> dict[str, Any]:
    """A flat mapping of names to bools, texts and finite numbers up to ±2**53; anything else is left out."""
    if not isinstance(value, dict):
        return {}
    plain: dict[str, Any] = {}
    for key, item in value.items():
        name = one_line(words_of(key), MAX_NAME)
        if name and is_plain(item) and len(plain) < MAX_PARAMETERS:
            plain[name] = one_line(item, MAX_TEXT) if isinstance(item, str) else item
    return plain


def is_plain(value: Any) -> bool:
    """Whether every later reader (JSON, the store, a prompt) can hold and print ``value``."""
    return isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= LARGEST)


def words_of(value: Any) -> str:
    """A plain value as text; empty for anything else."""
    return str(value) if is_plain(value) else ""
