"""The gathered-sdpa recipe in Triton's interpreter, the vendor's dense kernel replaced by float64 PyTorch.

Started as a process of its own. Prints which dense calls were made; exits 1 if a result is wrong.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine.problems.axes import resolve_axes
from engine.problems.inputs import make_inputs
from engine.problems.load import load_problem
from engine.problems.outputs import allocate_outputs
from engine.recipes.match import Misfit, match
from engine.recipes.model import load_recipes
from engine.recipes.render import render
from engine.skills import load_skills
from tests.content.helpers import H200, folder_of, reference_of, shrunk, traced
from tests.content.interpret import entry, with_fp16

SIZES = [(1, 70, 200), (1, 80, 80), (1, 70, 100), (2, 300, 900), (3, 30, 200)]
calls: list[tuple[int, int, bool]] = []


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """[length, heads, depth] in; the same out, and the natural log-sum-exp [heads, length] in float32."""
    calls.append((q.shape[0], k.shape[0], causal))
    group = q.shape[1] // k.shape[1]
    wide = [t.transpose(0, 1).double() for t in (q, k, v)]
    queries, keys, values = wide[0], *(t.repeat_interleave(group, 0) for t in wide[1:])
    scores = queries @ keys.transpose(1, 2) * scale
    if causal:
        assert q.shape[0] == k.shape[0]
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    result = torch.softmax(scores, -1) @ values
    return result.to(q.dtype).transpose(0, 1).contiguous(), torch.logsumexp(scores, -1).float().contiguous()


def main() -> int:
    problem = load_problem(folder_of("gqa_paged_prefill_causal_h32_kv4_d128_bf16"))
    axes = [{"num_seqs": s, "total_q": q, "num_kv_indices": k, "num_pages": 2 * k} for s, q, k in SIZES]
    problem = with_fp16(shrunk(problem, {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 32}, axes))
    recipe = next(r for r in load_recipes(load_skills())[0] if r.name == "gathered-sdpa")
    fit = match(recipe, traced(problem, H200))
    assert not isinstance(fit, Misfit), fit.why
    source = render(fit, {"most_seqs": 2, "least_work": 262144}).entry_source
    source = source.replace(">= 262144 *", ">= 1 *")
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        for available in (True, False):
            run = entry(source, Path(scratch))
            names = run.__wrapped__.__globals__
            names.update({"_dense": dense, "_available": lambda q, k, v, answer=available: answer})
            for seed, workload in enumerate(w for w in problem.workloads for _ in range(3)):
                resolved = resolve_axes(problem.definition, workload)
                inputs = make_inputs(problem.definition, workload, resolved, "cpu", seed)
                outputs = allocate_outputs(problem.definition, resolved, "cpu")
                for output in outputs:
                    output.fill_(7)
                calls.clear()
                run(*inputs, *outputs)
                close = all(
                    torch.allclose(a.float(), b.float(), rtol=2e-3, atol=2e-3)
                    for a, b in zip(outputs, reference_of(problem)(*inputs), strict=True)
                )
                wrong += not close
                print("ok" if close else "WRONG", workload.axes["num_seqs"], len(calls), calls)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
