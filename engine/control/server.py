"""The engine's end of the control socket: many clients, one JSON object a line, every command answered once."""

from __future__ import annotations

import asyncio
import logging
import socket
import stat
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from engine import paths
from engine.control.protocol import VERBS, Answer, Command
from engine.decoding import decode_json
from engine.errors import BadInput, Fault, KernelArcError
from engine.store.lock import held_here

LINE_LIMIT = 64 << 10
REMEMBERED = 1000
CLOSE_S = 1.0

log = logging.getLogger("kernelarc.engine")

Handler = Callable[[Command], Awaitable[Answer]]
Recall = Callable[[str], Awaitable[Answer | None]]

_encode = msgspec.json.Encoder().encode


class ControlServer:
    """Serves one campaign whose lock this process holds: that is what makes replacing a stale socket safe.

    ``handler`` carries a command out and answers it; a :class:`KernelArcError` from it is the answer, and so is
    whatever else it fails with. ``recall`` finds the answer that an earlier engine gave to a command of the same
    id.
    """

    def __init__(self, folder: Path, handler: Handler, recall: Recall | None = None) -> None:
        self.folder = folder
        self.path = paths.socket_path(folder)
        self._handler = handler
        self._recall = recall
        self._answers: OrderedDict[str, asyncio.Future[Answer]] = OrderedDict()
        self._clients: set[asyncio.StreamWriter] = set()
        self._commands: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None
        self._identity: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen. The socket is 0600 in a folder that nobody else may enter.

        Raises:
            Fault: the campaign's lock is not ours, or the runtime folder is not private.
        """
        if not held_here(self.folder):
            raise Fault("fault.control", f"the lock of {self.folder.name} is not held by this process")
        paths.runtime_dir(create=True)
        self._remove_stale()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(self.path))
            self.path.chmod(0o600)  # no umask: it would hold for every thread of the engine
            self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=LINE_LIMIT)
        except OSError as error:
            listening.close()
            raise Fault("fault.control", f"{self.path}: cannot listen ({error.strerror or error})") from error
        info = self.path.lstat()
        self._identity = (info.st_dev, info.st_ino)

    async def close(self) -> None:
        """Stop listening, let running commands answer for a second, remove the socket if it is still ours."""
        if self._server is None:
            return
        self._server.close()
        if self._commands:
            await asyncio.wait(self._commands, timeout=CLOSE_S)
        for task in self._commands:
            task.cancel()
        for writer in list(self._clients):
            writer.close()
        try:  # from Python 3.12 on this waits for connections, one accepted just now included
            await asyncio.wait_for(self._server.wait_closed(), CLOSE_S)
        except TimeoutError:
            pass
        self._server = None
        try:
            info = self.path.lstat()
            if (info.st_dev, info.st_ino) == self._identity:
                self.path.unlink()
        except FileNotFoundError:
            pass

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        mine: set[asyncio.Task[None]] = set()
        try:
            while line := await self._line(reader, writer):
                if line.strip():
                    task = asyncio.create_task(self._answer_line(line, writer))
                    for tasks in (mine, self._commands):
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
            if mine:  # a client may close its sending half and still wait for answers
                await asyncio.wait(mine)
        except ConnectionError:
            pass
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """The next line; empty at the end, or after one that is too long to tell what follows it."""
        try:
            return await reader.readline()
        except ValueError:
            await self._reply(writer, _refusal("", f"a command may have {LINE_LIMIT} bytes"))
            return b""

    async def _answer_line(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            command: Command = decode_json(line, where="", kind=Command, what="not a command")
        except BadInput as error:
            await self._reply(writer, _refusal("", error.message))
            return
        if command.verb not in VERBS:
            answer = _refusal(command.id, f"unknown command {command.verb!r}; known are {', '.join(VERBS)}")
        else:
            answer = await self._once(command)
        await self._reply(writer, answer)

    async def _once(self, command: Command) -> Answer:
        """A repeated id waits for, or gets, the first one's answer."""
        known = self._answers.get(command.id)
        if known is None:
            known = asyncio.ensure_future(self._carry_out(command))
            self._answers[command.id] = known
            while len(self._answers) > REMEMBERED and next(iter(self._answers.values())).done():
                self._answers.popitem(last=False)
        await asyncio.wait({known})
        return _outcome(command, known)

    async def _carry_out(self, command: Command) -> Answer:
        earlier = await self._recall(command.id) if self._recall else None
        return earlier or await self._handler(command)

    async def _reply(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        if writer.is_closing():
            return
        try:
            writer.write(_encode(answer) + b"\n")
            await writer.drain()
        except ConnectionError:
            pass

    def _remove_stale(self) -> None:
        """A socket that is there while we hold the lock belongs to a dead engine."""
        try:
            info = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(info.st_mode):
            raise Fault("fault.control", f"{self.path} is not a socket; remove it")
        self.path.unlink()


def _outcome(command: Command, done: asyncio.Future[Answer]) -> Answer:
    """The answer to a command that was carried out, refused, or failed on the way: nobody is left waiting."""
    if done.cancelled():
        return _refusal(command.id, f"fault.command: {command.verb} was given up, the engine may be ending")
    error = done.exception()
    if error is None:
        return done.result()
    if isinstance(error, KernelArcError):
        return _refusal(command.id, error.message)
    log.error("%s failed", command.verb, exc_info=error)
    return _refusal(
        command.id, f"fault.command: {command.verb} failed ({type(error).__name__}: {error}); see the engine's log"
    )


def _refusal(identity: str, text: str) -> Answer:
    return Answer(id=identity, ok=False, text=" ".join(text.split()))
