"""Properties that values carry through operators: narrow content, masks, causal structure, origin of indices."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from engine.problems.dtypes import name_of
from engine.tracing.rules import OpInfo
from engine.tracing.values import Node, Value, bits_of

if TYPE_CHECKING:
    from engine.tracing.recorder import Recorder

_FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2")
_VERY_NEGATIVE = -1e3
_SCALING = ("mul", "div", "mul_", "div_")
_CARRIES_MASK = ("pointwise", "copy", "softmax")


@cache
def triangle_fraction(rows: int, columns: int, diagonal: int = 0) -> float:
    """Fraction of a rows × columns matrix on and below a diagonal (as ``tril`` counts it)."""
    if rows <= 0 or columns <= 0:
        return 1.0
    kept = sum(min(max(row + diagonal + 1, 0), columns) for row in range(rows))
    return kept / (rows * columns)


def causal_fraction(rows: int, columns: int) -> float:
    """Fraction of scores that a causal mask keeps, the last query seeing every key."""
    return triangle_fraction(rows, columns, columns - rows)


def narrow_of(value: Value, tensor: torch.Tensor) -> str:
    """Narrowest type of an operand: its value's, or its own if it is a reinterpreting view."""
    own = name_of(tensor.dtype)
    return value.narrow if bits_of(value.narrow) <= bits_of(own) and value.dtype == own else own


def attention_fraction(
    recorder: Recorder, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, *, is_causal: bool
) -> float:
    """Share of query-key pairs that fused attention needs: causal flag (top left, as torch has it) or mask."""
    if is_causal:
        return triangle_fraction(query.shape[-2], key.shape[-2])
    if mask is None:
        return 1.0
    value = recorder.value_of(mask)
    share = set_fraction(value, mask) if mask.dtype is torch.bool else value.kept
    return share if value.structured and share is not None else 1.0


def vector_type(info: OpInfo, out: torch.Tensor) -> str:
    """In which an operator may compute: two short numbers at a time where each result is rounded by itself."""
    if out.dtype is torch.float64:
        return "float64"
    short = info.kind == "pointwise" and out.dtype in (torch.bfloat16, torch.float16)
    return name_of(out.dtype) if short else "float32"


def vector_fraction(info: OpInfo, reads: list[Value]) -> float:
    """Share of its elements that an operator must compute: not those that a mask removes, and no constants."""
    if reads and all(read.structured for read in reads):
        return 0.0
    kept = [read.kept for read in reads if read.kept is not None]
    return min(kept) if kept and info.kind in (*_CARRIES_MASK, "reduction") else 1.0


def set_fraction(value: Value, tensor: torch.Tensor) -> float | None:
    """Fraction of a structured boolean tensor that is true; measured where it is real."""
    if not value.structured or tensor.dtype is not torch.bool:
        return None
    if value.nonzero is None and tensor.device.type != "meta" and tensor.numel():
        return float(tensor.count_nonzero()) / int(tensor.numel())
    return value.nonzero


def propagate(
    info: OpInfo, node: Node, tensors: list[torch.Tensor], args: Any, kwargs: Any, outs: list[torch.Tensor]
) -> None:
    """Set the properties of a node's outputs from its operands'."""
    out, value = outs[0], node.outputs[0]
    reads = [read.value for read in node.reads]
    _structure(info, node, reads, tensors, args, out, value)
    value.narrow = _narrow(info, reads, tensors, out)
    if info.kind in ("copy", "gather") and reads:
        value.origin = reads[0].origin or reads[0].input
    _mask_marks(info, node, reads, tensors, args, value)
    for other in node.outputs[1:]:
        other.structured = value.structured


def _structure(
    info: OpInfo,
    node: Node,
    reads: list[Value],
    tensors: list[torch.Tensor],
    args: Any,
    out: torch.Tensor,
    value: Value,
) -> None:
    value.structured = info.kind != "random" and all(read.structured for read in reads)
    if node.old is not None:
        value.structured = value.structured and node.old.structured
    if info.base in ("tril", "tril_", "triu", "triu_") and value.structured and out.dim() >= 2:
        diagonal = next((a for a in args[1:] if isinstance(a, int)), 0)
        rows, columns = out.shape[-2:]
        if info.base.startswith("tril"):
            value.nonzero = triangle_fraction(rows, columns, diagonal)
        else:
            value.nonzero = 1.0 - triangle_fraction(rows, columns, diagonal - 1)


def _narrow(info: OpInfo, reads: list[Value], tensors: list[torch.Tensor], out: torch.Tensor) -> str:
    own = name_of(out.dtype)
    if not out.is_floating_point():
        return own
    sources = [
        narrow_of(value, tensor)
        for value, tensor in zip(reads, tensors, strict=False)
        if tensor.is_floating_point() and not value.structured
    ]
    if not sources:
        return own
    if info.kind in ("copy", "gather") or info.base in ("masked_fill", "where", "neg", "abs"):
        widest = max(sources, key=bits_of)
        return widest if bits_of(widest) < bits_of(own) else own
    if info.base in _SCALING and tensors:
        # A scale per block or tensor is applied after the product; what is multiplied stays narrow.
        large = max(zip(reads, tensors, strict=False), key=lambda pair: pair[1].numel())
        small = [t for t in tensors if t is not large[1]]
        if all(t.numel() * 8 <= large[1].numel() for t in small) and large[1].is_floating_point():
            narrow = narrow_of(*large)
            return narrow if bits_of(narrow) < bits_of(own) else own
    return own


def _mask_marks(
    info: OpInfo, node: Node, reads: list[Value], tensors: list[torch.Tensor], args: Any, value: Value
) -> None:
    base = info.base.removesuffix("_")
    pairs = list(zip(reads, tensors, strict=False))
    if base in ("logical_not", "bitwise_not") and pairs:
        share = set_fraction(*pairs[0])
        value.nonzero = None if share is None else 1.0 - share
        return
    if base == "masked_fill" and len(pairs) > 1:
        share = set_fraction(*pairs[1])
        if share is not None:
            _keep(node, value, 1.0 - share)
        return
    if base == "where" and len(pairs) > 1:
        share = set_fraction(*pairs[0])
        if share is not None:
            kept = share if _is_masking(args[2:3], pairs[2:]) else 1.0 - share
            _keep(node, value, kept)
        return
    if base == "add" and len(pairs) > 1:
        mask = next((read for read in reads if read.kept is not None and read.structured), None)
        if mask is not None and mask.kept is not None:
            _keep(node, value, mask.kept)
        return
    if info.kind in _CARRIES_MASK and pairs:
        _carry(base, pairs, args, value)


def _is_masking(argument: Any, pairs: list[tuple[Value, torch.Tensor]]) -> bool:
    """Whether the second choice of a ``where`` is the constant that masks."""
    if pairs:
        return pairs[-1][0].structured
    return bool(argument) and not isinstance(argument[0], torch.Tensor)


def _keep(node: Node, value: Value, kept: float) -> None:
    value.kept = kept
    for read in node.reads:
        if not read.value.structured:
            read.factor = kept
            break


def _carry(base: str, pairs: list[tuple[Value, torch.Tensor]], args: Any, value: Value) -> None:
    kept = [read.kept for read, _ in pairs if read.kept is not None]
    if kept and base not in ("sub", "exp") and not (len(pairs) > 1 and base == "cat"):
        value.kept = kept[0]
    first = pairs[0][0]
    if not first.structured:
        return
    if len(pairs) == 1 and base in ("_to_copy", "clone", "copy", "contiguous", "mul", "div", "neg", "gt", "ne"):
        value.nonzero = first.nonzero
        factor = next((a for a in args[1:] if isinstance(a, int | float)), None)
        if base == "mul" and factor is not None and factor <= _VERY_NEGATIVE and first.nonzero is not None:
            value.kept = 1.0 - first.nonzero
    if len(pairs) == 1 and base in ("rsub", "eq") and first.nonzero is not None:
        value.nonzero = 1.0 - first.nonzero
