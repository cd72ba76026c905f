"""One run of a program of ours, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence


async def run_tool(
    argv: Sequence[str], env: Mapping[str, str], timeout_s: float, *, stdout: int = PIPE
) -> tuple[int | None, bytes, bytes]:
    """(exit code, stdout, stderr). Cancelled or late, its whole process group is killed.

    ``stdout``: ``DEVNULL`` where nobody reads it. Raises ``TimeoutError``.
    """
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=DEVNULL, stdout=stdout, stderr=PIPE, env=env, cwd="/", start_new_session=True
    )
    try:
        async with asyncio.timeout(timeout_s):
            answer, said = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode, answer or b"", said
