"""Run our modules on foreign code: own sandbox, no network, no secrets, and an end that we own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from engine.errors import Fault
from engine.text import one_line

ANSWER_LIMIT = 64 << 20  # bytes
_PART = 1 << 16
_SAID = 4096  # bytes of stderr that are kept
_LOOK_S = 0.25  # between two looks whether a process that says nothing is still there


@contextlib.contextmanager
def sandboxed(
    module: str,
    *,
    readable: Iterable[Path | str] = (),
    extra_env: Mapping[str, str] | None = None,
    errors: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """``python -m module`` in the sandbox, with pipes to stdin and stdout; its whole group ends with the block.

    ``errors``: also a pipe from stderr, else that is lost. Raises :class:`Fault` ``fault.sandbox`` if the machine
    has no room for another process.

    The sandbox is imported here, not above: it belongs to the bench, which itself reads problems.
    """
    from engine.bench.sandbox import choose_sandbox, command, environment

    env = {**environment("cpu"), **(extra_env or {})}
    try:
        process = subprocess.Popen(
            command(choose_sandbox(), module, [], env, readable=sorted({str(path) for path in readable})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if errors else subprocess.DEVNULL,
            env=env,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise Fault("fault.sandbox", f"{module} could not be started: {error.strerror}") from None
    try:
        yield process
    finally:
        _kill(process)
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        process.wait()


def run_once(
    module: str, request: bytes, timeout_s: float, *, readable: tuple[Path, ...] = (), limit: int = ANSWER_LIMIT
) -> bytes:
    """Exec ``python -m module`` in the sandbox, feed it ``request``, return what it wrote on stdout.

    Raises :class:`Fault` ``fault.sandbox`` if it failed, took too long or wrote more than ``limit`` bytes.
    """
    with sandboxed(module, readable=readable, errors=True) as process:
        return _whole(process, module, request, timeout_s, limit)


async def run_aside(module: str, request: bytes, timeout_s: float, *, limit: int = ANSWER_LIMIT) -> bytes:
    """:func:`run_once` beside the event loop. Cancelled, it ends the process first."""
    with sandboxed(module, errors=True) as process:
        asking = asyncio.ensure_future(asyncio.to_thread(_whole, process, module, request, timeout_s, limit))
        try:
            return await asyncio.shield(asking)
        finally:
            if not asking.done():  # the thread still reads: its descriptors may not be closed, or reused, under it
                _kill(process)
                await asyncio.wait({asking})
                asking.exception()  # it is the end that was asked for


def _whole(process: subprocess.Popen[bytes], module: str, request: bytes, timeout_s: float, limit: int) -> bytes:
    deadline = time.monotonic() + timeout_s
    answer, said = ask(process, request, timeout_s, limit=limit)
    try:
        code = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Fault("fault.sandbox", f"{module} did not finish within {timeout_s:g} s") from None
    if code != 0 or not answer:
        why = one_line(said.decode(errors="replace"), 300)
        raise Fault("fault.sandbox", f"{module} ended with code {code}{f': {why}' if why else ' and no answer'}")
    return answer


def ask(
    process: subprocess.Popen[bytes], request: bytes, timeout_s: float, *, limit: int, line: bool = False
) -> tuple[bytes, bytes]:
    """Feed ``request`` to a process; its answer, and the end of what it wrote on stderr if that is a pipe.

    The answer ends with the stream or, with ``line``, with the first newline (stdin then stays open). Never holds
    more than ``limit`` bytes of it. Raises :class:`Fault` ``fault.sandbox`` beyond the limit or the time.
    """
    assert process.stdin is not None and process.stdout is not None
    deadline = time.monotonic() + timeout_s
    pending, answer, said = memoryview(request), bytearray(), bytearray()
    with selectors.DefaultSelector() as waiting:
        for stream, event in (
            (process.stdin, selectors.EVENT_WRITE),
            (process.stdout, selectors.EVENT_READ),
            (process.stderr, selectors.EVENT_READ),
        ):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                waiting.register(stream, event)
        while any(key.fileobj is not process.stdin for key in waiting.get_map().values()):
            left = deadline - time.monotonic()
            if left <= 0:
                raise Fault("fault.sandbox", f"the process did not finish within {timeout_s:g} s")
            ready = waiting.select(min(left, _LOOK_S))
            if not ready and process.poll() is not None:
                break  # it is gone, and what holds its pipes open now is not what was asked
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    pending = _fed(process.stdin, pending)
                    if not pending:
                        waiting.unregister(process.stdin)
                        if not line:
                            process.stdin.close()
                    continue
                part = os.read(key.fd, _PART)
                if not part:
                    waiting.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    said = (said + part)[-_SAID:]
                else:
                    answer += part
            if len(answer) > limit:
                raise Fault("fault.sandbox", f"the process wrote more than {limit >> 20} MiB")
            if line and answer.endswith(b"\n"):
                break
    return bytes(answer), bytes(said)


def _fed(stdin: IO[bytes], pending: memoryview) -> memoryview:
    """What is left of ``pending`` after one write; nothing where nobody reads it any more."""
    try:
        return pending[os.write(stdin.fileno(), pending[:_PART]) :]
    except BlockingIOError:
        return pending
    except BrokenPipeError:
        return pending[:0]


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
