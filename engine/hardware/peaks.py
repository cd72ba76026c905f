"""Datasheet peaks per GPU (``peaks.yaml``), found by the card's name. Unknown says unknown."""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path

import msgspec

from engine.errors import BadInput

_FILE = Path(__file__).with_name("peaks.yaml")
# A partition of a card has a share of its units that the name does not tell.
_PARTITION = "mig"


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """Dense peaks of one device. Rates in TFLOP/s by type (``tf32`` is float32 on the matrix unit)."""

    name: str
    source: str
    memory_gb_s: float
    l2_mib: float
    tensor: dict[str, float]
    vector: dict[str, float]
    launch_floor_us: float


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    match: list[str]
    source: str
    memory_gb_s: float
    l2_mib: float
    tensor: dict[str, float]
    vector: dict[str, float]
    launch_floor_us: float | None = None


class _Defaults(msgspec.Struct, frozen=True):
    launch_floor_us: float


class _Table(msgspec.Struct, frozen=True):
    defaults: _Defaults
    gpus: dict[str, _Entry]


@cache
def _table() -> _Table:
    return msgspec.yaml.decode(_FILE.read_bytes(), type=_Table)


def known_gpus() -> list[str]:
    return list(_table().gpus)


def find_peaks(name: str) -> Peaks | None:
    """Peaks of a card by its short or its driver's name (``H200``, ``NVIDIA H100 80GB HBM3``), or ``None``.

    A MIG partition is unknown: its name does not say which share of the units it has.
    """
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    if _PARTITION in words:
        return None
    table = _table()
    fitting = [(len(entry.match), key) for key, entry in table.gpus.items() if words.issuperset(entry.match)]
    if not fitting:
        return None
    key = max(fitting)[1]
    entry = table.gpus[key]
    return Peaks(
        name=key,
        source=entry.source,
        memory_gb_s=entry.memory_gb_s,
        l2_mib=entry.l2_mib,
        tensor=entry.tensor,
        vector=entry.vector,
        launch_floor_us=entry.launch_floor_us or table.defaults.launch_floor_us,
    )


def require_peaks(name: str) -> Peaks:
    """:func:`find_peaks`, or :class:`BadInput` with the nearest known names."""
    peaks = find_peaks(name)
    if peaks is not None:
        return peaks
    close = difflib.get_close_matches(name, known_gpus(), n=3, cutoff=0.5)
    fix = f"did you mean {', '.join(close)}?" if close else f"known are {', '.join(known_gpus())}"
    raise BadInput(f"the peak rates of GPU {name!r} are unknown", fix=fix)
