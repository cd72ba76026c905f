"""Measured ceilings: what they mean for a workload, how they are kept, and one real measurement of this CPU."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from engine.bench import ceilings as measuring
from engine.bench import device_lock
from engine.bench.ceilings import measure_ceilings
from engine.errors import Fault
from engine.grading import Scale, below_bound, graded, scale_for
from engine.hardware.ceilings import Ceilings, ceiling_ms, keep_ceilings, kept_ceilings, peaks_of
from engine.hardware.facts import cpu_facts
from engine.problems.model import Definition, Problem, TensorSpec, Workload
from engine.records import DeviceFacts, Evaluation, WorkloadResult
from engine.tracing.graph import TraceGraph

H200 = Ceilings(
    device="NVIDIA H200", uuid="GPU-1", driver="580", torch="2.11", copy_gb_s=4250.0,
    matrix_tflop_s={"bfloat16": 780.0, "tf32": 400.0, "float32": 50.0},
)  # fmt: skip
CPU = Ceilings(
    device="some CPU", uuid="cpu", driver="", torch="2.11", copy_gb_s=30.0, matrix_tflop_s={"float32": 0.1}
)
PROBLEM = Problem(
    definition=Definition(
        name="p", axes={}, inputs={"x": TensorSpec("float32", ["4"])}, outputs={"y": TensorSpec("float32", ["4"])},
        reference="def run(x): return x",
    ),
    workloads=[Workload(uuid="w", axes={})],
)  # fmt: skip


def graph(flops: dict[str, float], moved: float) -> dict[str, TraceGraph]:
    return {"w": TraceGraph(uuid="w", flops=flops, read_bytes={"x": moved})}


@pytest.mark.parametrize(
    ("ceilings", "flops", "moved", "ms"),
    [
        (H200, {}, 4.25e9, 1.0),
        (H200, {"tensor:bfloat16": 780e9}, 1.0, 1.0),
        (H200, {"tensor:float8_e4m3fn": 780e9}, 1.0, 1.0),  # not measured: the next wider type
        (H200, {"vector:float32": 66.9e9}, 1.0, 1.0),  # not measured either: the datasheet's
        (CPU, {}, 30e6, 1.0),
        (CPU, {"tensor:float32": 0.1e9}, 1.0, 1.0),
        (CPU, {"tensor:bfloat16": 0.1e9, "vector:float32": 0.05e9}, 1.0, 1.0),
    ],
)
def test_a_ceiling_is_the_longer_of_copy_and_product(
    ceilings: Ceilings, flops: dict[str, float], moved: float, ms: float
) -> None:
    assert ceiling_ms(PROBLEM, graph(flops, moved), ceilings) == {"w": pytest.approx(ms)}


def test_ceilings_are_labelled_and_say_nothing_of_untraced_workloads() -> None:
    assert peaks_of(H200).source == "measured"
    assert ceiling_ms(PROBLEM, {}, H200) == {}


@pytest.mark.parametrize(
    "other",
    [{"uuid": "GPU-2"}, {"driver": "590"}, {"versions": {"torch": "2.12"}}, {"name": "NVIDIA H200 NVL"}],
    ids=lambda change: next(iter(change)),
)
def test_they_are_kept_for_one_device_driver_and_torch(other: dict[str, object]) -> None:
    facts = DeviceFacts(kind="cuda", name="NVIDIA H200", uuid="GPU-1", driver="580", versions={"torch": "2.11"})
    assert kept_ceilings(facts) is None
    keep_ceilings(facts, H200)
    assert kept_ceilings(facts) == H200
    assert kept_ceilings(msgspec.structs.replace(facts, **other)) is None


def test_this_cpu_is_measured_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_lock, "lock_dir", lambda: tmp_path)
    found = asyncio.run(measure_ceilings("cpu"))
    assert 0.1 < found.copy_gb_s < 5000 and 1e-4 < found.matrix_tflop_s["float32"] < 100
    assert kept_ceilings(cpu_facts()) == found


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys; sys.exit('no memory')", "measuring failed: no memory"),
        ("print('half a docu')", "no readable answer"),
        ("import time; time.sleep(60)", "did not end within"),
    ],
)
def test_a_probe_that_fails_is_one_clear_fault(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text(f'#!/bin/sh\nexec python3 -c "{source}"\n')
    broken.chmod(0o755)
    monkeypatch.setattr(device_lock, "lock_dir", lambda: tmp_path)
    monkeypatch.setattr(measuring.sys, "executable", str(broken))
    monkeypatch.setattr(measuring, "DEADLINE_S", 3.0)
    with pytest.raises(Fault, match=message):
        asyncio.run(measure_ceilings("cpu"))
    assert kept_ceilings(cpu_facts()) is None


def result(latency: float, reference: float = 2.0) -> WorkloadResult:
    return WorkloadResult(uuid="w", status="PASSED", latency_ms=latency, reference_latency_ms=reference)


@pytest.mark.parametrize(
    ("compile_ms", "baseline", "score"),
    [
        ({}, "eager", 0.5),
        ({"w": 1.0}, "compile", 0.0),  # slower than the compiled reference by far
        ({"w": 3.0}, "eager", 0.5),
        ({"other": 1.0}, "eager", 0.5),  # not of the same workloads
    ],
)
def test_the_better_of_eager_and_compiled_is_the_baseline(
    compile_ms: dict[str, float], baseline: str, score: float
) -> None:
    graphs = graph({}, 4.8e9 * 0.999999)  # a bound of one millisecond, all but
    scale = scale_for(PROBLEM, "NVIDIA H200", graphs, [result(2.0)], compile_ms=compile_ms)
    assert scale.baseline == baseline
    evaluation = graded(Evaluation(verdict="PASS", workloads=[result(2.0)]), scale)
    assert evaluation.sol_score == pytest.approx(score, abs=1e-4)


def test_a_time_below_the_bound_is_clamped_and_flagged() -> None:
    scale = Scale(bound_ms={"w": 1.0}, baseline_ms={"w": 2.0}, bound="roofline", baseline="eager")
    fast = graded(Evaluation(verdict="PASS", workloads=[result(0.5)]), scale)
    assert fast.sol_score == 1.0
    assert fast.notes == ["faster than the roofline bound on workload 1: scored 1; that bound does not hold here"]
    assert below_bound([result(1.5)], scale) == [] and graded(fast, Scale()) is fast


def test_the_ceiling_is_shown_without_a_bound_and_never_scored() -> None:
    scale = scale_for(PROBLEM, "some CPU", graph({}, 30e6), [result(2.0)], ceilings=CPU)
    assert scale == Scale(ceiling_ms={"w": pytest.approx(1.0)})
    evaluation = graded(Evaluation(verdict="PASS", workloads=[result(4.0)]), scale)
    assert evaluation.sol_score is None and evaluation.workloads[0].ceiling_ms == pytest.approx(1.0)
    assert json.loads(msgspec.json.encode(evaluation.workloads[0]))["roofline_ms"] is None
