"""The inputs of many calls from one draw, for memory that is written from outside (imports torch).

Drawing anew for every call would cost more than most kernels do. Rotating one draw is cheap, but elementwise
outputs of one call are then a rotation of another's, which a candidate could look up instead of computing. So
every input is rotated by an amount of its own, and where its values are normal it is the sum of two rotations,
weighted by cosine and sine: normal again, of the same variance, and nothing follows from earlier outputs.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Any, NamedTuple

import torch

_WORDS = struct.Struct("<3Q")
_LOW, _HIGH = 0.35, 1.2  # radians: both parts always weigh


class Blend(NamedTuple):
    """``cos`` × the values rotated by ``first`` + ``sin`` × the values rotated by ``second`` elements."""

    first: int
    second: int
    cos: float
    sin: float


def blend_of(shift: int, index: int, elements: int) -> Blend:
    """What becomes of input ``index`` in a call with this secret ``shift``."""
    key = struct.pack("<QQ", shift & (1 << 64) - 1, index)
    first, second, angle = _WORDS.unpack(hashlib.blake2b(key, digest_size=_WORDS.size).digest())
    theta = _LOW + (_HIGH - _LOW) * angle / 2.0**64
    first %= elements
    second = (first + 1 + second % (elements - 1)) % elements if elements > 1 else 0
    return Blend(first, second, math.cos(theta), math.sin(theta))


def refilled(value: torch.Tensor, shift: int, index: int, *, blends: bool) -> torch.Tensor:
    """A tensor of its own, contiguous, of the same shape: another draw made from ``value``."""
    flat = value.reshape(-1)
    count = flat.numel()
    if count < 2:
        return value.clone()
    blend = blend_of(shift, index, count)
    if not blends:
        return torch.roll(flat, blend.first).view(value.shape)
    out = torch.empty_like(flat)
    at = count - blend.first
    torch.mul(flat[at:], blend.cos, out=out[: blend.first])
    torch.mul(flat[:at], blend.cos, out=out[blend.first :])
    at = count - blend.second
    out[: blend.second].add_(flat[at:], alpha=blend.sin)
    out[blend.second :].add_(flat[:at], alpha=blend.sin)
    return out.view(value.shape)


_SPREAD = 0.25


def off_default(value: Any, role: str | None, seed: int) -> Any:
    """A norm's weight around 1 and its bias around 0, where they are drawn as exactly that; the rest unchanged."""
    if role not in ("norm weight", "norm bias"):
        return value
    generator = torch.Generator(device=value.device).manual_seed(seed & (1 << 63) - 1)
    noise = torch.randn(value.shape, generator=generator, device=value.device, dtype=torch.float32)
    return (value.float() + _SPREAD * noise).to(value.dtype)


_LARGE_BYTES = 64 << 20  # of one workload: drawing less takes less than a quarter of a second
_USES = 8


class Pool:
    """Large normal tensors of one workload's last draw, for the next sets: every call blends them anew."""

    def __init__(self) -> None:
        self._workload, self._values, self._left = -1, dict[str, torch.Tensor](), 0

    def take(self, workload: int) -> dict[str, torch.Tensor]:
        """By input; empty where they must be drawn."""
        if workload != self._workload or not self._left:
            return {}
        self._left -= 1
        return self._values

    def keep(self, workload: int, values: dict[str, torch.Tensor]) -> None:
        large = sum(value.nbytes for value in values.values()) >= _LARGE_BYTES
        self._workload, self._values, self._left = (workload, values, _USES) if large else (-1, {}, 0)
