"""Sending a command to a campaign's engine, from a script (``send``) or an event loop (``asend``)."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec

from engine import paths
from engine.control.protocol import Answer, Command
from engine.decoding import decode_json
from engine.errors import BadInput, Fault
from engine.store import offline
from engine.store.lock import being_edited, engine_alive

ANSWER_LIMIT = 1 << 20
EDIT_WAIT_S = 5.0
AGAIN_S = 0.05

_encode = msgspec.json.Encoder().encode


class Unreachable(Fault):
    """No connection to the engine came about, so that nothing was asked."""


def command(verb: str, **fields: Any) -> Command:
    """A command with an id of its own. Send the same object again after a timeout: it is carried out once."""
    return Command(id=uuid.uuid4().hex, verb=verb, **fields)


def send(folder: Path, order: Command, timeout_s: float = 5.0) -> Answer:
    """Send and wait for the answer.

    Raises:
        BadInput: no engine runs the campaign.
        Fault: the engine did not answer in time, or not in the protocol's words.
    """
    deadline = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(paths.socket_path(folder)))
        except TimeoutError as error:
            raise _silent(folder, timeout_s) from error
        except OSError as error:
            raise _absent(folder, error) from error
        try:
            connection.sendall(_encode(order) + b"\n")
            line = _read_line(connection, deadline)
        except TimeoutError as error:
            raise _silent(folder, timeout_s) from error
        except OSError as error:
            raise _gone(folder) from error
    return _answer(folder, line)


def edit(folder: Path, verb: str, number: int, text: str = "") -> Answer:
    """Change the campaign's record: through its engine if there is one, else under its lock.

    Somebody else's edit is waited for, and so is an engine that is starting or ending.

    Raises:
        BadInput: without an engine, when the change is refused.
        Fault: the engine did not answer.
        StoreError: the database cannot be written.
    """
    order = command(verb, number=number, text=text)
    deadline = time.monotonic() + EDIT_WAIT_S
    while True:
        if not engine_alive(folder) or being_edited(folder):
            return Answer(id=order.id, ok=True, text=offline.carry_out(folder, verb, number, text).text)
        try:
            return send(folder, order)
        except Unreachable:
            if time.monotonic() >= deadline:
                raise
        time.sleep(AGAIN_S)


async def asend(folder: Path, order: Command, timeout_s: float = 5.0) -> Answer:
    """:func:`send` without blocking the event loop."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(str(paths.socket_path(folder)), limit=ANSWER_LIMIT)
            try:
                writer.write(_encode(order) + b"\n")
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
    except TimeoutError as error:
        raise _silent(folder, timeout_s) from error
    except OSError as error:
        raise _absent(folder, error) from error
    except ValueError as error:
        raise Fault("fault.engine", f"{folder.name}: the engine's answer is too long") from error
    return _answer(folder, line)


def _read_line(connection: socket.socket, deadline: float) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n") and len(received) < ANSWER_LIMIT:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = connection.recv(65536)
        if not chunk:
            break
        received += chunk
    return bytes(received)


def _answer(folder: Path, line: bytes) -> Answer:
    if not line:
        raise _gone(folder)
    try:
        return decode_json(line, where="the engine", kind=Answer)  # type: ignore[no-any-return]
    except BadInput as error:
        raise Fault("fault.engine", f"{folder.name}: the engine's answer cannot be read ({error.what})") from error


def _silent(folder: Path, timeout_s: float) -> Fault:
    return Fault(
        "fault.engine-silent",
        f"{folder.name}: the engine has not answered within {timeout_s:g} s; it may still carry the command out, "
        f"`kernelarc status {folder.name}` shows it",
    )


def _gone(folder: Path) -> Fault:
    return Fault("fault.engine", f"{folder.name}: the engine ended before it answered")


def _absent(folder: Path, error: OSError) -> BadInput | Fault:
    if engine_alive(folder):
        reason = error.strerror or error
        return Unreachable(
            "fault.engine-silent", f"{folder.name}: the engine is starting or ending ({reason}); try again"
        )
    return BadInput(
        "no engine runs this campaign",
        where=folder.name,
        fix=f"`kernelarc resume {folder.name}` starts one, unless it has ended",
    )
