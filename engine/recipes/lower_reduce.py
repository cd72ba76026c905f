"""Row reductions, softmaxes, norms and losses as steps of a row program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.recipes.dag import Node, Sym
from engine.recipes.graph import Ref
from engine.recipes.index import Dim, Dims, Ix, Unsupported
from engine.recipes.lower_shape import axis_of, shape_in, source_of
from engine.recipes.sizes import product

if TYPE_CHECKING:
    from engine.recipes.rows import Builder, Var

REDUCING = {
    "sum", "mean", "amax", "amin", "max", "min", "logsumexp", "softmax", "_log_softmax", "native_layer_norm",
    "var", "std", "var_mean", "_fused_rms_norm", "nll_loss_forward", "linalg_vector_norm",
}  # fmt: skip


def reduced_axes(node: Node, rank: int) -> list[int]:
    if node.base in ("softmax", "_log_softmax"):
        return [axis_of(node.args[1], rank)]
    if node.base in ("native_layer_norm", "_fused_rms_norm"):
        return list(range(rank - len(node.args[1]), rank))
    if node.op in ("sum.default", "mean.default", "max.default", "min.default"):
        return list(range(rank))
    place = 2 if node.base == "linalg_vector_norm" else 1
    given = node.args[place] if len(node.args) > place else None
    if given is None or given == []:
        return list(range(rank))
    return sorted(axis_of(a, rank) for a in (given if isinstance(given, list) else [given]))


def row_arg(b: Builder, node: Node, dims: Dims, kept: bool) -> Var:
    """The operand of a row reduction over the whole row, for the row that ``dims`` of the result name."""
    source = source_of(node)
    shape = shape_in(b, source)
    axes = reduced_axes(node, len(shape))
    width = product([shape[a] for a in axes], b.domain.samples)
    if axes != list(range(len(shape) - len(axes), len(shape))) or not width.same(b.domain.cols):
        raise Unsupported("reductions over different or leading dimensions")
    head = dims[: len(shape) - len(axes)] if kept else dims
    b.row_of(head)
    return b.value(source, (*head, *b.domain.per_col(shape[len(shape) - len(axes) :])))


def keeps(b: Builder, node: Node, number: int) -> bool:
    return len(shape_in(b, number)) == len(shape_in(b, source_of(node)))


def wide(dtype: str) -> str:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def reduce(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    if node.base in ("max", "min") and node.outs.index(number) != 0:
        raise Unsupported("the position of a maximum")
    kind = {"max": "amax", "min": "amin"}.get(node.base, node.base)
    var = row_arg(b, node, dims, keeps(b, node, number))
    return b.cast(b.reduce(kind, b.cast(var, sum_dtype(b, number))), b.graph.values[number].dtype)


def sum_dtype(b: Builder, number: int) -> str:
    return wide(b.graph.values[number].dtype)


def vector_norm(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    if len(node.args) > 1 and node.args[1] not in (2, 2.0):
        raise Unsupported("a norm other than the Euclidean one")
    var = b.cast(row_arg(b, node, dims, keeps(b, node, number)), "float32")
    total = b.reduce("sum", b.point("pow2", [var], "float32"))
    return b.cast(b.point("sqrt", [total], "float32"), b.graph.values[number].dtype)


def softmax_parts(b: Builder, source: int, head: Dims, axes: int) -> tuple[Var, Var, Var]:
    """(element minus row maximum, its exponential, the row's sum of exponentials)."""
    shape = shape_in(b, source)
    b.row_of(head)
    whole = b.value(source, (*head, *b.domain.per_col(shape[len(shape) - axes :])))
    whole = b.cast(whole, "float32")
    top = b.reduce("amax", whole)
    shiftedv = b.point("sub", [whole, top], "float32")
    exped = b.point("exp", [shiftedv], "float32")
    return shiftedv, exped, b.reduce("sum", exped)


def softmax(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = source_of(node)
    shape = shape_in(b, source)
    if reduced_axes(node, len(shape)) != [len(shape) - 1] or not shape[-1].same(b.domain.cols):
        raise Unsupported("a softmax over another dimension than the rows'")
    dtype = b.graph.values[number].dtype
    if b.native:
        return native_softmax(b, node, source, dims, dtype)
    _, _, total = softmax_parts(b, source, dims[:-1], 1)
    # The element itself may be asked for at another column than the row pass (a slice, a gather).
    here = b.point("sub", [b.cast(b.value(source, dims), "float32"), top(b, source, dims[:-1])], "float32")
    if node.base == "_log_softmax":
        return b.cast(b.point("sub", [here, b.point("log", [total], "float32")], "float32"), dtype)
    exped = b.point("exp", [here], "float32")
    return b.cast(b.point("div", [exped, total], "float32"), dtype)


def native_softmax(b: Builder, node: Node, source: int, dims: Dims, dtype: str) -> Var:
    whole = (*dims[:-1], *b.domain.per_col(shape_in(b, source)[-1:]))
    b.row_of(dims[:-1])
    var = b.point(node.base.removeprefix("_"), [b.cast(b.value(source, whole), dtype)], dtype)
    last = dims[-1].ix
    if last.base.startswith("at:"):
        return b.pick(var, b.named(last.base.removeprefix("at:")))
    if dims != whole:
        raise Unsupported("part of a softmax")
    return var


def top(b: Builder, source: int, head: Dims) -> Var:
    shape = shape_in(b, source)
    whole = b.cast(b.value(source, (*head, *b.domain.per_col(shape[-1:]))), "float32")
    return b.reduce("amax", whole)


def logsumexp(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source = source_of(node)
    rank = len(shape_in(b, source))
    if reduced_axes(node, rank) != [rank - 1]:
        raise Unsupported("a logsumexp over another dimension than the rows'")
    head = dims[: rank - 1]
    _, _, total = softmax_parts(b, source, head, 1)
    log = b.point("log", [total], "float32")
    return b.cast(b.point("add", [log, top(b, source, head)], "float32"), b.graph.values[number].dtype)


def moments(b: Builder, whole: Var) -> tuple[Var, Var]:
    """(centred element, mean of its square), two-pass: no cancellation."""
    mean = b.reduce("mean", whole)
    centred = b.point("sub", [whole, mean], "float32")
    return centred, b.reduce("mean", b.point("pow2", [centred], "float32"))


def layer_norm(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    if node.outs.index(number) != 0:
        raise Unsupported("the saved statistics of a norm")
    source = source_of(node)
    shape = shape_in(b, source)
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
        _, square = moments(b, whole)
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


def variance(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    correction = node.kwargs.get("correction", node.kwargs.get("unbiased", 1))
    whole = b.cast(row_arg(b, node, dims, keeps(b, node, number)), "float32")
    dtype = b.graph.values[number].dtype
    if node.base == "var_mean" and node.outs.index(number) == 1:
        return b.cast(b.reduce("mean", whole), dtype)
    _, square = moments(b, whole)
    if correction:
        ratio = f"({b.domain.cols.text}) / ({b.domain.cols.text} - {int(correction)})"
        square = b.point("mul", [square, b.literal(Sym(ratio))], "float32")
    if node.base == "std":
        square = b.point("sqrt", [square], "float32")
    return b.cast(square, dtype)


def gather_column(b: Builder, source: int, head: Dims, where: Var) -> Var:
    """The element of each row at the column that ``where`` holds."""
    shape = shape_in(b, source)
    at = Dim(shape[-1], Ix(f"at:{where.name}", b.domain.one, clamp=shape[-1]))
    return b.value(source, (*head, at))


def gather(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    source, indices = source_of(node), source_of(node, 2)
    shape = shape_in(b, source)
    if axis_of(node.args[1], len(shape)) != len(shape) - 1:
        raise Unsupported("a gather along another dimension than the last")
    where = b.value(indices, dims)
    if where.col:
        raise Unsupported("a gather of many columns")
    return gather_column(b, source, dims[:-1], where)


def nll_rows(b: Builder, node: Node) -> tuple[Var, Var]:
    """(loss of a row, 0 for an ignored one; 1.0 where the row counts)."""
    source, target = source_of(node), source_of(node, 1)
    if node.args[2] is not None:
        raise Unsupported("a loss with class weights")
    head = b.domain.per_row(shape_in(b, target))
    where = b.value(target, head)
    log = b.cast(gather_column(b, source, head, where), "float32")
    counts = b.point("ne", [where, b.literal(node.args[4])], "bool")
    loss = b.point("where", [counts, b.point("neg", [log], "float32"), "0.0"], "float32")
    return loss, b.point("cast", [counts], "float32")


def nll(b: Builder, node: Node, number: int, dims: Dims) -> Var:
    if node.args[3] != 0 or node.outs.index(number) != 0:
        raise Unsupported("a loss that is summed inside a larger expression")
    b.row_of(dims)
    return b.cast(nll_rows(b, node)[0], b.graph.values[number].dtype)
