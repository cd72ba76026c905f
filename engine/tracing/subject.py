"""One workload of one reference → :class:`TraceGraph` (imports torch; child process only)."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch

from engine.problems.axes import resolve_axes, spec_bytes
from engine.problems.model import Problem, Workload
from engine.problems.outputs import OutputError, normalize_outputs
from engine.problems.reference import load_reference
from engine.tracing.graph import MAX_OPERATORS, Operand, Operator, TraceGraph
from engine.tracing.recorder import OutOfBudget, Recorder
from engine.tracing.redirect import Watch
from engine.tracing.stand_ins import traced_inputs
from engine.tracing.values import Demand, Node, needed_elements, touched_elements

BUDGET = 20_000  # operators of one workload
REPEATS = 3  # records of one call in a loop with the same shapes
SHORT_BUDGET = 2_000  # after another workload of the problem has used it up


class Trace:
    """What came out of following one workload: nodes, inputs and the returned tensors."""

    def __init__(
        self, recorder: Recorder, inputs: list[Any], returned: list[torch.Tensor] | None, cuda: bool
    ) -> None:
        self.recorder, self.inputs, self.returned, self.cuda = recorder, inputs, returned, cuda


def trace_workload(problem: Problem, workload: Workload, budget: int = BUDGET) -> TraceGraph:
    """Follow the reference. Never raises for what it does: the graph is then incomplete and says why."""
    failure = ""
    for assume_true in (False, True):
        try:
            trace = _follow(problem, workload, budget, assume_true=assume_true)
            return _graph(problem, workload, trace)
        except AssertionError as error:
            failure = f"assertion failed {str(error)[:120]}".strip()
        except Exception as error:  # noqa: BLE001 - whatever a foreign reference raises ends as a note
            failure = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            break
    needs_cuda = any(word in failure for word in ("CUDA", "cuda", "triton"))
    return bytes_only(problem, workload, f"the reference could not be traced ({failure})", needs_cuda)


def _follow(problem: Problem, workload: Workload, budget: int, *, assume_true: bool) -> Trace:
    definition = problem.definition
    axes = resolve_axes(definition, workload)
    recorder, watch = Recorder(budget, assume_true=assume_true), Watch()
    returned: list[torch.Tensor] | None = None
    module = load_reference(definition)
    with watch if watch.is_needed(definition.reference) else nullcontext():
        inputs = traced_inputs(recorder, definition, workload, axes, problem.root, module)
        watch.on_read, watch.on_attention = recorder.use, recorder.fused_attention
        try:
            with recorder:
                returned = normalize_outputs(definition, module.run(*inputs), "cpu")
        except OutOfBudget:
            recorder.note(
                f"the reference loops over its data: followed for {budget} operators, FLOPs are a lower bound"
            )
        except OutputError as error:
            recorder.note(str(error))
    return Trace(recorder, inputs, returned, watch.cuda_seen)


def _graph(problem: Problem, workload: Workload, trace: Trace) -> TraceGraph:
    definition, recorder = problem.definition, trace.recorder
    tensors = {n: v for n, v in zip(definition.inputs, trace.inputs, strict=True) if isinstance(v, torch.Tensor)}
    demand = _demand(trace, tensors)
    axes = resolve_axes(definition, workload)
    flops: dict[str, float] = {}
    for node in recorder.nodes:
        if node.flops:
            key = f"{node.unit}:{node.unit_dtype}"
            flops[key] = flops.get(key, 0.0) + node.flops
    values = recorder.inputs
    return TraceGraph(
        uuid=workload.uuid,
        operators=_operators(recorder.nodes),
        operator_counts=dict(Counter(node.name for node in recorder.nodes).most_common()),
        inputs={name: values[name].id for name in tensors},
        outputs=[recorder.value_of(tensor).id for tensor in trace.returned or []],
        flops=flops,
        read_bytes={name: demand.elements(values[name]) * values[name].itemsize for name in tensors},
        write_bytes={name: float(spec_bytes(spec, axes)) for name, spec in definition.outputs.items()},
        needs_cuda=trace.cuda or any(_only_on_cuda(node) for node in recorder.nodes),
        complete=trace.returned is not None,
        notes=list(recorder.notes),
    )


def _demand(trace: Trace, tensors: dict[str, torch.Tensor]) -> Demand:
    """Exact where the trace is; whole inputs where it was cut short or its index data are not here."""
    recorder = trace.recorder
    if trace.returned is not None and not recorder.assumed:
        outputs = [(recorder.value_of(tensor), tensor) for tensor in trace.returned] + recorder.used
        return needed_elements(recorder.nodes, outputs)
    demand = touched_elements(recorder.nodes, {name: tensor.numel() for name, tensor in tensors.items()})
    for name in tensors:
        value = recorder.inputs[name]
        if not demand.elements(value):
            demand.add(value, "all", value.numel)
    return demand


def _operators(nodes: list[Node]) -> list[Operator]:
    """The nodes as records; of a loop's equal operators only the first :data:`REPEATS` are kept.

    Whoever reads a dropped one's result is shown the last kept one's, so that the dataflow stays whole.
    """
    kept: list[Operator] = []
    seen: dict[Any, int] = {}
    last: dict[Any, Node] = {}
    same: dict[int, int] = {}
    for node in nodes:
        key = (
            node.site,
            node.name,
            tuple(node.out_shape),
            tuple(node.dtype),
            *(read.shape for read in node.reads),
        )
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= REPEATS and len(kept) < MAX_OPERATORS:
            last[key] = node
            kept.append(_operator(node, same))
        elif key in last:
            for mine, theirs in zip(node.outputs, last[key].outputs, strict=False):
                same[mine.id] = theirs.id
    return kept


def _operator(node: Node, same: dict[int, int]) -> Operator:
    outputs = zip(node.outputs, node.out_shape, node.out_strides, node.dtype, strict=True)
    return Operator(
        name=node.name,
        kind=node.kind,
        inputs=[
            Operand(same.get(read.value.id, read.value.id), list(read.shape), read.value.dtype, list(read.strides))
            for read in node.reads
        ],
        outputs=[Operand(value.id, list(shape), dtype, list(strides)) for value, shape, strides, dtype in outputs],
        flops=node.flops,
        unit=node.unit,
        unit_dtype=node.unit_dtype,
    )


def _only_on_cuda(node: Node) -> bool:
    """Block-scaled products have no CPU kernel."""
    return node.name.startswith("aten._scaled_mm") and any(
        len(read.shape) == 1 and read.shape[0] > 1 for read in node.reads
    )


def bytes_only(problem: Problem, workload: Workload, note: str, needs_cuda: bool = False) -> TraceGraph:
    """What the definition alone tells: every input read, every output written."""
    axes = resolve_axes(problem.definition, workload)
    definition = problem.definition
    return TraceGraph(
        uuid=workload.uuid,
        read_bytes={n: float(spec_bytes(s, axes)) for n, s in definition.inputs.items() if s.shape is not None},
        write_bytes={n: float(spec_bytes(s, axes)) for n, s in definition.outputs.items()},
        needs_cuda=needs_cuda,
        complete=False,
        notes=[note],
    )
