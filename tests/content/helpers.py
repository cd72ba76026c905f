"""Small problems and in-process traces: the references here are our own, so they need no sandbox."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engine.problems.model import ConstAxis, Definition, Problem, ScalarInput, TensorSpec, VarAxis, Workload
from engine.recipes.subject import Subject, subject_of
from engine.records import DeviceFacts
from engine.resources import resource_dir

CPU = DeviceFacts(kind="cpu", name="a CPU", cores=2)
H200 = DeviceFacts(kind="cuda", name="NVIDIA H200", compute_capability=(9, 0), sm_count=132)
A100 = DeviceFacts(kind="cuda", name="NVIDIA A100", compute_capability=(8, 0), sm_count=108)
TASKS = sorted(p for p in resource_dir("tasks").iterdir() if (p / "definition.json").is_file())


def traced(problem: Problem, device: DeviceFacts = CPU) -> Subject:
    from engine.recipes.capture import trace_all
    from engine.recipes.reply import Reply, Request, read_reply
    from engine.recipes.tracing import calls_for

    request = Request(reference=problem.definition.reference, calls=calls_for(problem))
    reply = msgspec.msgpack.encode(Reply(graphs=trace_all(request)))
    traces = read_reply(reply, request.calls)
    return subject_of(problem, traces, device, problem.definition.op_type or "other")


def small_problem(
    reference: str,
    inputs: dict[str, tuple[str | None, str]],
    outputs: dict[str, tuple[str, str]],
    axes: dict[str, int | None],
    workloads: list[dict[str, int]],
    scalars: dict[str, float] | None = None,
) -> Problem:
    """``axes``: a number is constant, ``None`` varies. Shapes are axis names separated by blanks."""
    specs = {n: TensorSpec(dtype=d, shape=None if s is None else s.split()) for n, (s, d) in inputs.items()}
    definition = Definition(
        name="a_user_problem",
        axes={n: VarAxis() if v is None else ConstAxis(value=v) for n, v in axes.items()},
        inputs=specs,
        outputs={n: TensorSpec(dtype=d, shape=s.split()) for n, (s, d) in outputs.items()},
        reference=reference,
    )
    sources: dict[str, Any] = {n: ScalarInput(value=v) for n, v in (scalars or {}).items()}
    return Problem(
        definition=definition,
        workloads=[Workload(uuid=f"w{i}", axes=w, inputs=dict(sources)) for i, w in enumerate(workloads)],
    )


def shrunk(problem: Problem, constants: dict[str, int], workloads: list[dict[str, int]]) -> Problem:
    """The same problem with other constant axes and workloads, so that a test takes milliseconds."""
    definition = problem.definition
    axes = {
        n: msgspec.structs.replace(a, value=constants[n]) if isinstance(a, ConstAxis) and n in constants else a
        for n, a in definition.axes.items()
    }
    first = problem.workloads[0]
    return msgspec.structs.replace(
        problem,
        definition=msgspec.structs.replace(definition, axes=axes),
        workloads=[msgspec.structs.replace(first, uuid=f"w{i}", axes=w) for i, w in enumerate(workloads)],
    )


def reference_of(problem: Problem) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(problem.definition.reference, namespace)
    run: Callable[..., Any] = namespace["run"]
    return run


def folder_of(name: str) -> Path:
    return resource_dir("tasks") / name
