"""Full reductions, whose last step PyTorch does, and the rows that a computation asks for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from engine.recipes.dag import Graph, Node, Sym
from engine.recipes.expressions import MAX_TEXT
from engine.recipes.graph import Ref
from engine.recipes.index import Domain, Unsupported
from engine.recipes.lower_reduce import REDUCING, nll_rows, reduced_axes
from engine.recipes.lower_shape import shape_in, source_of
from engine.recipes.sizes import Size, const, product

if TYPE_CHECKING:
    from engine.recipes.rows import Builder


def tail(b: Builder, number: int) -> str:
    """A PyTorch expression for a one-element output, over temporaries that the program fills."""
    dtype = b.graph.values[number].dtype
    node = b.graph.producer.get(number)
    if number in b.graph.inputs:
        return b.graph.inputs[number]
    if node is None:
        raise Unsupported("a one-element output of unknown origin")
    cast = "" if dtype == "float32" else f".to(torch.{dtype})"
    if node.base == "nll_loss_forward":
        loss, counts = nll_rows(b, node)
        total = f"{b.partial(loss)}.sum()"
        return (f"({total} / {b.partial(counts)}.sum())" if node.args[3] == 1 else total) + cast
    if node.base in ("sum", "mean"):
        source = source_of(node)
        shape = shape_in(b, source)
        elements = product(shape, b.domain.samples)
        if elements.same(b.domain.total) and not elements.same(b.domain.rows):
            var = b.reduce("sum", b.cast(b.value(source, b.domain.whole(shape)), "float32"))
        elif elements.same(b.domain.rows):
            var = b.cast(b.value(source, b.domain.per_row(shape)), "float32")
        else:
            raise Unsupported("a sum over something else than the rows")
        total = f"{b.partial(var)}.sum()"
        return (f"({total} / ({elements.text}))" if node.base == "mean" else total) + cast
    if node.base in ("_to_copy", "to", "clone", "view", "_unsafe_view", "reshape", "squeeze", "unsqueeze"):
        return tail(b, source_of(node)) + cast
    if node.base in ("mul", "add", "sub", "div", "rsub") and node.kwargs.get("alpha", 1) == 1:
        sign = {"mul": "*", "add": "+", "sub": "-", "div": "/", "rsub": "-"}[node.base]
        sides = [tail(b, a.id) if isinstance(a, Ref) else _host(a) for a in node.args[:2]]
        if node.base == "rsub":
            sides.reverse()
        return _short(f"({sides[0]} {sign} {sides[1]}){cast}")
    if node.base in ("neg", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "reciprocal", "abs", "square"):
        return f"torch.{node.base}({tail(b, source_of(node))})"
    raise Unsupported(f"a one-element output through {node.base}")


def _short(text: str) -> str:
    """An expression names what it uses twice twice: a chain of such steps would double with each."""
    if len(text) > MAX_TEXT:
        raise Unsupported("a one-element output of too many steps")
    return text


def _host(item: Any) -> str:
    if isinstance(item, Sym | Size):
        return item.text
    if not isinstance(item, int | float):
        raise Unsupported(f"{type(item).__name__} where a number is meant")
    return repr(item) if math.isfinite(item) else f"float('{item}')"


def domain_of(graph: Graph, number: int) -> Domain:
    """Rows and columns that the computation of output ``number`` asks for."""
    seen: set[int] = set()
    stack = [number]
    width: Size | None = None
    total: Size | None = None
    while stack:
        value = stack.pop()
        if value in seen or value not in graph.producer or value in graph.inputs:
            continue
        seen.add(value)
        node = graph.producer[value]
        stack += node.inputs()
        found = _row_shape(graph, node)
        if found is None:
            continue
        if width is not None and not (width.same(found[0]) and total is not None and total.same(found[1])):
            raise Unsupported("reductions over rows of different lengths")
        width, total = found
    shape = graph.values[number].shape
    if width is None or total is None:
        if product(shape, graph.samples).constant == 1 and len(seen) > 1:
            width, total = _largest(graph, seen)
        else:
            width = shape[-1] if shape else const(1, graph.samples)
            total = product(shape, graph.samples)
    return Domain(_quotient(total, width, graph), width)


def _row_shape(graph: Graph, node: Node) -> tuple[Size, Size] | None:
    if node.base not in REDUCING or node.base == "nll_loss_forward" or not isinstance(node.args[0], Ref):
        return None
    shape = graph.values[node.args[0].id].shape
    axes = reduced_axes(node, len(shape))
    if axes == list(range(len(shape))) and node.base in ("sum", "mean"):
        return None  # a full reduction: rows are whatever feeds it
    return product([shape[a] for a in axes], graph.samples), product(shape, graph.samples)


def _largest(graph: Graph, seen: set[int]) -> tuple[Size, Size]:
    operands = [n for value in seen for n in graph.producer[value].inputs()]
    best = max(operands, key=lambda n: product(graph.values[n].shape, graph.samples).values)
    shape = graph.values[best].shape
    return shape[-1] if shape else const(1, graph.samples), product(shape, graph.samples)


def _quotient(total: Size, width: Size, graph: Graph) -> Size:
    values = tuple(t // w if w else 0 for t, w in zip(total.values, width.values, strict=True))
    text = str(values[0]) if len(set(values)) == 1 else f"({total.text}) // ({width.text})"
    return Size(text, values)
