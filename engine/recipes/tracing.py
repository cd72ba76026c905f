"""Start the tracing child for a problem: sandboxed, without network, limited in time and memory."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.errors import Fault
from engine.problems.axes import resolve_axes, shape_of
from engine.problems.model import ConstAxis, Problem, ScalarInput, Workload
from engine.problems.sandboxed import run_aside
from engine.recipes.graph import REDUCED, RawGraph
from engine.recipes.reply import MAX_REPLY, Call, NoTrace, Request, TensorArg, read_reply
from engine.recipes.subject import Subject, subject_of
from engine.records import DeviceFacts

MODULE = "engine.recipes.capture"
FEW = 2
PERTURBED = 1.3713  # shows which constants of a trace follow a scalar input


def calls_for(problem: Problem, limit: int = 6) -> list[Call]:
    """Up to ``limit`` workloads that differ in their axes, and one more with other scalar values."""
    chosen: list[Call] = []
    seen: set[Any] = set()
    for workload in _spread(problem.workloads):
        call = _call(problem, workload)
        identity = tuple(sorted(call.axes.items()))
        if identity not in seen and len(chosen) < limit:
            seen.add(identity)
            chosen.append(call)
    floats = {n: v for n, v in chosen[0].scalars.items() if isinstance(v, float)} if chosen else {}
    if floats:
        moved = {n: v * PERTURBED + 1e-7 * (i + 1) for i, (n, v) in enumerate(floats.items())}
        chosen.append(msgspec.structs.replace(chosen[0], key="scalars", scalars=chosen[0].scalars | moved))
    return [*chosen, *_reduced(problem)]


def _reduced(problem: Problem) -> list[Call]:
    """One more call with few experts, where inputs are stacks of matrices: their loop is then traced whole."""
    definition = problem.definition
    stacks = [s.shape for s in definition.inputs.values() if s.shape and len(s.shape) == 3]
    leading = {shape[0] for shape in stacks}
    axis = leading.pop() if len(leading) == 1 and len(stacks) > 1 else ""
    known = definition.axes.get(axis)
    if not isinstance(known, ConstAxis) or known.value <= FEW or not definition.custom_inputs_entrypoint:
        return []
    smallest = min(problem.workloads, key=lambda w: sorted(w.axes.values()))
    few = msgspec.structs.replace(smallest, axes={**smallest.axes, axis: FEW})
    return [msgspec.structs.replace(_call(problem, few), key=REDUCED)]


def _spread(workloads: Sequence[Workload]) -> list[Workload]:
    """Largest and smallest first: sizes that differ most tell most about what they follow."""
    ordered = sorted(workloads, key=lambda w: sorted(w.axes.values()))
    ends = [w for pair in zip(ordered, reversed(ordered), strict=True) for w in pair]
    return list({w.uuid: w for w in ends}.values())


def _call(problem: Problem, workload: Workload) -> Call:
    definition = problem.definition
    axes = resolve_axes(definition, workload)
    tensors: dict[str, TensorArg] = {}
    scalars: dict[str, bool | int | float] = {}
    for name, spec in definition.inputs.items():
        shape = shape_of(spec, axes)
        source = workload.inputs.get(name)
        if shape is not None:
            tensors[name] = TensorArg(shape, spec.dtype)
        else:
            scalars[name] = source.value if isinstance(source, ScalarInput) else 1.0
    return Call(
        key=workload.uuid,
        axes=axes,
        tensors=tensors,
        scalars=scalars,
        order=list(definition.inputs),
        entrypoint=definition.custom_inputs_entrypoint or "",
    )


async def trace_reference(problem: Problem, timeout_s: float = 60.0) -> tuple[list[RawGraph], str]:
    """The traces, and why there are none. Never raises for what the reference does or makes the child reply."""
    calls = calls_for(problem)
    request = msgspec.json.encode(Request(reference=problem.definition.reference, calls=calls))
    try:
        reply = await run_aside(MODULE, request, timeout_s, limit=MAX_REPLY)
    except Fault as error:
        return [], f"tracing failed: {error.detail}"
    try:
        return await asyncio.to_thread(read_reply, reply, calls), ""
    except NoTrace as error:
        return [], f"tracing gave no readable answer: {error}"


async def prepare(problem: Problem, device: DeviceFacts, kernel_type: str, timeout_s: float = 60.0) -> Subject:
    """Trace ``problem`` and make it ready for :func:`engine.recipes.match.match_all`."""
    traces, why = await trace_reference(problem, timeout_s)
    subject = subject_of(problem, traces, device, kernel_type)
    return dataclasses.replace(subject, why_no_graph=why) if why else subject
