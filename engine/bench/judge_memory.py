"""Shared memory as the judge sees it: a side's arenas, and outputs as they lie in there (imports torch)."""

from __future__ import annotations

import mmap
from typing import Any

import torch

from engine.bench import judge_wire as jw
from engine.bench import wire
from engine.bench.judge_compare import Replays
from engine.problems.dtypes import torch_dtype

_MANY_PAGES = 64 << 20
"""From here on new memory is touched by all threads before a device, which has only one, copies into it."""


class Side:
    """The shared memory of one candidate process."""

    def __init__(self, input_fd: int, output_fd: int, attach: jw.Attach) -> None:
        self.inputs = mmap.mmap(input_fd, attach.input_bytes, mmap.MAP_SHARED)
        self.outputs = mmap.mmap(output_fd, attach.output_bytes, mmap.MAP_SHARED)
        self.input_bytes = torch.frombuffer(self.inputs, dtype=torch.uint8)
        self.output_bytes = torch.frombuffer(self.outputs, dtype=torch.uint8)
        self.replays = Replays()
        self.pinned = False
        self._touched: set[int] = set()

    def write(self, start: int, value: torch.Tensor) -> torch.Tensor:
        """An input's bytes, from whatever device it is on. Returns them as they lie here."""
        place = self.input_bytes[start : start + value.nbytes]
        if value.is_cuda and value.nbytes >= _MANY_PAGES and start not in self._touched:
            self._touched.add(start)
            place.zero_()
        return place.copy_(value.contiguous().reshape(-1).view(torch.uint8))


def strided(memory: torch.Tensor, start: int, item: wire.OutputSpec, strides: tuple[int, ...]) -> torch.Tensor:
    """An output as its process laid it out. Whatever strides are claimed, it stays inside its slot."""
    dtype = torch_dtype(item.dtype)
    if len(strides) != len(item.shape) or min(strides, default=0) < 0:
        raise wire.ProtocolError("strides of another tensor")
    if wire.span(item.shape, strides) * dtype.itemsize > item.nbytes:
        raise wire.ProtocolError("strides that leave the output")
    flat = memory[start : start + item.nbytes].view(dtype)
    return flat.as_strided(item.shape, strides)


def poison_of(dtype: str) -> int:
    """NaN in every float type; an unlikely pattern elsewhere."""
    return 0xFF if torch_dtype(dtype).is_floating_point else 0xA5


def bytes_of(values: list[Any]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def on_host(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().cpu()
