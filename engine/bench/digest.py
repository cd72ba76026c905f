"""A fingerprint of a tensor's bytes that its own device computes and any other reproduces (imports torch).

Sum over 8-byte words of word × an odd weight that depends on the position, modulo 2**64. It is not secret: it
binds the bytes that were there when it was taken, and what is read later must have the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_STEP = 0x5851F42D4C957F2D  # an odd 64-bit constant (Knuth's MMIX multiplier), as a signed number below 2**63
_MASK = (1 << 64) - 1
_CHUNK = 1 << 22  # words at a time: temporaries stay at 32 MiB


class Digest:
    """Keeps one chunk of weights per device. Few kernels, no waiting: it runs after every measured call."""

    def __init__(self) -> None:
        self._weights: dict[torch.device, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """A 0-dim int64 tensor on the tensor's device. ``tensor`` must be contiguous."""
        raw = tensor.reshape(-1).view(torch.uint8)
        count = raw.numel() // 8
        words, tail = raw[: count * 8].view(torch.int64), raw[count * 8 :]
        weights = self._of(raw.device)
        sums = [
            (words[start : start + _CHUNK] * weights[: min(_CHUNK, count - start)]).sum()
            for start in range(0, count, _CHUNK)
        ]
        if tail.numel() or not sums:
            sums.append((tail.to(torch.int64) * weights[: tail.numel()]).sum())
        if len(sums) == 1:
            return sums[0]
        return (torch.stack(sums) * weights[: len(sums)]).sum()

    def _of(self, device: torch.device) -> torch.Tensor:
        if device not in self._weights:
            positions = torch.arange(_CHUNK, dtype=torch.int64, device=device)
            self._weights[device] = positions * _STEP * 2 + 1
        return self._weights[device]


def numbers_of(digests: Iterable[torch.Tensor]) -> list[int]:
    """All of them as they travel, 64 bits without a sign, in one transfer."""
    held = list(digests)
    return [value & _MASK for value in torch.stack(held).tolist()] if held else []
