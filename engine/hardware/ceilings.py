"""Measured ceilings: what this very device reaches in a plain copy and in library products.

A datasheet's peak bounds what is possible; a ceiling says what the best library calls get here and now (clocks,
power, memory generation). It is no bound: a kernel may beat it, and it is always labelled as measured. Measured
once per device, driver and torch by a trusted process that holds the device's lock, then kept in the cache folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.errors import Fault
from engine.hardware.facts import device_facts
from engine.hardware.peaks import Peaks, find_peaks
from engine.hardware.roofline import workload_bound
from engine.paths import cache_dir
from engine.problems.model import Problem
from engine.records import DeviceFacts

if TYPE_CHECKING:
    from engine.tracing.graph import TraceGraph

VERSION = 1  # of how it is measured: part of the cache key
DEADLINE_S = 120.0
_ANSWER_LIMIT = 1 << 16


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe prints."""

    copy_gb_s: float
    matrix_tflop_s: dict[str, float]
    all_cores: dict[str, float] = {}
    notes: list[str] = []


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
        return msgspec.json.decode(_file(facts).read_bytes(), type=Ceilings)
    except (OSError, msgspec.MsgspecError):
        return None


async def measure_ceilings(device: str) -> Ceilings:
    """Measure ``device`` (``cpu``, ``cuda:0``) while nobody else uses it, and keep the result.

    Raises:
        BadInput: there is no such device.
        Fault: ``needs.cuda``, or the probe failed or took too long.
    """
    from engine.bench.device_lock import DeviceLock

    facts = await asyncio.to_thread(device_facts, device)
    async with DeviceLock(facts.uuid or device).held():
        answer = await _probe("cpu" if facts.kind == "cpu" else f"cuda:{facts.index or 0}")
    try:
        measured = msgspec.json.decode(answer, type=_Measured)
    except msgspec.MsgspecError:
        raise Fault("fault.ceilings", "the measuring process gave no readable answer") from None
    found = Ceilings(
        device=facts.name,
        uuid=facts.uuid,
        driver=facts.driver,
        torch=facts.versions.get("torch", ""),
        copy_gb_s=measured.copy_gb_s,
        matrix_tflop_s=measured.matrix_tflop_s,
        all_cores=measured.all_cores,
        notes=measured.notes,
        at=time.time(),
    )
    _keep(facts, found)
    return found


async def _probe(device: str) -> bytes:
    from engine.bench.machine import Cores
    from engine.bench.sandbox import environment

    cores = Cores.of_this_process()
    threads = len({*cores.timing, *cores.work})
    argv = [sys.executable, "-P", "-m", "engine.hardware.ceilings_probe", device, *map(str, cores.timing)]
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(device, threads),
        cwd="/",
        start_new_session=True,
    )
    try:
        answer, said = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    except TimeoutError:
        raise Fault("fault.ceilings", f"measuring did not end within {DEADLINE_S:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0 or len(answer) > _ANSWER_LIMIT:
        words = said.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise Fault("fault.ceilings", f"measuring failed: {words[0][:300]}")
    return answer


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


def _keep(facts: DeviceFacts, ceilings: Ceilings) -> None:
    """Best effort: a cache that cannot be written only costs time."""
    file = _file(facts)
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.json.encode(ceilings))
        partial.replace(file)
