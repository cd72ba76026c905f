"""The tracing process: started in a sandbox, imports torch once, forks a limited child per problem.

Reads one job per line from stdin (JSON), answers with one line each on its original stdout. A child that crashes,
hangs or eats its memory costs only its own problem.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import time

import msgspec

from engine.problems.load import problem_from_json
from engine.tracing.graph import TraceGraph
from engine.tracing.jobs import Answer, Job

_MEMORY = 16 << 30
_ANSWER_LIMIT = 256 << 20
_SHARE_OF_TIME = 0.7  # after which no further workload is started


def main() -> int:
    """Serve jobs until stdin ends."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # a reference that compiles itself is followed as written
    import torch

    from engine.tracing import subject  # noqa: F401 - imported here so that every child has it

    torch.set_num_threads(1)
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=Job)
        out.write(_serve(job, out.fileno()) + b"\n")
    return 0


def _serve(job: Job, out: int) -> bytes:
    """The answer to one job. The child gets no hold of ``out``: what it forges is an answer to its own job."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.close(out)
        _child(job, write)
    os.close(write)
    try:
        data = _collect(read, time.monotonic() + job.timeout_s)
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if isinstance(data, bytes) and data:
        return data.replace(b"\n", b" ")
    detail = data if isinstance(data, str) else _death(status)
    return msgspec.json.encode(Answer(error=detail))


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"the tracing process was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"the tracing process ended with code {os.waitstatus_to_exitcode(status)}"


def _collect(fd: int, deadline: float) -> bytes | str:
    """All that the child writes, or why not."""
    parts = bytearray()
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([fd], [], [], left)
        if not ready:
            break
        part = os.read(fd, 1 << 20)
        if not part:
            return bytes(parts)
        parts += part
        if len(parts) > _ANSWER_LIMIT:
            return "the trace is too large"
    return "the reference did not finish in time"


def _child(job: Job, write: int) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        os.close(0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        seconds = int(job.timeout_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        data = _trace(job)
        with os.fdopen(write, "wb") as stream:
            stream.write(data)
        code = 0
    finally:
        os._exit(code)


def _trace(job: Job) -> bytes:
    from engine.tracing.subject import BUDGET, SHORT_BUDGET, bytes_only, trace_workload

    problem = problem_from_json(job.problem)
    wanted = set(job.uuids)
    budget = BUDGET
    graphs: list[TraceGraph] = []
    last_start = time.monotonic() + _SHARE_OF_TIME * job.timeout_s
    hurried = False
    for workload in problem.workloads:
        if wanted and workload.uuid not in wanted:
            continue
        if time.monotonic() > last_start and graphs:
            graphs.append(bytes_only(problem, workload, "no time was left to follow the reference"))
            hurried = True
            continue
        graph = trace_workload(problem, workload, budget)
        if not graph.complete:
            budget = SHORT_BUDGET
        graphs.append(graph)
    return msgspec.json.encode(Answer(graphs=graphs, hurried=hurried))


if __name__ == "__main__":
    sys.exit(main())
