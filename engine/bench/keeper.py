"""The trusted process beside one candidate: pid 1 of its namespace, owner of its clock, its freezer and its end.

The keeper is forked from the zygote, never runs candidate code, and lives in the candidate's pid namespace as
another user, so that it can stop, watch and kill everything in there and nothing in there can reach it. When it
exits, the kernel kills whatever is left. The candidate is frozen except inside a measured window.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import secrets
import select
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from engine.bench import compile_cache, wire
from engine.bench import namespaces as ns
from engine.bench.confine import confinement_of, write_library, write_sources

_POLL_MS = 20
_EXPORT_S = 120.0
_LOOK_S = 0.1  # between two looks at the memory in use
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Gone(Exception):
    """The candidate's process ended; ``status`` is what ``waitpid`` said."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Keeper:
    """One child: its pid, its channel, and what the engine asks of it."""

    def __init__(
        self,
        pid: int,
        channel: socket.socket,
        control: socket.socket,
        spawn: wire.Spawn,
        layers: dict[str, str],
        *,
        alone: bool,
        outputs: mmap.mmap,
        scratch: str,
        caches: compile_cache.Store | None,
    ) -> None:
        self.scratch, self.caches = scratch, caches
        self.outputs = outputs
        self.output_address = ctypes.addressof(ctypes.c_char.from_buffer(outputs))
        self.layers = layers
        self.workloads: list[wire.WorkloadSpec] = []
        self.destination_passing = False
        self.on_device = False
        self.places: list[list[wire.Place]] = []
        self.pid, self.channel, self.control = pid, channel, control
        self.limits = spawn.limits
        self.alone = alone  # we are pid 1 of a namespace that holds nothing but this child
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._poll.register(control, select.POLLRDHUP | select.POLLHUP)

    # -- signals to everything in the namespace -------------------------------------------------------------

    def everyone(self) -> list[int]:
        """All processes that descend from the child (in our own pid namespace: all but us)."""
        if self.alone and self.layers.get("private-proc") != "on":
            return [self.pid]  # /proc shows another namespace's numbers: only the child itself can be asked about
        if self.alone:
            return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and p.name != "1"]
        return descendants(os.getpid())

    def signal_all(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self.alone:
                os.kill(-1, number)
            else:
                os.killpg(self.pid, number)
                for pid in descendants(os.getpid()):
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)

    def freeze(self) -> None:
        """Stops every thread of every process and returns when the child itself has stopped."""
        self.signal_all(signal.SIGSTOP)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WUNTRACED)
            except ChildProcessError:
                raise Gone(0) from None
            if pid != self.pid:
                continue
            if os.WIFSTOPPED(status):
                return
            raise Gone(status)

    def thaw(self) -> None:
        self.signal_all(signal.SIGCONT)

    # -- windows ----------------------------------------------------------------------------------------------

    def window(self, payload: bytes, timeout_s: float, *, jitter: bool = False) -> wire.Report:
        """Lets the child handle one message; everything it did until its report is inside ``wall_ns``."""
        deadline = time.monotonic() + timeout_s
        try:
            self.channel.sendall(payload)
            last_pid, cpu = self._last_pid(), self._processor_time()
            begin = time.perf_counter_ns()
            self.thaw()
            event = self._shake(deadline) if jitter else self._wait(deadline)
            end = time.perf_counter_ns()
            if event:
                return wire.Report(event=event, wall_ns=end - begin)
            rows, text = self._report(deadline)
            self.freeze()
            cpu = self._processor_time() - cpu
            started = last_pid < 0 or self._last_pid() != last_pid
            if started:
                cpu = 0  # what was started may have ended unseen
        except Gone as gone:
            return self.ended(gone.status)
        except (EOFError, ConnectionError):
            return self.ended(self._reap())
        except wire.ProtocolError as error:
            return wire.Report(event="protocol", text=str(error).encode())
        except TimeoutError:
            return wire.Report(event="timeout")
        if self._pending():
            return wire.Report(event="protocol", text=b"more than one report")
        first = [row[0][0] for row in self.places if row]
        aliased = len(set(first)) < len(first)
        return wire.Report(
            event="done",
            wall_ns=end - begin,
            cpu_ns=cpu,
            rows=rows,
            text=text,
            aliased=aliased,
            parallel=started or self._tasks() > 1,
        )

    def _wait(self, deadline: float) -> str:
        """Until the child has something to say. Returns "" or why the wait ended."""
        look = time.monotonic() + _LOOK_S
        while True:
            for fd, events in self._poll.poll(_POLL_MS):
                if fd == self.control.fileno() and events & (select.POLLHUP | select.POLLRDHUP):
                    self.end()  # the engine is gone, or wants this child gone
                if fd == self.channel.fileno():
                    return ""
            if time.monotonic() > deadline:
                return "timeout"
            limit = self.limits.memory if time.monotonic() >= look else 0
            if limit:
                look = time.monotonic() + _LOOK_S
            if limit and self._resident() > limit and self._proportional() > limit:
                return "memory"
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                raise Gone(status)

    def _shake(self, deadline: float) -> str:
        """Like :meth:`_wait`, stopping and continuing every thread at random moments, all the time."""
        random = secrets.SystemRandom()
        while True:
            for _ in range(64):
                self.signal_all(signal.SIGSTOP)
                self.thaw()
                if any(fd == self.channel.fileno() for fd, _ in self._poll.poll(0)):
                    return ""
                time.sleep(random.uniform(0.0, 1e-4))
            event = self._wait(min(deadline, time.monotonic()))
            if event != "timeout" or time.monotonic() > deadline:
                return event

    def _processor_time(self) -> int:
        """Nanoseconds of processor time that the living processes have used, ended threads included."""
        total = 0
        for pid in self.everyone():
            with suppress(OSError):
                total += time.clock_gettime_ns(~pid << 3 | 2)  # clock_getcpuclockid(3)
        return total

    def _tasks(self) -> int:
        count = 0
        for pid in self.everyone():
            with suppress(OSError):
                count += len(list(Path(f"/proc/{pid}/task").iterdir()))
        return count

    def _last_pid(self) -> int:
        """The number given to the newest process or thread of our namespace; -1 if it cannot be known."""
        if not self.alone:
            return -1
        with suppress(OSError, ValueError):
            return int(Path("/proc/loadavg").read_text().split()[-1])
        return -1

    def _collect_from_device(self, request: wire.Collect) -> wire.Report:
        """The child copies; the digests that it delivered when the block ended say whether it copied the same."""
        digests = [
            [place[0] for place in self.places[index]] for index, _ in request.calls if index < len(self.places)
        ]
        if len(digests) != len(request.calls):
            return wire.Report(event="protocol", text=b"a report without the digests of its outputs")
        places = self.places
        export = wire.Export(workload=request.workload, calls=request.calls)
        report = self.window(wire.frame(export), _EXPORT_S)
        self.places = places
        if report.event != "done":
            return report
        shapes = [item.shape for item in self.workloads[request.workload].outputs]
        strides = [[dense_strides(shape) for shape in shapes] for _ in request.calls]
        return msgspec.structs.replace(report, digests=digests, strides=strides)

    def _report(self, deadline: float) -> tuple[list[wire.Row], bytes]:
        self.channel.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            header = wire.read_exactly(self.channel, wire.REPORT.size)
            magic, count, outputs, length = wire.REPORT.unpack(header)
            sane = count <= wire.MAX_CALLS and outputs <= wire.MAX_OUTPUTS and length <= wire.MAX_TEXT
            if magic != wire.REPORT_MAGIC or not sane:
                raise wire.ProtocolError("not a report")
            body = wire.read_exactly(self.channel, count * wire.ROW.size)
            rows = list(wire.ROW.iter_unpack(body))
            body = wire.read_exactly(self.channel, count * outputs * wire.PLACE.size)
            flat = list(wire.PLACE.iter_unpack(body))
            self.places = [flat[i * outputs : (i + 1) * outputs] for i in range(count)] if outputs else []
            return rows, wire.read_exactly(self.channel, length)
        finally:
            self.channel.settimeout(None)

    def collect(self, request: wire.Collect) -> wire.Report:
        """Reads outputs out of the frozen process. Addresses and strides are claims: bounded, then believed."""
        if self.on_device:
            return self._collect_from_device(request)
        spec = self.workloads[request.workload]
        strides: list[list[list[int]]] = []
        for index, slot in request.calls:
            if self.destination_passing:
                strides.append([dense_strides(item.shape) for item in spec.outputs])
                continue
            if index >= len(self.places) or len(self.places[index]) != len(spec.outputs):
                return wire.Report(event="protocol", text=b"a report without the places of its outputs")
            found: list[list[int]] = []
            for place, item in zip(self.places[index], spec.outputs, strict=True):
                steps = place[1 : 1 + len(item.shape)]
                size = wire.span(item.shape, steps) * (item.nbytes // max(math.prod(item.shape), 1))
                if min(steps, default=0) < 0 or size > item.nbytes:
                    return wire.Report(event="protocol", text=b"an output outside its bounds")
                target = self.output_address + slot * spec.output_stride + item.offset
                if size and ns.read_memory(self.pid, place[0], target, size) != size:
                    return wire.Report(event="protocol", text=b"an output that is not in memory")
                found.append(list(steps))
            strides.append(found)
        return wire.Report(event="done", strides=strides)

    def _pending(self) -> bool:
        with suppress(BlockingIOError):
            return bool(self.channel.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        return False

    def _resident(self) -> int:
        total = 0
        for pid in self.everyone():
            with suppress(OSError, ValueError, IndexError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        return total

    def _proportional(self) -> int:
        """Shared pages counted once: slower, so asked only when the simple sum is too large."""
        total = 0
        for pid in self.everyone():
            with suppress(OSError, ValueError, IndexError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
        return total

    def _reap(self) -> int:
        """The channel is closed: the child is dying, or it closed the channel and must be killed."""
        for _ in range(200):
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    return status
            time.sleep(0.005)
        self.signal_all(signal.SIGKILL)
        with suppress(ChildProcessError):
            return os.waitpid(self.pid, 0)[1]
        return 0

    @staticmethod
    def ended(status: int) -> wire.Report:
        if os.WIFSIGNALED(status):
            return wire.Report(event="signal", code=os.WTERMSIG(status))
        return wire.Report(event="exit", code=os.WEXITSTATUS(status))

    # -- the engine's commands --------------------------------------------------------------------------------

    def serve(self) -> NoReturn:
        commands: msgspec.msgpack.Decoder[wire.ToKeeper] = msgspec.msgpack.Decoder(wire.ToKeeper)  # type: ignore[arg-type]
        while True:
            try:
                command = wire.receive(self.control, commands)
            except (EOFError, ConnectionError, wire.ProtocolError):
                break
            if isinstance(command, wire.Affinity):
                self.pin(command.cores, command.nice)
                report = wire.Report(event="done")
            elif isinstance(command, wire.Load):
                write_sources(self.scratch, command.sources)
                if command.library:
                    write_library(self.scratch, command.library, command.library_bytes)
                self.workloads, self.destination_passing = command.workloads, command.destination_passing
                self.on_device = bool(command.inputs)
                bare = msgspec.structs.replace(command, sources=[], library_bytes=b"")
                report = self.window(wire.frame(bare), command.timeout_s)
                report = msgspec.structs.replace(report, facts={**self.layers, **confinement_of(self.pid)})
            elif isinstance(command, wire.Collect):
                report = self.collect(command)
            elif isinstance(command, wire.SaveCache):
                saved = self.caches.save(f"{self.scratch}/cache") if self.caches else ""
                report = wire.Report(event="done", facts={"cache": saved})
            else:
                report = self.window(wire.frame(command), command.timeout_s, jitter=command.jitter)
            try:
                self.control.sendall(wire.frame(report))
            except OSError:
                break
            if report.event != "done":
                break
        self.end()

    def end(self) -> NoReturn:
        """Everything below us dies: as pid 1 by our own end, without a namespace one by one until none is left."""
        for _ in range(50):
            self.signal_all(signal.SIGKILL)
            if self.alone or not descendants(os.getpid()):
                break
            with suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            time.sleep(0.002)
        os._exit(0)

    def pin(self, cores: list[int], nice: int) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)  # whoever reads the clock must wake up at once
        for pid in self.everyone():
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    with suppress(OSError):
                        os.sched_setaffinity(int(task.name), cores)
                        os.setpriority(os.PRIO_PROCESS, int(task.name), nice)


def dense_strides(shape: tuple[int, ...]) -> list[int]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return strides[::-1]


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
