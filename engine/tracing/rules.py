"""What each operator is: its kind, its arithmetic, its matrix shapes (imports torch; child process only).

FLOPs of matrix operators count a multiply and an add as two. Vector FLOPs count one per floating-point
operation of an element; comparisons, selections, casts and moves count nothing, so that the sum stays below what
any implementation must do.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch


class _Table(msgspec.Struct, frozen=True):
    kinds: dict[str, list[str]]
    comparing: list[str]
    free: list[str]
    flops_per_element: dict[str, float]


_TABLE = msgspec.yaml.decode(Path(__file__).with_name("operators.yaml").read_bytes(), type=_Table)
_KINDS = {name: kind for kind, names in _TABLE.kinds.items() for name in names}
_COMPARING, _FREE = frozenset(_TABLE.comparing), frozenset(_TABLE.free)
_FLOPS_PER_ELEMENT = _TABLE.flops_per_element


_GROUPED = ("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")
_PACKED = ("_weight_int8pack_mm", "_weight_int4pack_mm")


class OpInfo:
    """Facts of one aten overload that do not depend on its arguments."""

    __slots__ = ("base", "kind", "mutates", "name", "reshapes", "returns_view")

    def __init__(self, func: Any) -> None:
        self.base = func._schema.name.partition("::")[2]
        self.name = f"aten.{self.base}" if func._schema.name.startswith("aten::") else func._schema.name
        arguments = func._schema.arguments
        self.mutates = [(i, a.name) for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]
        self.returns_view = not self.mutates and any(r.alias_info is not None for r in func._schema.returns)
        self.reshapes = torch.Tag.inplace_view in func.tags  # ``squeeze_``: the object changes, its data do not
        plain = self.base.rstrip("_")
        self.kind = _KINDS.get(self.base) or _KINDS.get(plain) or self._unlisted(func, plain)

    @staticmethod
    def _unlisted(func: Any, plain: str) -> str:
        known = torch.Tag.pointwise in func.tags or plain in _FREE or plain in _FLOPS_PER_ELEMENT
        return "pointwise" if known else "other"


@cache
def op_info(func: Any) -> OpInfo:
    return OpInfo(func)


def vector_flops(info: OpInfo, tensors: list[torch.Tensor], args: tuple[Any, ...], out: torch.Tensor) -> float:
    """Floating-point operations of a non-matrix operator, from its operands' shapes."""
    largest = max((t for t in tensors), key=lambda t: t.numel(), default=out)
    if not (out.is_floating_point() or out.is_complex() or largest.is_floating_point()):
        return 0.0
    if info.kind == "pointwise":
        base = info.base.rstrip("_")
        if base in _FREE or out.dtype is torch.bool:
            return 0.0
        return float(_FLOPS_PER_ELEMENT.get(base, 1.0) * out.numel())
    if info.kind in ("softmax", "norm"):
        return float(_FLOPS_PER_ELEMENT[info.kind] * out.numel())
    if info.kind == "reduction":
        if info.base in _COMPARING:
            return 0.0
        passes = 3 if info.base.startswith(("var", "std", "norm", "linalg", "logsumexp")) else 1
        return float(passes * largest.numel())
    if info.kind == "fft":
        return _fft_flops(info.base, tensors[0], args[1], out)
    if info.kind == "scatter" and "add" in info.base:
        return float(tensors[-1].numel())
    return 0.0


def _fft_flops(base: str, source: torch.Tensor, axes: list[int], out: torch.Tensor) -> float:
    """5 N log2 N per complex transform of N points, over all its axes; half of it for a real one."""
    points = source if base == "_fft_r2c" else out
    length = max(math.prod(points.shape[axis] for axis in axes), 2)
    half = 1.0 if base == "_fft_c2c" else 0.5
    return float(half * 5.0 * points.numel() * math.log2(length))


def _taps_share(
    positions: tuple[int, ...],
    limits: tuple[int, ...],
    taps: tuple[int, ...],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> float:
    """Share of a convolution's products whose factor lies inside the image and not in its padding.

    Position p of ``positions`` meets, through tap t, the place p*stride - padding + t*dilation below ``limits``.
    """

    def along(axis: int) -> float:
        step, pad, apart = (rule[axis if len(rule) > axis else 0] for rule in (stride, padding, dilation))
        count, limit, inside = positions[axis], limits[axis], 0
        for tap in range(taps[axis]):
            first = max(-((tap * apart - pad) // step), 0)
            last = min((limit - 1 + pad - tap * apart) // step, count - 1)
            inside += max(0, last - first + 1)
        return inside / max(count * taps[axis], 1)

    return math.prod(along(axis) for axis in range(len(taps)))


def _conv_flops(info: OpInfo, args: tuple[Any, ...], out: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    """(FLOPs, operands) of a convolution or of its gradients."""
    backward = info.base == "convolution_backward"
    gradient, image, weight = args[:3] if backward else (out, *args[:2])
    rules = args[4:8] if backward else args[3:7]
    # Other overloads have them in another order: their padding is counted in.
    known = info.base in ("convolution", "_convolution", "convolution_overrideable") or backward
    transposed = known and rules[3] is True
    spread, limits = (image, gradient) if transposed else (gradient, image)
    flops = 2.0 * spread.numel() * math.prod(weight.shape[1:])
    if known:
        flops *= _taps_share(spread.shape[2:], limits.shape[2:], weight.shape[2:], *rules[:3])
    if backward:
        return flops * sum(bool(flag) for flag in args[-1][:2]), [gradient, image, weight]
    return flops, [image, weight]


def matrix_flops(info: OpInfo, args: tuple[Any, ...], out: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    """(FLOPs, the operands that go through the matrix unit) of a matmul, convolution or attention operator."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if info.kind == "conv":
        return _conv_flops(info, args, out)
    if info.kind == "attention":
        query, key, value = tensors[:3]
        pairs = math.prod(query.shape[:-1]) * key.shape[-2]
        return 2.0 * pairs * (query.shape[-1] + value.shape[-1]), [query, key, value]
    if info.base in ("addmm", "_addmm_activation", "baddbmm", "addbmm", "addmv"):
        left, right = tensors[1:3]
    else:
        left, right = tensors[:2]
    depth = left.shape[-1] if left.dim() else 1
    if left.dtype is torch.float4_e2m1fn_x2:
        depth *= 2
    if info.base == "addbmm" or (info.base in _GROUPED and left.dim() == right.dim() == 2):
        return 2.0 * math.prod(left.shape) * right.shape[-1], [left, right]
    if info.base in _PACKED:  # what the weights are packed into says nothing of the values
        return 2.0 * out.numel() * depth, [left]
    if info.base in ("dot", "vdot"):
        return 2.0 * left.numel(), [left, right]
    if info.base in ("addr", "ger"):
        return 2.0 * out.numel(), [left, right]
    return 2.0 * out.numel() * depth, [left, right]
