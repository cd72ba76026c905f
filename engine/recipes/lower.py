"""How each ATen operator reads in a row program. Part of the compiler in :mod:`engine.recipes.rows`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.recipes import lower_reduce as reduce
from engine.recipes import lower_shape as shape
from engine.recipes.dag import Node
from engine.recipes.graph import Ref
from engine.recipes.index import Dims, Unsupported, shifted
from engine.recipes.lower_shape import axis_of, shape_in, source_of
from engine.recipes.ops import POINTWISE

if TYPE_CHECKING:
    from engine.recipes.rows import Builder, Var


def lower(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    """The value ``number``, a result of ``node``, at ``dims``. Raises :class:`Unsupported`."""
    handler = _bits if node.op == "view.dtype" else _HANDLERS.get(node.base)
    if handler is not None:
        return handler(b, node, number, dims)
    if node.base in POINTWISE:
        return _pointwise(b, node, number, dims)
    raise Unsupported(f"the operator {node.base} is neither element-wise nor a row reduction")


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
    return b.cast(b.value(source_of(node), dims), b.graph.values[number].dtype)


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


def _stack(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    """Equal tensors along a new dimension: the index there picks one."""
    axis = axis_of(node.args[1] if len(node.args) > 1 else 0, len(dims))
    rest = (*dims[:axis], *dims[axis + 1 :])
    which = b.index(dims[axis])
    dtype = b.graph.values[number].dtype
    pieces = [b.value(item.id, rest) for item in node.args[0]]
    result = pieces[-1]
    for place in range(len(pieces) - 2, -1, -1):
        result = b.point("where", [b.point("eq", [which, str(place)], "bool"), pieces[place], result], dtype)
    return result


def _index(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    """A look-up in a small table that the reference builds from numbers."""
    table, indices = source_of(node), node.args[1]
    values = b.graph.constants.get(table)
    if values is None or len(indices) != 1 or not isinstance(indices[0], Ref) or len(shape_in(b, table)) != 1:
        raise Unsupported("reads elements at places that another tensor holds")
    which = b.value(indices[0].id, dims)
    dtype = b.graph.values[number].dtype
    result: Any = b.point("cast", [b.literal(values[-1])], dtype)
    for place in range(len(values) - 2, -1, -1):
        here = b.point("eq", [which, str(place)], "bool")
        result = b.point("where", [here, b.literal(values[place]), result], dtype)
    return result  # type: ignore[no-any-return]


def _bits(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    """The same bytes as another type of the same size."""
    source = source_of(node)
    if [s.values for s in shape_in(b, source)] != [
        s.values for s in shape_in(b, number)
    ] or source not in b.graph.inputs:
        raise Unsupported("a computed tensor's bytes are read as another type")
    return b.load_as(source, dims, b.graph.values[number].dtype)


def _glu(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = source_of(node)
    shape, half = shape_in(b, source), shape_in(b, number)
    axis = axis_of(node.args[1] if len(node.args) > 1 else -1, len(shape))
    first, second = list(dims), list(dims)
    first[axis] = shifted(dims[axis], "0", shape[axis])
    second[axis] = shifted(dims[axis], half[axis].text, shape[axis])
    dtype = b.graph.values[number].dtype
    gate = b.point("sigmoid", [b.value(source, tuple(second))], dtype)
    return b.point("mul", [b.value(source, tuple(first)), gate], dtype)


_HANDLERS: dict[str, Callable[[Builder, Node, int, Dims], Var]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze"), shape.reshape),
    **dict.fromkeys(("clone", "contiguous"), shape.same),
    **dict.fromkeys(("_to_copy", "to"), _cast),
    **dict.fromkeys(("transpose", "t", "permute"), shape.transpose),
    **dict.fromkeys(
        ("split", "chunk", "split_with_sizes", "unsafe_split", "unsafe_chunk", "unbind"), shape.pieces
    ),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min"), reduce.reduce),
    **dict.fromkeys(("_softmax", "_log_softmax"), reduce.softmax),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), reduce.layer_norm),
    **dict.fromkeys(("var", "std", "var_mean"), reduce.variance),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamp),
    **dict.fromkeys(("full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "scalar_tensor"), _full),
    **dict.fromkeys(("tril", "triu"), _triangle),
    "expand": shape.expand,
    "stack": _stack,
    "index": _index,
    "slice": shape.slice,
    "select": shape.select,
    "cat": shape.cat,
    "pow": _pow,
    "masked_fill": _masked_fill,
    "arange": _arange,
    "glu": _glu,
    "logsumexp": reduce.logsumexp,
    "linalg_vector_norm": reduce.vector_norm,
    "gather": reduce.gather,
    "nll_loss_forward": reduce.nll,
}
