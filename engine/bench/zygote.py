"""The warm process that candidates are forked from. Exec'd in the sandbox; imports torch, runs nothing foreign.

``python -m engine.bench.zygote FD [MODULE…]``: FD is a socket to the engine, the modules are imported as well. One
:class:`~engine.bench.wire.Spawn` makes zygote → (short-lived) entry process → keeper (pid 1 of new namespaces) →
candidate.
"""

from __future__ import annotations

import gc
import importlib
import mmap
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from subprocess import CalledProcessError
from typing import NoReturn

import msgspec

from engine.bench import compile_cache, wire
from engine.bench import namespaces as ns
from engine.bench.confine import SCRATCH, confine, may_change_user, private_folders, private_mounts
from engine.bench.herd import descendants
from engine.bench.keeper import Keeper

_PAGE = os.sysconf("SC_PAGE_SIZE")
_INTERPRETER = [sys.executable, "-P", "-m", "engine.bench.zygote"]


class Zygote:
    """Answers Spawn and Kill; reaps keepers. Ends when the engine's socket closes."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.keepers: dict[int, int] = {}  # keeper pid (as we see it) → child number
        self.requests: msgspec.msgpack.Decoder[wire.FromEngine] = msgspec.msgpack.Decoder(wire.FromEngine)  # type: ignore[arg-type]
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> NoReturn:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake_read, select.POLLIN)
        while True:
            poll.poll()
            with suppress(BlockingIOError):
                os.read(self.wake_read, 4096)
            self._reap()
            readable, _, _ = select.select([self.control], [], [], 0)
            if readable:
                try:
                    self._answer()
                except (EOFError, ConnectionError, wire.ProtocolError):
                    self._end()

    def _end(self) -> NoReturn:
        for pid in self.keepers:
            kill_tree(pid)
        os._exit(0)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            child = self.keepers.pop(pid, None)
            if child is not None:
                self._send(wire.Exited(child=child, status=status))

    def _send(self, record: msgspec.Struct) -> None:
        self.control.sendall(wire.frame(record))

    def _answer(self) -> None:
        request, fds = wire.receive_with_fds(self.control, self.requests, 4)
        try:
            if isinstance(request, wire.Kill):
                for pid, child in self.keepers.items():
                    if child == request.child:
                        kill_tree(pid)
                return
            if len(fds) != 4:
                raise wire.ProtocolError(f"{len(fds)} descriptors with a Spawn")
            try:
                self.keepers[self._spawn(request, fds)] = request.child
            except OSError as error:
                self._send(wire.Spawned(child=request.child, error=str(error)))
                return
            self._send(wire.Spawned(child=request.child))
        finally:
            for fd in fds:
                os.close(fd)

    def _spawn(self, request: wire.Spawn, fds: list[int]) -> int:
        """Returns the keeper's pid. Raises ``OSError`` if the namespaces could not be entered."""
        read, write = os.pipe()
        entry = os.fork()
        if entry == 0:
            code = 1
            try:
                code = self._enter(request, fds, write)
            finally:
                os._exit(code)
        os.close(write)
        data = b""
        while chunk := os.read(read, 4096):
            data += chunk
        os.close(read)
        with suppress(ChildProcessError):
            os.waitpid(entry, 0)
        kind, _, value = data.decode("utf-8", "replace").partition(":")
        if kind != "pid":
            raise OSError(value or "the fork failed")
        return int(value)

    def _enter(self, request: wire.Spawn, fds: list[int], answer: int) -> int:
        """In the entry process: new namespaces, then the keeper as their first process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        alone = request.namespaces
        try:
            if alone:
                enter_child_namespaces()
        except OSError:
            alone = False
        try:
            keeper = os.fork()
        except OSError as error:
            os.write(answer, f"error:{error}".encode())
            return 1
        if keeper:
            os.write(answer, f"pid:{keeper}".encode())
            return 0
        os.close(answer)
        self.control.close()
        os.close(self.wake_read)
        os.close(self.wake_write)
        keep(request, fds, alone=alone)


def kill_tree(keeper: int) -> None:
    """A keeper that is pid 1 of its namespace takes everything along; else its descendants are killed too."""
    for pid in (*descendants(keeper), keeper):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def enter_child_namespaces() -> None:
    """Pid, mount and IPC namespaces for one candidate; as an unprivileged user inside a user namespace first."""
    flags = ns.CLONE_NEWPID | ns.CLONE_NEWNS | ns.CLONE_NEWIPC
    try:
        ns.unshare(flags)
    except PermissionError:
        uid, gid = os.getuid(), os.getgid()
        ns.unshare(flags | ns.CLONE_NEWUSER)
        ns.map_own_user(uid, gid, uid)


def keep(request: wire.Spawn, fds: list[int], *, alone: bool) -> NoReturn:
    """The keeper's life, in the new namespaces. Every path ends in ``os._exit``."""
    try:
        control_fd, output, input_fd, output_fd = fds
        if request.keeper_cores:
            with suppress(OSError):
                os.sched_setaffinity(0, request.keeper_cores)
        caches = compile_cache.Store.open(request.cache)
        layers = {"pid-namespace": "on" if alone else "off: the kernel refused one"}
        if alone:
            layers |= private_mounts(request)
        else:
            ns.prctl(ns.PR_SET_CHILD_SUBREAPER, 1)
        private = layers.get("private-tmp") == "on"
        scratch = SCRATCH if private else f"{request.fallback_scratch}/{request.child}"
        private_folders(scratch, request.uid)
        if caches is not None:
            caches.restore(f"{scratch}/cache", request.uid if may_change_user(request.uid) else -1)
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            _candidate(request, theirs, output, input_fd, output_fd, scratch)
        theirs.close()
        arena = mmap.mmap(output_fd, request.output_bytes, mmap.MAP_SHARED)
        for fd in (output, input_fd, output_fd):
            os.close(fd)
        ns.prctl(ns.PR_SET_DUMPABLE, 0)
        control = socket.socket(fileno=control_fd)
        Keeper(
            child, ours, control, request, layers, alone=alone, outputs=arena, scratch=scratch, caches=caches
        ).serve()
    except BaseException:  # noqa: BLE001  a fork must never unwind into the zygote's own code
        # Our own fault: the engine finds it at the end of the zygote's log.
        traceback.print_exc()
    finally:
        os._exit(1)


def _candidate(
    request: wire.Spawn, channel: socket.socket, output: int, input_fd: int, output_fd: int, scratch: str
) -> NoReturn:
    try:
        from engine.bench import harness

        if request.child_cores:
            with suppress(OSError):
                os.sched_setaffinity(0, request.child_cores)
        confine(request, {channel.fileno(), input_fd, output_fd}, output, scratch)
        inputs = harness.Arena(input_fd, request.input_bytes)
        outputs = harness.Arena(output_fd, request.output_bytes)
        os.close(input_fd)
        os.close(output_fd)
        harness.serve(channel, inputs, outputs, f"{scratch}/src")
    except BaseException:  # noqa: BLE001  a fork must never unwind into the zygote's own code
        traceback.print_exc()
    finally:
        os._exit(70)


def versions() -> dict[str, str]:
    import torch

    found = {"torch": str(torch.__version__), "python": sys.version.split()[0]}
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    with suppress(PackageNotFoundError):
        found["triton"] = version("triton")
    return found


def children_may_use_cuda() -> bool:
    """Whether CUDA could still be initialised in a fork of this process, found by forking."""
    import torch

    if not torch.backends.cuda.is_built():
        return True
    child = os.fork()
    if child == 0:
        os._exit(int(torch._C._cuda_isInBadFork()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def build_triton_driver(folder: str) -> int:
    """In a process of its own, while this one imports torch: the library that Triton reaches the driver through.

    A C compiler makes it, in half a second or more, and Triton keeps it in its cache, of which every candidate
    has an empty one. Returns the process's id, 0 where there is nothing to build for.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or find_spec("triton") is None:
        return 0
    child = os.fork()
    if child:
        return child
    try:
        os.environ["TRITON_CACHE_DIR"] = folder
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()
    finally:
        os._exit(0)


def load_triton_driver(builder: int, folder: str) -> None:
    """Children inherit Triton's driver. Loading and choosing it asks CUDA nothing, which a fork would not bear."""
    if not builder:
        return
    os.waitpid(builder, 0)
    own = os.environ["TRITON_CACHE_DIR"]
    try:
        os.environ["TRITON_CACHE_DIR"] = folder
        from triton.backends.nvidia.driver import CudaDriver
        from triton.runtime.driver import driver

        driver.set_active(CudaDriver())
    except (ImportError, AttributeError, AssertionError, OSError, RuntimeError, CalledProcessError) as error:
        print(f"every candidate builds Triton's driver library: {error!r}", file=sys.stderr)  # slower, no worse
    finally:
        os.environ["TRITON_CACHE_DIR"] = own


def main() -> NoReturn:
    begin = time.monotonic()
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    with suppress(OSError):
        ns.prctl(ns.PR_SET_CHILD_SUBREAPER, 1)
    drivers = f"{os.environ.get(compile_cache.MOUNT) or tempfile.gettempdir()}/driver"
    builder = build_triton_driver(drivers)
    import torch

    from engine.bench import harness  # noqa: F401  (imported before the fork, so that children share it)

    torch.set_num_threads(1)
    found = versions()
    for index, module in enumerate(sys.argv[2:]):
        with suppress(ImportError):  # a convenience only: who needs it imports it
            importlib.import_module(module)
        if not children_may_use_cuda():
            # Some imports ask how many GPUs there are, and a process that did cannot share them with its forks.
            os.set_inheritable(control.fileno(), True)
            os.execv(sys.executable, [*_INTERPRETER, sys.argv[1], *sys.argv[2 : 2 + index]])
    vm = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
    ready = wire.Ready(layers={}, versions=found, vm_bytes=vm, seconds=time.monotonic() - begin)
    control.sendall(wire.frame(ready))
    for module in ("numpy", "triton"):  # while the engine talks to the judge
        if find_spec(module) is not None:
            importlib.import_module(module)
    load_triton_driver(builder, drivers)
    gc.collect()
    gc.freeze()
    Zygote(control).run()


if __name__ == "__main__":
    main()
