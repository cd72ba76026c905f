"""The acceptance of the bounds: ours against the published ones, without a GPU and without reading theirs."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from engine.errors import Fault
from engine.problems.load import load_problem
from engine.tracing.trace import trace_problems

# Why a problem's bounds differ by more than a factor of two; everything else must agree.
EXPLAINED = {
    # The published analysis counts each of the ~70 comparisons and selections per element of the emulated FP4 cast
    # as vector work; the hardware has an instruction for it, so that they bound nothing.
    "Quant-031_nvfp4_grouped_query_attention_with_kv_repeat",
    "Quant-033_nvfp4_moe_routing_with_topk_selection",
    # … and leaves out the bytes of the FP4 weights, which dominate small batches.
    "Quant-020_nvfp4_linear_layer",
    # float32 counted as 16 bits.
    "L1-022_vision_mlp_gelu_backward",
    # The products of a long ragged batch left out.
    "FlashInfer-Bench-017_gqa_ragged_prefill_causal_h32_kv8_d128",
}


def _benchmark(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "bounds_ratio", root / "tests" / "benchmarks" / "bounds_ratio.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bounds_ratio"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_our_bounds_agree_with_the_published_ones(shared_problems: list[Path], tmp_path: Path) -> None:
    ratio = _benchmark(Path(__file__).resolve().parents[2])
    published = {folder.name: ratio.counted(load_problem(folder), "B200") for folder in shared_problems}
    assert sum(len(chosen) for chosen in published.values()) == 317
    copies = [_without_bounds(folder, tmp_path) for folder in shared_problems if published[folder.name]]
    problems = [load_problem(copy) for copy in copies]
    wanted = [list(published[copy.name]) for copy in copies]
    rows = []
    for problem, copy, graphs in zip(
        problems, copies, trace_problems(problems, wanted, timeout_s=300), strict=True
    ):
        assert not isinstance(graphs, Fault), f"{copy.name}: {graphs}"
        for bound in ratio.bounds(problem, "B200", graphs):
            rows.append(
                ratio.Row(copy.name, bound.uuid, bound.bound_ms / published[copy.name][bound.uuid], bound.limit)
            )
    assert len(rows) == 317
    median, within = ratio.summary(rows)
    assert 0.8 <= median <= 1.25, ratio.table(rows)
    assert within >= 0.9, ratio.table(rows)
    outside = {row.problem for row in rows if not 0.5 <= row.ratio <= 2.0}
    assert outside <= EXPLAINED, ratio.table(rows)


def _without_bounds(folder: Path, target: Path) -> Path:
    copy = target / folder.name
    copy.mkdir()
    for name in ("definition.json", "workload.jsonl"):
        shutil.copyfile(folder / name, copy / name)
    return copy


@pytest.mark.shared
@pytest.mark.slow
def test_every_shared_reference_is_followed(shared_problems: list[Path]) -> None:
    problems = [load_problem(folder) for folder in shared_problems]
    smallest = [[min(p.workloads, key=lambda w: sum(w.axes.values())).uuid] for p in problems]
    needs_cuda = set()
    for folder, graphs in zip(shared_problems, trace_problems(problems, smallest), strict=True):
        assert not isinstance(graphs, Fault), f"{folder.name}: {graphs}"
        (graph,) = graphs.values()
        assert graph.complete, f"{folder.name}: {graph.notes}"
        if graph.needs_cuda:
            needs_cuda.add(folder.name.split("_")[0])
    assert needs_cuda == {"L1-028", "Quant-020", "Quant-031", "Quant-033"}
