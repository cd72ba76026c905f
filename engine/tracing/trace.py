"""Follow references without their data: the door of this room. Foreign code runs in a sandboxed child only."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from engine.decoding import decode_json, decode_msgpack
from engine.errors import BadInput, Fault
from engine.paths import cache_dir
from engine.problems.blobs import resolve_blob
from engine.problems.load import problem_to_json
from engine.problems.model import Problem, SafetensorsInput, Workload
from engine.problems.sandboxed import ask, sandboxed
from engine.text import one_line
from engine.tracing.graph import TraceGraph
from engine.tracing.jobs import Answer, Job

VERSION = 6  # of what a trace means: part of the cache key
HOSTS = 2  # processes side by side when several problems are traced
START_S = 60.0  # importing torch on a busy box
_ANSWER_LIMIT = 256 << 20


def trace_problem(
    problem: Problem, workloads: Sequence[str] | None = None, timeout_s: float = 60.0
) -> dict[str, TraceGraph]:
    """Graphs by uuid, for all workloads or those named. Cached by content under ``paths.cache_dir()``.

    A reference that cannot be followed to its end still has a graph (``complete`` is false, ``notes`` say why).
    Raises :class:`Fault` ``fault.trace`` if the tracing process did not start or the reference killed it, ate
    its memory or took longer than ``timeout_s``.
    """
    (result,) = trace_problems([problem], [workloads] if workloads is not None else None, timeout_s)
    if isinstance(result, Fault):
        raise result
    return result


def trace_problems(
    problems: Sequence[Problem],
    workloads: Sequence[Sequence[str] | None] | None = None,
    timeout_s: float = 60.0,
) -> list[dict[str, TraceGraph] | Fault]:
    """:func:`trace_problem` for several problems through one process; a failed one does not stop the rest."""
    wanted = [list(uuids or ()) for uuids in (workloads or [None] * len(problems))]
    results: list[dict[str, TraceGraph] | Fault | None] = [
        _cached(problem, uuids) for problem, uuids in zip(problems, wanted, strict=True)
    ]
    open_ones = [index for index, result in enumerate(results) if result is None]
    if open_ones:
        jobs = [Job(problem_to_json(problems[i]), wanted[i], timeout_s) for i in open_ones]
        for index, answer in zip(open_ones, _answers(jobs, [problems[i] for i in open_ones]), strict=True):
            if isinstance(answer, Fault):
                results[index] = answer
                continue
            results[index] = {graph.uuid: graph for graph in answer.graphs}
            if not answer.hurried:
                _remember(problems[index], wanted[index], answer)
    return [result if result is not None else Fault("fault.trace", "no answer") for result in results]


def _answers(jobs: list[Job], problems: list[Problem]) -> list[Answer | Fault]:
    """One answer per job, in order, from a few processes side by side."""
    answers: list[Answer | Fault] = [Fault("fault.trace", "the tracing process did not start")] * len(jobs)
    waiting = iter(range(len(jobs)))
    lock = threading.Lock()

    def take() -> int | None:
        with lock:
            return next(waiting, None)

    def work() -> None:
        index = take()
        while (first := index) is not None:
            try:
                with _host(problems) as process:
                    index = _serve(process, jobs, answers, first, take)
            except Fault as fault:  # no process at all
                answers[first] = Fault("fault.trace", fault.detail)
                index = take()

    workers = min(len(jobs), HOSTS, os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for future in [pool.submit(work) for _ in range(workers)]:
            future.result()
    return answers


def _serve(
    process: subprocess.Popen[bytes],
    jobs: list[Job],
    answers: list[Answer | Fault],
    index: int | None,
    take: Callable[[], int | None],
) -> int | None:
    """Give one process jobs until there are none or it dies; returns the job that another one must start with."""
    start = START_S
    while index is not None:
        job = jobs[index]
        line = b""
        with contextlib.suppress(Fault):
            request = msgspec.json.encode(job) + b"\n"
            line, _ = ask(process, request, job.timeout_s + start + 5.0, limit=_ANSWER_LIMIT, line=True)
        if not line.endswith(b"\n"):
            if start == 0.0:
                answers[index] = Fault("fault.trace", "the tracing process died or hung")
            return take()
        answers[index] = _decoded(line)
        start = 0.0
        index = take()
    return None


def _decoded(line: bytes) -> Answer | Fault:
    try:
        answer: Answer = decode_json(line, where="the tracing process", kind=Answer)
    except BadInput:
        return Fault("fault.trace", "the tracing process gave no readable answer")
    return Fault("fault.trace", one_line(answer.error)) if answer.error else answer


@contextlib.contextmanager
def _host(problems: list[Problem]) -> Iterator[subprocess.Popen[bytes]]:
    readable = [problem.root for problem in problems if problem.root and Path(problem.root).is_dir()]
    extra = {}
    blobs = os.environ.get("FLASHINFER_TRACE_DIR")
    if blobs and Path(blobs).is_dir():
        extra["FLASHINFER_TRACE_DIR"] = blobs
        readable.append(str(Path(blobs).resolve()))
    with sandboxed("engine.tracing.host", readable=readable, extra_env=extra) as process:
        yield process


def _cache_file(problem: Problem, uuids: list[str]) -> Path:
    chosen = [w for w in problem.workloads if not uuids or w.uuid in uuids]
    blobs = [_blob_stamp(source.path, problem.root) for w in chosen for source in _blob_inputs(w)]
    identity = msgspec.json.encode([VERSION, problem.definition, chosen, blobs], order="deterministic")
    return cache_dir() / "traces" / f"{hashlib.sha256(identity).hexdigest()}.msgpack"


def _blob_inputs(workload: Workload) -> list[SafetensorsInput]:
    return [source for source in workload.inputs.values() if isinstance(source, SafetensorsInput)]


def _blob_stamp(path: str, root: str | None) -> tuple[str, int, int] | None:
    file = resolve_blob(path, root)
    if file is None:
        return None
    info = file.stat()
    return str(file), info.st_size, info.st_mtime_ns


def _cached(problem: Problem, uuids: list[str]) -> dict[str, TraceGraph] | None:
    try:
        file = _cache_file(problem, uuids)
        answer: Answer = decode_msgpack(file.read_bytes(), where=str(file), kind=Answer)
    except (OSError, BadInput):
        return None
    return {graph.uuid: graph for graph in answer.graphs}


def _remember(problem: Problem, uuids: list[str], answer: Answer) -> None:
    """Best effort: a cache that cannot be written only costs time."""
    file = _cache_file(problem, uuids)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as stream:
            stream.write(msgspec.msgpack.encode(answer))
        Path(stream.name).replace(file)
