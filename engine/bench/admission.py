"""The admission probe: which worthless outputs a problem's tolerance lets pass (imports torch).

Run by the judge once per workload, on the reference's own outputs for two seeds. What passes is told as a note
and turns whole-tensor checks on for that output; reduced precision that passes is a note and nothing else, because
TF32, INT8 and FP8 within the stated tolerance are legitimate. A problem is never refused for its tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import torch

from engine.bench.compare import (
    RELATIVE_L2,
    Accumulator,
    Expected,
    ExtraChecks,
    compare_chunks,
    is_exact,
    same_bytes,
)
from engine.problems.model import Tolerance

_SAMPLE = 1 << 24  # elements of a huge output that the probe looks at

_FEW = 16  # elements: of fewer, a constant or a single value is most of the answer

REDUCED = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """``vacuous`` and ``reduced``: by output, the names of what passed. ``extra``: the checks to turn on."""

    notes: list[str] = []
    vacuous: dict[str, list[str]] = {}
    reduced: dict[str, list[str]] = {}
    extra: dict[str, ExtraChecks] = {}

    @property
    def tolerance(self) -> str:
        return "problem+kernelarc" if self.extra else "problem"


def admission_probe(
    refs: Sequence[torch.Tensor],
    other_seed: Sequence[torch.Tensor],
    expected: Sequence[Expected],
    tolerance: Tolerance,
) -> Probe:
    """Probe every floating-point output; ``other_seed`` holds the reference's outputs on independent inputs."""
    notes: list[str] = []
    vacuous: dict[str, list[str]] = {}
    reduced: dict[str, list[str]] = {}
    extra: dict[str, ExtraChecks] = {}
    for ref, other, want in zip(refs, other_seed, expected, strict=True):
        if ref.numel() == 0:
            continue
        if ref.shape == other.shape and same_bytes(ref, other):
            notes.append(f"{want.name} does not depend on the random inputs")
            continue
        if is_exact(ref.dtype):
            continue
        ref, other = _sample(ref), _sample(other)
        passing = _vacuous(ref, other, tolerance)
        if passing:
            vacuous[want.name] = passing
            extra[want.name] = ExtraChecks(relative_l2=RELATIVE_L2, rows=True)
            notes.append(f"{want.name}: the tolerance accepts {', '.join(passing)}; whole-tensor checks are on")
        low = [
            kind for kind in REDUCED if _coarser(kind, ref.dtype) and _passes(_rounded(ref, kind), ref, tolerance)
        ]
        if low:
            reduced[want.name] = low
            notes.append(f"{want.name}: the tolerance accepts rounding to {', '.join(low)}")
    return Probe(notes=notes, vacuous=vacuous, reduced=reduced, extra=extra)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its first rows where it is huge."""
    if tensor.numel() <= _SAMPLE or tensor.dim() == 0:
        return tensor
    row = max(1, tensor.shape[-1])
    rows = max(1, _SAMPLE // row)
    return tensor.reshape(-1)[: rows * row].view(-1, row)


def _passes(out: torch.Tensor, ref: torch.Tensor, tolerance: Tolerance) -> bool:
    return compare_chunks(Accumulator("", tolerance, dtype=ref.dtype, guard=True), out, ref, 1 << 22).passed


def _vacuous(ref: torch.Tensor, other: torch.Tensor, tolerance: Tolerance) -> list[str]:
    worthless: dict[str, Callable[[], torch.Tensor]] = {
        "a constant": lambda: _cast(torch.full_like(ref.float(), float(_mean(ref))), ref),
        "all but one zero": lambda: _one_nonzero(ref),
        "a constant per row": lambda: _cast(_row_means(ref), ref),
        "the answer to other inputs": lambda: other,
        "a zero tail": lambda: _zero_tail(ref, tolerance),
    }
    if ref.numel() < _FEW or _packed(ref) or not bool(torch.isfinite(ref.float()).any()):
        worthless = {"the answer to other inputs": worthless["the answer to other inputs"]}
    if ref.shape != other.shape:
        del worthless["the answer to other inputs"]
    return [name for name, make in worthless.items() if _passes(make(), ref, tolerance)]


def _mean(ref: torch.Tensor) -> torch.Tensor:
    values = ref.float()
    return values[torch.isfinite(values)].double().mean()


def _row_means(ref: torch.Tensor) -> torch.Tensor:
    values = ref.float()
    if values.dim() == 0:
        return values
    return torch.nan_to_num(values).mean(-1, keepdim=True).expand(values.shape).contiguous()


def _one_nonzero(ref: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(ref.numel(), dtype=torch.float32, device=ref.device)
    out[0] = 1.0
    values = ref.float().reshape(-1)
    at = int(values.nan_to_num(0.0, 0.0, 0.0).abs().argmax())
    out[0], out[at] = 0.0, values[at]
    return _cast(out.view(ref.shape), ref)


def _zero_tail(ref: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """The last nine tenths of what ``required_matched_ratio`` forgives, as zeros; at least one element."""
    out = ref.float().clone().reshape(-1)
    slack = max(0.0, 1.0 - tolerance.required_matched_ratio)
    count = max(1, int(0.9 * slack * out.numel()))
    out[-count:] = 0.0
    return _cast(out.view(ref.shape), ref)


def _cast(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.to(like.dtype)


def _rounded(ref: torch.Tensor, kind: str) -> torch.Tensor:
    """The reference rounded to ``kind`` and back; fp8 saturates as hardware does."""
    low: torch.dtype = getattr(torch, kind)
    values = ref.float()
    if low.itemsize == 1:
        limit = torch.finfo(low).max
        values = values.clamp(-limit, limit)
    return values.to(low).float().to(ref.dtype)


def _coarser(kind: str, dtype: torch.dtype) -> bool:
    return not _packed_type(dtype) and getattr(torch, kind).itemsize < dtype.itemsize


def _packed_type(dtype: torch.dtype) -> bool:
    return "float4" in str(dtype)


def _packed(tensor: torch.Tensor) -> bool:
    return _packed_type(tensor.dtype)
