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
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import msgspec

from engine.bench import compile_cache, wire
from engine.bench import namespaces as ns
from engine.bench.confine import confinement_of, write_library, write_sources
from engine.bench.herd import Awake, Gone, Herd, descendants

_POLL_MS = 20
_EXPORT_S = 120.0
_CLOCKS, _DEVICE_CLOCKS = (b"wall",), (b"wall", b"cuda-event", b"cupti")  # that claims may come from
_LOOK_S = 0.1  # between two looks at the memory in use


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
        self.herd = Herd(pid, alone=alone, visible=layers.get("private-proc") == "on")
        self.workloads: list[wire.WorkloadSpec] = []
        self.destination_passing = False
        self.on_device = False
        self.places: list[list[wire.Place]] = []
        self.pid, self.channel, self.control = pid, channel, control
        self.limits = spawn.limits
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._poll.register(control, select.POLLRDHUP | select.POLLHUP)

    # -- windows ----------------------------------------------------------------------------------------------

    def window(
        self,
        payload: bytes,
        timeout_s: float,
        *,
        jitter: bool = False,
        outputs: Sequence[wire.OutputSpec] = (),
    ) -> wire.Report:
        """Lets the child handle one message; everything it did until its report is inside ``wall_ns``.

        ``outputs`` of its calls, if it is asked for any.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self.herd.check_still()
            self.channel.sendall(payload)
            last_pid, before = self.herd.last_pid(), self.herd.processor_times()
            begin = time.perf_counter_ns()
            self.herd.thaw()
            event = self._shake(deadline) if jitter else self._wait(deadline)
            if event:
                return wire.Report(event=event, wall_ns=time.perf_counter_ns() - begin)
            rows, text = self._report(deadline)
            self.herd.freeze()
            # Only now: a report whose first byte comes early, or threads that run on, gain nothing.
            wall = self.herd.stopped_ns - begin
            after, started = self.herd.processor_times(), last_pid < 0 or self.herd.last_pid() != last_pid
            # What started or ended meanwhile may have worked unseen.
            cpu = 0 if started or after.keys() != before.keys() else sum(after.values()) - sum(before.values())
        except Gone as gone:
            return self.ended(gone.status)
        except Awake as awake:
            return wire.Report(event="awake", text=str(awake).encode())
        except (EOFError, ConnectionError):
            return self.ended(self._reap())
        except wire.ProtocolError as error:
            return wire.Report(event="protocol", text=str(error).encode())
        except TimeoutError:
            return wire.Report(event="timeout")
        if self._pending():
            return wire.Report(event="protocol", text=b"more than one report")
        claims = [claim for _, claim in rows]
        # Calls of one thread follow each other; a device's clock is another one, and its work may overlap.
        if (max(claims, default=0) // 2 if self.on_device else sum(claims)) > wall:
            return wire.Report(event="protocol", text=b"a report that claims more time than there was")
        return wire.Report(
            event="done",
            wall_ns=wall,
            cpu_ns=max(cpu, 0),
            rows=rows,
            text=text,
            # On a device places are digests, of copies that the harness has made: equal ones share no memory.
            aliased=not self.on_device and share_memory(self.places, outputs),
            parallel=started or self.herd.tasks() > 1,
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
            if limit and self.herd.resident() > limit and self.herd.proportional() > limit:
                return "memory"
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                raise Gone(status)

    def _shake(self, deadline: float) -> str:
        """Like :meth:`_wait`, stopping and continuing every thread at random moments, all the time."""
        random = secrets.SystemRandom()
        while True:
            for _ in range(64):
                self.herd.signal(signal.SIGSTOP)
                self.herd.thaw()
                if any(fd == self.channel.fileno() for fd, _ in self._poll.poll(0)):
                    return ""
                time.sleep(random.uniform(0.0, 1e-4))
            event = self._wait(min(deadline, time.monotonic()))
            if event != "timeout" or time.monotonic() > deadline:
                return event

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
        try:
            self.herd.check_still()
        except Awake as awake:
            return wire.Report(event="awake", text=str(awake).encode())
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
        with suppress(BlockingIOError, ConnectionError):
            return bool(self.channel.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        return False

    def _reap(self) -> int:
        """The channel is closed: the child is dying, or it closed the channel and must be killed."""
        for _ in range(200):
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    return status
            time.sleep(0.005)
        self.herd.signal(signal.SIGKILL)
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
                self.herd.pin(command.cores, command.nice)
                report = wire.Report(event="done")
            elif isinstance(command, wire.Load):
                write_sources(self.scratch, command.sources)
                if command.library:
                    write_library(self.scratch, command.library, command.library_bytes)
                self.workloads, self.destination_passing = command.workloads, command.destination_passing
                self.on_device = bool(command.inputs)
                bare = msgspec.structs.replace(command, sources=[], library_bytes=b"")
                report = self.window(wire.frame(bare), command.timeout_s)
                clocks = _DEVICE_CLOCKS if self.on_device or command.device != "cpu" else _CLOCKS
                right = len(report.rows) == 1 and (report.rows[0][0] != wire.OK or report.text in clocks)
                if report.event == "done" and not right:
                    report = wire.Report(event="protocol", text=b"a first report that names no clock")
                report = msgspec.structs.replace(report, facts={**self.layers, **confinement_of(self.pid)})
            elif isinstance(command, wire.Collect):
                report = self.collect(command)
            elif isinstance(command, wire.SaveCache):
                saved = self.caches.save(f"{self.scratch}/cache") if self.caches else ""
                report = wire.Report(event="done", facts={"cache": saved})
            else:
                outputs = self.workloads[command.workload].outputs
                report = self.window(
                    wire.frame(command), command.timeout_s, jitter=command.jitter, outputs=outputs
                )
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
            self.herd.signal(signal.SIGKILL)
            if self.herd.alone or not descendants(os.getpid()):
                break
            with suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            time.sleep(0.002)
        os._exit(0)


def dense_strides(shape: tuple[int, ...]) -> list[int]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return strides[::-1]


def share_memory(places: Sequence[Sequence[wire.Place]], outputs: Sequence[wire.OutputSpec]) -> bool:
    """Whether outputs of different calls lie in the same bytes, so that a later call has overwritten them.

    Outputs of one call may lie as they like. Places are claims: the worst that they do here is a wrong answer.
    """
    taken: list[tuple[int, int, int]] = []
    for call, row in enumerate(places):
        for place, item in zip(row, outputs, strict=False):
            width = item.nbytes // max(math.prod(item.shape), 1)
            size = wire.span(item.shape, place[1 : 1 + len(item.shape)]) * width
            if size > 0:
                taken.append((place[0], place[0] + size, call))
    taken.sort()
    end, owner = 0, -1
    for start, stop, call in taken:
        if start < end and call != owner:
            return True
        if stop > end:
            end, owner = stop, call
    return False
