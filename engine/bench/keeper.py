"""The trusted process beside one candidate: pid 1 of its namespace, owner of its clock, its freezer and its end.

The keeper is forked from the zygote, never runs candidate code, and lives in the candidate's pid namespace as
another user, so that it can stop, watch and kill everything in there and nothing in there can reach it. When it
exits, the kernel kills whatever is left. The candidate is frozen except inside a measured window.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from engine.bench import namespaces as ns
from engine.bench import wire

SCRATCH = "/tmp/kernelarc"
_POLL_MS = 20
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
    ) -> None:
        self.layers = layers
        self.pid, self.channel, self.control = pid, channel, control
        self.limits = spawn.limits
        self.alone = alone  # we are pid 1 of a namespace that holds nothing but this child
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._poll.register(control, select.POLLRDHUP | select.POLLHUP)

    # -- signals to everything in the namespace -------------------------------------------------------------

    def everyone(self) -> list[int]:
        """All processes that descend from the child (in our own pid namespace: all but us)."""
        if self.alone:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
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

    def window(self, payload: bytes, timeout_s: float) -> wire.Report:
        """Lets the child handle one message; everything it did until its report is inside ``wall_ns``."""
        deadline = time.monotonic() + timeout_s
        try:
            self.channel.sendall(payload)
            begin = time.perf_counter_ns()
            self.thaw()
            event = self._wait(deadline)
            end = time.perf_counter_ns()
            if event:
                return wire.Report(event=event, wall_ns=end - begin)
            rows, text = self._report(deadline)
            self.freeze()
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
        return wire.Report(event="done", wall_ns=end - begin, rows=rows, text=text)

    def _wait(self, deadline: float) -> str:
        """Until the child has something to say. Returns "" or why the wait ended."""
        while True:
            for fd, events in self._poll.poll(_POLL_MS):
                if fd == self.control.fileno() and events & (select.POLLHUP | select.POLLRDHUP):
                    os._exit(0)  # the engine is gone, or wants this child gone
                if fd == self.channel.fileno():
                    return ""
            if time.monotonic() > deadline:
                return "timeout"
            if self.limits.memory and self._resident() > self.limits.memory:
                return "memory"
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                raise Gone(status)

    def _report(self, deadline: float) -> tuple[list[tuple[int, int]], bytes]:
        self.channel.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            header = wire.read_exactly(self.channel, wire.REPORT.size)
            magic, count, length = wire.REPORT.unpack(header)
            if magic != wire.REPORT_MAGIC or count > wire.MAX_CALLS or length > wire.MAX_TEXT:
                raise wire.ProtocolError("not a report")
            body = wire.read_exactly(self.channel, count * wire.ROW.size)
            rows = [wire.ROW.unpack_from(body, index * wire.ROW.size) for index in range(count)]
            return rows, wire.read_exactly(self.channel, length)  # type: ignore[return-value]
        finally:
            self.channel.settimeout(None)

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
                self.pin(command.cores)
                report = wire.Report(event="done")
            elif isinstance(command, wire.Load):
                write_sources(command.sources)
                bare = msgspec.structs.replace(command, sources=[])
                report = self.window(wire.frame(bare), command.timeout_s)
                report = msgspec.structs.replace(report, facts=self.layers)
            else:
                report = self.window(wire.frame(command), command.timeout_s)
            try:
                self.control.sendall(wire.frame(report))
            except OSError:
                break
            if report.event != "done":
                break
        self.signal_all(signal.SIGKILL)
        os._exit(0)

    def pin(self, cores: list[int]) -> None:
        for pid in self.everyone():
            with suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    with suppress(OSError):
                        os.sched_setaffinity(int(task), cores)


def descendants(root: int) -> list[int]:
    """Pids below ``root``, from /proc; only for boxes that forbid pid namespaces."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    found, frontier = [], {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found += sorted(frontier)
    return found


def write_sources(sources: list[tuple[str, str]]) -> None:
    """The candidate's files, owned by us and read-only for it. Paths were checked when the solution was read."""
    root = Path(SCRATCH) / "src"
    for relative, content in sources:
        target = root / relative
        if not target.resolve().is_relative_to(root):
            raise wire.ProtocolError("a source path leaves its folder")
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8", errors="surrogateescape", newline="")
        target.chmod(0o444)


def private_mounts(spawn: wire.Spawn) -> dict[str, str]:
    """This child's own /tmp, /dev/shm and /proc. What cannot be mounted is reported, not hidden."""
    layers: dict[str, str] = {}
    kept = [prefix for prefix in os.environ.get("KERNELARC_KEEP", "").split(":") if prefix.startswith("/tmp/")]

    def attempt(name: str, action: Callable[[], None]) -> None:
        try:
            action()
            layers[name] = "on"
        except OSError as error:
            layers[name] = f"off: {error}"

    def tmp() -> None:
        ns.mount("none", "/", "", ns.MS_REC | ns.MS_PRIVATE)
        # Interpreter or package prefixes below /tmp must stay visible under the new /tmp.
        handles = [(prefix, os.open(prefix, os.O_PATH | os.O_CLOEXEC)) for prefix in kept]
        size = f"size={spawn.limits.scratch},mode=1777"
        ns.mount("tmpfs", "/tmp", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, size)
        for prefix, handle in handles:
            os.makedirs(prefix, mode=0o755, exist_ok=True)
            ns.bind(f"/proc/self/fd/{handle}", prefix)
            os.close(handle)

    attempt("private-tmp", tmp)
    attempt(
        "private-shm",
        lambda: ns.mount("tmpfs", "/dev/shm", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "size=64m,mode=1777"),
    )
    attempt("private-proc", lambda: ns.mount("proc", "/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC))
    return layers


def private_folders(uid: int) -> None:
    root = Path(SCRATCH)
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    (root / "src").mkdir(mode=0o755, exist_ok=True)
    for name in ("home", "tmp", "cache"):
        folder = root / name
        folder.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(folder, uid, uid)


def confine(spawn: wire.Spawn, keep: set[int], output: int) -> None:
    """In the child, before any foreign byte is read: descriptors, session, limits, user, privileges."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    close_all_but(keep | {0, 1, 2})
    limits = spawn.limits
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    _limit(resource.RLIMIT_NOFILE, limits.files)
    _limit(resource.RLIMIT_CPU, limits.cpu_s)
    _limit(resource.RLIMIT_MEMLOCK, 64 << 20)
    if limits.memory and spawn.device == "cpu":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
        _limit(resource.RLIMIT_AS, used + limits.memory + spawn.input_bytes + spawn.output_bytes)
    if os.geteuid() == 0:
        _limit(resource.RLIMIT_NPROC, limits.processes)
        os.setgroups([])
        ns.drop_capabilities()
        os.setresgid(spawn.uid, spawn.uid, spawn.uid)
        os.setresuid(spawn.uid, spawn.uid, spawn.uid)
        ns.prctl(ns.PR_SET_DUMPABLE, 1)  # /proc/self stays readable for honest code; there is nothing secret in it
    ns.prctl(ns.PR_SET_NO_NEW_PRIVS, 1)
    os.environ.update(HOME=f"{SCRATCH}/home", TMPDIR=f"{SCRATCH}/tmp", XDG_CACHE_HOME=f"{SCRATCH}/cache")
    os.chdir(f"{SCRATCH}/home")


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def close_all_but(keep: set[int]) -> None:
    low = 0
    for fd in sorted(keep):
        if fd > low:
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)
