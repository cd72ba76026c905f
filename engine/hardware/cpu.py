"""CPU use from ``/proc``: per core, memory, load. One object holds the last counters."""

from __future__ import annotations

import os
import re
from pathlib import Path

from engine.hardware.facts import cpu_name
from engine.records import Sample


class CpuMeter:
    """Utilization is the share of the time since the last call; the first call has none."""

    def __init__(self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroup = proc, cgroup
        self._name = cpu_name(proc / "cpuinfo")
        self._last: dict[str, tuple[int, int]] = {}

    def sample(self, at: float) -> Sample:
        used, total = self._memory()
        whole, cores = self._use()
        return Sample(
            at=at,
            device="cpu",
            name=self._name,
            utilization=whole,
            memory_used_bytes=used,
            memory_total_bytes=total,
            cores=cores,
            load=self._load(),
            reason="" if total is not None else "memory: /proc/meminfo cannot be read",
        )

    def _use(self) -> tuple[float | None, list[float]]:
        """Of the cores that this process may use, and of each of them."""
        now = parse_stat(self._read(self._proc / "stat"))
        last, self._last = self._last, now
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        names = [name for name in now if name in mine] or [name for name in now if name != "cpu"]
        shares = [share for name in names if (share := _share(last.get(name), now[name])) is not None]
        return (sum(shares) / len(shares) if shares else None), [round(share, 3) for share in shares]

    def _memory(self) -> tuple[int | None, int | None]:
        """(used, total) bytes; a container's limit counts where it is lower than the machine."""
        info = dict(re.findall(r"^(\w+):\s+(\d+) kB", self._read(self._proc / "meminfo"), re.MULTILINE))
        if "MemTotal" not in info or "MemAvailable" not in info:
            return None, None
        total = int(info["MemTotal"]) * 1024
        limit, current = (self._read(self._cgroup / name).strip() for name in ("memory.max", "memory.current"))
        if limit.isdigit() and current.isdigit() and int(limit) < total:
            return int(current), int(limit)
        return total - int(info["MemAvailable"]) * 1024, total

    def _load(self) -> float | None:
        first = self._read(self._proc / "loadavg").split(" ")[0]
        return float(first) if re.fullmatch(r"\d+\.\d+", first) else None

    @staticmethod
    def _read(path: Path) -> str:
        try:
            return path.read_text()
        except OSError:
            return ""


def parse_stat(text: str) -> dict[str, tuple[int, int]]:
    """``/proc/stat`` → name of the core → (busy, total) ticks; waiting for a disk is not busy."""
    found = {}
    for line in text.splitlines():
        name, *fields = line.split()
        if re.fullmatch(r"cpu\d*", name) and len(fields) >= 5:
            ticks = [int(field) for field in fields[:8]]
            found[name] = (sum(ticks) - ticks[3] - ticks[4], sum(ticks))
    return found


def _share(before: tuple[int, int] | None, now: tuple[int, int]) -> float | None:
    if before is None or now[1] <= before[1]:
        return None
    return min(1.0, max(0.0, (now[0] - before[0]) / (now[1] - before[1])))
