"""Triton recipes compute what their references compute, in Triton's interpreter: no GPU needed, Triton is."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest


def why_not() -> str:
    """Triton's interpreter turns one-element arrays into loop bounds, which the newest NumPy refuses."""
    if importlib.util.find_spec("triton") is None:
        return "needs Triton, which is not installed"
    import numpy

    try:
        int(numpy.zeros(1, dtype=numpy.int32))
    except TypeError:
        return f"Triton's interpreter does not run loops under NumPy {numpy.__version__}"
    return ""


pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.slow,
]

PAGED = [
    {"num_seqs": 1, "total_q": 1, "num_kv_indices": 33, "num_pages": 64},
    {"num_seqs": 3, "total_q": 30, "num_kv_indices": 200, "num_pages": 256},
    {"num_seqs": 2, "total_q": 3, "num_kv_indices": 700, "num_pages": 800},
]
ATTENTION = [{"batch": 2, "seq": 21}]
CASES = [
    ("fused_add_rmsnorm_bf16", "triton-rows", {"hidden": 512}, [{"tokens": 3}, {"tokens": 17}]),
    ("fused_add_rmsnorm_bf16", "triton-rows-looped", {"hidden": 600}, [{"tokens": 3}, {"tokens": 17}]),
    ("swiglu_bf16", "triton-tiles", {"inter": 700}, [{"tokens": 1}, {"tokens": 17}]),
    ("qk_rmsnorm_h24_d128_bf16", "triton-rows", {"heads": 3}, [{"batch": 1, "seq": 5}, {"batch": 2, "seq": 3}]),
    ("scaled_softmax_bf16", "triton-rows-looped", {}, [{"rows": 3, "cols": 1030}, {"rows": 2, "cols": 3000}]),
    ("scaled_softmax_bf16", "triton-rows-split", {}, [{"rows": 3, "cols": 8700}, {"rows": 2, "cols": 9000}]),
    ("cross_entropy_v128k_bf16", "triton-rows-looped", {"vocab": 3000}, [{"tokens": 9}, {"tokens": 16}]),
    ("cross_entropy_v128k_bf16", "triton-rows-split", {"vocab": 9000}, [{"tokens": 2}, {"tokens": 5}]),
    ("gemm_bf16_4096", "triton-gemm", {"m": 70, "n": 96, "k": 128}, [{}]),
    ("gemm_bf16_4096", "triton-gemm-tma", {"m": 70, "n": 96, "k": 128}, [{}]),
    ("attention_output_projection_residual_bf16", "triton-gemm-tma", {"hidden": 128}, [{"batch": 2, "seq": 20}]),
    ("linear_gelu_residual_fp32", "triton-gemm", {"in_features": 64, "out_features": 96}, [{"tokens": 37}]),
    ("masked_softmax_attention_fp32", "triton-flash-attention", {"heads": 2, "head_dim": 32}, ATTENTION),
    (
        "gqa_paged_prefill_causal_h32_kv4_d128_bf16",
        "triton-varlen-attention",
        {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 32},
        PAGED,
    ),
    (
        "moe_swiglu_expert_backward_small_fp32",
        "triton-moe-backward",
        {"hidden": 96, "inter": 64, "experts": 5, "top_k": 2},
        [{"tokens": 9}, {"tokens": 33}],
    ),
    (
        "moe_swiglu_expert_parallel_backward_fp32",
        "triton-moe-backward",
        {"hidden": 96, "inter": 64, "experts": 12, "local_experts": 3, "top_k": 4},
        [{"tokens": 9}, {"tokens": 33}],
    ),
    (
        "text_decoder_layer_bf16",
        "stitched-stages",
        {"hidden": 512, "heads": 4, "kv_heads": 2, "inter": 640},
        [{"batch": 1, "seq": 9}, {"batch": 2, "seq": 7}],
    ),
    (
        "nvfp4_gqa_causal_h40_kv8_d128",
        "stitched-stages",
        {"heads": 4, "kv_heads": 2, "head_dim": 32},
        [{"batch": 1, "seq": 9}, {"batch": 2, "seq": 21}],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "recipe", "constants", "workloads"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_in_the_interpreter(
    problem: str, recipe: str, constants: dict[str, int], workloads: list[dict[str, int]]
) -> None:
    script = Path(__file__).with_name("interpret.py")
    command = [sys.executable, str(script), problem, recipe, "2", json.dumps(constants), json.dumps(workloads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "ok" in done.stdout


def test_long_sequences_take_two_dense_calls_merged_by_their_log_sum_exps_and_others_one_launch() -> None:
    script = Path(__file__).with_name("interpret_gathered.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    for sequences, dense_calls in ((1, 1), (1, 2), (2, 4), (3, 0), (1, 0)):
        assert any(line.startswith(f"ok {sequences} {dense_calls} ") for line in lines), done.stdout
