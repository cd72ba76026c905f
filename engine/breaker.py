"""When to stop trying: crash bursts and error streaks. Pure; the caller owns the clock."""

from __future__ import annotations

import msgspec

CRASHES = 3
WINDOW_S = 30.0
ERROR_STREAK = 5
BACKOFF_FIRST_S = 1.0
BACKOFF_LIMIT_S = 30.0


class Breaker(msgspec.Struct, frozen=True):
    """Opens after :data:`CRASHES` crashes within :data:`WINDOW_S` seconds of a monotonic clock."""

    crashes: tuple[float, ...] = ()

    def after_crash(self, now: float) -> Breaker:
        recent = tuple(at for at in self.crashes if now - at < WINDOW_S)
        return Breaker((*recent, now))

    @property
    def open(self) -> bool:
        return len(self.crashes) >= CRASHES


def backoff_s(streak: int) -> float:
    """Pause after the ``streak``-th ERROR in a row: doubling from one second, at most thirty."""
    return min(BACKOFF_LIMIT_S, BACKOFF_FIRST_S * 2.0 ** max(0, streak - 1))
