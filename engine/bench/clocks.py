"""Did the GPU keep its clock while a pair was timed? Readings around blocks, and what they say; sets nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from engine.hardware.nvml import Nvml, NvmlUnavailable

TOLERANCE = 0.02  # change of the SM clock within a pair
_ANSWER_S = 0.5
POWER_CAP = "power cap"
"""Not by itself a reason to discard: a matrix kernel runs at the cap all the time, on both sides alike."""


class ClockReading(msgspec.Struct, frozen=True):
    """``sm_mhz`` and what holds it down, in :mod:`engine.hardware.nvml`'s words."""

    sm_mhz: float
    throttle: tuple[str, ...] = ()


def disturbance(readings: Sequence[ClockReading]) -> str:
    """Why a pair must be measured again, or empty. Steady power capping shows as a steady clock."""
    if not readings:
        return ""
    held = sorted({reason for reading in readings for reason in reading.throttle if reason != POWER_CAP})
    if held:
        return f"throttled: {', '.join(held)}"
    low, high = min(r.sm_mhz for r in readings), max(r.sm_mhz for r in readings)
    if high > low * (1.0 + TOLERANCE):
        return f"the SM clock went from {low:.0f} to {high:.0f} MHz"
    return ""


class ClockWatch:
    """Reads one GPU. Without NVML, or once the driver is late to answer, it sees nothing and says so."""

    def __init__(self, uuid: str | None) -> None:
        self.uuid = uuid
        self.state = "off: not a GPU" if uuid is None else "on"
        self._nvml: Nvml | None = None
        if uuid is not None:
            try:
                self._nvml = Nvml()
            except NvmlUnavailable as error:
                self.state = f"off: {error}"

    async def read(self) -> ClockReading | None:
        nvml, uuid = self._nvml, self.uuid
        if nvml is None or uuid is None:
            return None
        try:
            reading = await asyncio.wait_for(asyncio.to_thread(nvml.clock, uuid), _ANSWER_S)
        except (TimeoutError, NvmlUnavailable) as error:
            self.state, self._nvml = f"off: {error or 'NVML does not answer'}", None
            return None
        mhz, throttle = reading
        return ClockReading(sm_mhz=mhz, throttle=tuple(throttle))
