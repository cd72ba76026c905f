"""Reshapes, slices, transposes and concatenations: they change where an element is read, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.recipes.dag import Node, Sym
from engine.recipes.graph import Ref
from engine.recipes.index import Dim, Dims, Ix, Unsupported, shifted
from engine.recipes.sizes import Size
from engine.recipes.views import view_of

if TYPE_CHECKING:
    from engine.recipes.rows import Builder, Var


def source_of(node: Node, index: int = 0) -> int:
    item = node.args[index]
    if not isinstance(item, Ref):
        raise Unsupported(f"{node.base} of a number")
    return item.id


def shape_in(b: Builder, number: int) -> tuple[Size, ...]:
    return tuple(b.graph.values[number].shape)


def axis_of(position: Any, rank: int) -> int:
    if not isinstance(position, int):
        raise Unsupported("a dimension that depends on the workload")
    return position + rank if position < 0 else position


def reshape(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = source_of(node)
    try:
        moved = b.domain.reshape(dims, shape_in(b, source))
    except Unsupported:
        view = view_of(b.graph, number)
        if view is None:
            raise
        return b.load_view(view, dims)
    return b.value(source, moved)


def same(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    return b.value(source_of(node), dims)


def expand(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = source_of(node)
    return b.value(source, b.broadcast(dims, shape_in(b, number), shape_in(b, source)))


def transpose(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    rank = len(dims)
    if node.base == "t":
        order = list(range(rank))[::-1]
    elif node.base == "permute":
        inverse = [axis_of(p, rank) for p in node.args[1]]
        order = [inverse.index(i) for i in range(rank)]
    else:
        order = list(range(rank))
        i, j = axis_of(node.args[1], rank), axis_of(node.args[2], rank)
        order[i], order[j] = order[j], order[i]
    return b.value(source_of(node), tuple(dims[i] for i in order))


def slice(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = source_of(node)
    shape = shape_in(b, source)
    axis = axis_of(node.args[1] if len(node.args) > 1 else 0, len(shape))
    start = node.args[2] if len(node.args) > 2 else 0
    step = node.args[4] if len(node.args) > 4 else 1
    if step != 1:
        raise Unsupported("a slice with a step")
    text = text_of(0 if start is None else start)
    if text.startswith("-"):
        length = shape[axis].constant
        text = "" if length is None else str(length + int(text))
    if not text:
        raise Unsupported("a slice from the end of a dimension that varies")
    moved = list(dims)
    moved[axis] = shifted(dims[axis], text, shape[axis])
    return b.value(source, tuple(moved))


def select(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = source_of(node)
    shape = shape_in(b, source)
    axis = axis_of(node.args[1], len(shape))
    place = node.args[2]
    if isinstance(place, int) and place < 0:
        length = shape[axis].constant
        if length is None:
            raise Unsupported("a selection from the end of a dimension that varies")
        place += length
    chosen = Dim(shape[axis], Ix("zero", b.domain.one, add=text_of(place)))
    return b.value(source, (*dims[:axis], chosen, *dims[axis:]))


def pieces(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = source_of(node)
    shape = shape_in(b, source)
    place = 1 if node.base == "unbind" else 2
    axis = axis_of(node.args[place] if len(node.args) > place else 0, len(shape))
    which = node.outs.index(number)
    if node.base == "unbind":
        chosen = Dim(shape[axis], Ix("zero", b.domain.one, add=str(which)))
        return b.value(source, (*dims[:axis], chosen, *dims[axis:]))
    before = [shape_in(b, out)[axis] for out in node.outs[:which]]
    moved = list(dims)
    moved[axis] = shifted(dims[axis], sum_text(before), shape[axis])
    return b.value(source, tuple(moved))


def cat(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    pieces = [item.id for item in node.args[0]]
    axis = axis_of(node.args[1] if len(node.args) > 1 else 0, len(dims))
    place = b.index(dims[axis])
    result: Any = None
    ends: list[Size] = []
    for piece in pieces:
        shape = shape_in(b, piece)
        moved = list(dims)
        start = sum_text(ends)
        shift = shifted(dims[axis], start if start == "0" else f"-({start})", shape[axis])
        if shift.ix.clamp is not None:
            raise Unsupported("a concatenation inside a concatenation")
        moved[axis] = Dim(shape[axis], replace(shift.ix, clamp=shape[axis]))
        var = b.value(piece, tuple(moved))
        if result is None:
            result = var
        else:
            inside = b.point("lt", [place, b.literal(Sym(start))], "bool")
            result = b.point("where", [inside, result, var], b.graph.values[number].dtype)
        ends.append(shape[axis])
    return result  # type: ignore[no-any-return]


def text_of(item: Any) -> str:
    """A place along a dimension. Raises :class:`Unsupported` for what is no whole number."""
    if isinstance(item, Size):
        return item.text
    if not isinstance(item, int) or isinstance(item, bool):
        raise Unsupported("a place in a tensor that is no whole number")
    return str(item)


def sum_text(sizes: Sequence[Size]) -> str:
    if all(s.constant is not None for s in sizes):
        return str(sum(s.constant or 0 for s in sizes))
    return " + ".join(s.text for s in sizes)
