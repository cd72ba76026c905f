"""What this machine offers a bench: cores, memory, device facts. No torch."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from engine.records import DeviceFacts

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


def memory_limit(shared: int) -> int:
    """Private memory of one candidate, bytes: half the machine at most, 4 GiB or 8 × its inputs and outputs."""
    return min(max(_MIN_MEMORY, 8 * shared), max(total_memory() // 2, _MIN_MEMORY))


def cpu_facts() -> DeviceFacts:
    name = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return DeviceFacts(
        kind="cpu",
        name=name,
        uuid="cpu",
        memory_bytes=total_memory(),
        cores=len(os.sched_getaffinity(0)),
    )
