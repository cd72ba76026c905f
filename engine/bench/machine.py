"""What this machine offers a bench: cores and memory. No torch."""

from __future__ import annotations

import os

import msgspec

_MIN_MEMORY = 4 << 30
_GPU_CORES = 2  # reserved beside a GPU: for the thread that launches, and the driver's
_MANY_CORES = 8  # from here on that leaves enough to compile on


class Cores(msgspec.Struct, frozen=True):
    """One core is reserved for timed candidates; engine, judge, keepers and compilation use the others.

    Beside a GPU it is two, others for each GPU, where there are many: launching a row of kernels is part of what
    is timed, and a compiler on the same core would be as well.
    """

    timing: list[int]
    work: list[int]

    @property
    def shared(self) -> bool:
        """Fewer than two cores: compilation and timing must exclude each other."""
        return self.timing == self.work

    @classmethod
    def of_this_process(cls, gpu: int | None = None) -> Cores:
        """``gpu``: its index, if the timed processes use one."""
        available = sorted(os.sched_getaffinity(0))
        if len(available) < 2:
            return cls(timing=available, work=available)
        if gpu is None:
            return cls(timing=available[-1:], work=available[:-1])
        begin = len(available) - _GPU_CORES * (gpu + 1)
        if len(available) < _MANY_CORES or begin < len(available) // 2:
            return cls(timing=available, work=available)
        return cls(timing=available[begin : begin + _GPU_CORES], work=available[:begin])


def total_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_limit(shared: int, *, cuda: bool) -> int:
    """Private host memory of one candidate, bytes: at least 4 GiB (16 with a CUDA context) or 8 × its inputs and
    outputs, at most half the machine."""
    least = _MIN_MEMORY * 4 if cuda else _MIN_MEMORY
    return min(max(least, 8 * shared), max(total_memory() // 2, _MIN_MEMORY))
