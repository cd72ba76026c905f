"""Lower bounds and the SOL score: formulas, edge cases, published files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import BadInput
from engine.hardware.peaks import find_peaks, known_gpus, require_peaks
from engine.hardware.roofline import (
    bounds,
    file_bounds,
    least_ms,
    matrix_rate,
    sol_score,
    vector_rate,
    workload_bound,
)
from engine.problems.load import load_problem
from engine.problems.model import Problem, Tolerance, Workload
from engine.tracing.graph import TraceGraph

H200 = require_peaks("H200")
WORKLOAD = Workload(uuid="w", axes={})


def _graph(flops: dict[str, float], read: float = 0.0, write: float = 0.0) -> TraceGraph:
    return TraceGraph(uuid="w", flops=flops, read_bytes={"x": read}, write_bytes={"y": write})


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("H200", "H200"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144G"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX-3090-Ti"),
        ("NVIDIA GeForce RTX 4080 SUPER", "RTX-4080-SUPER"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000-Blackwell"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA X999", None),
        ("Intel(R) Xeon(R)", None),
        ("", None),
    ],
)
def test_cards_are_found_by_their_names(name: str, entry: str | None) -> None:
    found = find_peaks(name)
    assert (found.name if found else None) == entry


def test_every_entry_is_plausible() -> None:
    for name in known_gpus():
        peaks = require_peaks(name)
        assert peaks.name == name and peaks.source
        assert 100 < peaks.memory_gb_s < 20_000
        half = max(peaks.tensor.get("bfloat16", 0), peaks.tensor.get("float16", 0))
        assert peaks.vector["float32"] < half
        if "tf32" in peaks.tensor:
            assert 1.9 * peaks.tensor["tf32"] <= half
        for wide, narrow in (("bfloat16", "float8"), ("float8", "float4")):
            if wide in peaks.tensor and narrow in peaks.tensor:
                assert peaks.tensor[narrow] >= 1.9 * peaks.tensor[wide]


def test_an_unknown_gpu_is_one_clear_line() -> None:
    with pytest.raises(BadInput, match=r"GPU 'B20' are unknown; did you mean B200"):
        require_peaks("B20")
    with pytest.raises(BadInput, match="known are"):
        require_peaks("quantum")


def test_the_larger_of_compute_and_memory_is_the_bound() -> None:
    memory = workload_bound(WORKLOAD, _graph({"tensor:bfloat16": 1e9}, read=4.8e9, write=4.8e9), H200)
    assert memory.limit == "memory"
    assert memory.bound_ms == pytest.approx(2.0)
    assert memory.bytes == 9.6e9
    compute = workload_bound(WORKLOAD, _graph({"tensor:bfloat16": 989.4e9, "vector:float32": 1e9}, read=1.0), H200)
    assert compute.limit == "compute"
    assert compute.bound_ms == pytest.approx(1.0), "vector work overlaps with the matrix units"
    assert compute.flops == 990.4e9
    vector = workload_bound(WORKLOAD, _graph({"vector:float32": 66.9e9}), H200)
    assert vector.bound_ms == pytest.approx(1.0)
    assert vector.launch_floor_ms == pytest.approx(0.002), "apart, never part of the bound"
    mixed = workload_bound(WORKLOAD, _graph({"tensor:bfloat16": 989.4e9, "tensor:float8_e4m3fn": 1978.9e9}), H200)
    assert mixed.bound_ms == pytest.approx(2.0), "one matrix unit does both in turn"


@pytest.mark.parametrize(
    ("dtype", "tolerance", "rate"),
    [
        ("bfloat16", 1e-2, 989.4),
        ("float16", 0.0, 989.4),
        ("float32", 1e-2, 989.4),
        ("float32", 1e-3, 989.4),
        ("float32", 5e-4, 494.7),
        ("float32", 1e-5, 494.7 / 3),
        ("float8_e4m3fn", 0.0, 1978.9),
        ("float4_e2m1fn_x2", 0.0, 1978.9),
        ("float64", 0.0, 66.9),
        ("int8", 0.0, 1978.9),
        ("int64", 0.0, 66.9),
    ],
)
def test_matrix_rates(dtype: str, tolerance: float, rate: float) -> None:
    assert matrix_rate(H200, dtype, Tolerance(max_atol=0.0, max_rtol=tolerance)) == pytest.approx(rate)


def test_units_that_a_card_lacks_fall_back_to_the_next_wider_type() -> None:
    t4, a100, b200 = require_peaks("T4"), require_peaks("A100"), require_peaks("B200")
    tight = Tolerance(max_atol=0.0, max_rtol=0.0)
    assert matrix_rate(t4, "bfloat16", tight) == 65
    assert matrix_rate(t4, "float32", tight) == 8.1
    assert matrix_rate(a100, "float8_e4m3fn", tight) == 312
    assert matrix_rate(b200, "float4_e2m1fn_x2", tight) == 7245
    assert vector_rate(t4, "float64") == pytest.approx(8.1 / 64)


def test_bounds_come_from_graphs_in_workload_order(make_small: Any) -> None:
    problem: Problem = load_problem(make_small())
    graphs = {
        "b": TraceGraph(uuid="b", read_bytes={"x": 4.8e9}, notes=["assumed"]),
        "a": TraceGraph(uuid="a", read_bytes={"x": 9.6e9}),
    }
    first, second = bounds(problem, "H200", graphs)
    assert (first.uuid, second.uuid) == ("a", "b")
    assert first.bound_ms == pytest.approx(2.0) and second.notes == ["assumed"]
    assert [bound.uuid for bound in bounds(problem, "H200", {"b": graphs["b"]})] == ["b"]
    with pytest.raises(BadInput, match="unknown"):
        bounds(problem, "H20x", graphs)


@pytest.mark.parametrize(
    ("times", "value", "below"),
    [
        ((1.0, 1.0, 0.5), 0.5, False),
        ((0.5, 1.0, 0.5), 1.0, False),
        ((0.75, 1.0, 0.5), 2 / 3, False),
        ((3.0, 1.0, 0.5), 1 / 6, False),
        ((0.4, 1.0, 0.5), 1.0, True),
        ((1e-9, 1.0, 0.5), 1.0, True),
        ((1.0, 0.5, 0.5), 0.0, False),
        ((1.0, 0.4, 0.5), 0.0, False),
        ((0.5, 0.4, 0.5), 1.0, False),
        ((0.6, 0.4, 0.5), 0.0, False),
    ],
)
def test_sol_score(times: tuple[float, float, float], value: float, below: bool) -> None:
    score = sol_score(*times)
    assert score.value == pytest.approx(value) and score.below_bound is below


@given(*[st.floats(1e-6, 1e6)] * 3)
def test_a_score_is_always_between_zero_and_one(t_k: float, t_b: float, t_sol: float) -> None:
    score = sol_score(t_k, t_b, t_sol)
    assert 0.0 <= score.value <= 1.0
    assert score.below_bound == (t_k < t_sol)
    assert sol_score(t_k * 2, t_b, t_sol).value <= score.value


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_score_of_no_time_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        sol_score(bad, 1.0, 0.5)


@pytest.fixture
def make_small(tmp_path: Path) -> Any:
    def write() -> Path:
        spec = {"shape": ["n"], "dtype": "float32"}
        definition = {
            "name": "small",
            "axes": {"n": {"type": "var"}},
            "inputs": {"x": spec},
            "outputs": {"y": spec},
            "reference": "def run(x): return x\n",
        }
        (tmp_path / "definition.json").write_text(json.dumps(definition))
        lines = [json.dumps({"uuid": uuid, "axes": {"n": 4}, "inputs": {}}) for uuid in "ab"]
        (tmp_path / "workload.jsonl").write_text("\n".join(lines))
        return tmp_path

    return write


def test_published_bounds_count_on_matching_hardware_only(make_small: Any) -> None:
    folder = make_small()
    problem = load_problem(folder)
    assert file_bounds(problem, "B200") == {}
    content = {
        "hardware": "B200",
        "per_workload": [
            {"index": 1, "sol_ms": 0.5, "baseline_latency_ms": 2.0},
            {"index": 0, "sol_ms": 0.0},
            {"index": 7, "sol_ms": 1.0},
        ],
    }
    (folder / "bounds.json").write_text(json.dumps(content))
    assert file_bounds(problem, "NVIDIA B200") == {"b": (0.5, 2.0)}
    assert file_bounds(problem, "H200") == {} and file_bounds(problem, "cpu") == {}
    (folder / "bounds.json").write_text("{")
    assert file_bounds(problem, "B200") == {}


@pytest.mark.parametrize(
    ("flops", "read", "least"),
    [
        ({"tensor:bfloat16": 989.4e9}, 1.0, 0.5),  # in float8 an honest kernel may take half the time
        ({"tensor:float32": 989.4e9}, 1.0, 0.5),
        ({"tensor:float8_e4m3fn": 1978.9e9}, 1.0, 1.0),
        ({"tensor:bfloat16": 1e9}, 4.8e9, 1.0),  # bytes must move in any precision
    ],
)
def test_a_time_is_impossible_only_if_no_precision_reaches_it(
    flops: dict[str, float], read: float, least: float
) -> None:
    assert least_ms(WORKLOAD, _graph(flops, read=read), H200) == pytest.approx(least, rel=0.02)
