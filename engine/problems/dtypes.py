"""The element types of the formats: names, sizes, and their torch counterparts (torch is imported on demand)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class DTypeInfo(NamedTuple):
    """``itemsize`` is bytes per *stored* element; ``bits`` is the width of one value."""

    torch_name: str
    itemsize: int
    bits: int
    is_float: bool


DTYPES: dict[str, DTypeInfo] = {
    "float64": DTypeInfo("float64", 8, 64, True),
    "float32": DTypeInfo("float32", 4, 32, True),
    "float16": DTypeInfo("float16", 2, 16, True),
    "bfloat16": DTypeInfo("bfloat16", 2, 16, True),
    "float8_e4m3fn": DTypeInfo("float8_e4m3fn", 1, 8, True),
    "float8_e5m2": DTypeInfo("float8_e5m2", 1, 8, True),
    # Both names are torch's packed type, two values per byte. Under ``float4_e2m1`` a declared shape counts
    # values, under ``float4_e2m1fn_x2`` it counts bytes (see :func:`stored_shape`).
    "float4_e2m1": DTypeInfo("float4_e2m1fn_x2", 1, 4, True),
    "float4_e2m1fn_x2": DTypeInfo("float4_e2m1fn_x2", 1, 4, True),
    "int64": DTypeInfo("int64", 8, 64, False),
    "int32": DTypeInfo("int32", 4, 32, False),
    "int16": DTypeInfo("int16", 2, 16, False),
    "int8": DTypeInfo("int8", 1, 8, False),
    "bool": DTypeInfo("bool", 1, 8, False),
}

_SAFETENSORS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F4": "float4_e2m1fn_x2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "BOOL": "bool",
}


def is_known(name: str) -> bool:
    return name in DTYPES


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of a format name. Raises ``KeyError`` for an unknown name (loading has checked it)."""
    import torch

    return getattr(torch, DTYPES[name].torch_name)  # type: ignore[no-any-return]


def name_of(dtype: torch.dtype) -> str:
    """A torch type's format name; types the formats do not have keep torch's own name (``complex64``)."""
    return str(dtype).removeprefix("torch.")


def same_storage(a: str, b: str) -> bool:
    """Whether two names are one torch type."""
    return a in DTYPES and b in DTYPES and DTYPES[a].torch_name == DTYPES[b].torch_name


def safetensors_name(tag: str) -> str | None:
    """The format name of a safetensors dtype tag, or ``None`` if the formats have no such type."""
    return _SAFETENSORS.get(tag)


def stored_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the tensor that is passed: ``float4_e2m1`` packs two values of the last axis per byte."""
    if name != "float4_e2m1" or not shape:
        return tuple(shape)
    return (*shape[:-1], (shape[-1] + 1) // 2)


def tensor_bytes(name: str, shape: Sequence[int]) -> int:
    """Bytes of a dense tensor with this declared shape."""
    return math.prod(stored_shape(name, shape)) * DTYPES[name].itemsize
