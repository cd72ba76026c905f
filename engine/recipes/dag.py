"""One reference for all workloads: traces of several of them merged into a graph with symbolic sizes.

Inputs keep their names; sizes become :class:`Size`, float literals that follow a scalar input become ``Sym``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.recipes.graph import Dtype, Op, RawGraph, Ref, Value, refs
from engine.recipes.sizes import NotGeneral, Size, as_number, as_size

SKIPPED = {
    "device", "detach", "alias", "lift_fresh", "lift_fresh_copy", "_assert_async", "sym_size", "clone",
    "contiguous",
}  # fmt: skip
SAME_AS = dict.fromkeys(("_unsafe_view.default", "reshape.default", "_reshape_alias.default"), "view.default")


@dataclass(frozen=True)
class Sym:
    """A number that follows the workload: a Python expression in scalar inputs and axes."""

    text: str


@dataclass(frozen=True)
class Tensor:
    shape: tuple[Size, ...]
    dtype: str


@dataclass(frozen=True)
class Node:
    """An operator. ``args`` hold numbers, ``Size``, ``Sym``, ``Ref``, ``Dtype``, strings, ``None`` or lists."""

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outs: tuple[int, ...]

    @property
    def base(self) -> str:
        return self.op.partition(".")[0]

    def inputs(self) -> list[int]:
        return [n for a in (*self.args, *self.kwargs.values()) for n in refs(a)]


@dataclass(frozen=True)
class Graph:
    """``inputs``: value number → input name. ``producer``: value number → node. ``outputs`` in order."""

    inputs: Mapping[int, str]
    scalars: tuple[str, ...]
    values: Mapping[int, Tensor]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    samples: int
    axes: tuple[Mapping[str, int], ...]
    constants: Mapping[int, Sequence[float]] = field(default_factory=dict)
    scalar_values: tuple[Mapping[str, Any], ...] = ()
    producer: Mapping[int, Node] = field(default_factory=dict)

    def users(self, value: int) -> list[Node]:
        return [node for node in self.nodes if value in node.inputs()]


def merge(traces: Sequence[RawGraph]) -> Graph:
    """Raises :class:`NotGeneral` where the traces differ in more than sizes, or are incomplete."""
    if not traces:
        raise NotGeneral("nothing was traced")
    for trace in traces:
        if trace.error:
            raise NotGeneral(f"the reference could not be traced ({trace.error})")
        if trace.data_dependent:
            raise NotGeneral("what the reference runs depends on its inputs' data")
        if trace.mutates:
            raise NotGeneral("the reference writes into tensors in place")
    traces = [normalised(t) for t in traces]
    first = traces[0]
    if any([o.name for o in trace.ops] != [o.name for o in first.ops] for trace in traces):
        raise NotGeneral("the reference runs different operators for different workloads")
    if any(_form(trace) != _form(first) for trace in traces):
        raise NotGeneral("the dataflow differs between workloads")
    axes = [t.axes for t in traces]
    nodes: list[Node] = []
    for index, op in enumerate(first.ops):
        same = [t.ops[index] for t in traces]
        args = tuple(_merge([o.args[i] for o in same], traces, axes) for i in range(len(op.args)))
        kwargs = {k: _merge([o.kwargs[k] for o in same], traces, axes) for k in op.kwargs if k in _KEPT}
        nodes.append(Node(op.name, args, kwargs, tuple(op.outs)))
    live = _live(nodes, first.outputs)
    wanted = (
        {n for node in live for n in (*node.inputs(), *node.outs)}
        | set(first.outputs)
        | set(first.inputs.values())
    )
    return Graph(
        inputs={number: name for name, number in first.inputs.items()},
        scalars=tuple(first.scalars),
        values={n: Tensor(_shape(n, traces, axes), first.values[n].dtype) for n in sorted(wanted)},
        nodes=tuple(live),
        outputs=tuple(first.outputs),
        samples=len(traces),
        axes=tuple(axes),
        constants=first.constants,
        scalar_values=tuple(t.scalars for t in traces),
        producer={out: node for node in live for out in node.outs},
    )


def _form(trace: RawGraph) -> Any:
    """What traces share whose numbers mean the same: the rest of them can be compared place by place."""
    calls = [(op.outs, len(op.args), op.kwargs.keys()) for op in trace.ops]
    return trace.inputs, trace.outputs, trace.constants.keys(), trace.scalars.keys(), calls


def normalised(trace: RawGraph) -> RawGraph:
    """Without operators that only copy or alias, and renumbered: batch 1 then traces like batch 8."""
    number: dict[int, int] = {}
    values: dict[int, Value] = {}

    def define(old: int) -> int:
        number[old] = len(values)
        values[number[old]] = trace.values[old]
        return number[old]

    inputs = {name: define(old) for name, old in trace.inputs.items()}
    constants = {define(old): list(data) for old, data in trace.constants.items()}
    ops: list[Op] = []
    for op in trace.ops:
        if not op.outs:
            continue
        sources = refs(op.args)
        if op.base in SKIPPED and sources:
            number[op.outs[0]] = _now(sources[0], number)
            continue
        args, kwargs = _renumbered(op.args, number), {k: _renumbered(v, number) for k, v in op.kwargs.items()}
        outs = [define(out) for out in op.outs]
        ops.append(Op(name=SAME_AS.get(op.name, op.name), args=args, kwargs=kwargs, outs=outs))
    return msgspec.structs.replace(
        trace,
        inputs=inputs,
        values=values,
        ops=ops,
        constants=constants,
        outputs=[_now(n, number) for n in trace.outputs],
    )


def _now(old: int, number: Mapping[int, int]) -> int:
    if old not in number:
        raise NotGeneral("the reference uses a tensor that is neither an input nor computed from one")
    return number[old]


def _renumbered(argument: Any, number: Mapping[int, int]) -> Any:
    if isinstance(argument, Ref):
        return Ref(_now(argument.id, number))
    if isinstance(argument, list):
        return [_renumbered(item, number) for item in argument]
    return argument


_KEPT = {
    "dtype", "approximate", "alpha", "beta", "rounding_mode", "reduction", "unbiased", "correction", "keepdim",
}  # fmt: skip


def _live(nodes: Sequence[Node], outputs: Sequence[int]) -> list[Node]:
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted & set(node.outs):
            kept.append(node)
            wanted |= set(node.inputs())
    return kept[::-1]


def _shape(number: int, traces: Sequence[RawGraph], axes: Sequence[Mapping[str, int]]) -> tuple[Size, ...]:
    shapes = [t.values[number].shape for t in traces]
    if len({len(s) for s in shapes}) > 1:
        raise NotGeneral("a tensor has a different rank in different workloads")
    return tuple(as_size(dims, axes) for dims in zip(*shapes, strict=True))


def _merge(items: Sequence[Any], traces: Sequence[RawGraph], axes: Sequence[Mapping[str, int]]) -> Any:
    first = items[0]
    if any(type(item) is not type(first) for item in items):
        raise NotGeneral("the reference calls an operator in different ways for different workloads")
    if isinstance(first, Ref):
        if any(item.id != first.id for item in items):
            raise NotGeneral("the dataflow differs between workloads")
        return first
    if isinstance(first, list):
        if any(len(item) != len(first) for item in items):
            raise NotGeneral("an operator takes lists of different lengths for different workloads")
        return [_merge([item[i] for item in items], traces, axes) for i in range(len(first))]
    if isinstance(first, bool | str | Dtype) or first is None:
        if any(item != first for item in items):
            raise NotGeneral(f"an option differs between workloads: {first!r}")
        return first
    if isinstance(first, int) and all(item == first for item in items):
        return first
    scalars = [t.scalars for t in traces]
    if isinstance(first, int):
        try:
            return as_size(items, axes)
        except NotGeneral:
            return Sym(as_number([float(i) for i in items], scalars, axes))
    text = as_number(items, scalars, axes)
    return first if text == repr(first) else Sym(text)
