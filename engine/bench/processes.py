"""The engine's side of its helper processes: start, talk, time out, kill. All coroutines; nothing here forks.

Nothing in the bench waits by ``asyncio.wait_for``: until Python 3.12 that forgets a cancellation which comes in
the moment of the answer, and whoever stops an agent then waits for the whole evaluation.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.bench import wire
from engine.bench.sandbox import Sandbox, command, environment, why_missing
from engine.errors import Fault

T = TypeVar("T")
_GRACE_S = 5.0
_ENDING_S = 2.0
_SPAWN_S = 30.0
_OUTPUT_LIMIT = 1 << 20
_OUTPUT_KEPT = 4096


class Helper:
    """One exec'd trusted process and the socket to it. It ends when the socket closes."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        sock: socket.socket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        log: Path,
    ) -> None:
        self.process, self.sock, self.reader, self.writer, self.log = process, sock, reader, writer, log

    @classmethod
    async def start(
        cls,
        name: str,
        sandbox: Sandbox,
        scratch: Path,
        *,
        device: str = "cpu",
        threads: int = 1,
        readable: Sequence[str] = (),
        writable: Sequence[str] = (),
        cores: Sequence[int] = (),
        arguments: Sequence[str] = (),
        extra_env: Mapping[str, str] | None = None,
    ) -> Helper:
        ours, theirs = socket.socketpair()
        log = scratch / f"{name}.log"
        env = {**environment(device, threads), **(extra_env or {})}
        argv = command(
            sandbox,
            f"engine.bench.{name}",
            [str(theirs.fileno()), *arguments],
            env,
            readable=readable,
            writable=writable,
            cuda=device != "cpu",
        )
        with theirs, log.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=env,
                pass_fds=[theirs.fileno()],
                cwd="/",
                start_new_session=True,
            )
        if cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process.pid, cores)
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, ours, reader, writer, log)

    async def send(self, record: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        data = wire.frame(record)
        if fds:
            await self.writer.drain()
            sent = socket.send_fds(self.sock, [data], list(fds))
            data = data[sent:]
        if data:
            self.writer.write(data)
            await self.writer.drain()

    def last_words(self) -> str:
        """The end of the process's own log, for a fault's detail."""
        with contextlib.suppress(OSError):
            return " ".join(self.log.read_bytes()[-600:].decode("utf-8", "replace").split())
        return ""

    async def code(self) -> int | None:
        """The exit status of a process whose socket is closed; ``None`` if it does not end all the same."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_S):
                return await self.process.wait()
        return None

    async def stop(self) -> None:
        self.writer.close()
        try:
            async with asyncio.timeout(_ENDING_S):
                await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


def ending(code: int | None) -> str:
    """How a process ended, in words. Sandboxes tell a signal as 128 + its number."""
    if code is None:
        return "how is not known"
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"with exit status {code}"
    return f"killed by {name}" + (" (by itself, or because memory ran out)" if name == "SIGKILL" else "")


class Zygote:
    """Client of one zygote process: spawns candidate processes and learns of their end."""

    def __init__(self, helper: Helper, ready: wire.Ready) -> None:
        self.helper, self.ready = helper, ready
        self._spawned: dict[int, asyncio.Future[str]] = {}
        self._exited: dict[int, asyncio.Event] = {}
        self._numbers = itertools.count(1)
        self._reader = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, helper: Helper, timeout_s: float = 120.0) -> Zygote:
        decoder = msgspec.msgpack.Decoder(wire.Ready)
        try:
            async with asyncio.timeout(timeout_s):
                ready = await wire.read_frame(helper.reader, decoder)
        except (EOFError, TimeoutError, wire.ProtocolError) as error:
            detail = helper.last_words() or type(error).__name__
            await helper.stop()
            detail += why_missing(detail)
            raise Fault("fault.zygote", f"the sandboxed Python did not start: {detail}") from None
        return cls(helper, ready)

    async def _listen(self) -> None:
        decoder: msgspec.msgpack.Decoder[wire.Spawned | wire.Exited] = msgspec.msgpack.Decoder(
            wire.Spawned | wire.Exited
        )  # type: ignore[arg-type]
        try:
            while True:
                record = await wire.read_frame(self.helper.reader, decoder)
                if isinstance(record, wire.Spawned):
                    future = self._spawned.pop(record.child, None)
                    if future is not None and not future.done():
                        future.set_result(record.error)
                else:
                    event = self._exited.pop(record.child, None)
                    if event is not None:
                        event.set()
        except (EOFError, wire.ProtocolError):
            for future in self._spawned.values():
                if not future.done():
                    future.set_result("the zygote is gone")
            for event in self._exited.values():
                event.set()

    async def spawn(self, request: wire.Spawn, arenas: tuple[int, int]) -> Child:
        """Forks a candidate process. Raises :class:`Fault` ``fault.spawn``."""
        number = next(self._numbers)
        request = msgspec.structs.replace(request, child=number)
        ours, theirs = socket.socketpair()
        read, write = os.pipe2(os.O_CLOEXEC)
        future = self._spawned[number] = asyncio.get_running_loop().create_future()
        exited = self._exited[number] = asyncio.Event()
        started = False
        try:
            with theirs:
                try:
                    await self.helper.send(request, [theirs.fileno(), write, *arenas])
                finally:
                    os.close(write)
            async with asyncio.timeout(_SPAWN_S):
                error = await future
            started = not error
        except (TimeoutError, ConnectionError, OSError) as problem:
            error = str(problem) or type(problem).__name__
        finally:
            if not started:  # or the task was cancelled: its process ends with our end of its socket
                ours.close()
                os.close(read)
        if error:
            raise Fault("fault.spawn", f"a candidate process could not be started: {error}")
        try:
            ours.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=ours)
            return Child(self, number, reader, writer, read, exited)
        except BaseException:
            ours.close()
            os.close(read)
            raise

    @property
    def gone(self) -> bool:
        """It has ended, and everything that was forked from it with it."""
        return self._reader.done()

    async def kill(self, number: int) -> None:
        with contextlib.suppress(ConnectionError):
            await self.helper.send(wire.Kill(child=number))

    async def stop(self) -> None:
        await self.helper.stop()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader


class Output:
    """The candidate's stdout and stderr: read as it comes, the beginning kept, a flood noticed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.kept = bytearray()
        self.total = 0
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self.total += len(data)
        room = _OUTPUT_KEPT - len(self.kept)
        if room > 0:
            self.kept += data[:room]
        if self.flooded:
            self.close()

    def drain(self) -> None:
        """Takes what is still in the pipe (the writers are dead), then closes it."""
        while self._fd >= 0 and not self.flooded:
            before = self.total
            self._read()
            if self.total == before:
                break
        self.close()

    @property
    def flooded(self) -> bool:
        return self.total > _OUTPUT_LIMIT

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


class Child:
    """One candidate process, through its keeper. Any answer but ``done`` is the child's last.

    ``lost`` is said here and not by a keeper: it was the zygote that ended.
    """

    def __init__(
        self,
        zygote: Zygote,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        output: int,
        exited: asyncio.Event,
    ) -> None:
        self.zygote, self.number = zygote, number
        self.reader, self.writer, self.exited = reader, writer, exited
        self.output = Output(output)
        self.alive = self.in_step = True  # out of step once somebody stopped waiting for an answer
        self._decoder = msgspec.msgpack.Decoder(wire.Report)

    async def ask(self, record: wire.ToKeeper, timeout_s: float) -> wire.Report:
        """Sends one command; the keeper enforces ``timeout_s`` and this side enforces that the keeper does."""
        self.in_step, was_in_step = False, self.in_step
        try:
            self.writer.write(wire.frame(record))
            await self.writer.drain()
            async with asyncio.timeout(timeout_s + _GRACE_S):
                report = await wire.read_frame(self.reader, self._decoder)
        except TimeoutError:
            report = wire.Report(event="timeout")
        except (EOFError, ConnectionError):
            report = wire.Report(event="exit", code=-1)
        except wire.ProtocolError as error:
            report = wire.Report(event="protocol", text=str(error).encode())
        self.in_step = was_in_step
        if self.output.flooded:
            report = wire.Report(event="output")
        if report.event != "done":
            await self.close()
            if self.zygote.gone:
                report = wire.Report(event="lost")
        return report

    async def close(self) -> None:
        """Kills the whole namespace and waits for its end."""
        if not self.alive:
            return
        self.alive = False
        self.writer.close()
        await self.zygote.kill(self.number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await self.exited.wait()
        self.output.drain()


async def to_its_end(work: Awaitable[Any]) -> None:
    """Ending processes is never cut short: whoever is cancelled meanwhile is so after it."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        taken_note_of(task)
        raise asyncio.CancelledError
    task.result()


def taken_note_of(exchange: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more: its fault, if it has one, is nobody's."""
    if not exchange.cancelled():
        exchange.exception()
