"""How each ATen operator reads in a row program. Part of the compiler in :mod:`engine.recipes.rows`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.recipes.dag import Graph, Node
from engine.recipes.graph import Dtype, Ref
from engine.recipes.index import Dim, Dims, Domain, Ix, Unsupported, shifted
from engine.recipes.ops import POINTWISE
from engine.recipes.sizes import Size, const, product

if TYPE_CHECKING:
    from engine.recipes.rows import Builder, Var

REDUCING = {
    "sum", "mean", "amax", "amin", "max", "min", "logsumexp", "_softmax", "_log_softmax", "native_layer_norm",
    "var", "std", "var_mean", "_fused_rms_norm", "nll_loss_forward", "linalg_vector_norm",
}  # fmt: skip
Shape = Sequence[Size]


def lower(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    """The value ``number``, a result of ``node``, at ``dims``. Raises :class:`Unsupported`."""
    handler = _HANDLERS.get(node.base)
    if handler is not None:
        return handler(b, node, number, dims)
    if node.base in POINTWISE:
        return _pointwise(b, node, number, dims)
    raise Unsupported(f"the operator {node.base} is neither element-wise nor a row reduction")


# --- shapes


def _arg(node: Node, index: int = 0) -> int:
    item = node.args[index]
    if not isinstance(item, Ref):
        raise Unsupported(f"{node.base} of a number")
    return item.id


def _shape(b: Builder, number: int) -> tuple[Size, ...]:
    return tuple(b.graph.values[number].shape)


def _axis(position: Any, rank: int) -> int:
    if not isinstance(position, int):
        raise Unsupported("a dimension that depends on the workload")
    return position + rank if position < 0 else position


def _reshape(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = _arg(node)
    return b.value(source, b.domain.reshape(dims, _shape(b, source)))


def _same(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    return b.value(_arg(node), dims)


def _expand(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = _arg(node)
    return b.value(source, b.broadcast(dims, _shape(b, number), _shape(b, source)))


def _transpose(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    rank = len(dims)
    if node.base == "t":
        order = list(range(rank))[::-1]
    elif node.base == "permute":
        inverse = [_axis(p, rank) for p in node.args[1]]
        order = [inverse.index(i) for i in range(rank)]
    else:
        order = list(range(rank))
        i, j = _axis(node.args[1], rank), _axis(node.args[2], rank)
        order[i], order[j] = order[j], order[i]
    return b.value(_arg(node), tuple(dims[i] for i in order))


def _slice(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = _arg(node)
    shape = _shape(b, source)
    axis = _axis(node.args[1] if len(node.args) > 1 else 0, len(shape))
    start = node.args[2] if len(node.args) > 2 else 0
    step = node.args[4] if len(node.args) > 4 else 1
    if step != 1:
        raise Unsupported("a slice with a step")
    text = _text(start)
    if text.startswith("-"):
        length = shape[axis].constant
        text = "" if length is None else str(length + int(text))
    if not text:
        raise Unsupported("a slice from the end of a dimension that varies")
    moved = list(dims)
    moved[axis] = shifted(dims[axis], text, shape[axis])
    return b.value(source, tuple(moved))


def _select(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = _arg(node)
    shape = _shape(b, source)
    axis = _axis(node.args[1], len(shape))
    place = node.args[2]
    if isinstance(place, int) and place < 0:
        length = shape[axis].constant
        if length is None:
            raise Unsupported("a selection from the end of a dimension that varies")
        place += length
    chosen = Dim(shape[axis], Ix("zero", b.domain.one, add=_text(place)))
    return b.value(source, (*dims[:axis], chosen, *dims[axis:]))


def _pieces(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = _arg(node)
    shape = _shape(b, source)
    place = 1 if node.base == "unbind" else 2
    axis = _axis(node.args[place] if len(node.args) > place else 0, len(shape))
    which = node.outs.index(number)
    if node.base == "unbind":
        chosen = Dim(shape[axis], Ix("zero", b.domain.one, add=str(which)))
        return b.value(source, (*dims[:axis], chosen, *dims[axis:]))
    before = [_shape(b, out)[axis] for out in node.outs[:which]]
    moved = list(dims)
    moved[axis] = shifted(dims[axis], _sum_text(before), shape[axis])
    return b.value(source, tuple(moved))


def _cat(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    pieces = [item.id for item in node.args[0]]
    axis = _axis(node.args[1] if len(node.args) > 1 else 0, len(dims))
    place = b.index(dims[axis])
    result: Any = None
    ends: list[Size] = []
    for piece in pieces:
        shape = _shape(b, piece)
        moved = list(dims)
        start = _sum_text(ends)
        shift = shifted(dims[axis], start if start == "0" else f"-({start})", shape[axis])
        moved[axis] = Dim(shape[axis], replace(shift.ix, clamp=shape[axis]))
        var = b.value(piece, tuple(moved))
        if result is None:
            result = var
        else:
            inside = b.point("lt", [place, b.literal(_Text(start))], "bool")
            result = b.point("where", [inside, result, var], b.graph.values[number].dtype)
        ends.append(shape[axis])
    return result  # type: ignore[no-any-return]


class _Text:
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def _text(item: Any) -> str:
    return item.text if isinstance(item, Size) else str(item)


def _sum_text(sizes: Sequence[Size]) -> str:
    if all(s.constant is not None for s in sizes):
        return str(sum(s.constant or 0 for s in sizes))
    return " + ".join(s.text for s in sizes)


def product_value(b: Builder, node: Node, acc: Var, number: int, dims: Dims) -> Var:
    """A matrix product that the kernel holds in ``acc`` (float32), with the bias of an ``addmm``."""
    result = acc
    if node.base in ("addmm", "baddbmm"):
        alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
        if alpha != 1:
            result = b.point("mul", [result, b.literal(alpha)], "float32")
        bias: Any = b.cast(b.argument(node, 0, dims, number), "float32")
        if beta != 1:
            bias = b.point("mul", [bias, b.literal(beta)], "float32")
        result = b.point("add", [result, bias], "float32")
    return b.cast(result, b.graph.values[number].dtype)


# --- element-wise


def _pointwise(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    base, dtype = node.base, b.graph.values[number].dtype
    args = [b.argument(node, i, dims, number) for i in range(min(len(node.args), POINTWISE[base].arity))]
    if base == "gelu" and node.kwargs.get("approximate") == "tanh":
        base = "gelu_tanh"
    if base == "div" and node.kwargs.get("rounding_mode"):
        raise Unsupported("a division that rounds")
    alpha = node.kwargs.get("alpha", node.args[2] if base in ("add", "sub", "rsub") and len(node.args) > 2 else 1)
    if alpha != 1:
        args[1] = b.point("mul", [args[1], b.literal(alpha)], dtype)
    return b.point(base, args, dtype)


def _cast(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    return b.cast(b.value(_arg(node), dims), b.graph.values[number].dtype)


def _pow(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    dtype = b.graph.values[number].dtype
    named = {2: "pow2", 3: "pow3", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    base = b.argument(node, 0, dims, number)
    exponent = node.args[1]
    if isinstance(exponent, int | float):
        if exponent == 1:
            return b.cast(base, dtype)
        if exponent not in named:
            raise Unsupported(f"the power {exponent}")
        return b.point(named[exponent], [base], dtype)
    if isinstance(base, str):
        return b.point("pow", [base, b.argument(node, 1, dims, number)], dtype)
    raise Unsupported("a power with a tensor exponent")


def _clamp(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    dtype = b.graph.values[number].dtype
    result = b.argument(node, 0, dims, number)
    bounds = [*node.args[1:3], None, None][:2]
    if node.base == "clamp_min":
        bounds = [node.args[1], None]
    if node.base == "clamp_max":
        bounds = [None, node.args[1]]
    for bound, op in zip(bounds, ("maximum", "minimum"), strict=True):
        if bound is not None:
            result = b.point(op, [result, b.literal(bound)], dtype)
    return result  # type: ignore[no-any-return]


def _masked_fill(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    args = [b.argument(node, i, dims, number) for i in range(3)]
    return b.point("where", [args[1], args[2], args[0]], b.graph.values[number].dtype)


def _arange(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    bounds = list(node.args)
    start, step = (0, 1) if len(bounds) == 1 else (bounds[0], bounds[2] if len(bounds) > 2 else 1)
    dtype = b.graph.values[number].dtype
    var: Var = b.index(dims[0])
    if step != 1:
        var = b.point("mul", [var, b.literal(step)], "int64")
    if start != 0:
        var = b.point("add", [var, b.literal(start)], "int64")
    return b.cast(var, dtype)


def _full(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    fill: Any = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1}.get(node.base)
    if fill is None:
        fill = node.args[0] if node.base == "scalar_tensor" else node.args[1]
    return b.point("cast", [b.literal(fill)], b.graph.values[number].dtype)


def _triangle(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    value = b.argument(node, 0, dims, number)
    dtype = b.graph.values[number].dtype
    diagonal = node.args[1] if len(node.args) > 1 else 0
    row, col = b.index(dims[-2]), b.index(dims[-1])
    reach = b.point("add", [row, b.literal(diagonal)], "int64")
    inside = b.point("le" if node.base == "tril" else "ge", [col, reach], "bool")
    return b.point("where", [inside, value, "0"], dtype)


def _glu(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = _arg(node)
    shape, half = _shape(b, source), _shape(b, number)
    axis = _axis(node.args[1] if len(node.args) > 1 else -1, len(shape))
    first, second = list(dims), list(dims)
    first[axis] = shifted(dims[axis], "0", shape[axis])
    second[axis] = shifted(dims[axis], half[axis].text, shape[axis])
    dtype = b.graph.values[number].dtype
    gate = b.point("sigmoid", [b.value(source, tuple(second))], dtype)
    return b.point("mul", [b.value(source, tuple(first)), gate], dtype)


# --- reductions


def _reduced_axes(node: Node, rank: int) -> list[int]:
    if node.base in ("_softmax", "_log_softmax"):
        return [_axis(node.args[1], rank)]
    if node.base in ("native_layer_norm", "_fused_rms_norm"):
        return list(range(rank - len(node.args[1]), rank))
    if node.op in ("sum.default", "mean.default", "amax.default", "max.default", "min.default"):
        return list(range(rank))
    place = 2 if node.base == "linalg_vector_norm" else 1
    given = node.args[place] if len(node.args) > place else None
    if given is None or given == []:
        return list(range(rank))
    return sorted(_axis(a, rank) for a in (given if isinstance(given, list) else [given]))


def _row_arg(b: Builder, node: Node, dims: Dims, kept: bool) -> Var:
    """The operand of a row reduction over the whole row, for the row that ``dims`` of the result name."""
    source = _arg(node)
    shape = _shape(b, source)
    axes = _reduced_axes(node, len(shape))
    width = product([shape[a] for a in axes], b.domain.samples)
    if axes != list(range(len(shape) - len(axes), len(shape))) or not width.same(b.domain.cols):
        raise Unsupported("reductions over different or leading dimensions")
    head = dims[: len(shape) - len(axes)] if kept else dims
    b.row_of(head)
    return b.value(source, (*head, *b.domain.per_col(shape[len(shape) - len(axes) :])))


def _keeps(b: Builder, node: Node, number: int) -> bool:
    return len(_shape(b, number)) == len(_shape(b, _arg(node)))


def _wide(dtype: str) -> str:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _reduce(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    if node.base in ("max", "min") and node.outs.index(number) != 0:
        raise Unsupported("the position of a maximum")
    kind = {"max": "amax", "min": "amin"}.get(node.base, node.base)
    var = _row_arg(b, node, dims, _keeps(b, node, number))
    return b.cast(b.reduce(kind, b.cast(var, _sum_dtype(b, number))), b.graph.values[number].dtype)


def _sum_dtype(b: Builder, number: int) -> str:
    return _wide(b.graph.values[number].dtype)


def _vector_norm(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    if len(node.args) > 1 and node.args[1] not in (2, 2.0):
        raise Unsupported("a norm other than the Euclidean one")
    var = b.cast(_row_arg(b, node, dims, _keeps(b, node, number)), "float32")
    total = b.reduce("sum", b.point("pow2", [var], "float32"))
    return b.cast(b.point("sqrt", [total], "float32"), b.graph.values[number].dtype)


def _softmax_parts(b: Builder, source: int, head: Dims, axes: int) -> tuple[Var, Var, Var]:
    """(element minus row maximum, its exponential, the row's sum of exponentials)."""
    shape = _shape(b, source)
    b.row_of(head)
    whole = b.value(source, (*head, *b.domain.per_col(shape[len(shape) - axes :])))
    whole = b.cast(whole, "float32")
    top = b.reduce("amax", whole)
    shiftedv = b.point("sub", [whole, top], "float32")
    exped = b.point("exp", [shiftedv], "float32")
    return shiftedv, exped, b.reduce("sum", exped)


def _softmax(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = _arg(node)
    shape = _shape(b, source)
    if _reduced_axes(node, len(shape)) != [len(shape) - 1] or not shape[-1].same(b.domain.cols):
        raise Unsupported("a softmax over another dimension than the rows'")
    dtype = b.graph.values[number].dtype
    if b.native:
        return _native_softmax(b, node, source, dims, dtype)
    _, _, total = _softmax_parts(b, source, dims[:-1], 1)
    # The element itself may be asked for at another column than the row pass (a slice, a gather).
    here = b.point("sub", [b.cast(b.value(source, dims), "float32"), _top(b, source, dims[:-1])], "float32")
    if node.base == "_log_softmax":
        return b.cast(b.point("sub", [here, b.point("log", [total], "float32")], "float32"), dtype)
    exped = b.point("exp", [here], "float32")
    return b.cast(b.point("div", [exped, total], "float32"), dtype)


def _native_softmax(b: Builder, node: Node, source: int, dims: Dims, dtype: str) -> Var:
    whole = (*dims[:-1], *b.domain.per_col(_shape(b, source)[-1:]))
    b.row_of(dims[:-1])
    var = b.point(node.base.removeprefix("_"), [b.cast(b.value(source, whole), dtype)], dtype)
    last = dims[-1].ix
    if last.base.startswith("at:"):
        return b.pick(var, b.named(last.base.removeprefix("at:")))
    if dims != whole:
        raise Unsupported("part of a softmax")
    return var


def _top(b: Builder, source: int, head: Dims) -> Var:
    shape = _shape(b, source)
    whole = b.cast(b.value(source, (*head, *b.domain.per_col(shape[-1:]))), "float32")
    return b.reduce("amax", whole)


def _logsumexp(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = _arg(node)
    rank = len(_shape(b, source))
    if _reduced_axes(node, rank) != [rank - 1]:
        raise Unsupported("a logsumexp over another dimension than the rows'")
    head = dims[: rank - 1]
    _, _, total = _softmax_parts(b, source, head, 1)
    log = b.point("log", [total], "float32")
    return b.cast(b.point("add", [log, _top(b, source, head)], "float32"), b.graph.values[number].dtype)


def _moments(b: Builder, whole: Var) -> tuple[Var, Var]:
    """(centred element, mean of its square), two-pass: no cancellation."""
    mean = b.reduce("mean", whole)
    centred = b.point("sub", [whole, mean], "float32")
    return centred, b.reduce("mean", b.point("pow2", [centred], "float32"))


def _layer_norm(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    if node.outs.index(number) != 0:
        raise Unsupported("the saved statistics of a norm")
    source = _arg(node)
    shape = _shape(b, source)
    axes = len(node.args[1])
    head, dtype = dims[: len(shape) - axes], b.graph.values[number].dtype
    width = product(shape[len(shape) - axes :], b.domain.samples)
    if not width.same(b.domain.cols):
        raise Unsupported("norms over rows of different lengths")
    b.row_of(head)
    whole = b.cast(b.value(source, (*head, *b.domain.per_col(shape[len(shape) - axes :]))), "float32")
    if node.base == "_fused_rms_norm":
        square = b.reduce("mean", b.point("pow2", [whole], "float32"))
        weight, bias, eps = node.args[2], None, node.args[3] if len(node.args) > 3 else None
        if eps is None:
            eps = 1.1920928955078125e-07  # torch.finfo(float32).eps, which rms_norm takes for every half type too
    else:
        _, square = _moments(b, whole)
        weight, bias, eps = node.args[2], node.args[3], node.args[4]
    scale = b.point("rsqrt", [b.point("add", [square, b.literal(eps)], "float32")], "float32")
    here = b.cast(b.value(source, dims), "float32")
    if node.base != "_fused_rms_norm":
        here = b.point("sub", [here, b.reduce("mean", whole)], "float32")
    result = b.point("mul", [here, scale], "float32")
    tail = dims[len(shape) - axes :]
    if isinstance(weight, Ref):
        result = b.point("mul", [result, b.cast(b.value(weight.id, tail), "float32")], "float32")
    if isinstance(bias, Ref):
        result = b.point("add", [result, b.cast(b.value(bias.id, tail), "float32")], "float32")
    return b.cast(result, dtype)


def _variance(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    correction = node.kwargs.get("correction", node.kwargs.get("unbiased", 1))
    whole = b.cast(_row_arg(b, node, dims, _keeps(b, node, number)), "float32")
    dtype = b.graph.values[number].dtype
    if node.base == "var_mean" and node.outs.index(number) == 1:
        return b.cast(b.reduce("mean", whole), dtype)
    _, square = _moments(b, whole)
    if correction:
        ratio = f"({b.domain.cols.text}) / ({b.domain.cols.text} - {int(correction)})"
        square = b.point("mul", [square, b.literal(_Text(ratio))], "float32")
    if node.base == "std":
        square = b.point("sqrt", [square], "float32")
    return b.cast(square, dtype)


def _gather_column(b: Builder, source: int, head: Dims, where: Var) -> Var:
    """The element of each row at the column that ``where`` holds."""
    shape = _shape(b, source)
    at = Dim(shape[-1], Ix(f"at:{where.name}", b.domain.one, clamp=shape[-1]))
    return b.value(source, (*head, at))


def _gather(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source, indices = _arg(node), _arg(node, 2)
    shape = _shape(b, source)
    if _axis(node.args[1], len(shape)) != len(shape) - 1:
        raise Unsupported("a gather along another dimension than the last")
    where = b.value(indices, dims)
    if where.col:
        raise Unsupported("a gather of many columns")
    return _gather_column(b, source, dims[:-1], where)


def _nll_rows(b: Builder, node: Node) -> tuple[Var, Var]:
    """(loss of a row, 0 for an ignored one; 1.0 where the row counts)."""
    source, target = _arg(node), _arg(node, 1)
    if node.args[2] is not None:
        raise Unsupported("a loss with class weights")
    head = b.domain.per_row(_shape(b, target))
    where = b.value(target, head)
    log = b.cast(_gather_column(b, source, head, where), "float32")
    counts = b.point("ne", [where, b.literal(node.args[4])], "bool")
    loss = b.point("where", [counts, b.point("neg", [log], "float32"), "0.0"], "float32")
    return loss, b.point("cast", [counts], "float32")


def _nll(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    if node.args[3] != 0 or node.outs.index(number) != 0:
        raise Unsupported("a loss that is summed inside a larger expression")
    b.row_of(dims)
    return b.cast(_nll_rows(b, node)[0], b.graph.values[number].dtype)


# --- full reductions: one value per row in the kernel, the rest in PyTorch


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
        loss, counts = _nll_rows(b, node)
        total = f"{b.partial(loss)}.sum()"
        return (f"({total} / {b.partial(counts)}.sum())" if node.args[3] == 1 else total) + cast
    if node.base in ("sum", "mean"):
        source = _arg(node)
        shape = _shape(b, source)
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
        return tail(b, _arg(node)) + cast
    if node.base in ("mul", "add", "sub", "div", "rsub") and node.kwargs.get("alpha", 1) == 1:
        sign = {"mul": "*", "add": "+", "sub": "-", "div": "/", "rsub": "-"}[node.base]
        sides = [tail(b, a.id) if isinstance(a, Ref) else _host(a) for a in node.args[:2]]
        if node.base == "rsub":
            sides.reverse()
        return f"({sides[0]} {sign} {sides[1]}){cast}"
    if node.base in ("neg", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "reciprocal", "abs", "square"):
        return f"torch.{node.base}({tail(b, _arg(node))})"
    raise Unsupported(f"a one-element output through {node.base}")


def _host(item: Any) -> str:
    return item.text if hasattr(item, "text") else repr(item)


# --- domain


def domain_of(graph: Graph, number: int) -> Domain:
    """Rows and columns that the computation of output ``number`` asks for."""
    seen: set[int] = set()
    stack = [number]
    width: Size | None = None
    total: Size | None = None
    while stack:
        value = stack.pop()
        if value in seen or value not in graph.producer:
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
    axes = _reduced_axes(node, len(shape))
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


_HANDLERS: dict[str, Callable[[Builder, Node, int, Dims], Var]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze"), _reshape),
    **dict.fromkeys(("clone", "contiguous"), _same),
    **dict.fromkeys(("_to_copy", "to"), _cast),
    **dict.fromkeys(("transpose", "t", "permute"), _transpose),
    **dict.fromkeys(("split", "chunk", "split_with_sizes", "unsafe_split", "unsafe_chunk", "unbind"), _pieces),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min"), _reduce),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), _layer_norm),
    **dict.fromkeys(("var", "std", "var_mean"), _variance),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamp),
    **dict.fromkeys(("full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "scalar_tensor"), _full),
    **dict.fromkeys(("tril", "triu"), _triangle),
    "expand": _expand,
    "slice": _slice,
    "select": _select,
    "cat": _cat,
    "pow": _pow,
    "masked_fill": _masked_fill,
    "arange": _arange,
    "glu": _glu,
    "logsumexp": _logsumexp,
    "linalg_vector_norm": _vector_norm,
    "gather": _gather,
    "nll_loss_forward": _nll,
}

__all__ = ["Dtype", "domain_of", "lower", "tail"]
