"""Plausible answers to what depends on data: shapes, chosen indices, conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from engine.tracing.rules import OpInfo
from engine.tracing.values import Value

if TYPE_CHECKING:
    from engine.tracing.recorder import Recorder

_META = torch.device("meta")
CHOOSING = ("topk", "sort", "argsort", "argmax", "argmin", "max", "min")
_CHOICE_LIMIT = 1 << 24  # elements that are drawn to choose from
_SEED = 21


def without_meta_kernel(
    recorder: Recorder, info: OpInfo, args: Any, kwargs: dict[str, Any], error: Exception
) -> Any:
    """A plausible result, noted; re-raises ``error`` where there is none."""
    base = info.base
    if base in ("nonzero", "argwhere"):
        recorder.note("selects elements by data: half of them were assumed")
        mask: torch.Tensor = args[0]
        return torch.empty(((mask.numel() + 1) // 2, mask.dim()), dtype=torch.int64, device=_META)
    if base == "masked_select":
        recorder.note("selects elements by data: half of them were assumed")
        return torch.empty((args[0].numel() + 1) // 2, dtype=args[0].dtype, device=_META)
    if base in ("index", "_unsafe_index") and _is_mask(args[1]):
        recorder.note("selects elements by data: half of them were assumed")
        mask = next(item for item in args[1] if isinstance(item, torch.Tensor))
        rest = args[0].shape[mask.dim() :]
        return torch.empty(((mask.numel() + 1) // 2, *rest), dtype=args[0].dtype, device=_META)
    if base in ("index_put", "index_put_", "_index_put_impl_"):
        return args[0] if info.mutates else torch.empty_like(args[0])
    if base == "_scaled_mm":
        rows, columns = args[0].shape[0], args[1].shape[1]
        out_dtype = kwargs.get("out_dtype") or next(
            (a for a in args[2:] if isinstance(a, torch.dtype)), args[0].dtype
        )
        return torch.empty((rows, columns), dtype=out_dtype, device=_META)
    if base == "bincount":
        recorder.note("counts by data: the smallest result was assumed")
        length = max([a for a in args[1:] if isinstance(a, int)] + [int(kwargs.get("minlength") or 1)])
        return torch.empty(length, dtype=torch.int64, device=_META)
    if base == "repeat_interleave":
        recorder.note("repeats by data: one each was assumed")
        return torch.empty(args[0].numel(), dtype=torch.int64, device=_META)
    if base in ("_unique2", "unique_dim", "unique_consecutive"):
        recorder.note("keeps distinct elements: all were assumed distinct")
        flat = torch.empty(args[0].numel(), dtype=args[0].dtype, device=_META)
        index = torch.empty(args[0].numel(), dtype=torch.int64, device=_META)
        return flat, index, index
    raise error


def with_indices(recorder: Recorder, info: OpInfo, args: Any, out: Any) -> Any:
    """Real random indices in place of unknown ones, so that what is selected with them (experts) is followed."""
    source = args[0]
    outs = list(out) if isinstance(out, list | tuple) else [out]
    dim = next((a for a in args[1:] if isinstance(a, int) and not isinstance(a, bool)), -1)
    if info.base == "topk":
        dim = args[2] if len(args) > 2 else -1
    for position, item in enumerate(outs):
        if isinstance(item, torch.Tensor) and item.dtype is torch.int64 and source.dim():
            recorder.note("chooses indices by data: random ones were assumed")
            outs[position] = _random_indices(source, item, dim)
    return type(out)(outs) if isinstance(out, list | tuple) else outs[0]


def _random_indices(source: torch.Tensor, like: torch.Tensor, dim: int) -> torch.Tensor:
    """Indices into axis ``dim`` of ``source`` in the shape of ``like``; distinct along it where affordable."""
    size = source.shape[dim]
    with torch._C._DisableTorchDispatch():
        generator = torch.Generator().manual_seed(_SEED)
        if like.dim() != source.dim() or like.shape[dim] == 1 or source.numel() > _CHOICE_LIMIT:
            return torch.randint(0, max(size, 1), tuple(like.shape), generator=generator)
        order = torch.rand(tuple(source.shape), generator=generator).argsort(dim=dim)
        return order.narrow(dim, 0, like.shape[dim]).contiguous()


def likely_true(value: Value) -> bool:
    """Whether a condition that was computed from data is likely to hold, by what computed it."""
    node = value.producer
    if node is None:
        return False
    base = node.name.removeprefix("aten.")
    if base == "any":
        source = node.reads[0].value.producer if node.reads else None
        return source is None or source.name not in ("aten.isnan", "aten.isinf", "aten.isposinf", "aten.isneginf")
    return base in ("all", "ne", "isfinite", "logical_not")


def _is_mask(indices: Any) -> bool:
    return any(isinstance(item, torch.Tensor) and item.dtype is torch.bool for item in indices)
