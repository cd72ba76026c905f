"""Output buffers for destination passing, and what a returned value means (imports torch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engine.problems.axes import shape_of
from engine.problems.dtypes import stored_shape, torch_dtype
from engine.problems.model import Definition


class OutputError(ValueError):
    """A returned value that cannot be matched with the declared outputs; the message is for a person."""


def allocate_outputs(
    definition: Definition, axes: Mapping[str, int], device: torch.device | str
) -> list[torch.Tensor]:
    """Zeroed tensors of the declared shapes and types, in definition order.

    A scalar output (``shape: null``) is a 0-dim tensor.
    """
    return [
        zeros(stored_shape(spec.dtype, shape_of(spec, axes) or ()), torch_dtype(spec.dtype), device)
        for spec in definition.outputs.values()
    ]


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """``torch.zeros`` also for the byte-wide types that have no fill kernel."""
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return torch.zeros(shape, dtype=torch.uint8, device=device).view(dtype)
    return torch.zeros(shape, dtype=dtype, device=device)


def normalize_outputs(definition: Definition, result: Any, device: torch.device | str) -> list[torch.Tensor]:
    """A return value as one tensor per declared output, in definition order.

    Accepted, as in SOL-ExecBench: a tensor or number if there is one output, a tuple or list of exactly the
    right length, a dict with every output name. Numbers become 0-dim tensors of the declared type. Tensors are
    not moved or cast. Raises :class:`OutputError`.
    """
    names = list(definition.outputs)
    if isinstance(result, dict):
        missing = [name for name in names if name not in result]
        if missing:
            raise OutputError(f"the returned dict lacks {', '.join(missing)}")
        values = [result[name] for name in names]
    elif isinstance(result, tuple | list):
        if len(result) != len(names):
            raise OutputError(f"returned {len(result)} values, the definition has {len(names)} outputs")
        values = list(result)
    elif len(names) == 1:
        values = [result]
    else:
        raise OutputError(f"returned one {type(result).__name__}, the definition has {len(names)} outputs")
    return [_tensor(name, value, definition, device) for name, value in zip(names, values, strict=True)]


def why_not_dense(value: torch.Tensor) -> str:
    """What keeps a tensor from being compared element by element; empty if nothing does."""
    if value.layout is not torch.strided or value.is_nested:
        return f"a tensor of layout {value.layout}, not a dense one"
    if value.is_quantized or value.is_meta:
        return f"a {'quantized' if value.is_quantized else 'meta'} tensor, which has no plain elements"
    return ""


def _tensor(name: str, value: Any, definition: Definition, device: torch.device | str) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, bool | int | float):
        return torch.tensor(value, dtype=torch_dtype(definition.outputs[name].dtype), device=device)
    raise OutputError(f"output {name} is a {type(value).__name__}, not a tensor or number")
