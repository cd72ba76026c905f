"""Views of inputs as offset and strides, followed forwards: what PyTorch itself would do without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.recipes.dag import Graph, Node
from engine.recipes.graph import Ref
from engine.recipes.index import Dims, Domain, Ix, Term
from engine.recipes.sizes import Size, const, product


@dataclass(frozen=True)
class View:
    """Element ``idx`` lies at ``offset + Σ idx·stride`` in contiguous input ``source`` (a value number)."""

    source: int
    offset: Size
    strides: tuple[Size, ...]


def view_of(graph: Graph, number: int) -> View | None:
    """``None`` where ``number`` is computed, or a copy would be needed."""
    if number in graph.inputs:
        shape = graph.values[number].shape
        return View(number, const(0, graph.samples), _contiguous(shape, graph.samples))
    node = graph.producer.get(number)
    if node is None or not node.args or not isinstance(node.args[0], Ref):
        return None
    before = view_of(graph, node.args[0].id)
    return None if before is None else _step(graph, node, number, before)


def _contiguous(shape: Sequence[Size], samples: int) -> tuple[Size, ...]:
    return tuple(product(shape[i + 1 :], samples) for i in range(len(shape)))


def _step(graph: Graph, node: Node, number: int, before: View) -> View | None:
    old, new = graph.values[node.args[0].id].shape, graph.values[number].shape
    strides = list(before.strides)
    if node.base in ("view", "unsqueeze", "squeeze"):
        found = _reshaped(old, strides, new, graph.samples)
        return None if found is None else View(before.source, before.offset, tuple(found))
    if node.base == "expand":
        zero, lead = const(0, graph.samples), len(new) - len(old)
        moved = [
            zero if i < lead or (old[i - lead].constant == 1 and size.constant != 1) else strides[i - lead]
            for i, size in enumerate(new)
        ]
        return View(before.source, before.offset, tuple(moved))
    order = _order(node, len(old))
    if order is not None:
        return View(before.source, before.offset, tuple(strides[i] for i in order))
    return None


def _order(node: Node, rank: int) -> list[int] | None:
    if node.base == "t":
        return list(range(rank))[::-1]
    if node.base == "permute":
        return [int(p) % rank for p in node.args[1]]
    if node.base == "transpose":
        order = list(range(rank))
        i, j = int(node.args[1]) % rank, int(node.args[2]) % rank
        order[i], order[j] = order[j], order[i]
        return order
    return None


def _reshaped(
    old: Sequence[Size], strides: Sequence[Size], new: Sequence[Size], samples: int
) -> list[Size] | None:
    """Strides of the new shape, or ``None`` if dimensions that do not touch would have to merge."""
    runs = _runs(old, strides, samples)
    found: list[Size] = []
    position = 0
    wanted = [s for s in new if s.constant != 1]
    result: list[Size] = []
    for size, stride in runs:
        block: list[Size] = []
        while position < len(wanted) and not product(block, samples).same(size):
            block.append(wanted[position])
            position += 1
        if not product(block, samples).same(size):
            return None
        result += [product(block[i + 1 :], samples) * stride for i in range(len(block))]
    if position != len(wanted):
        return None
    rest = iter(result)
    for size in new:
        found.append(const(0, samples) if size.constant == 1 else next(rest))
    return found


def _runs(shape: Sequence[Size], strides: Sequence[Size], samples: int) -> list[tuple[Size, Size]]:
    """Neighbouring dimensions joined where they touch in memory."""
    runs: list[tuple[Size, Size]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size.constant == 1:
            continue
        if runs and runs[-1][1].same(stride * size):
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    return runs


def terms_of(domain: Domain, view: View, dims: Dims) -> tuple[Term, ...]:
    """The address of one element as terms."""
    terms = [
        Term(dim.ix, stride, dim.size)
        for dim, stride in zip(dims, view.strides, strict=True)
        if dim.size.constant != 1 and any(stride.values) and dim.ix.base != "zero"
    ]
    if any(view.offset.values):
        terms.append(Term(Ix("zero", domain.one, add=view.offset.text), domain.one, domain.one))
    return tuple(terms)
