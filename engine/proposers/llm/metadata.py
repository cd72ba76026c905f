"""What a reply says about itself: a small YAML or JSON block. Untrusted, bounded, never a reason to refuse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.proposers.llm.fences import Block
from engine.text import clean, one_line

MAX_BLOCK = 8000
MAX_PARAMETERS = 32
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
        parameters=_parameters(values.get("parameters")),
    )


def _known(mapping: dict[Any, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        name = _NAMES.get(str(key).strip().lower().replace(" ", "_").replace("-", "_"))
        if name and value not in (None, "") and name not in values:
            values[name] = value
    return values


def _mapping(text: str) -> dict[Any, Any]:
    import yaml

    try:
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
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
    if isinstance(value, list):
        return "; ".join(_words(item) for item in value[:8])
    return str(value) if isinstance(value, str | int | float | bool) else ""


def _parameters(value: Any) -> dict[str, Any]:
    """A flat mapping of names to plain values; anything else is left out."""
    if not isinstance(value, dict):
        return {}
    plain: dict[str, Any] = {}
    for key, item in list(value.items())[:MAX_PARAMETERS]:
        if isinstance(item, bool | int | float):
            plain[one_line(str(key), 40)] = item
        elif isinstance(item, str):
            plain[one_line(str(key), 40)] = one_line(item, 80)
    return plain
