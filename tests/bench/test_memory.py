"""Does a problem fit into a GPU's memory at all? Asked before anything runs out of it."""

from __future__ import annotations

import pytest

from engine.bench.memory_plan import fitting, is_large, sides_that_fit, slots_of
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


@pytest.mark.parametrize(
    ("each", "slots", "device", "sides"),
    [
        (10**6, 32, H200, 64),  # nobody waits
        (33 * GB // 10, 2, H200, 3),  # a large call: one evaluation at a time
        (33 * GB // 10, 1, H200, 5),
        (10**6, 32, 8 * GB, 4),  # a small card
        (10**9, 2, 24 * GB, 3),  # at least three, as planned
    ],
)
def test_as_many_processes_at_a_time_as_fit_beside_the_judge(
    each: int, slots: int, device: int, sides: int
) -> None:
    specs = [spec(each, each)] * 4
    assert sides_that_fit(specs, [slots] * 4, device) == sides


def test_other_workloads_inputs_are_counted_as_far_as_they_are_kept() -> None:
    few, many = [spec(10**8, 10**6)], [spec(10**8, 10**6)] * 30
    assert sides_that_fit(few, [5], 24 * GB) > sides_that_fit(many, [5] * 30, 24 * GB) > 3


def test_a_process_that_holds_half_a_gigabyte_a_call_ends_when_it_is_not_needed() -> None:
    assert is_large([spec(1, 1), spec(GB, 1)]) and not is_large([spec(10**8, 10**8)] * 9)
