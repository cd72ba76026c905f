"""Telemetry into the store, and what a person must know of the machine: the device gone, the disk nearly full."""

from __future__ import annotations

import asyncio
import contextlib
import shutil

from engine.hardware.telemetry import GONE, Sample, Sampler
from engine.session import Session

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
    """Runs beside a campaign, between :meth:`start` and :meth:`close`."""

    def __init__(self, session: Session, interval_s: float = INTERVAL_S) -> None:
        device = session.bench.device
        gpus = [device.uuid] if device.kind == "cuda" and device.uuid else []
        self._session, self._interval_s = session, interval_s
        self._sampler = Sampler(self._sampled, gpus)
        self._last: dict[str, Sample] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sampler.start()
        self._task = asyncio.create_task(self._watch(), name="machine watch")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
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
