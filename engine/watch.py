"""Telemetry into the store, and what a person must know of the machine: the device gone, the disk nearly full."""

from __future__ import annotations

import asyncio
import shutil
from types import TracebackType
from typing import Self

from engine.hardware.telemetry import GONE, Sample, Sampler
from engine.session import Session, log

INTERVAL_S = 10.0
LOW_BYTES = 1 << 30
SCARCE_BYTES = 200 << 20

DISK, DEVICE = "disk.low", "device.gone"


def disk_line(free_bytes: int) -> tuple[str, str] | None:
    """(level, text) when the store's disk is nearly full."""
    if free_bytes >= LOW_BYTES:
        return None
    level = "error" if free_bytes < SCARCE_BYTES else "warning"
    return level, f"{free_bytes / 2**20:.0f} MiB are left on the store's disk"


def device_line(sample: Sample) -> tuple[str, str] | None:
    """(level, text) when the device of a reading is no longer there."""
    return ("error", f"{sample.device}: {sample.reason}") if sample.reason.startswith(GONE) else None


class MachineWatch:
    """Runs beside a campaign, as a context. A watch that dies says so in the log; the campaign goes on without."""

    def __init__(self, session: Session, interval_s: float = INTERVAL_S) -> None:
        device = session.bench.device
        gpus = [device.uuid] if device.kind == "cuda" and device.uuid else []
        self._session, self._interval_s = session, interval_s
        self._sampler = Sampler(self._sampled, gpus)
        self._last: dict[str, Sample] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._sampler.start()
        self._task = asyncio.create_task(self._watch(), name="machine watch")
        self._task.add_done_callback(_ended)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait({self._task})
        finally:
            await self._sampler.close()

    def _sampled(self, sample: Sample) -> None:
        self._last[sample.device] = sample
        self._session.writer.sample(sample)

    async def _watch(self) -> None:
        while True:
            await self._stand(DISK, self._disk())
            gone = [line for sample in self._last.values() if (line := device_line(sample))]
            await self._stand(DEVICE, gone[0] if gone else None)
            await asyncio.sleep(self._interval_s)

    def _disk(self) -> tuple[str, str] | None:
        try:
            return disk_line(shutil.disk_usage(self._session.folder).free)
        except OSError as error:
            return "error", f"the store's disk cannot be looked at ({error.strerror})"

    async def _stand(self, code: str, line: tuple[str, str] | None) -> None:
        if line is None:
            await self._session.withdraw(code)
        elif not any(note.code == code and note.level == line[0] for note in self._session.summary.attention):
            await self._session.note(code, line[1], level=line[0])


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("disk and device are not watched any more", exc_info=error)
