"""What a random input holds: SOL-ExecBench's distributions by type, name and description (imports torch).

Tensors of float types of 16 bits and more are first matched against :data:`ROLES`, in order; the rest, and
everything of another type, is drawn by type alone. All draws come from the generator that is passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

_NORM = ("norm",)
_WEIGHT_SUFFIXES = ("_weight", "_weights", "_proj", "_projs", "_weight_matrix")
_MASK_NAMES = ("x_mask", "text_mask", "aspect_ratio_mask", "drop_mask", "attention_mask")
_BINARY_WORDS = ("binary", "{0, 1}", "0 or 1", "1.0 for valid", "0.0 for masked")
_COS = ("cos", "cos_cached", "rope_cos")
_SIN = ("sin", "sin_cached", "rope_sin")
_POSITIVE = ("rstd", "std", "variance", "var")
_DECAY = {"A": (-1.0, -0.001), "A_log": (-5.0, -1.0), "A_cumsum": (-0.1, 0.0), "g": (-5.0, 0.0)}
_SOFTMAX_NAMES = ("attn_weights", "attention_weights", "routing_weights")
_INTEGER_RANGE = {torch.int8: (-128, 128)}
_OTHER_INTEGER_RANGE = (-1024, 1024)
# Half-way points between the E2M1 values 0 .5 1 1.5 2 3 4 6; a tie goes to the even code.
_E2M1_STEPS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))


class Draw(NamedTuple):
    """One tensor to fill. ``shape`` is the stored shape."""

    name: str
    description: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator

    def normal(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(self.shape, dtype=dtype or self.dtype, device=self.device, generator=self.generator)

    def uniform(self, low: float, high: float) -> torch.Tensor:
        empty = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        return empty.uniform_(low, high, generator=self.generator)

    def integers(self, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randint(low, high, self.shape, dtype=dtype, device=self.device, generator=self.generator)


def _norm_part(name: str, suffix: str) -> bool:
    if not name.endswith(suffix):
        return False
    prefix = name.removesuffix(suffix)
    return (
        prefix.endswith(("_norm", "layernorm"))
        or name == f"norm{suffix}"
        or prefix.rstrip("0123456789").endswith(_NORM)
    )


def is_norm_weight(draw: Draw) -> bool:
    return _norm_part(draw.name, "_weight")


def is_norm_bias(draw: Draw) -> bool:
    return _norm_part(draw.name, "_bias")


def is_causal_mask(draw: Draw) -> bool:
    if len(draw.shape) < 2 or draw.shape[-1] != draw.shape[-2]:
        return False
    text = draw.description.lower()
    return draw.name in ("attention_mask", "causal_mask") or ("attention mask" in text and "causal" in text)


def is_binary_mask(draw: Draw) -> bool:
    if draw.name in _MASK_NAMES:
        return True
    return draw.name.endswith("_mask") and any(word in draw.description.lower() for word in _BINARY_WORDS)


def is_rope_table(draw: Draw) -> bool:
    return draw.name in _COS + _SIN


def is_positive(draw: Draw) -> bool:
    suffixes = tuple(f"_{word}" for word in _POSITIVE)
    base = draw.name.rstrip("0123456789")
    # A trailing digit is looked through for every form but ``_variance``: the format's own rule.
    numbered = base in _POSITIVE or base.endswith(("_rstd", "_std", "_var"))
    return draw.name in _POSITIVE or draw.name.endswith(suffixes) or numbered


def is_decay(draw: Draw) -> bool:
    return draw.name in _DECAY


def is_softmax_output(draw: Draw) -> bool:
    text = draw.description.lower()
    return draw.name in _SOFTMAX_NAMES or ("softmax" in text and "output" in text)


def is_weight_matrix(draw: Draw) -> bool:
    if len(draw.shape) < 2:
        return False
    base = draw.name.rstrip("0123456789")
    return any(n == "weight" or n.endswith(_WEIGHT_SUFFIXES) for n in (draw.name, base))


def _ones(draw: Draw) -> torch.Tensor:
    return torch.ones(draw.shape, dtype=draw.dtype, device=draw.device)


def _zeros(draw: Draw) -> torch.Tensor:
    return torch.zeros(draw.shape, dtype=draw.dtype, device=draw.device)


def _causal(draw: Draw) -> torch.Tensor:
    size = draw.shape[-1]
    square = torch.full((size, size), torch.finfo(draw.dtype).min, dtype=draw.dtype, device=draw.device)
    return square.triu_(1).expand(draw.shape).contiguous()


def _binary(draw: Draw) -> torch.Tensor:
    return draw.integers(0, 2, torch.int64).to(draw.dtype)


def _rope(draw: Draw) -> torch.Tensor:
    angles = draw.normal(torch.float32).clamp_(-math.pi, math.pi)
    return (torch.cos(angles) if draw.name in _COS else torch.sin(angles)).to(draw.dtype)


def _positive(draw: Draw) -> torch.Tensor:
    return draw.normal().abs_().add_(0.1)


def _decay(draw: Draw) -> torch.Tensor:
    values = draw.uniform(*_DECAY[draw.name])
    return values.cumsum(dim=-1) if draw.name == "A_cumsum" else values


def _softmax(draw: Draw) -> torch.Tensor:
    return torch.softmax(draw.normal(torch.float32), dim=-1).to(draw.dtype)


def _scaled_weight(draw: Draw) -> torch.Tensor:
    return draw.normal() / math.sqrt(max(draw.shape[-1], 1))


ROLES: tuple[tuple[str, Callable[[Draw], bool], Callable[[Draw], torch.Tensor]], ...] = (
    ("norm weight", is_norm_weight, _ones),
    ("norm bias", is_norm_bias, _zeros),
    ("causal mask", is_causal_mask, _causal),
    ("binary mask", is_binary_mask, _binary),
    ("rope table", is_rope_table, _rope),
    ("positive", is_positive, _positive),
    ("decay", is_decay, _decay),
    ("softmax output", is_softmax_output, _softmax),
    ("weight matrix", is_weight_matrix, _scaled_weight),
)


def role_of(draw: Draw) -> str | None:
    """The first role that fits, or ``None``; only float tensors of 16 bits and more have one."""
    if not draw.dtype.is_floating_point or draw.dtype.itemsize < 2:
        return None
    return next((role for role, fits, _ in ROLES if fits(draw)), None)


def random_tensor(draw: Draw) -> torch.Tensor:
    """A random input tensor: by role if it has one, else by type."""
    role = role_of(draw)
    if role is not None:
        return next(fill for name, _, fill in ROLES if name == role)(draw)
    return plain_tensor(draw)


def plain_tensor(draw: Draw) -> torch.Tensor:
    """Standard normal floats (fp8 clamped to ±2, fp4 rounded to E2M1), fair bools, bounded integers."""
    dtype = draw.dtype
    if dtype is torch.bool:
        return draw.integers(0, 2, torch.bool)
    if not dtype.is_floating_point:
        return draw.integers(*_INTEGER_RANGE.get(dtype, _OTHER_INTEGER_RANGE), dtype)
    if dtype is torch.float4_e2m1fn_x2:
        values = draw._replace(shape=(*(draw.shape[:-1]), 2 * (draw.shape[-1] if draw.shape else 1)))
        return pack_e2m1(values.normal(torch.float32)).reshape(draw.shape)
    if dtype.itemsize == 1:
        return draw.normal(torch.float32).clamp_(-2.0, 2.0).to(dtype)
    return draw.normal()


def pack_e2m1(values: torch.Tensor) -> torch.Tensor:
    """float32 ``[…, 2n]`` → packed ``[…, n]``: nearest E2M1, saturating at ±6; even columns in the low nibble."""
    size = values.abs()
    code = (values < 0).to(torch.uint8).mul_(8)
    for step, inclusive in _E2M1_STEPS:
        code += (size >= step) if inclusive else (size > step)
    packed = code[..., ::2] + code[..., 1::2] * 16
    return packed.view(torch.float4_e2m1fn_x2)
