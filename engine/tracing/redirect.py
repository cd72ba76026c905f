"""Torch calls that are watched before they reach the dispatcher (imports torch; child process only).

A CUDA device is answered without one, fused attention is kept whole (without data torch would take it apart), and
tensors that Python reads out are told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def _is_cuda(item: Any) -> bool:
    if isinstance(item, torch.device):
        return bool(item.type == "cuda")
    return isinstance(item, str) and (item == "cuda" or item.startswith("cuda:"))


class Watch(TorchFunctionMode):
    """Replaces ``cuda`` by ``cpu`` wherever a torch function takes a device; ``cuda_seen`` tells that it did."""

    def __init__(self) -> None:
        super().__init__()
        self.cuda_seen = False
        self.on_read: Callable[[torch.Tensor], None] | None = None
        self.on_attention: Callable[..., torch.Tensor | None] | None = None  # ``None``: let torch do it

    @staticmethod
    def is_needed(source: str) -> bool:
        """Watching every call costs time: only for sources that could need it."""
        return any(word in source for word in ("cuda", "tolist", "numpy", "scaled_dot_product"))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if _is_cuda(kwargs.get("device")):
            self.cuda_seen = True
            kwargs["device"] = torch.device("cpu")
        if name == "cuda" and args and isinstance(args[0], torch.Tensor):
            self.cuda_seen = True
            return args[0]
        if name == "to" and any(_is_cuda(item) for item in args[1:]):
            self.cuda_seen = True
            args = tuple(item for item in args if not _is_cuda(item))
            if len(args) == 1 and not {"dtype", "other"} & kwargs.keys():
                return args[0]
        if self.on_read is not None and name in ("tolist", "numpy") and isinstance(args[0], torch.Tensor):
            self.on_read(args[0])
        if self.on_attention is not None and name == "scaled_dot_product_attention":
            result = self.on_attention(*args, **kwargs)
            if result is not None:
                return result
        return func(*args, **kwargs)
