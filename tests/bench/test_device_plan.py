"""How many calls a block holds on a GPU, and how many rounds come before a KEEP."""

from __future__ import annotations

import pytest

from engine.bench.api import KEEP_ROUNDS, EvaluationPlan
from engine.bench.device_claims import calls_of_check
from engine.bench.machine import Cores
from engine.bench.plan_calls import device_block_size


@pytest.mark.parametrize(
    ("calls", "pairs", "call_s", "slots", "block_s", "size"),
    [
        (20, 5, 1e-4, 32, 1.0, 4),  # what the plan asks for
        (50, 5, 1e-4, 8, 1.0, 8),  # as many as may be in flight
        (50, 5, 0.1, 32, 1.0, 2),  # a block is kept about a quarter of a second long
        (20, 5, 0.06, 32, 0.033, 1),  # thirty slow workloads share a budget
        (20, 5, 0.0, 32, 1.0, 4),  # nothing is known of the calls yet
        (20, 5, 1.0, 32, 0.0, 1),
    ],
)
def test_calls_of_a_block(calls: int, pairs: int, call_s: float, slots: int, block_s: float, size: int) -> None:
    assert device_block_size(calls, pairs, call_s, slots, block_s) == size


@pytest.mark.parametrize(
    ("slots", "drawing_s", "call_s", "k"),
    [
        (32, 0.0, 0.0, 16),
        (32, 0.001, 0.001, 16),
        (32, 0.035, 0.035, 4),  # drawing two gigabytes for each call
        (32, 0.2, 0.2, 1),
        (
            32,
            0.001,
            1.0,
            4,
        ),  # a slow candidate must not hold the device for minutes, nor dawdle itself out of sight
        (6, 0.001, 0.001, 3),  # large outputs
        (1, 0.001, 0.001, 1),
    ],
)
def test_blocks_for_the_outside_clock_stay_short(slots: int, drawing_s: float, call_s: float, k: int) -> None:
    assert calls_of_check(slots, drawing_s=drawing_s, call_s=call_s) == k


@pytest.mark.parametrize("rounds", [1, 3, 5, 12])
def test_ten_rounds_come_before_a_keep(rounds: int) -> None:
    final = EvaluationPlan(rounds=rounds).final()
    assert rounds + final.rounds >= KEEP_ROUNDS and final.rounds >= rounds
    assert final.against_reference and final.check_claims


def test_a_clear_gain_is_confirmed_in_the_time_of_its_search() -> None:
    plan = EvaluationPlan(timing_s=6.0)
    assert plan.final().timing_s > plan.final(clear=True).timing_s == 6.0


@pytest.mark.parametrize(
    ("available", "gpu", "timing", "work"),
    [
        (16, 0, [14, 15], list(range(14))),
        (16, 1, [12, 13], list(range(12))),
        (16, 5, list(range(16)), list(range(16))),  # too many GPUs to reserve cores for each
        (4, 0, [0, 1, 2, 3], [0, 1, 2, 3]),
        (16, None, [15], list(range(15))),
        (1, None, [0], [0]),
    ],
)
def test_cores_are_reserved_for_what_is_timed(
    monkeypatch: pytest.MonkeyPatch, available: int, gpu: int | None, timing: list[int], work: list[int]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(available)))
    cores = Cores.of_this_process(gpu)
    assert (cores.timing, cores.work) == (timing, work)
