"""Does a problem fit into a GPU's memory at all? Asked before anything runs out of it."""

from __future__ import annotations

import pytest

from engine.bench.session import fitting, slots_of
from engine.bench.wire import WorkloadSpec

GB = 10**9
H200 = 150 * GB


def spec(inputs: int, outputs: int) -> WorkloadSpec:
    return WorkloadSpec(uuid="w", inputs=[], outputs=[], input_stride=inputs, output_stride=outputs)


@pytest.mark.parametrize(
    ("inputs", "outputs", "fits"), [(GB, GB, True), (5 * GB, 4 * GB, True), (26 * GB, 26 * GB, False)]
)
def test_a_gpu_must_hold_the_judge_and_two_sides(inputs: int, outputs: int, fits: bool) -> None:
    assert fitting(spec(inputs, outputs), H200) is fits


def test_two_calls_are_in_flight_where_they_fit() -> None:
    assert slots_of(spec(5 * GB, 4 * GB), H200) == 2
    large = spec(20 * GB, GB)
    assert fitting(large, H200) and not fitting(large, H200, 2) and slots_of(large, H200) == 1
