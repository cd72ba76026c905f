"""Run one of our modules once on foreign code: own sandbox, no network, no secrets, a deadline that we own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from engine.errors import Fault

_ANSWER_LIMIT = 64 << 20


def run_once(module: str, request: bytes, timeout_s: float, *, readable: tuple[Path, ...] = ()) -> bytes:
    """Exec ``python -m module`` in the sandbox, feed it ``request``, return what it wrote on stdout.

    Raises :class:`Fault` ``fault.sandbox`` if it failed, took too long or wrote too much.
    """
    from engine.bench.sandbox import choose_sandbox, command, environment

    env = environment("cpu")
    argv = command(choose_sandbox(), module, [], env, readable=[str(path) for path in readable])
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        cwd="/",
        start_new_session=True,
    )
    try:
        answer, _ = process.communicate(request, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Fault("fault.sandbox", f"{module} did not finish within {timeout_s:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode != 0 or not answer:
        raise Fault("fault.sandbox", f"{module} ended with code {process.returncode}")
    if len(answer) > _ANSWER_LIMIT:
        raise Fault("fault.sandbox", f"{module} wrote more than {_ANSWER_LIMIT >> 20} MiB")
    return answer
