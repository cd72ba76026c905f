"""Measuring a device's ceilings: a trusted process of its own, while nobody else uses the device."""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec

from engine.bench.device_lock import DeviceLock
from engine.bench.machine import Cores
from engine.bench.sandbox import environment
from engine.bench.tool import run_tool
from engine.errors import Fault
from engine.hardware.ceilings import Ceilings, keep_ceilings
from engine.hardware.facts import device_facts

DEADLINE_S = 120.0
_ANSWER_LIMIT = 1 << 16


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe prints."""

    copy_gb_s: float
    matrix_tflop_s: dict[str, float]
    all_cores: dict[str, float] = {}
    notes: list[str] = []


async def measure_ceilings(device: str) -> Ceilings:
    """Measure ``device`` (``cpu``, ``cuda:0``) with its lock held, and keep the result.

    Raises:
        BadInput: there is no such device.
        Fault: ``needs.cuda``, or the probe failed or took too long.
    """
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
    keep_ceilings(facts, found)
    return found


async def _probe(device: str) -> bytes:
    cores = Cores.of_this_process()
    threads = len({*cores.timing, *cores.work})
    argv = [sys.executable, "-P", "-m", "engine.hardware.ceilings_probe", device, *map(str, cores.timing)]
    try:
        code, answer, said = await run_tool(argv, environment(device, threads), DEADLINE_S)
    except TimeoutError:
        raise Fault("fault.ceilings", f"measuring did not end within {DEADLINE_S:.0f} s") from None
    if code != 0 or len(answer) > _ANSWER_LIMIT:
        words = said.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {code}"]
        raise Fault("fault.ceilings", f"measuring failed: {words[0][:300]}")
    return answer
