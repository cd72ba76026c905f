"""Did the GPU keep its clock while a pair was timed? Readings around blocks, and what they say; sets nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.hardware.aside import Aside
from engine.hardware.nvml import Nvml, NvmlUnavailable

TOLERANCE = 0.02  # change of the SM clock within a pair
_ANSWER_S, _OPEN_S = 0.5, 5.0
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
        self._driver = Aside("clocks")
        self._nvml: Nvml | None = None

    async def read(self) -> ClockReading | None:
        uuid = self.uuid
        if uuid is None or self.state != "on":
            return None
        try:
            # A driver takes longer to be opened than to be asked.
            mhz, throttle = await self._driver.ask(lambda: self._clock(uuid), _ANSWER_S if self._nvml else _OPEN_S)
        except (TimeoutError, NvmlUnavailable) as error:
            self.state = f"off: {error}"
            self.close()
            return None
        return ClockReading(sm_mhz=mhz, throttle=tuple(throttle))

    def _clock(self, uuid: str) -> tuple[float, list[str]]:
        """In the thread that may hang."""
        self._nvml = self._nvml or Nvml()
        return self._nvml.clock(uuid)

    def close(self) -> None:
        self._driver.stop()
