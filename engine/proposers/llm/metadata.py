"""What a reply says about itself: a small YAML or JSON block. Untrusted, bounded, never a reason to refuse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.proposers.llm.fences import Block
from engine.proposers.parameters import plain_parameters, words_of
from engine.text import clean, one_line

MAX_BLOCK = 8000
MAX_ITEMS = 8
"""Of a list where words were expected."""
_LINE = re.compile(r"^([A-Za-z][A-Za-z _-]{1,30}):\s?(.*)$")
_NAMES = {
    "hypothesis": "hypothesis",
    "predicted_change": "predicted_change",
    "prediction": "predicted_change",
    "predicted": "predicted_change",
    "strategy": "strategy",
    "reflection": "reflection",
    "family": "family",
    "parameters": "parameters",
    "tunables": "parameters",
}


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """Empty where the reply says nothing. ``strategy`` ≤ 160 and ``reflection`` ≤ 1,200 characters."""

    hypothesis: str = ""
    predicted_change: str = ""
    strategy: str = ""
    reflection: str = ""
    family: str = ""
    parameters: dict[str, Any] = {}


def metadata_of(found: Sequence[Block]) -> Metadata:
    """The first metadata block (YAML or JSON, or ``key: value`` lines that are neither) with a known key."""
    for block in found:
        if block.language != "metadata" or block.path:
            continue
        values = _known(_mapping(block.text[:MAX_BLOCK]))
        if values:
            return _metadata(values)
    return Metadata()


def _metadata(values: dict[str, Any]) -> Metadata:
    return Metadata(
        hypothesis=clean(_words(values.get("hypothesis")), 600),
        predicted_change=clean(_words(values.get("predicted_change")), 300),
        strategy=one_line(_words(values.get("strategy")), 160),
        reflection=clean(_words(values.get("reflection")), 1200),
        family=one_line(_words(values.get("family")), 80),
        parameters=plain_parameters(values.get("parameters")),
    )


def _known(mapping: dict[Any, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        name = _NAMES.get(words_of(key).strip().lower().replace(" ", "_").replace("-", "_"))
        if name and value not in (None, "") and name not in values:
            values[name] = value
    return values


def _mapping(text: str) -> dict[Any, Any]:
    import yaml

    # A tag on a value that does not fit it, or a number of many parts, raises what Python's own conversion raises.
    wrong = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
    try:
        loaded = yaml.safe_load(text)
    except wrong:
        return _lines(text)
    return loaded if isinstance(loaded, dict) else {}


def _lines(text: str) -> dict[Any, Any]:
    """``key: value`` lines with continuation lines: models often write a colon that YAML does not like."""
    values: dict[Any, Any] = {}
    key = ""
    for line in text.splitlines():
        found = _LINE.match(line)
        if found:
            key = found[1] if _known({found[1]: "x"}) else ""
            if key:
                values[key] = found[2].strip(" |>")
        elif key and line.strip():
            values[key] = f"{values[key]} {line.strip()}".strip()
    return values


def _words(value: Any) -> str:
    """A text, or a list of texts; what lies deeper is left out: anchors make it endless."""
    if isinstance(value, list):
        return "; ".join(words_of(item) for item in value[:MAX_ITEMS])
    return words_of(value)
