"""Bundled problems: admitted by the check, readable beside their JSON, and not passed by doing nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.problems.axes import resolve_axes
from engine.problems.check import check_problem
from engine.problems.inputs import make_inputs
from engine.problems.model import Problem
from tests.content.helpers import TASKS, reference_of, shrunk

SMALL: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "attention_output_projection_residual_bf16": ({"hidden": 64}, {"batch": 2, "seq": 9}),
    "cross_entropy_fp32": ({"vocab": 500}, {"tokens": 20}),
    "cross_entropy_v128k_bf16": ({"vocab": 500}, {"tokens": 20}),
    "fused_add_rmsnorm_bf16": ({"hidden": 96}, {"tokens": 7}),
    "gemm_bf16_4096": ({"m": 48, "n": 32, "k": 64}, {}),
    "gqa_paged_prefill_causal_h32_kv4_d128_bf16": (
        {},
        {"num_seqs": 3, "total_q": 12, "num_kv_indices": 60, "num_pages": 90},
    ),
    "layernorm_bias_residual_fp32": ({}, {"tokens": 7}),
    "layernorm_h2048_bf16": ({}, {"tokens": 7}),
    "linear_gelu_residual_fp32": ({}, {"tokens": 9}),
    "masked_softmax_attention_fp32": ({}, {"batch": 1, "seq": 40}),
    "moe_swiglu_expert_backward_fp32": ({"hidden": 2048, "inter": 512, "experts": 3, "top_k": 2}, {"tokens": 48}),
    "moe_swiglu_expert_parallel_backward_fp32": (
        {"hidden": 2048, "inter": 512, "experts": 8, "local_experts": 4, "top_k": 2},
        {"tokens": 48},
    ),
    "moe_swiglu_expert_backward_small_fp32": (
        {"experts": 3, "top_k": 2},
        {"tokens": 48},
    ),
    "nvfp4_gqa_causal_h40_kv8_d128": ({}, {"batch": 1, "seq": 24}),
    "qk_rmsnorm_h24_d128_bf16": ({}, {"batch": 1, "seq": 5}),
    "rmsnorm_residual_fp32": ({}, {"tokens": 7}),
    "scaled_softmax_bf16": ({}, {"rows": 6, "cols": 100}),
    "swiglu_bf16": ({}, {"tokens": 3}),
    "swiglu_fp32": ({}, {"tokens": 3}),
    "text_decoder_layer_bf16": ({}, {"batch": 1, "seq": 6}),
}


@pytest.mark.parametrize("path", TASKS, ids=lambda p: p.name)
def test_every_problem_is_admitted(path: Path) -> None:
    result = check_problem(path)
    assert (result.ok, result.errors, result.notes) == (True, [], [])


@pytest.mark.parametrize("path", TASKS, ids=lambda p: p.name)
def test_the_readable_copy_is_the_reference(path: Path, tasks: dict[str, Problem]) -> None:
    assert (path / "reference.py").read_text() == tasks[path.name].definition.reference


def test_the_product_ships_what_it_promises(tasks: dict[str, Problem]) -> None:
    assert set(SMALL) == set(tasks)
    assert len(tasks["gqa_paged_prefill_causal_h32_kv4_d128_bf16"].workloads) == 30
    assert len(tasks["attention_output_projection_residual_bf16"].workloads) == 16
    assert sum(name.endswith("_fp32") and "moe" not in name for name in tasks) >= 3


@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_reference_runs_on_a_cpu_and_zeros_or_means_do_not_pass(name: str, tasks: dict[str, Problem]) -> None:
    constants, axes = SMALL[name]
    problem = shrunk(tasks[name], constants, [axes])
    (workload,) = problem.workloads
    resolved = resolve_axes(problem.definition, workload)
    inputs = make_inputs(problem.definition, workload, resolved, "cpu", 5)
    result = reference_of(problem)(*inputs)
    outputs = result if isinstance(result, tuple) else (result,)
    tolerance = workload.tolerance
    assert len(outputs) == len(problem.definition.outputs)
    for output, spec in zip(outputs, problem.definition.outputs.values(), strict=True):
        expected = output.float()
        assert str(output.dtype) == f"torch.{spec.dtype}" and bool(torch.isfinite(expected).all())
        for guess in (torch.zeros_like(expected), torch.full_like(expected, float(expected.mean()))):
            if expected.numel() == 1 and float(guess) != 0.0:
                continue
            close = (guess - expected).abs() <= tolerance.max_atol + tolerance.max_rtol * expected.abs()
            assert close.double().mean() < tolerance.required_matched_ratio - 0.05


@pytest.mark.parametrize("path", sorted(p for task in TASKS for p in task.glob("seeds/*")), ids=lambda p: p.name)
def test_a_seed_to_start_from_passes_the_gate(path: Path, tasks: dict[str, Problem]) -> None:
    from engine.guard.gate import check
    from engine.problems.solution_io import load_solution

    problem = tasks[path.parent.parent.name]
    result = check(load_solution(path, problem), problem)
    assert result.ok, result.detail
