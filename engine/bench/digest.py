"""A fingerprint of a tensor's bytes, taken where the bytes are (imports torch).

It is not secret: it binds the bytes that were there when it was taken, and what is read later must have the same.
On a GPU a kernel of our own takes it (``digest.cu``), compiled once by the judge and sent to every child. Where
there is no compiler for it, sums of weighted words serve: enough against late writes, though not against somebody
who chooses the low bits of floats so that the sum comes out. On the CPU it is BLAKE2.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from engine.bench.nvrtc import compile_cuda

Digest = Callable[[torch.Tensor], torch.Tensor]
"""From a contiguous tensor to a 0-dim int64 tensor on its device."""

_MASK = (1 << 64) - 1
_SIGN = 1 << 63
_THREADS, _MOST_BLOCKS, _WORDS_EACH = 256, 512, 16
_STATE_BYTES = 16


def digest_code(device: torch.device) -> bytes:
    """The kernel for a device, or nothing where it cannot be compiled."""
    if device.type != "cuda":
        return b""
    try:
        return compile_cuda(
            Path(__file__).with_name("digest.cu").read_text(), torch.cuda.get_device_capability(device)
        )
    except OSError:
        return b""


def open_digest(device: torch.device, code: bytes) -> Digest:
    """``code`` is the judge's :func:`digest_code`: both sides take the same kind of fingerprint."""
    if device.type != "cuda":
        return host_digest
    return KernelDigest(device, code) if code else LinearDigest()


def host_digest(tensor: torch.Tensor) -> torch.Tensor:
    """Of memory that this process can read."""
    raw = tensor.detach().reshape(-1).view(torch.uint8)
    data = ctypes.string_at(raw.data_ptr(), raw.numel()) if raw.numel() else b""
    number = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
    return torch.tensor(number - 2 * (number & _SIGN), dtype=torch.int64)


class KernelDigest:
    """One launch per tensor, nothing is waited for. Raises ``OSError`` if the driver refuses the module."""

    def __init__(self, device: torch.device, code: bytes) -> None:
        driver = ctypes.CDLL("libcuda.so.1")
        self._module, function = ctypes.c_void_p(), ctypes.c_void_p()
        torch.zeros(1, device=device)  # a context, if there is none yet
        self._code = ctypes.create_string_buffer(code, len(code))
        if driver.cuModuleLoadData(ctypes.byref(self._module), self._code) or driver.cuModuleGetFunction(
            ctypes.byref(function), self._module, b"digest"
        ):
            raise OSError("the driver does not load the digest's kernel")
        self._device, self._function, self._launch = device, function, driver.cuLaunchKernel
        self._empty, self._stream = torch.empty, torch._C._cuda_getCurrentRawStream
        self._scratch = torch.zeros(_MOST_BLOCKS * _STATE_BYTES + 8, dtype=torch.uint8, device=device)
        partial = ctypes.c_void_p(self._scratch.data_ptr())
        arrived = ctypes.c_void_p(self._scratch.data_ptr() + _MOST_BLOCKS * _STATE_BYTES)
        self._words, self._bytes, self._out = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
        kept = (self._words, self._bytes, partial, arrived, self._out)
        self._kept = kept
        self._arguments = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(value) for value in kept))

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() % 8:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        out = self._empty((), dtype=torch.int64, device=self._device)
        size = tensor.nbytes
        self._words.value, self._bytes.value, self._out.value = tensor.data_ptr(), size, out.data_ptr()
        blocks = max(1, min(_MOST_BLOCKS, size // (8 * _THREADS * _WORDS_EACH)))
        stream = ctypes.c_void_p(self._stream(self._device.index or 0))
        status = self._launch(self._function, blocks, 1, 1, _THREADS, 1, 1, 0, stream, self._arguments, None)
        if status:
            raise RuntimeError(f"the digest's kernel was not launched: {status}")
        return out


class LinearDigest:
    """Sum over 8-byte words of word × an odd weight that depends on the position, modulo 2**64."""

    _STEP = 0x5851F42D4C957F2D  # an odd 64-bit constant (Knuth's MMIX multiplier), as a signed number below 2**63
    _CHUNK = 1 << 22  # words at a time: temporaries stay at 32 MiB

    def __init__(self) -> None:
        self._weights: dict[torch.device, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        raw = tensor.reshape(-1).view(torch.uint8)
        count, chunk = raw.numel() // 8, self._CHUNK
        words, tail = raw[: count * 8].view(torch.int64), raw[count * 8 :]
        weights = self._of(raw.device)
        sums = [
            (words[start : start + chunk] * weights[: min(chunk, count - start)]).sum()
            for start in range(0, count, chunk)
        ]
        if tail.numel() or not sums:
            sums.append((tail.to(torch.int64) * weights[: tail.numel()]).sum())
        if len(sums) == 1:
            return sums[0]
        return (torch.stack(sums) * weights[: len(sums)]).sum()

    def _of(self, device: torch.device) -> torch.Tensor:
        if device not in self._weights:
            positions = torch.arange(self._CHUNK, dtype=torch.int64, device=device)
            self._weights[device] = positions * self._STEP * 2 + 1
        return self._weights[device]


def numbers_of(digests: Iterable[torch.Tensor]) -> list[int]:
    """All of them as they travel, 64 bits without a sign, in one transfer."""
    held = list(digests)
    return [value & _MASK for value in torch.stack(held).tolist()] if held else []


def digest_numbers(values: Sequence[bool | int | float]) -> int:
    """Of the numbers among the inputs, as digests travel."""
    packed = struct.pack(f"<{len(values)}d", *values)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")
