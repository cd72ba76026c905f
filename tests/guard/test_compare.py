"""The comparator, case by case: SOL-ExecBench's metric, what the guard adds, and the admission probe."""

from __future__ import annotations

import math

import pytest
import torch

from engine.bench.admission import admission_probe
from engine.bench.compare import (
    DEFAULT_CAP,
    Expected,
    ExtraChecks,
    Match,
    chunk_rows,
    compare_guard,
    compare_sol,
    same_bytes,
    structure_error,
    values_of,
)
from engine.problems.model import Tolerance

NAN, INF = math.nan, math.inf
EXACT = Tolerance(max_atol=1e-5, max_rtol=1e-5, required_matched_ratio=1.0)


def guard(
    out: torch.Tensor, ref: torch.Tensor, tolerance: Tolerance = EXACT, extra: ExtraChecks | None = None
) -> Match:
    want = Expected("y", tuple(ref.shape), str(ref.dtype).removeprefix("torch."))
    return compare_guard([out], [ref], [want], tolerance, {"y": extra} if extra else None)


# --- SOL-ExecBench's metric


@pytest.mark.parametrize(
    ("out", "ref", "tol", "passed", "max_abs", "max_rel"),
    [
        ([1.0, 2.0], [1.0, 2.0], {}, True, 0.0, 0.0),
        ([0.0, 0.0], [0.0, 0.0], {}, True, 0.0, 0.0),  # both zero
        ([1e-6], [0.0], {"max_rtol": 0.0}, True, 1e-6, 0.1),  # relative to max_atol where the reference is 0
        ([1e-3], [0.0], {"max_rtol": 0.0}, False, 1e-3, 100.0),
        ([1000.5], [1000.0], {"max_rtol": 1e-3}, True, 0.5, 5e-4),
        ([1.001], [1.0], {"max_atol": 1e-3, "max_rtol": 1e-3}, True, 1e-3, 1e-3),
        ([1.0021], [1.0], {"max_atol": 1e-3, "max_rtol": 1e-3}, False, 2.1e-3, 2.1e-3),
        ([101.0], [1.0], {"required_matched_ratio": 0.0}, True, 100.0, 100.0),
        ([1.5, 1.0], [1.0, 1.0], {"required_matched_ratio": 0.5, "max_error_cap": 0.5}, True, 0.5, 0.5),  # strict
        ([1.6, 1.0], [1.0, 1.0], {"required_matched_ratio": 0.5, "max_error_cap": 0.5}, False, 0.6, 0.6),
        ([], [], {}, True, 0.0, 0.0),  # nothing to compare
        ([0.0, 0.0], [3.0, 4.0], {"max_atol": 10.0}, False, 5.0, 5.0),  # all zeros: the norm is the error
        ([0.0, 1e-9], [3.0, 4.0], {"max_atol": 10.0}, True, 4.0, 0.4),
    ],
)
def test_sol_metric(
    out: list[float], ref: list[float], tol: dict[str, float], passed: bool, max_abs: float, max_rel: float
) -> None:
    tolerance = Tolerance(**({"max_atol": 1e-5, "max_rtol": 1e-5, "required_matched_ratio": 1.0} | tol))
    found = compare_sol(torch.tensor(out), torch.tensor(ref), tolerance)
    assert found.passed is passed
    assert found.max_abs_error == pytest.approx(max_abs, rel=1e-3, abs=1e-12)
    assert found.max_rel_error == pytest.approx(max_rel, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize(
    ("out", "ref", "allow", "passed", "nan", "inf"),
    [
        ([NAN], [1.0], False, False, True, False),
        ([1.0], [NAN], False, False, True, False),
        ([NAN], [NAN], False, False, True, False),  # agreeing does not help
        ([INF], [INF], False, False, False, True),
        ([-INF], [-INF], False, False, False, True),
        ([-INF, 1.0], [-INF, 1.0], True, True, False, False),
        ([-INF], [-INF], True, True, False, False),  # everything dropped: nothing to compare
        ([INF], [INF], True, False, False, True),
        ([-INF], [1.0], True, False, False, True),
        ([1.0], [-INF], True, False, False, True),
        ([INF, NAN], [1.0, 1.0], False, False, True, False),  # NaN has priority in the flags
        ([-INF, NAN], [-INF, 1.0], True, False, True, False),
    ],
)
def test_sol_not_finite(
    out: list[float], ref: list[float], allow: bool, passed: bool, nan: bool, inf: bool
) -> None:
    tolerance = Tolerance(allow_negative_inf=allow)
    for chunk in (1, 1 << 20):
        found = compare_sol(torch.tensor(out), torch.tensor(ref), tolerance, chunk=chunk)
        assert (found.passed, found.has_nan, found.has_inf) == (passed, nan, inf)
        assert found.max_abs_error == 0.0


def test_sol_is_the_same_for_every_type() -> None:
    near = Tolerance()
    assert compare_sol(torch.tensor([1005]), torch.tensor([1000]), near).passed  # integers have slack too
    none = Tolerance(max_atol=0.0, max_rtol=0.0, required_matched_ratio=1.0)
    assert compare_sol(torch.tensor([2**24 + 1]), torch.tensor([2**24]), none).passed  # cast to float32
    wide = torch.tensor([1.0 + 1e-12], dtype=torch.float64)
    assert compare_sol(wide, torch.tensor([1.0], dtype=torch.float64), none).passed
    over = torch.tensor([1e300], dtype=torch.float64)
    assert compare_sol(over, over, near).has_inf  # infinite after the cast
    assert compare_sol(torch.tensor(5.001), torch.tensor(5.0), near).passed  # 0-dim
    half = torch.tensor([1.0, 0.0], dtype=torch.bfloat16)
    assert compare_sol(half, half, EXACT).passed


def test_sol_shape_then_type() -> None:
    assert compare_sol(torch.ones(2), torch.ones(3), EXACT).reason == "wrong.shape"
    assert compare_sol(torch.ones(2).half(), torch.ones(2), EXACT).reason == "wrong.dtype"


def test_matched_ratio_counts_over_the_whole_tensor_however_it_is_cut() -> None:
    ref = torch.ones(1000)
    out = ref.clone()
    out[:8] += 1.0
    for chunk in (1, 7, 1000, 5000):
        found = compare_sol(out, ref, Tolerance(required_matched_ratio=0.992), chunk=chunk)
        assert found.passed and found.matched_ratio == pytest.approx(0.992) and found.elements == 1000
        assert not compare_sol(out, ref, Tolerance(required_matched_ratio=0.993), chunk=chunk).passed


# --- what the guard adds


@pytest.mark.parametrize(
    ("out", "ref"),
    [
        (torch.tensor([1005]), torch.tensor([1000])),
        (torch.tensor([2**24 + 1]), torch.tensor([2**24])),
        (torch.tensor([2**62 + 1]), torch.tensor([2**62])),  # beyond float64 too
        (torch.tensor([True, False]), torch.tensor([True, True])),
        (torch.tensor([-1], dtype=torch.int8), torch.tensor([1], dtype=torch.int8)),
    ],
)
def test_integers_and_booleans_are_exact(out: torch.Tensor, ref: torch.Tensor) -> None:
    found = guard(out, ref, Tolerance(required_matched_ratio=0.0))
    assert not found.passed and found.reason in ("wrong.numerical", "wrong.zero")
    assert found.max_abs_error >= 1
    assert guard(ref.clone(), ref).passed


def test_float64_is_compared_as_float64() -> None:
    tight = Tolerance(max_atol=1e-14, max_rtol=0.0, required_matched_ratio=1.0)
    ref = torch.ones(4, dtype=torch.float64)
    assert not guard(ref + 1e-12, ref, tight).passed
    assert guard(ref + 1e-15, ref, tight).passed


def test_what_the_matched_ratio_forgives_is_capped() -> None:
    ref = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    wild, near = ref.clone(), ref.clone()
    wild[5], near[5] = 1e6, ref[5] + 0.05
    assert compare_sol(wild, ref, Tolerance()).passed
    assert guard(wild, ref, Tolerance()).reason == "wrong.error-cap"
    assert guard(near, ref, Tolerance()).passed
    tail = ref.clone()
    tail[-9:] = 0
    assert compare_sol(tail, ref, Tolerance()).passed and not guard(tail, ref, Tolerance()).passed
    assert guard(wild, ref, Tolerance(max_error_cap=1e9)).passed  # the problem's own cap is the cap


def test_a_cancelled_element_is_not_held_to_its_own_size() -> None:
    ref = torch.full((1000,), 100.0)
    ref[0] = 1e-7
    out = ref.clone()
    out[0] = 1e-3  # rounding noise of numbers of size 100
    assert guard(out, ref, Tolerance(max_atol=1e-6, max_rtol=0.01)).passed


def test_the_cap_leaves_room_for_honest_gaussian_error() -> None:
    gen = torch.Generator().manual_seed(2)
    ref = torch.randn(1 << 20, generator=gen)
    bound = 0.01 + 0.01 * ref.abs()
    out = ref + torch.randn(1 << 20, generator=gen) * bound / 2.6  # 99 % within the tolerance
    found = guard(out, ref, Tolerance())
    assert found.passed and found.outputs["y"].worst_tolerances < DEFAULT_CAP / 3


@pytest.mark.parametrize(
    ("got", "reason"),
    [
        ([], "wrong.structure"),
        ([((2, 3), "float32"), ((2, 3), "float32")], "wrong.structure"),
        ([((3, 2), "float32")], "wrong.shape"),
        ([((2, 3, 1), "float32")], "wrong.shape"),
        ([((2, 3), "float16")], "wrong.dtype"),
        ([((2, 3), "float32")], None),
    ],
)
def test_structure_from_metadata_alone(got: list[tuple[tuple[int, ...], str]], reason: str | None) -> None:
    found = structure_error(got, [Expected("y", (2, 3), "float32")])
    assert (found[0] if found else None) == reason


def test_only_plain_tensors_are_outputs() -> None:
    class Lazy(torch.Tensor):
        pass

    ref = torch.ones(2)
    assert guard(ref.clone().as_subclass(Lazy), ref).reason == "wrong.structure"  # type: ignore[arg-type]


def test_first_failing_output_names_the_reason_and_every_output_is_reported() -> None:
    a, b = torch.ones(4), torch.ones(4)
    want = [Expected("a", (4,), "float32"), Expected("b", (4,), "float32")]
    found = compare_guard([a, b + 1], [a, b], want, EXACT)
    assert not found.passed and found.detail.startswith("b: ") and found.outputs["a"].passed
    assert found.max_abs_error == 1.0 and found.tolerance == "problem"


def test_a_reference_that_is_not_finite_is_named_as_such() -> None:
    found = guard(torch.ones(2), torch.tensor([1.0, NAN])).outputs["y"]
    assert not found.passed and found.reference_not_finite and "reference" in found.detail


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_values(name: str) -> None:
    dtype = getattr(torch, name)
    ref = torch.tensor([1.0, 2.0, -0.5]).to(dtype)
    assert guard(ref.clone(), ref).passed
    assert not guard(torch.tensor([1.0, 2.0, 0.5]).to(dtype), ref).passed
    assert guard(torch.tensor([NAN, 2.0, -0.5]).to(dtype), ref).reason == "wrong.nan"


def test_packed_fp4_values() -> None:
    packed = torch.tensor([[0x21, 0xF7]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert values_of(packed).tolist() == [0.5, 1.0, 6.0, -6.0]
    other = torch.tensor([[0x21, 0xF6]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert guard(packed, packed).passed and not guard(other, packed).passed


def test_strided_outputs_compare_by_value() -> None:
    ref = torch.arange(12.0).view(3, 4)
    assert guard(ref.t().contiguous().t(), ref).passed
    assert guard(torch.ones(1).expand(5), torch.ones(5)).passed


@pytest.mark.parametrize(
    ("shape", "chunk", "expected"),
    [((10, 4), 8, (8, 4)), ((10, 4), 9, (8, 4)), ((2, 100), 8, (8, 0)), ((7,), 100, (98, 7)), ((), 8, (8, 0))],
)
def test_chunks_hold_whole_rows(shape: tuple[int, ...], chunk: int, expected: tuple[int, int]) -> None:
    assert chunk_rows(shape, chunk) == expected


def test_bytes_are_compared_bit_for_bit() -> None:
    x = torch.tensor([0.0, NAN])
    assert same_bytes(x, x.clone()) and not same_bytes(x, torch.tensor([-0.0, NAN]))
    assert same_bytes(torch.tensor(1.0), torch.tensor(1.0)) and not same_bytes(x, x.double())


# --- admission probe


def probe_of(ref: torch.Tensor, other: torch.Tensor, tolerance: Tolerance | None = None):
    want = Expected("y", tuple(ref.shape), str(ref.dtype).removeprefix("torch."))
    return admission_probe([ref], [other], [want], tolerance or Tolerance())


def softmax(seed: int) -> torch.Tensor:
    return torch.softmax(torch.randn(16, 4096, generator=torch.Generator().manual_seed(seed)), -1)


def test_a_sound_tolerance_turns_nothing_on() -> None:
    a, b = (torch.randn(32, 256, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    found = probe_of(a, b)
    assert not found.vacuous and not found.extra and found.tolerance == "problem"
    assert "bfloat16" in found.reduced["y"] and found.notes  # reduced precision is a note only


def test_a_vacuous_tolerance_turns_whole_tensor_checks_on() -> None:
    ref, other = softmax(1), softmax(2)
    found = probe_of(ref, other)
    assert {"a constant", "the answer to other inputs", "a zero tail"} <= set(found.vacuous["y"])
    assert found.tolerance == "problem+kernelarc"
    extra = found.extra["y"]
    zero_tail = ref.clone()
    zero_tail[-1] = 0
    for cheat in (torch.full_like(ref, float(ref.mean())), other, zero_tail, ref.roll(1, 0)):
        assert guard(cheat, ref, Tolerance()).passed  # the problem's own tolerance is fooled
        match = guard(cheat, ref, Tolerance(), extra)
        assert not match.passed and match.tolerance == "problem+kernelarc"
    for honest in (ref * (1 + 1e-3), ref.bfloat16().float(), (ref * 448).to(torch.float8_e4m3fn).float() / 448):
        assert guard(honest, ref, Tolerance(), extra).passed


def test_rows_that_the_reference_has_constant_may_be_constant() -> None:
    ref = softmax(3)
    ref[2] = 0.25
    assert guard(ref.clone(), ref, Tolerance(), ExtraChecks(rows=True)).passed


def test_an_output_without_randomness_is_a_note() -> None:
    mask = torch.ones(8, 8).triu()
    found = probe_of(mask, mask.clone())
    assert not found.extra and "does not depend" in found.notes[0]


def test_a_handful_of_values_is_not_called_constant() -> None:
    assert not probe_of(torch.tensor(0.7), torch.tensor(-1.3)).vacuous
    assert "the answer to other inputs" in probe_of(torch.tensor(1e-4), torch.tensor(2e-4)).vacuous["y"]


def test_integers_need_no_probe_and_empty_outputs_break_nothing() -> None:
    ints = torch.arange(8)
    assert not probe_of(ints, ints + 1).notes
    assert not probe_of(torch.ones(0, 4), torch.ones(0, 4)).notes


def test_masked_scores_are_probed_without_their_infinities() -> None:
    scores = torch.randn(8, 64, generator=torch.Generator().manual_seed(5))
    scores[:, 40:] = -INF
    other = scores.clone()
    other[:, :40] += 1.0
    assert not probe_of(scores, other, Tolerance(allow_negative_inf=True)).vacuous
