"""Everything that lives below one keeper: seen, stopped, continued, counted, pinned. Used by the keeper only."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_AGAIN_S = 0.05  # without an answer, the order to stop is given again
_FREEZE_S = 2.0  # to bring everything to a stop; one thread takes microseconds
_STANDING = "TtZXxD"  # states of /proc/PID/stat in which nothing runs, and nothing wakes anybody else
_EXITING = 0x4  # PF_EXITING of the flags there: on its way out of the kernel, no group stop waits for it
_PAGE = os.sysconf("SC_PAGE_SIZE")


def stands_still(stat: str) -> bool:
    """Of a thread, by its /proc stat. One that is ending runs no code of its own, however long it takes. Pure."""
    fields = stat.rpartition(")")[2].split()
    return fields[0] in _STANDING or bool(int(fields[6]) & _EXITING)


class Gone(Exception):
    """The candidate's process ended; ``status`` is what ``waitpid`` said."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Awake(Exception):
    """Something in the namespace could not be stopped, or ran while it was to stand still."""


class Herd:
    """The candidate's process ``pid`` and whatever it starts.

    ``alone``: the keeper is pid 1 of a namespace that holds nothing else. ``visible``: /proc shows that namespace.
    """

    def __init__(self, pid: int, *, alone: bool, visible: bool) -> None:
        self.pid, self.alone, self.visible = pid, alone, visible
        self.frozen: list[int] = []  # who was brought to a stop after the last window
        self.stopped_ns = 0  # when, by the clock of windows
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # waited for, never handled

    def everyone(self) -> list[int]:
        """All processes that descend from the child (in our own pid namespace: all but us)."""
        if self.alone and not self.visible:
            return [self.pid]  # /proc shows another namespace's numbers: only the child itself can be asked about
        if self.alone:
            return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and p.name != "1"]
        return descendants(os.getpid())

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self.alone:
                os.kill(-1, number)
            else:
                os.killpg(self.pid, number)
                for pid in descendants(os.getpid()):
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)

    def freeze(self) -> None:
        """Stops every thread of every process. Raises :class:`Gone`, or :class:`Awake` if that cannot be done.

        Whoever still runs can wake the others with SIGCONT, so where there are others one order is not enough:
        it is repeated until everybody has been seen standing, twice in a row.
        """
        deadline = time.monotonic() + _FREEZE_S
        self.signal(signal.SIGSTOP)
        self._main_stops(deadline)
        self.stopped_ns = time.perf_counter_ns()
        self.frozen = self.everyone()
        clean = 0
        while clean < 2 and self.frozen != [self.pid]:
            if all(self._stands(pid) for pid in self.frozen):
                clean += 1
            else:
                clean = 0
                self.signal(signal.SIGSTOP)
            self.stopped_ns = time.perf_counter_ns()
            if time.monotonic() > deadline:
                raise Awake("its processes keep each other running while they must stand still")
            self.frozen = self.everyone()

    def _main_stops(self, deadline: float) -> None:
        """Until all threads of the child have stopped, or wait in the kernel for one of its children to start."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WUNTRACED | os.WNOHANG)
            except ChildProcessError:
                raise Gone(0) from None
            if pid == self.pid:
                if os.WIFSTOPPED(status):
                    return
                raise Gone(status)
            if pid == 0 and signal.sigtimedwait({signal.SIGCHLD}, _AGAIN_S) is None:
                if self._stands(self.pid):
                    return
                if time.monotonic() > deadline:
                    raise Awake("the process could not be stopped")
                self.signal(signal.SIGSTOP)

    @staticmethod
    def _stands(pid: int) -> bool:
        """Whether every thread of a process has stopped, has ended, or waits in the kernel."""
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
        except OSError:
            return True
        for task in tasks:
            with suppress(OSError, IndexError, ValueError):
                if not stands_still((task / "stat").read_text()):
                    return False
        return True

    def check_still(self) -> None:
        """Raises :class:`Awake` if anybody moves since :meth:`freeze`, a lone process too.

        It may have asked the kernel for a SIGCONT. (Processor time does not tell whether it stopped again: a
        thread on its way to stand still is charged for being preempted there, on a busy machine for milliseconds.)
        """
        if not self.frozen or (self.alone and not self.visible):
            return
        now = self.everyone()
        if not set(now) <= set(self.frozen) or not all(self._stands(pid) for pid in now):
            raise Awake("something ran while everything had to stand still")

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def processor_times(self) -> dict[int, int]:
        """Nanoseconds of processor time by living process, with ended threads; empty if some are out of sight."""
        times: dict[int, int] = {}
        if self.alone and not self.visible:
            return times
        for pid in self.everyone():
            with suppress(OSError):
                times[pid] = time.clock_gettime_ns(~pid << 3 | 2)  # clock_getcpuclockid(3)
        return times

    def tasks(self) -> int:
        count = 0
        for pid in self.everyone():
            with suppress(OSError):
                count += len(list(Path(f"/proc/{pid}/task").iterdir()))
        return count

    def last_pid(self) -> int:
        """The number given to the newest process or thread of our namespace; -1 if it cannot be known."""
        if not self.alone:
            return -1
        with suppress(OSError, ValueError):
            return int(Path("/proc/loadavg").read_text().split()[-1])
        return -1

    def resident(self) -> int:
        total = 0
        for pid in self.everyone():
            with suppress(OSError, ValueError, IndexError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        return total

    def proportional(self) -> int:
        """Shared pages counted once: slower, so asked only when the simple sum is too large."""
        total = 0
        for pid in self.everyone():
            with suppress(OSError, ValueError, IndexError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
        return total

    def pin(self, cores: list[int], nice: int) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)  # whoever reads the clock must wake up at once
        for pid in self.everyone():
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    with suppress(OSError):
                        os.sched_setaffinity(int(task.name), cores)
                        os.setpriority(os.PRIO_PROCESS, int(task.name), nice)


def descendants(root: int) -> list[int]:
    """Pids below ``root``, from /proc; only for boxes that forbid pid namespaces."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, frontier = [], {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found += sorted(frontier)
    return found
