"""Inputs of many calls from one draw: new values, the same distribution, nothing follows from another call."""

from __future__ import annotations

import pytest
import torch

from engine.bench.refill import Pool, blend_of, off_default, refilled

DRAW = torch.randn(64, 96, generator=torch.Generator().manual_seed(7))


def test_a_blend_is_normal_again() -> None:
    for shift in (1, 3, 12345):
        new = refilled(DRAW, shift, 0, blends=True)
        assert new.shape == DRAW.shape and new.is_contiguous()
        assert abs(float(new.mean())) < 0.05 and abs(float(new.var()) - 1.0) < 0.1


def test_no_value_of_a_blend_was_there_before() -> None:
    draw = torch.randn(64, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    first, second = (refilled(draw, shift, 0, blends=True) for shift in (5, 9))
    assert not torch.isin(second, first).any() and not torch.isin(second, draw).any()


def test_the_same_call_has_the_same_inputs_bit_for_bit() -> None:
    for blends in (True, False):
        assert torch.equal(refilled(DRAW, 77, 2, blends=blends), refilled(DRAW, 77, 2, blends=blends))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_other_types_are_rotated_and_inputs_go_their_own_ways(dtype: torch.dtype) -> None:
    values = (DRAW * 10).to(dtype)
    one, other = (refilled(values, 77, index, blends=False) for index in (0, 1))
    assert sorted(one.flatten().tolist()) == sorted(values.flatten().tolist())
    assert blend_of(77, 0, values.numel())[:2] != blend_of(77, 1, values.numel())[:2]
    assert dtype is torch.bool or not torch.equal(one, other)


def test_small_and_low_precision_tensors() -> None:
    assert torch.equal(refilled(torch.tensor([2.0]), 5, 0, blends=True), torch.tensor([2.0]))
    assert refilled(torch.empty(0, 4), 5, 0, blends=True).shape == (0, 4)
    low = refilled(DRAW.bfloat16(), 11, 0, blends=True)
    assert low.dtype is torch.bfloat16 and bool(torch.isfinite(low).all())


def test_a_norms_weights_are_not_all_ones_where_nothing_is_published() -> None:
    ones = torch.ones(512)
    moved = off_default(ones, "norm weight", 3)
    assert 0.1 < float((moved - ones).std()) < 0.4 and torch.equal(moved, off_default(ones, "norm weight", 3))
    assert off_default(ones, None, 3) is ones and off_default(2.0, "given", 3) == 2.0


def test_only_large_draws_are_used_again_and_not_for_ever() -> None:
    pool = Pool()
    pool.keep(0, {"x": DRAW})
    assert pool.take(0) == {}
    large = {"weight": torch.empty(1 << 24, dtype=torch.float32)}
    pool.keep(1, large)
    assert pool.take(0) == {} and all(pool.take(1) is large for _ in range(8)) and pool.take(1) == {}
