"""Facts of a single call: its tensors, its signature, its size, where the reference makes it (imports torch)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch

from engine.tracing.rules import OpInfo

_INTEGER_FACTORIES = ("randint", "randperm", "tril_indices", "triu_indices")
_COUNTED = 1 << 24  # indices that are looked through for equal ones
_SIZED_BY_NUMBER = ("arange", "randperm", "linspace", "logspace", "eye", "tril_indices", "triu_indices")


def flat_tensors(arguments: Any) -> Iterator[torch.Tensor]:
    for item in arguments:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from flat_tensors(item)


def signature(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A hashable stand-in for a call, or ``None``: equal signatures give results of equal shape and type."""
    try:
        key = (func, _frozen(args), _frozen(tuple(kwargs.values())), tuple(kwargs))
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return (tuple(item.shape), tuple(item.stride()), item.dtype)
    if isinstance(item, list | tuple):
        return tuple([_frozen(part) for part in item])
    return (type(item), item)


def storage_key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


def call_site() -> tuple[int, ...]:
    """The lines of the reference that are being executed, innermost first: calls in a loop share them."""
    lines = []
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<reference"):
            lines.append(frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(lines)


def on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    device = kwargs.get("device")
    if device is None or torch.device(device).type == "cpu":
        return kwargs
    return {**kwargs, "device": torch.device("cpu")}


def factory_size(base: str, args: Any, kwargs: dict[str, Any]) -> tuple[int, torch.dtype]:
    """(elements, type) that a factory call asks for; a range counts as its length at most."""
    numbers = [a for a in args if isinstance(a, int | float) and math.isfinite(a)]
    shapes = [a for a in args if isinstance(a, list | tuple) and all(isinstance(n, int) for n in a)]
    if shapes:
        elements = math.prod(shapes[-1])
    else:
        elements = int(max((abs(n) for n in numbers), default=1)) if base in _SIZED_BY_NUMBER else 1
    dtype = kwargs.get("dtype")
    if dtype is None:
        integral = all(isinstance(n, int) for n in numbers)
        if base in _INTEGER_FACTORIES or (base in ("arange", "full", "scalar_tensor") and integral):
            dtype = torch.int64
        else:
            dtype = torch.get_default_dtype()
    return elements, dtype


def is_shaped(args: Any) -> bool:
    """Whether a factory call asks for axes: a 0-dim constant may meet tensors of any device."""
    return any(isinstance(a, list | tuple) and len(a) > 0 for a in args)


def gathered_elements(info: OpInfo, args: Any, source: torch.Tensor, indices: list[torch.Tensor]) -> float | None:
    """Elements of ``source`` that a gather touches; ``None`` if that cannot be told."""
    if not indices or source.numel() == 0:
        return None
    index = indices[0]
    if info.base in ("gather", "take", "masked_select"):
        if index.dtype is torch.bool:
            return None
        return float(_distinct_along(index, args[1] if info.base == "gather" else None))
    if index.dtype is torch.bool:
        share = index.count_nonzero() / max(index.numel(), 1) if _real(index) else None
        return None if share is None else float(share) * source.numel()
    axes = [0]
    if info.base == "index_select":
        axes = [args[1]]
    elif info.base in ("index", "_unsafe_index"):
        axes = [n for n, item in enumerate(args[1]) if isinstance(item, torch.Tensor)]
        if any(item.dtype is torch.bool for item in indices):
            return None  # a mask may stand for several axes
    sizes = [source.shape[axis] for axis in axes]
    return float(_distinct(indices, sizes) * (source.numel() // max(math.prod(sizes), 1)))


def _distinct(indices: list[torch.Tensor], sizes: list[int]) -> int:
    """Different places that these indices, taken together, name; those of data that are not here all differ."""
    count = math.prod(torch.broadcast_shapes(*(index.shape for index in indices)))
    if count > _COUNTED or not all(map(_real, indices)):
        return int(count)
    place = torch.zeros((), dtype=torch.int64)
    for index, size in zip(indices, sizes, strict=True):
        place = place * size + index % max(size, 1)
    return int(place.unique().numel())


def _distinct_along(index: torch.Tensor, axis: int | None) -> int:
    """Different entries, within each line along ``axis``."""
    if index.numel() > _COUNTED or index.numel() == 0 or index.dim() == 0 or not _real(index):
        return int(index.numel())
    if axis is None:
        return int(index.unique().numel())
    ordered = index.sort(dim=axis).values
    steps = ordered.diff(dim=axis).count_nonzero()
    return int(steps) + int(index.numel() // index.shape[axis])


def _real(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type != "meta")
