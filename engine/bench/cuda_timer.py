"""Clocks for calls on a GPU, used inside the candidate's process (imports torch).

CUPTI where its library is found: from the first to the last activity of the call over all streams. CUDA
events otherwise: between two events on the harness's stream, extended to the end of a device-wide synchronisation
where other streams were still busy. One process uses one of them for its whole life.
"""

from __future__ import annotations

import ctypes
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

from engine.bench.cupti import Activities

_LATE_NS = 20_000  # device still busy this long after the end event: the work was on another stream


class Clock(Protocol):
    """``before``/``after`` stand right around a call; ``claims`` gives nanoseconds per call of the block."""

    name: str

    def start_block(self, calls: int) -> None: ...
    def before(self, index: int) -> None: ...
    def after(self, index: int) -> None: ...
    def claims(self) -> list[int]: ...


class HostClock:
    """For a device without a clock of its own."""

    name = "wall"

    def __init__(self) -> None:
        self._now = time.perf_counter_ns
        self._marks: list[list[int]] = []

    def start_block(self, calls: int) -> None:
        self._marks = [[0, 0] for _ in range(calls)]

    def before(self, index: int) -> None:
        self._marks[index][0] = self._now()

    def after(self, index: int) -> None:
        self._marks[index][1] = self._now()

    def claims(self) -> list[int]:
        return [end - begin for begin, end in self._marks]


class EventClock:
    name = "cuda-event"

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._now = time.perf_counter_ns
        self._synchronize: Callable[[], None] = lambda: _device_synchronize(device)
        self._event = torch.cuda.Event
        self._elapsed = torch.cuda.Event.elapsed_time
        self._record = torch.cuda.Event.record
        self._wait = torch.cuda.Event.synchronize
        self._pairs: list[tuple[Any, Any]] = []
        self._host: list[int] = []
        self._begin = 0

    def start_block(self, calls: int) -> None:
        make = self._event
        self._pairs = [(make(enable_timing=True), make(enable_timing=True)) for _ in range(calls)]
        self._host = [0] * calls

    def before(self, index: int) -> None:
        self._synchronize()
        self._begin = self._now()
        self._record(self._pairs[index][0], self._stream)

    def after(self, index: int) -> None:
        end = self._pairs[index][1]
        self._record(end, self._stream)
        self._wait(end)
        ended = self._now()
        self._synchronize()
        finished = self._now()
        if finished - ended > _LATE_NS:
            self._host[index] = finished - self._begin

    def claims(self) -> list[int]:
        spans = [int(self._elapsed(begin, end) * 1e6) for begin, end in self._pairs]
        return [max(span, host) for span, host in zip(spans, self._host, strict=True)]


class CuptiClock:
    name = "cupti"

    def __init__(self, device: torch.device) -> None:
        activities = Activities()
        self._now, self._flush, self._records = activities.now, activities.flush, activities.records
        self._synchronize: Callable[[], None] = lambda: _device_synchronize(device)
        self._marks: list[list[int]] = []

    def start_block(self, calls: int) -> None:
        self._synchronize()
        self._flush()
        self._records.clear()
        self._marks = [[0, 0] for _ in range(calls)]

    def before(self, index: int) -> None:
        self._synchronize()
        self._marks[index][0] = self._now()

    def after(self, index: int) -> None:
        self._synchronize()
        self._marks[index][1] = self._now()

    def claims(self) -> list[int]:
        self._flush()
        records = sorted(self._records)
        starts = [first for first, _ in records]
        spans = []
        for begin, end in self._marks:
            inside = records[bisect_left(starts, begin) : bisect_right(starts, end)]
            if inside:
                spans.append(max(last for _, last in inside) - inside[0][0])
            else:
                spans.append(end - begin)  # nothing ran on the device: the call is host time
        return spans


def pin(address: int, size: int) -> None:
    """Page-locks shared memory that a device copies to or from: 50 GB/s instead of 6. A refusal costs speed."""
    with suppress(RuntimeError):
        torch.cuda.cudart().cudaHostRegister(address, size, 0)


def _device_synchronize(device: torch.device) -> None:
    torch._C._cuda_synchronize()


def open_clock(device: torch.device) -> Clock:
    """CUPTI if it is there and starts, else CUDA events; the caller reports which."""
    if device.type != "cuda":
        return HostClock()
    try:
        return CuptiClock(device)
    except (AttributeError, OSError):  # another library by that name, or none
        return EventClock(device)


class L2Flush:
    """Empties the L2 cache: lines set aside as persisting are released, then twice its size is written.

    Through the driver and by address: a buffer that was found and shrunk is written in full all the same.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._bytes = device, 0
        self._buffer: torch.Tensor | None = None
        self._address = ctypes.c_void_p()
        if device.type == "cuda":
            self._bytes = 2 * int(torch.cuda.get_device_properties(device).L2_cache_size)
            driver = ctypes.CDLL("libcuda.so.1")
            self._reset = getattr(driver, "cuCtxResetPersistingL2Cache", None)
            self._fill, self._stream = driver.cuMemsetD32Async, torch._C._cuda_getCurrentRawStream

    def renew(self) -> None:
        """A new buffer for every block: one that was found and tampered with is not used again."""
        if self._bytes:
            self._buffer = torch.empty(self._bytes, dtype=torch.uint8, device=self._device)
            self._address = ctypes.c_void_p(self._buffer.data_ptr())

    def __call__(self) -> None:
        if self._bytes:
            if self._reset is not None:
                self._reset()
            self.fill(1)

    def fill(self, times: int) -> None:
        """Keeps the device busy for a while: the buffer is written that often, nothing is waited for.

        Raises ``RuntimeError`` if the driver refuses: a cache that was not emptied must not pass unnoticed.
        """
        if self._bytes:
            stream = ctypes.c_void_p(self._stream(self._device.index or 0))
            for _ in range(times):
                status = self._fill(self._address, 0, ctypes.c_size_t(self._bytes // 4), stream)
                if status:
                    raise RuntimeError(f"the GPU's cache could not be emptied: CUDA error {status}")
