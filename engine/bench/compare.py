"""The comparator: a candidate's outputs against the reference's, as a stream of chunks (imports torch).

Two modes over one accumulator. ``sol`` is SOL-ExecBench's metric: both sides cast to float32; NaN or Inf on
either side fails even where they agree, unless ``allow_negative_inf`` and both are -inf there (such elements are
dropped); all zeros against a reference that is not fails; an element matches iff its error is at most atol + rtol
times the reference's magnitude; the share of matches must reach ``required_matched_ratio``; ``max_error_cap`` is
strict; nothing to compare passes.

``guard`` is used for verdicts. It adds: integers and booleans are exact; float64 is compared as float64; where the
problem sets no cap, no element may miss its own tolerance by more than :data:`DEFAULT_CAP` times; and where the
admission probe found the tolerance vacuous, the whole tensor is looked at too (:class:`ExtraChecks`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import torch

from engine.problems.model import Tolerance

DEFAULT_CAP = 10.0
"""Largest allowed |o - r| in units of atol + rtol·max(|r|, rms of r), where the problem sets no cap.

The root mean square keeps an element that cancelled to almost nothing from being held to the size of what is left.
"""
RELATIVE_L2 = 0.08
"""Largest relative L2 error where the tolerance is vacuous: fp8 operands err by 0.04, a dropped 1 % by 0.1."""
CHUNK = 1 << 22  # elements per step: a few 16 MiB temporaries, however large the output


class ExtraChecks(msgspec.Struct, frozen=True, kw_only=True):
    """Whole-tensor checks for one output, turned on by :func:`admission_probe`."""

    relative_l2: float | None = None
    rows: bool = False  # a row of the last axis may be constant only where the reference's is

    @property
    def on(self) -> bool:
        return self.rows or self.relative_l2 is not None


class OutputMatch(msgspec.Struct, frozen=True, kw_only=True):
    """One output compared. Errors are absolute, and relative to max(|r|, max_atol); 0 when not comparable."""

    passed: bool
    reason: str = ""  # wrong.* code
    detail: str = ""
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    has_nan: bool = False
    has_inf: bool = False
    reference_not_finite: bool = False  # or of another shape: the problem's fault, not the candidate's
    matched_ratio: float = 1.0
    worst_tolerances: float = 0.0  # largest error in units of the element's tolerance
    relative_l2: float | None = None
    elements: int = 0


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """All outputs of one call. ``reason`` and ``detail`` are those of the first output that failed."""

    passed: bool
    reason: str = ""
    detail: str = ""
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    outputs: dict[str, OutputMatch] = {}
    tolerance: str = "problem"  # or "problem+kernelarc": whole-tensor checks were on


class Expected(msgspec.Struct, frozen=True):
    """A declared output: stored shape (packed fp4 counts bytes) and torch's name of the type (``bfloat16``)."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def structure_error(
    got: Sequence[tuple[Sequence[int], str]], expected: Sequence[Expected]
) -> tuple[str, str] | None:
    """(reason, detail) of the first structural difference, from shapes and type names alone; ``None`` if equal."""
    if len(got) != len(expected):
        return "wrong.structure", f"{len(got)} outputs, the definition has {len(expected)}"
    for (shape, dtype), want in zip(got, expected, strict=True):
        if tuple(shape) != want.shape:
            return "wrong.shape", f"{want.name} has shape {list(shape)}, declared {list(want.shape)}"
        if dtype != want.dtype:
            return "wrong.dtype", f"{want.name} is {dtype}, declared {want.dtype}"
    return None


# --- values

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def values_of(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The tensor's values as ``dtype``, flat; packed fp4 becomes two values per byte, low nibble first."""
    if str(tensor.dtype) == "torch.float4_e2m1fn_x2":
        codes = tensor.contiguous().view(torch.uint8).reshape(-1)
        table = torch.tensor(_E2M1, dtype=dtype, device=tensor.device)
        pairs = torch.stack((codes & 15, codes >> 4), dim=-1)
        return table[pairs.long()].reshape(-1)
    return tensor.reshape(-1).to(dtype)


def is_exact(dtype: torch.dtype) -> bool:
    """Whether values of this type are compared exactly in guard mode: integers and booleans."""
    return not dtype.is_floating_point and not dtype.is_complex


class Accumulator:
    """Compares one output chunk by chunk. Feed equal-sized chunks in order, then ask for the :meth:`result`.

    Chunks may lie on any one device; what is kept between them is a dozen Python numbers.
    """

    def __init__(
        self,
        name: str,
        tolerance: Tolerance,
        *,
        dtype: torch.dtype = torch.float32,
        guard: bool = False,
        extra: ExtraChecks | None = None,
    ) -> None:
        self.name, self.tolerance, self.guard = name, tolerance, guard
        self.extra = extra or ExtraChecks()
        self.exact = guard and is_exact(dtype)
        wide = guard and (dtype == torch.float64 or self.exact)
        self.work = torch.float64 if wide else torch.float32
        self.total = self.misses = self.constant_rows = 0
        self.max_abs = self.max_rel = self.worst = 0.0
        self.nan = self.inf = self.reference_bad = self.out_nonzero = False
        self.error_squares = self.reference_squares = 0.0

    def update(self, out: torch.Tensor, ref: torch.Tensor, row: int = 0) -> None:
        """Add a chunk of both sides. ``row`` > 1: length of the rows that the chunk consists of."""
        if out.numel() == 0:
            return
        if self.exact:
            self._exact(out.reshape(-1), ref.reshape(-1))
            return
        o, r = values_of(out, self.work), values_of(ref, self.work)
        if self.extra.rows and row > 1 and o.numel() % row == 0:
            self._rows(o.view(-1, row), r.view(-1, row))
        o, r = self._finite(o, r)
        if self.nan or self.inf or o.numel() == 0:
            return
        error = (o - r).abs()
        bound = self.tolerance.max_atol + self.tolerance.max_rtol * r.abs()
        self.misses += int(((error > bound) | ~torch.isfinite(error)).sum())
        self.total += error.numel()
        self.max_abs = max(self.max_abs, float(error.max()))
        floor = max(self.tolerance.max_atol, 0.0)
        relative = error / r.abs().clamp_min(floor)
        self.max_rel = max(self.max_rel, float(torch.nan_to_num(relative, nan=0.0, posinf=math.inf).max()))
        if self.guard:
            self.worst = max(self.worst, float((error / self._scaled_bound(r)).nan_to_num(0.0).max()))
        self.out_nonzero = self.out_nonzero or bool(o.count_nonzero())
        self.reference_squares += float(r.double().square().sum())
        if self.extra.relative_l2 is not None:
            self.error_squares += float(error.double().square().sum())

    def _scaled_bound(self, r: torch.Tensor) -> torch.Tensor:
        """atol + rtol·max(|r|, root mean square of the chunk's reference): never zero but for 0 = 0."""
        rms = float(r.double().square().mean().sqrt())
        return self.tolerance.max_atol + self.tolerance.max_rtol * r.abs().clamp_min(rms)

    def _exact(self, out: torch.Tensor, ref: torch.Tensor) -> None:
        if out.dtype is torch.bool and ref.dtype is torch.bool:  # bytes: a "true" of 2 is none for who reads it
            out, ref = out.view(torch.uint8), ref.view(torch.uint8)
        different = out != ref
        count = int(different.sum())
        self.total += out.numel()
        self.misses += count
        self.out_nonzero = self.out_nonzero or bool(out.count_nonzero())
        self.reference_squares += float(ref.double().square().sum())
        if count:
            o, r = out[different].double(), ref[different].double()
            error = (o - r).abs()
            self.max_abs = max(self.max_abs, float(error.max()), 1.0)
            self.max_rel = max(self.max_rel, float((error / r.abs().clamp_min(1.0)).max()))

    def _finite(self, o: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bad_o, bad_r = ~torch.isfinite(o), ~torch.isfinite(r)
        if not (bool(bad_o.any()) or bool(bad_r.any())):
            return o, r
        if self.tolerance.allow_negative_inf:
            both = torch.isneginf(o) & torch.isneginf(r)
            # Dropped, but a candidate that has the -inf right has not returned all zeros.
            self.out_nonzero = self.out_nonzero or bool(both.any())
            o, r, bad_o, bad_r = o[~both], r[~both], bad_o[~both], bad_r[~both]
        if bool(bad_o.any()) or bool(bad_r.any()):
            nan = bool(torch.isnan(o).any()) or bool(torch.isnan(r).any())
            self.nan, self.inf = self.nan or nan, True
            self.reference_bad = self.reference_bad or bool(bad_r.any())
        return o, r

    def _rows(self, o: torch.Tensor, r: torch.Tensor) -> None:
        flat = (o.amax(-1) == o.amin(-1)) & (r.amax(-1) != r.amin(-1))
        self.constant_rows += int(flat.sum())

    def result(self) -> OutputMatch:
        """The verdict over all chunks."""
        if self.nan or self.inf:
            return self._not_finite()
        norm = math.sqrt(self.reference_squares)
        if norm > 0 and not self.out_nonzero:
            return self._say(False, "wrong.zero", "is all zeros", max_abs=norm, max_rel=norm)
        ratio = 1.0 if self.total == 0 else min(1.0, max(0.0, 1.0 - self.misses / self.total))
        required = 1.0 if self.exact else self.tolerance.required_matched_ratio
        if ratio < required or (self.exact and self.misses):
            share = f"{self.misses} of {self.total} elements differ"
            return self._say(False, "wrong.numerical", f"{share}, largest error {self.max_abs:.3g}", ratio)
        cap = self.tolerance.max_error_cap
        if cap is not None and not self.exact and self.max_abs > cap:
            return self._say(False, "wrong.error-cap", f"largest error {self.max_abs:.3g} > {cap:g}", ratio)
        if self.guard and not self.exact:
            return self._guard_checks(ratio, cap)
        return self._say(True, "", "", ratio)

    def _guard_checks(self, ratio: float, cap: float | None) -> OutputMatch:
        if cap is None and self.worst > DEFAULT_CAP:
            why = f"an element is off by {self.worst:.3g} times its tolerance (at most {DEFAULT_CAP:g})"
            return self._say(False, "wrong.error-cap", why, ratio)
        if self.constant_rows:
            why = f"{self.constant_rows} rows are constant, the reference's are not"
            return self._say(False, "wrong.constant", why, ratio)
        limit, l2 = self.extra.relative_l2, self.relative_l2
        if limit is not None and l2 is not None and l2 > limit:
            return self._say(False, "wrong.relative-l2", f"relative L2 error {l2:.3g} > {limit:g}", ratio)
        return self._say(True, "", "", ratio)

    @property
    def relative_l2(self) -> float | None:
        if self.extra.relative_l2 is None or self.reference_squares <= 0:
            return None
        return math.sqrt(self.error_squares / self.reference_squares)

    def _not_finite(self) -> OutputMatch:
        """NaN has priority over Inf in the flags, and no error is reported: there is none to measure."""
        word = "NaN" if self.nan else "Inf"
        side = "the reference has" if self.reference_bad else "has"
        return OutputMatch(
            passed=False,
            reason="wrong.nan" if self.nan else "wrong.inf",
            detail=f"{self.name} {side} {word}",
            has_nan=self.nan,
            has_inf=not self.nan,
            reference_not_finite=self.reference_bad,
            matched_ratio=0.0,
            elements=self.total,
        )

    def _say(
        self,
        passed: bool,
        reason: str,
        detail: str,
        ratio: float = 0.0,
        *,
        max_abs: float | None = None,
        max_rel: float | None = None,
    ) -> OutputMatch:
        return OutputMatch(
            passed=passed,
            reason=reason,
            detail=f"{self.name}: {detail}" if detail else "",
            max_abs_error=self.max_abs if max_abs is None else max_abs,
            max_rel_error=self.max_rel if max_rel is None else max_rel,
            matched_ratio=ratio,
            worst_tolerances=self.worst,
            relative_l2=self.relative_l2,
            elements=self.total,
        )


def chunk_rows(shape: Sequence[int], chunk: int = CHUNK) -> tuple[int, int]:
    """(elements per chunk, row length): whole rows of the last axis where a row fits, else any slice of it."""
    row = shape[-1] if shape else 1
    if row <= 1 or row > chunk:
        return chunk, 0
    return max(row, chunk // row * row), row


def compare_chunks(accumulator: Accumulator, out: torch.Tensor, ref: torch.Tensor, chunk: int) -> OutputMatch:
    """Feed two whole tensors to ``accumulator``, ``chunk`` elements at a time, and return its result."""
    step, row = chunk_rows(tuple(out.shape), chunk)
    packed = 2 if "float4" in str(out.dtype) else 1
    flat_out, flat_ref = out.reshape(-1), ref.reshape(-1)
    for start in range(0, flat_out.numel(), step):
        accumulator.update(flat_out[start : start + step], flat_ref[start : start + step], row * packed)
        if accumulator.nan:  # nothing later can change the answer
            break
    return accumulator.result()


def compare_sol(out: torch.Tensor, ref: torch.Tensor, tolerance: Tolerance, *, chunk: int = CHUNK) -> OutputMatch:
    """One output by SOL-ExecBench's metric. Shape and dtype of the reference's actual output come first."""
    if out.shape != ref.shape:
        return OutputMatch(passed=False, reason="wrong.shape", detail=f"{list(out.shape)} != {list(ref.shape)}")
    if out.dtype != ref.dtype:
        return OutputMatch(passed=False, reason="wrong.dtype", detail=f"{out.dtype} != {ref.dtype}")
    return compare_chunks(Accumulator("output", tolerance), out, ref, chunk)


def compare_guard(
    outs: Sequence[torch.Tensor],
    refs: Sequence[torch.Tensor],
    expected: Sequence[Expected],
    tolerance: Tolerance,
    extra: Mapping[str, ExtraChecks] | None = None,
    *,
    chunk: int = CHUNK,
) -> Match:
    """All outputs of one call by the guard's metric.

    ``expected`` holds the declared shapes and types; an output must have exactly them, and be exactly a
    ``torch.Tensor``. A reference whose own output differs from its declaration is compared after a cast.
    """
    extra = extra or {}
    mode = "problem+kernelarc" if any(checks.on for checks in extra.values()) else "problem"
    odd = next((o for o in outs if type(o) is not torch.Tensor), None)
    if odd is not None:
        return Match(passed=False, reason="wrong.structure", detail=f"an output is a {type(odd).__name__}")
    wrong = structure_error([(o.shape, str(o.dtype).removeprefix("torch.")) for o in outs], expected)
    if wrong is not None:
        return Match(passed=False, reason=wrong[0], detail=wrong[1], tolerance=mode)
    found: dict[str, OutputMatch] = {}
    for out, ref, want in zip(outs, refs, expected, strict=True):
        if out.numel() != ref.numel():
            detail = f"{want.name}: the reference returned {list(ref.shape)}, declared {list(want.shape)}"
            found[want.name] = OutputMatch(
                passed=False, reason="wrong.shape", detail=detail, reference_not_finite=True
            )
            continue
        same = ref if ref.dtype == out.dtype else ref.to(out.dtype)
        accumulator = Accumulator(want.name, tolerance, dtype=out.dtype, guard=True, extra=extra.get(want.name))
        found[want.name] = compare_chunks(accumulator, out, same, chunk)
    failed = next((m for m in found.values() if not m.passed), None)
    return Match(
        passed=failed is None,
        reason=failed.reason if failed else "",
        detail=failed.detail if failed else "",
        max_abs_error=max((m.max_abs_error for m in found.values()), default=0.0),
        max_rel_error=max((m.max_rel_error for m in found.values()), default=0.0),
        outputs=found,
        tolerance=mode,
    )


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and type are equal bit for bit (NaN equals itself, -0 is not 0)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dim() == 0:
        a, b = a.reshape(1), b.reshape(1)
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))
