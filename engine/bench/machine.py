"""What this machine offers a bench: cores and memory. No torch."""

from __future__ import annotations

import os

import msgspec

_MIN_MEMORY = 4 << 30


class Cores(msgspec.Struct, frozen=True):
    """One core is reserved for timed candidates; engine, judge, keepers and compilation use the others."""

    timing: list[int]
    work: list[int]

    @property
    def shared(self) -> bool:
        """Fewer than two cores: compilation and timing must exclude each other."""
        return self.timing == self.work

    @classmethod
    def of_this_process(cls) -> Cores:
        available = sorted(os.sched_getaffinity(0))
        if len(available) < 2:
            return cls(timing=available, work=available)
        return cls(timing=available[-1:], work=available[:-1])


def total_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_limit(shared: int, *, cuda: bool) -> int:
    """Private host memory of one candidate, bytes: at least 4 GiB (16 with a CUDA context) or 8 × its inputs and
    outputs, at most half the machine."""
    least = _MIN_MEMORY * 4 if cuda else _MIN_MEMORY
    return min(max(least, 8 * shared), max(total_memory() // 2, _MIN_MEMORY))
