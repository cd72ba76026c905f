"""Run our modules on foreign code: own sandbox, no network, no secrets, and an end that we own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from engine.errors import Fault

_ANSWER_LIMIT = 64 << 20


@contextlib.contextmanager
def sandboxed(
    module: str, *, readable: Iterable[Path | str] = (), extra_env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """``python -m module`` in the sandbox, with pipes to stdin and stdout; its whole group ends with the block.

    The sandbox is imported here, not above: it belongs to the bench, which itself reads problems.
    """
    from engine.bench.sandbox import choose_sandbox, command, environment

    env = {**environment("cpu"), **(extra_env or {})}
    process = subprocess.Popen(
        command(choose_sandbox(), module, [], env, readable=sorted({str(path) for path in readable})),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        cwd="/",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_once(module: str, request: bytes, timeout_s: float, *, readable: tuple[Path, ...] = ()) -> bytes:
    """Exec ``python -m module`` in the sandbox, feed it ``request``, return what it wrote on stdout.

    Raises :class:`Fault` ``fault.sandbox`` if it failed, took too long or wrote too much.
    """
    with sandboxed(module, readable=readable) as process:
        try:
            answer, _ = process.communicate(request, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise Fault("fault.sandbox", f"{module} did not finish within {timeout_s:.0f} s") from None
    if process.returncode != 0 or not answer:
        raise Fault("fault.sandbox", f"{module} ended with code {process.returncode} and no answer")
    if len(answer) > _ANSWER_LIMIT:
        raise Fault("fault.sandbox", f"{module} wrote more than {_ANSWER_LIMIT >> 20} MiB")
    return answer
