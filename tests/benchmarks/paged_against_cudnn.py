"""A paged prefill kernel against cuDNN's attention on keys and values that lie gathered and contiguous already.

    python tests/benchmarks/paged_against_cudnn.py SOLUTION [--problem PROBLEM] [--workloads N]

cuDNN masks from the top left only, so each sequence is two of its calls: all queries to the cached tokens before
the first query, without a mask, and the causal square. What merges the two is not counted, nor is gathering, nor
the logarithm of the sums that the problem asks for: cuDNN's time is a bound of what it could reach. Both are sums
of kernel durations of a call (CUPTI, L2 flushed before each), medians; no sandbox: run only a solution you trust.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import torch  # noqa: E402
from recipes_gpu import chosen, import_solution, kernel_ms  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from engine.problems.axes import resolve_axes  # noqa: E402
from engine.problems.inputs import make_inputs  # noqa: E402
from engine.problems.library import find_problem  # noqa: E402
from engine.problems.outputs import allocate_outputs  # noqa: E402
from engine.problems.solution_io import load_solution  # noqa: E402


def cudnn_calls(inputs: dict[str, Any]) -> Callable[[], None]:
    """One cuDNN call per sequence and part, on copies that are made here."""
    q_at, kv_at = inputs["qo_indptr"].tolist(), inputs["kv_indptr"].tolist()
    keys, values = inputs["k_cache"].flatten(0, 1), inputs["v_cache"].flatten(0, 1)
    parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]] = []

    def heads_first(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.transpose(0, 1).contiguous()[None]

    for start, end, kv_start, kv_end in zip(q_at[:-1], q_at[1:], kv_at[:-1], kv_at[1:], strict=True):
        pages = inputs["kv_indices"][kv_start:kv_end].long()
        query, key, value = (heads_first(t) for t in (inputs["q"][start:end], keys[pages], values[pages]))
        before = (kv_end - kv_start) - (end - start)
        if end > start and before:
            parts.append((query, key[:, :, :before].contiguous(), value[:, :, :before].contiguous(), False))
        if end > start:
            parts.append((query, key[:, :, before:].contiguous(), value[:, :, before:].contiguous(), True))

    def call() -> None:
        # It refuses a single key: such a part is its value, whoever computes it.
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], set_priority=True):
            for query, key, value, causal in parts:
                scaled_dot_product_attention(
                    query, key, value, is_causal=causal, scale=inputs["sm_scale"], enable_gqa=True
                )

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solution", type=Path)
    parser.add_argument("--problem", default="gqa_paged_prefill_causal_h32_kv4_d128_bf16")
    parser.add_argument("--workloads", type=int, default=12)
    options = parser.parse_args()
    problem = find_problem(options.problem)
    solution = load_solution(options.solution, problem)
    run = import_solution(solution)
    ratios: list[float] = []
    for workload in chosen(problem, options.workloads):
        axes = resolve_axes(problem.definition, workload)
        values = make_inputs(problem.definition, workload, axes, torch.device("cuda"), seed=1, root=problem.root)
        inputs = dict(zip(problem.definition.inputs, values, strict=True))
        into = solution.spec.destination_passing_style
        given = [*values, *(allocate_outputs(problem.definition, axes, torch.device("cuda")) if into else ())]
        ours, _ = kernel_ms(lambda given=given: run(*given))  # type: ignore[misc]
        theirs, _ = kernel_ms(cudnn_calls(inputs))
        ratios.append(theirs / ours)
        print(f"{workload.uuid}: {ours:.4f} ms, cuDNN {theirs:.4f} ms, ratio {theirs / ours:.3f}", flush=True)
    middle = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    print(f"geometric mean {middle:.3f} of cuDNN's speed over {len(ratios)} workloads, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
