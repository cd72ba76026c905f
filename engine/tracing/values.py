"""Tracked data of a trace: values by storage, the nodes that made them, and what the outputs need of them."""

from __future__ import annotations

import math
from typing import Any

import torch

from engine.problems.dtypes import DTYPES, name_of


def bits_of(dtype: str) -> int:
    known = DTYPES.get(dtype)
    return known.bits if known else 32


class Value:
    """The content of one storage between two writes.

    ``narrow``: narrowest float type its values fit in. ``structured``: made from constants only, so known before
    any data. ``nonzero``: fraction of a mask that is set. ``kept``: fraction that a mask leaves (of scores or of
    an additive mask). ``origin``: the integer input it is a copy of.
    """

    __slots__ = (
        "dtype",
        "id",
        "input",
        "itemsize",
        "kept",
        "narrow",
        "nonzero",
        "numel",
        "origin",
        "producer",
        "structured",
    )

    def __init__(self, number: int, tensor: torch.Tensor, producer: Node | None = None) -> None:
        self.id = number
        self.itemsize = tensor.element_size()
        self.numel = max(tensor.untyped_storage().nbytes() // max(self.itemsize, 1), 0)
        self.dtype = name_of(tensor.dtype)
        self.producer = producer
        self.narrow = self.dtype
        self.structured = False
        self.nonzero: float | None = None
        self.kept: float | None = None
        self.origin: str | None = None
        self.input: str | None = None


class Read:
    """One operand: ``elements`` of ``value`` under one view. ``scales``: needed in proportion to the output."""

    __slots__ = ("elements", "entries", "factor", "index_of", "scales", "shape", "strides", "value", "view")

    def __init__(self, value: Value, tensor: torch.Tensor, *, scales: bool) -> None:
        self.value = value
        self.shape, self.strides = tuple(tensor.shape), tuple(tensor.stride())
        self.view: Any = view_key(tensor)
        self.elements = stored_elements(value, tensor)
        self.scales = scales
        self.factor = 1.0
        self.index_of: Value | None = None  # for a gather: the index it was read with
        self.entries = 1  # … and how many entries that has


class Node:
    """One recorded operator. ``old`` is the value that an in-place write to a part of a storage left over."""

    __slots__ = (
        "before",
        "dtype",
        "flops",
        "kind",
        "name",
        "old",
        "out_shape",
        "out_strides",
        "outputs",
        "reads",
        "site",
        "unit",
        "unit_dtype",
    )

    def __init__(self, name: str, kind: str, site: tuple[int, ...] = ()) -> None:
        self.name, self.kind, self.site = name, kind, site
        self.reads: list[Read] = []
        self.outputs: list[Value] = []
        self.out_shape: list[tuple[int, ...]] = []
        self.out_strides: list[tuple[int, ...]] = []
        self.before: list[Value | None] = []
        self.old: Value | None = None
        self.flops = 0.0
        self.unit = self.unit_dtype = ""
        self.dtype: list[str] = []


Levels = tuple[tuple[int, int], ...]


def levels_of(tensor: torch.Tensor) -> Levels:
    """What a view touches, as (step, count) from the innermost level outwards; the product of counts is how much.

    Transposed, expanded, split and merged axes make no difference, and windows that overlap are one longer run.
    An axis that overlaps in an irregular way counts as one: the result is never too large.
    """
    if tensor.numel() == 0:
        return ((1, 0),)
    levels: list[tuple[int, int]] = []
    step = count = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1 or stride == 0:
            continue
        if stride % step == 0 and stride // step <= count:
            count += (size - 1) * (stride // step)
        elif stride >= step * count:
            levels.append((step, count))
            step, count = stride, size
    return tuple(level for level in (*levels, (step, count)) if level[1] != 1) or ((1, 1),)


def unique_elements(tensor: torch.Tensor) -> int:
    """Elements behind a view: an expanded axis repeats one, overlapping windows share some."""
    return math.prod(count for _, count in levels_of(tensor))


def stored_elements(value: Value, tensor: torch.Tensor) -> float:
    """Elements of ``value`` behind a view, which may have another type (a complex number is two floats)."""
    return float(unique_elements(tensor) * tensor.element_size() / max(value.itemsize, 1))


def view_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for views of the same elements, however they are arranged."""
    return (tensor.storage_offset(), *levels_of(tensor))


def _together(views: dict[Any, float]) -> float:
    """Elements behind all views. Runs that lie alike (rows of one matrix, shifted by a little) may overlap."""
    alone = 0.0
    runs: dict[Any, list[tuple[int, int, float]]] = {}
    for view, elements in views.items():
        run = _run_of(view)
        if run is None:
            alone += elements
            continue
        place, begin, end = run
        runs.setdefault(place, []).append((begin, end, elements / (end - begin)))
    return alone + sum(_union(spans) for spans in runs.values())


def _run_of(view: Any) -> tuple[Any, int, int] | None:
    """(what else the view repeats over, begin, end) of a view whose innermost elements lie next to each other."""
    if not isinstance(view, tuple) or isinstance(view[0], str):
        return None
    offset, (step, count), *outer = view
    row = outer[0][0] if outer else offset + count
    if step != 1 or not count or offset % row + count > row:
        return None
    begin = offset % row
    return (offset - begin, *outer), begin, begin + count


def _union(spans: list[tuple[int, int, float]]) -> float:
    """Of (begin, end, elements for each step between them), which is the same for all."""
    total, reached = 0.0, 0
    for begin, end, each in sorted(spans):
        total += max(0, end - max(begin, reached)) * each
        reached = max(reached, end)
    return total


class Demand:
    """How many elements of each value are needed, from the outputs backwards."""

    def __init__(self) -> None:
        self._views: dict[int, dict[Any, float]] = {}
        self._parts: dict[int, dict[Any, tuple[float, float]]] = {}

    def add(self, value: Value, view: Any, elements: float) -> None:
        views = self._views.setdefault(value.id, {})
        views[view] = max(views.get(view, 0.0), elements)

    def add_part(self, value: Value, view: Any, elements: float, share: float) -> None:
        """A ``share`` of a view's ``elements``, nobody knows which: all its parts are no more than the view."""
        parts = self._parts.setdefault(value.id, {})
        parts[view] = (elements, parts.get(view, (0.0, 0.0))[1] + share)

    def elements(self, value: Value) -> float:
        views = self._views.get(value.id, {})
        parts = self._parts.get(value.id, {})
        more = sum(whole * min(share, 1.0) for view, (whole, share) in parts.items() if view not in views)
        return min(float(value.numel), _together(views) + more)

    def fraction(self, value: Value) -> float:
        needed = self.elements(value)
        return 0.0 if not needed else (min(1.0, needed / value.numel) if value.numel else 1.0)


def needed_elements(nodes: list[Node], outputs: list[tuple[Value, torch.Tensor]]) -> Demand:
    """Walk the nodes backwards and collect what each value is needed for; scales ``flops`` to what is needed."""
    demand = Demand()
    for value, tensor in outputs:
        demand.add(value, view_key(tensor), stored_elements(value, tensor))
    for node in reversed(nodes):
        fraction = max((demand.fraction(value) for value in node.outputs), default=0.0)
        node.flops *= fraction
        if fraction == 0.0:
            continue
        if node.old is not None:
            rest = demand.elements(node.outputs[0])
            demand.add(node.old, ("rest", node.old.id), rest)
        for read in node.reads:
            share = read.factor * (fraction if read.scales else 1.0)
            if share == 1.0:
                demand.add(read.value, read.view, read.elements)
            else:
                demand.add_part(read.value, read.view, read.elements, share)
    return demand


def touched_elements(nodes: list[Node], sizes: dict[str, int]) -> Demand:
    """What a truncated trace needs: whatever it computed, and what its loops would still have reached.

    A view of a value stands for all of it, a gather for as many rows as its index input (``sizes``) has entries.
    """
    demand = Demand()
    read_ids = {read.value.id for node in nodes for read in node.reads}
    for node in reversed(nodes):
        sinks = [value for value in node.outputs if value.id not in read_ids]
        fraction = 1.0 if sinks else max((demand.fraction(value) for value in node.outputs), default=0.0)
        node.flops *= fraction
        for read in node.reads:
            index = read.index_of
            origin = (index.origin or index.input) if index is not None else None
            if origin is not None and index is not None and sizes.get(origin):
                row = read.elements / max(read.entries, 1)
                demand.add(read.value, ("gathered", origin), row * sizes[origin])
            else:
                share = read.factor * (fraction if read.scales else 1.0)
                demand.add(read.value, "all", read.value.numel * share)
    return demand
