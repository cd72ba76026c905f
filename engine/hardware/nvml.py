"""NVML through nvidia-ml-py, one reading at a time. Imported lazily; every function may block in the driver.

Nothing here has a deadline of its own: telemetry and doctor call it from a daemon thread that they can leave
behind, because a wedged driver never returns.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from engine.records import Sample, SampleProcess

T = TypeVar("T")
GONE = "device gone"
ANSWER_S = 5.0
PROCESSES_SHOWN = 16

# nvmlClocksEventReasons, nvml.h; an idle device or clocks that somebody set are no throttling.
_THROTTLE = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


class NvmlUnavailable(Exception):
    """NVML cannot be used at all; the text says why."""


class Nvml:
    """An initialised NVML. Raises :class:`NvmlUnavailable` when there is none."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NvmlUnavailable("nvidia-ml-py is not installed") from error
        self._lib: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlUnavailable(str(error)) from error

    def driver(self) -> str:
        try:
            return str(self._lib.nvmlSystemGetDriverVersion())
        except self._lib.NVMLError as error:
            raise NvmlUnavailable(str(error)) from error

    def uuids(self) -> list[str]:
        """Of all GPUs of the box that this user may see, in PCI order."""
        lib = self._lib
        try:
            handles = [lib.nvmlDeviceGetHandleByIndex(index) for index in range(lib.nvmlDeviceGetCount())]
            return [str(lib.nvmlDeviceGetUUID(handle)) for handle in handles]
        except lib.NVMLError as error:
            raise NvmlUnavailable(str(error)) from error

    def sample(self, uuid: str, at: float) -> Sample:
        """One reading. A value that this device, driver or user cannot have is ``None`` with its reason."""
        lib = self._lib
        try:
            handle = lib.nvmlDeviceGetHandleByUUID(uuid)
        except lib.NVMLError as error:
            return Sample(at=at, device=uuid, reason=f"{GONE}: {error}")
        board = self._board(handle)
        missing: dict[str, str] = {}

        def read(what: str, get: Callable[[], T]) -> T | None:
            try:
                return get()
            except lib.NVMLError as error:
                missing.setdefault(str(error).lower(), what)
                return None

        memory = read("memory", lambda: lib.nvmlDeviceGetMemoryInfo(handle))
        rates = read("utilization", lambda: lib.nvmlDeviceGetUtilizationRates(handle))
        power = read("power", lambda: lib.nvmlDeviceGetPowerUsage(board))
        limit = read("power limit", lambda: lib.nvmlDeviceGetEnforcedPowerLimit(board))
        heat = read("temperature", lambda: lib.nvmlDeviceGetTemperature(board, lib.NVML_TEMPERATURE_GPU))
        mask = read("throttling", lambda: self._throttle_mask(board))
        sm_clock = read("clocks", lambda: lib.nvmlDeviceGetClockInfo(board, lib.NVML_CLOCK_SM))
        memory_clock = read("clocks", lambda: lib.nvmlDeviceGetClockInfo(board, lib.NVML_CLOCK_MEM))
        processes = read("processes", lambda: lib.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        return Sample(
            at=at,
            device=uuid,
            name=str(read("name", lambda: lib.nvmlDeviceGetName(handle)) or ""),
            index=read("index", lambda: int(lib.nvmlDeviceGetIndex(board))),
            utilization=rates.gpu / 100 if rates is not None else None,
            memory_used_bytes=int(memory.used) if memory is not None else None,
            memory_total_bytes=int(memory.total) if memory is not None else None,
            power_w=power / 1000 if power is not None else None,
            power_limit_w=limit / 1000 if limit is not None else None,
            temperature_c=float(heat) if heat is not None else None,
            sm_clock_mhz=float(sm_clock) if sm_clock is not None else None,
            memory_clock_mhz=float(memory_clock) if memory_clock is not None else None,
            throttle=throttle_reasons(mask or 0),
            processes=[_process(process) for process in processes[:PROCESSES_SHOWN]],
            reason="; ".join(f"{what}: {why}" for why, what in missing.items()),
        )

    def clock(self, uuid: str) -> tuple[float, list[str]]:
        """(SM clock in MHz, what holds it down). Raises :class:`NvmlUnavailable` where it cannot be read."""
        lib = self._lib
        try:
            board = self._board(lib.nvmlDeviceGetHandleByUUID(uuid))
            mhz = float(lib.nvmlDeviceGetClockInfo(board, lib.NVML_CLOCK_SM))
            return mhz, throttle_reasons(self._throttle_mask(board))
        except lib.NVMLError as error:
            raise NvmlUnavailable(str(error)) from error

    def _board(self, handle: Any) -> Any:
        """The GPU that a MIG instance is part of: power, heat and clocks belong to the whole board."""
        try:
            if self._lib.nvmlDeviceIsMigDeviceHandle(handle):
                return self._lib.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        except self._lib.NVMLError:
            pass
        return handle

    def _throttle_mask(self, board: Any) -> int:
        get = getattr(self._lib, "nvmlDeviceGetCurrentClocksEventReasons", None)
        try:
            if get is not None:
                return int(get(board))
        except self._lib.NVMLError_FunctionNotFound:
            pass  # an older driver knows the old name only
        return int(self._lib.nvmlDeviceGetCurrentClocksThrottleReasons(board))


def throttle_reasons(mask: int) -> list[str]:
    """Why the clocks are held down, from NVML's bit mask; empty when they are not."""
    return [text for bit, text in _THROTTLE.items() if mask & bit]


def within(call: Callable[[], T], timeout_s: float = ANSWER_S) -> T | None:
    """``call`` in a daemon thread; ``None`` if it raised :class:`NvmlUnavailable` or never returned."""
    answers: list[T] = []

    def run() -> None:
        try:
            answers.append(call())
        except NvmlUnavailable:
            pass

    thread = threading.Thread(target=run, name="nvml", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answers[0] if answers else None


@functools.cache
def driver_version() -> str | None:
    return within(lambda: Nvml().driver())


def _process(process: Any) -> SampleProcess:
    used = process.usedGpuMemory
    return SampleProcess(
        pid=int(process.pid), name=_command(int(process.pid)), memory_bytes=int(used) if used else None
    )


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
