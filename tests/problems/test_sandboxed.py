"""What a foreign child writes is read up to a limit, within a time, and its end is ours."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine.errors import Fault
from engine.problems.sandboxed import ask, run_aside, run_once

INTERPRETER = "code"
"""A module that runs what it reads: as ``python -m code`` it stands for a child with foreign code in it."""
ENDLESS = b"import os\nwhile True: os.write(1, b'x' * 65536)\n\n"


@contextmanager
def child(code: str) -> Iterator[subprocess.Popen[bytes]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", f"import os, sys, time\n{code}"], **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_request_larger_than_a_pipe_is_answered_in_full() -> None:
    request = bytes(range(256)) * 4096
    with child(
        "data = sys.stdin.buffer.read()\nsys.stdout.buffer.write(data[::-1])\nos.write(2, b'said')"
    ) as process:
        assert ask(process, request, 20.0, limit=2 << 20) == (request[::-1], b"said")


def test_one_line_after_another_is_asked_of_the_same_process() -> None:
    with child("for line in sys.stdin:\n    print(line.strip() * 2, flush=True)") as process:
        assert [ask(process, word, 20.0, limit=100, line=True)[0] for word in (b"a\n", b"b\n")] == [
            b"aa\n",
            b"bb\n",
        ]


def test_an_endless_answer_is_read_to_the_limit_only() -> None:
    with child("while True: os.write(1, b'x' * 65536)") as process, pytest.raises(Fault, match="more than 1 MiB"):
        ask(process, b"", 20.0, limit=1 << 20)
    with pytest.raises(Fault, match="more than 1 MiB"):
        run_once(INTERPRETER, ENDLESS, 20.0, limit=1 << 20)


async def test_the_same_beside_the_event_loop() -> None:
    with pytest.raises(Fault, match="more than 1 MiB"):
        await run_aside(INTERPRETER, ENDLESS, 20.0, limit=1 << 20)
    assert b"42" in await run_aside(INTERPRETER, b"print(6 * 7)\n", 20.0)


def test_endless_words_on_stderr_are_not_kept() -> None:
    with child("for _ in range(64): os.write(2, b'x' * 65536)\nos.write(1, b'done')") as process:
        answer, said = ask(process, b"", 20.0, limit=100)
    assert answer == b"done" and 0 < len(said) <= 4096


@pytest.mark.parametrize("code", ["time.sleep(60)", "os.close(1); os.close(2); time.sleep(60)"])
def test_a_child_that_does_not_end_is_late(code: str) -> None:
    started = time.monotonic()
    with pytest.raises(Fault, match="did not finish within 1 s"):
        run_once(INTERPRETER, f"import os, time; {code}\n".encode(), 1.0)
    assert time.monotonic() - started < 8


def test_what_a_child_leaves_behind_cannot_hold_the_answer_back() -> None:
    started = time.monotonic()
    with child("os.write(1, b'mine')\nif os.fork() == 0: time.sleep(6)\nos._exit(0)") as process:
        assert ask(process, b"", 20.0, limit=100) == (b"mine", b"")
    assert time.monotonic() - started < 5


async def test_cancelled_it_ends_the_child_first() -> None:
    asking = asyncio.create_task(run_aside(INTERPRETER, b"import time; time.sleep(600)\n", 600.0))
    await asyncio.sleep(0.5)
    started = time.monotonic()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert time.monotonic() - started < 5
