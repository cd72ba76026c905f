"""Results of operators whose shape depends on data, or that have no kernel without data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from engine.tracing.rules import OpInfo

if TYPE_CHECKING:
    from engine.tracing.recorder import Recorder

_META = torch.device("meta")


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


def _is_mask(indices: Any) -> bool:
    return any(isinstance(item, torch.Tensor) and item.dtype is torch.bool for item in indices)
