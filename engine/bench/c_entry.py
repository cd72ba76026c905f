"""Calls a library with a plain C entry: no headers of Python or torch to compile (imports torch).

    int run(void *const *tensors, const int64_t *const *shapes, void *stream);

``tensors``: the inputs, then the outputs, in the definition's order, each the address of contiguous memory on the
device; a number among the inputs is the address of an ``int64_t`` (integers, booleans) or a ``double``, in host
memory. ``shapes``: for each of them its extents, ``NULL`` for a number. ``stream``: the CUDA stream to work on,
``NULL`` on the CPU. The function writes its outputs and returns 0; anything else is an error of the candidate.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def is_plain(path: Path, name: str) -> bool:
    """Whether the library at ``path`` is not the extension module ``name``."""
    return f"PyInit_{name}".encode() not in path.read_bytes()


def load_entry(path: Path, function: str) -> Callable[..., None]:
    """The entry as a destination-passing Python function. Raises ``ImportError`` where it is not exported."""
    try:
        entry = getattr(ctypes.CDLL(str(path)), function)
    except AttributeError:
        raise ImportError(f'the library exports no {function}; declare it extern "C"') from None
    entry.restype = ctypes.c_int
    entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    known: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}

    def run(*arguments: Any) -> None:
        held: list[Any] = []
        addresses: list[int] = []
        stream = None
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                addresses.append(argument.data_ptr())
                if argument.is_cuda and stream is None:
                    stream = torch.cuda.current_stream(argument.device).cuda_stream
            else:
                held.append(_number(argument))
                addresses.append(ctypes.addressof(held[-1]))
        key = tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else None for a in arguments)
        if key not in known:
            known[key] = _shapes(key)
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        code = entry(pointers, known[key][0], stream)
        if code:
            raise RuntimeError(f"{function} returned {code}")

    return run


def _number(value: float) -> ctypes.c_int64 | ctypes.c_double:
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)


def _shapes(key: tuple[tuple[int, ...] | None, ...]) -> tuple[Any, list[Any]]:
    """The array of pointers, and what it points to."""
    rows = [None if shape is None else (ctypes.c_int64 * max(len(shape), 1))(*shape) for shape in key]
    pointers = [None if row is None else ctypes.addressof(row) for row in rows]
    return (ctypes.c_void_p * len(rows))(*pointers), rows
