"""Measured ceilings: what this very device reaches in a plain copy and in library products.

A datasheet's peak bounds what is possible; a ceiling says what the best library calls get here and now (clocks,
power, memory generation). It is no bound: a kernel may beat it, and it is always labelled as measured. Measured
once per device, driver and torch (:func:`engine.bench.ceilings.measure_ceilings`), then kept in the cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.decoding import decode_json
from engine.errors import BadInput
from engine.hardware.peaks import Peaks, find_peaks
from engine.hardware.roofline import workload_bound
from engine.paths import cache_dir
from engine.problems.model import Problem
from engine.records import DeviceFacts

if TYPE_CHECKING:
    from engine.tracing.graph import TraceGraph

VERSION = 1  # of how it is measured: part of the cache key


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of one device. ``copy_gb_s`` counts both directions; matrices by operand type, ``tf32`` apart.

    On the CPU they are those of the one core that timed candidates get; ``all_cores`` has both for all of them.
    """

    device: str  # the name
    uuid: str
    driver: str
    torch: str
    copy_gb_s: float
    matrix_tflop_s: dict[str, float]
    all_cores: dict[str, float] = {}  # "copy" in GB/s, "float32" in TFLOP/s
    notes: list[str] = []
    at: float = 0.0  # Unix seconds


def kept_ceilings(facts: DeviceFacts) -> Ceilings | None:
    """The ceilings of this device as they were measured before, or ``None``. Measures nothing."""
    try:
        file = _file(facts)
        return decode_json(file.read_bytes(), where=str(file), kind=Ceilings)  # type: ignore[no-any-return]
    except (OSError, BadInput):
        return None


def peaks_of(ceilings: Ceilings) -> Peaks:
    """The measured rates in the place of a datasheet's: what is not measured keeps the datasheet's figure."""
    datasheet = find_peaks(ceilings.device)
    matrices = dict(ceilings.matrix_tflop_s)
    single = matrices.pop("float32", 0.0)
    vector = dict(datasheet.vector) if datasheet is not None else {"float32": single}
    return Peaks(
        name=ceilings.device,
        source="measured",
        memory_gb_s=ceilings.copy_gb_s,
        l2_mib=datasheet.l2_mib if datasheet is not None else 0.0,
        tensor=matrices,
        vector=vector,
        launch_floor_us=datasheet.launch_floor_us if datasheet is not None else 0.0,
    )


def ceiling_ms(problem: Problem, graphs: Mapping[str, TraceGraph], ceilings: Ceilings) -> dict[str, float]:
    """By workload uuid: how long a library copy or product of the same size takes here, whichever is longer."""
    peaks = peaks_of(ceilings)
    found = {
        workload.uuid: workload_bound(workload, graphs[workload.uuid], peaks).bound_ms
        for workload in problem.workloads
        if workload.uuid in graphs
    }
    return {uuid: ms for uuid, ms in found.items() if ms > 0}


def _file(facts: DeviceFacts) -> Path:
    identity = [VERSION, facts.uuid, facts.name, facts.driver, facts.cores, facts.versions.get("torch", "")]
    return cache_dir() / "ceilings" / f"{hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:32]}.json"


def keep_ceilings(facts: DeviceFacts, ceilings: Ceilings) -> None:
    """Best effort: a cache that cannot be written only costs time."""
    file = _file(facts)
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.json.encode(ceilings))
        partial.replace(file)
