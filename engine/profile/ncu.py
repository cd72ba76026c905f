"""Nsight Compute: which counters are asked for, and what its CSV says. Pure, but for finding the tool."""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from engine.errors import BadInput
from engine.records import KernelFacts

LAUNCHES = 32  # kernels of one call that are profiled, at most

_TIME = "gpu__time_duration.sum"
_SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_REGISTERS = "launch__registers_per_thread"
_SHARED = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")
_LOCAL = ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum")
_DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_L2 = "lts__t_bytes.sum"
METRICS = (_TIME, _SM, _MEMORY, _OCCUPANCY, _REGISTERS, *_SHARED, *_LOCAL, *_DRAM, _L2)

_SECTOR_BYTES = 32
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {
    "s": 1.0, "second": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6, "ns": 1e-9, "nsecond": 1e-9,
}  # fmt: skip
_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute")
_NOT_PERMITTED = "ERR_NVGPUCTRPERM"


def find_ncu() -> str | None:
    """The tool's path, from PATH or where the toolkit and its own package put it."""
    found = shutil.which("ncu")
    if found:
        return found
    toolkit, packages = Path(_PLACES[0]), Path(_PLACES[1])
    if toolkit.is_file():
        return str(toolkit)
    versions = sorted(packages.glob("*/ncu")) if packages.is_dir() else []
    return str(versions[-1]) if versions else None


def words(tool: str) -> list[str]:
    """The command line in front of the program: one call between profiler start and stop, clocks left alone."""
    return [
        *(tool, "--csv", "--page", "raw", "--print-units", "base"),
        *("--profile-from-start", "off", "--target-processes", "application-only"),
        *("--clock-control", "none", "--launch-count", str(LAUNCHES)),
        *("--metrics", ",".join(METRICS)),
    ]


def refusal(said: str) -> str:
    """Why Nsight Compute profiled nothing, in one line; empty if it did not complain."""
    if _NOT_PERMITTED in said:
        return (
            "Nsight Compute may not read the GPU's counters (ERR_NVGPUCTRPERM): the administrator can set the "
            "driver option NVreg_RestrictProfilingToAdminUsers=0"
        )
    errors = [line.partition("==ERROR==")[2].strip() for line in said.splitlines() if "==ERROR==" in line]
    return f"Nsight Compute: {errors[0][:200]}" if errors else ""


class _Launch(NamedTuple):
    """One profiled launch: its plain columns, and (unit, value) texts by metric."""

    row: Mapping[str, str]
    metrics: Mapping[str, tuple[str, str]]
    where: str


def parse_csv(text: str) -> list[KernelFacts]:
    """One record per profiled launch, from ``--csv`` output with other lines around it.

    Both layouts are read: a row per launch after a row of units (``--page raw``), and a row per metric with its
    name, unit and value (older versions). A metric that the device does not have is ``None``. Raises
    :class:`BadInput` that names the row and column.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"') and '"Kernel Name"' in line), None)
    if start is None:
        raise BadInput('no table: a header with "ID" and "Kernel Name" is missing', where="ncu output")
    header, *rest = csv.reader(io.StringIO("\n".join(_table_lines(lines[start:]))))
    for number, row in enumerate(rest, 1):
        if len(row) != len(header):
            what = f"row {number} has {len(row)} columns, the header {len(header)}"
            raise BadInput(what, where="ncu output")
    rows = [dict(zip(header, row, strict=True)) for row in rest]
    launches = _long(rows) if "Metric Name" in header else _wide(rows)
    return [_kernel(launch) for launch in launches]


def _wide(rows: Sequence[Mapping[str, str]]) -> list[_Launch]:
    if not rows or rows[0]["ID"].strip():
        raise BadInput("the row of units after the header is missing", where="ncu output")
    units = rows[0]
    return [
        _Launch(row, {name: (units[name], value) for name, value in row.items()}, f"row {number}")
        for number, row in enumerate(rows[1:], 2)
    ]


def _long(rows: Sequence[Mapping[str, str]]) -> list[_Launch]:
    found: dict[str, tuple[Mapping[str, str], dict[str, tuple[str, str]]]] = {}
    for row in rows:
        _, metrics = found.setdefault(row["ID"], (row, {}))
        metrics[row["Metric Name"]] = (row.get("Metric Unit", ""), row.get("Metric Value", ""))
    return [_Launch(row, metrics, f"launch {identity}") for identity, (row, metrics) in found.items()]


def _table_lines(lines: Sequence[str]) -> list[str]:
    """The quoted rows up to the first line that is none; ncu's own remarks between them are left out."""
    kept = []
    for line in lines:
        if line.startswith('"'):
            kept.append(line)
        elif line.strip() and not line.startswith("=="):
            break
    return kept


def _kernel(launch: _Launch) -> KernelFacts:
    def value(metric: str) -> float | None:
        return _number(launch.metrics.get(metric, ("", ""))[1], f"{launch.where}, {metric}")

    def total(metrics: Sequence[str], factor: Callable[[str, str], float]) -> float | None:
        known = [(metric, found) for metric in metrics if (found := value(metric)) is not None]
        return sum(found * factor(launch.metrics[metric][0], metric) for metric, found in known) if known else None

    registers = value(_REGISTERS)
    return KernelFacts(
        name=launch.row["Kernel Name"],
        duration_us=total([_TIME], _microseconds),
        grid=_extent(launch.row.get("Grid Size", "")),
        block=_extent(launch.row.get("Block Size", "")),
        registers=None if registers is None else round(registers),
        shared_bytes=total(_SHARED, _byte_factor),
        occupancy=_share(value(_OCCUPANCY)),
        sm_share=_share(value(_SM)),
        memory_share=_share(value(_MEMORY)),
        dram_bytes=total(_DRAM, _byte_factor),
        l2_bytes=total([_L2], _byte_factor),
        local_bytes=total(_LOCAL, lambda unit, metric: _SECTOR_BYTES),
    )


def _number(text: str, where: str) -> float | None:
    """A number with thousands separators; ``None`` for what ncu could not collect."""
    plain = text.strip().replace(",", "")
    if not plain or plain.lower() in ("n/a", "nan", "-nan") or plain.startswith("(!)"):
        return None
    try:
        number = float(plain)
    except ValueError:
        raise BadInput(f"{text[:40]!r} is not a number", where=f"ncu output, {where}") from None
    return number if math.isfinite(number) else None


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _microseconds(unit: str, metric: str) -> float:
    try:
        return 1e6 * _SECONDS[unit.strip().lower()]
    except KeyError:
        raise BadInput(f"unknown unit of time {unit[:20]!r}", where=f"ncu output, {metric}") from None


def _byte_factor(unit: str, metric: str) -> float:
    """``byte``, ``Kbyte``, ``Mbyte/block`` … → bytes."""
    match = re.fullmatch(r"([kmgt]?)bytes?(/block)?", unit.strip().lower())
    if match is None:
        raise BadInput(f"unknown unit of size {unit[:20]!r}", where=f"ncu output, {metric}")
    return _PREFIXES[match[1]]


def _extent(text: str) -> list[int]:
    """``(128, 1, 1)`` → [128, 1, 1]; empty if it is something else."""
    return [int(number) for number in re.findall(r"\d{1,10}", text)[:3]]
