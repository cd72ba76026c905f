"""Telemetry of the campaign's device at 1 Hz, never in the way: a stuck driver costs nothing but its samples."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from engine.hardware.aside import Aside
from engine.hardware.cpu import CpuMeter
from engine.hardware.nvml import GONE, Nvml, NvmlUnavailable
from engine.hardware.quiet import QUIET, QuietGate
from engine.records import Sample, SampleProcess

__all__ = ["GONE", "Sample", "SampleProcess", "Sampler"]

INTERVAL_S = 1.0
ANSWER_S = 2.0

GpuReader = Callable[[str, float], Sample]
"""(uuid, at) → one reading; may block."""


class Sampler:
    """Samples the CPU and the given GPUs and hands each reading to ``sink`` on the event loop.

    GPUs are read in a daemon thread. When it has not answered in time the sample says so, and it
    is not asked again before it has. No reading is taken while ``gate`` is closed.
    """

    def __init__(
        self,
        sink: Callable[[Sample], None],
        gpus: Sequence[str] = (),
        *,
        interval_s: float = INTERVAL_S,
        answer_s: float = ANSWER_S,
        open_reader: Callable[[], GpuReader] = lambda: Nvml().sample,
        gate: QuietGate = QUIET,
    ) -> None:
        self._sink, self._gpus = sink, tuple(gpus)
        self._interval_s, self._answer_s = interval_s, answer_s
        self._cpu = CpuMeter()
        self._reader = _Reader(open_reader) if self._gpus else None
        self._gate = gate
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="telemetry")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._reader is not None:
            self._reader.stop()

    async def _run(self) -> None:
        while True:
            await self._gate.opened()
            with self._gate.reading():
                for sample in await self._readings(time.time()):
                    self._sink(sample)
            await asyncio.sleep(self._interval_s)

    async def _readings(self, at: float) -> list[Sample]:
        found = [self._cpu.sample(at)]
        if self._reader is not None:
            for uuid in self._gpus:
                found.append(await self._reader.read(uuid, at, self._answer_s))
        return found


class _Reader:
    """Of GPUs, in a thread that may hang in the driver without anybody waiting for it."""

    def __init__(self, open_reader: Callable[[], GpuReader]) -> None:
        self._open = open_reader
        self._reader: GpuReader | None = None
        self._driver = Aside("telemetry")

    async def read(self, uuid: str, at: float, answer_s: float) -> Sample:
        if stuck := self._driver.silent_s:
            return Sample(at=at, device=uuid, reason=f"the driver has not answered for {stuck:.0f} s")
        try:
            return await self._driver.ask(lambda: self._sample(uuid, at), answer_s)
        except (TimeoutError, NvmlUnavailable) as error:
            return Sample(at=at, device=uuid, reason=str(error))

    def _sample(self, uuid: str, at: float) -> Sample:
        self._reader = self._reader or self._open()
        return self._reader(uuid, at)

    def stop(self) -> None:
        self._driver.stop()
