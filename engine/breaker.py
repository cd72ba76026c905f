"""When to stop trying: crashes that lead nowhere and error streaks. Pure; the caller owns the clock."""

from __future__ import annotations

import msgspec

CRASHES = 3
WINDOW_S = 30.0
ERROR_STREAK = 5
BACKOFF_FIRST_S = 1.0
BACKOFF_LIMIT_S = 30.0


class Breaker(msgspec.Struct, frozen=True):
    """Opens at the third crash without a verdict in between, however far apart, and at the third in 30 seconds.

    An LLM agent crashes minutes apart and pays for a reply each time; an offline one may judge something and crash
    many times a second.
    """

    crashes: tuple[float, ...] = ()  # of the last thirty seconds, by a monotonic clock
    barren: int = 0  # in a row without a verdict
    verdicts: int = 0  # of the agent, at its last crash

    def after_crash(self, now: float, verdicts: int) -> Breaker:
        """One more crash at ``now`` seconds, of an agent that has ``verdicts`` so far."""
        recent = tuple(at for at in self.crashes if now - at < WINDOW_S)
        barren = self.barren if verdicts == self.verdicts else 0
        return Breaker((*recent, now), barren + 1, verdicts)

    @property
    def counted(self) -> int:
        return max(len(self.crashes), self.barren)

    @property
    def open(self) -> bool:
        return self.counted >= CRASHES

    @property
    def why(self) -> str:
        """What an open breaker has counted."""
        if self.barren >= CRASHES:
            return f"{self.barren} crashes without a verdict in between"
        return f"{len(self.crashes)} crashes within {WINDOW_S:g} s"


def backoff_s(streak: int) -> float:
    """Pause after the ``streak``-th ERROR in a row: doubling from one second, at most thirty."""
    return min(BACKOFF_LIMIT_S, BACKOFF_FIRST_S * 2.0 ** max(0, streak - 1))
