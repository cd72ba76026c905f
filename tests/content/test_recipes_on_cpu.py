"""CPU recipes compute what the reference computes, over the corners of their spaces."""

from __future__ import annotations

import pytest
import torch

from engine.problems.axes import resolve_axes
from engine.problems.inputs import make_inputs
from engine.problems.model import Problem
from engine.problems.outputs import allocate_outputs
from engine.recipes.match import match_all
from engine.recipes.model import Recipe
from engine.recipes.render import render
from engine.recipes.space import every_point
from engine.recipes.tracing import prepare
from tests.content.helpers import CPU, reference_of, shrunk, small_problem, traced
from tests.content.test_recipe_matching import VARIANTS

OURS = ("row-blocks", "gemm-epilogue-blocks", "fused-sdpa")

SMALL = {
    "cross_entropy_fp32": ({"vocab": 3000}, [{"tokens": 50}, {"tokens": 131}]),
    "layernorm_bias_residual_fp32": ({"hidden": 320}, [{"tokens": 333}, {"tokens": 1000}]),
    "linear_gelu_residual_fp32": ({"in_features": 48, "out_features": 80}, [{"tokens": 70}, {"tokens": 129}]),
    "masked_softmax_attention_fp32": (
        {"heads": 3, "head_dim": 16},
        [{"batch": 1, "seq": 33}, {"batch": 2, "seq": 40}],
    ),
    "rmsnorm_residual_fp32": ({"hidden": 320}, [{"tokens": 333}, {"tokens": 1000}]),
    "swiglu_fp32": ({"hidden": 320}, [{"tokens": 333}, {"tokens": 1000}]),
}


def check(problem: Problem, recipes: dict[str, Recipe], limit: int = 8) -> int:
    subject = traced(problem, CPU)
    fits, misfits = match_all([recipes[name] for name in OURS], subject)
    assert fits, misfits
    run, tried = reference_of(problem), 0
    for fit in fits:
        points = every_point(fit.recipe.file, fit.facts)
        for point in points[:: max(1, len(points) // limit)]:
            namespace: dict[str, object] = {}
            exec(compile(render(fit, point).entry_source, "kernel.py", "exec"), namespace)
            for workload in problem.workloads:
                axes = resolve_axes(problem.definition, workload)
                inputs = make_inputs(problem.definition, workload, axes, "cpu", 3)
                kept = [i.clone() if isinstance(i, torch.Tensor) else i for i in inputs]
                outputs = allocate_outputs(problem.definition, axes, "cpu")
                for output in outputs:
                    output.fill_(-7)
                namespace["run"](*inputs, *outputs)  # type: ignore[operator]
                expected = run(*kept)
                expected = expected if isinstance(expected, tuple) else (expected,)
                for found, wanted in zip(outputs, expected, strict=True):
                    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)
                for before, after in zip(kept, inputs, strict=True):
                    assert not isinstance(before, torch.Tensor) or torch.equal(before, after)
                tried += 1
    return tried


@pytest.mark.parametrize("name", sorted(SMALL))
def test_bundled_problems(name: str, recipes: dict[str, Recipe], tasks: dict[str, Problem]) -> None:
    constants, workloads = SMALL[name]
    assert check(shrunk(tasks[name], constants, workloads), recipes) >= 4


async def test_a_mask_of_minus_infinity_crosses_the_process_border(
    recipes: dict[str, Recipe], tasks: dict[str, Problem]
) -> None:
    """The traced graph comes from another process, in a format that must have infinities."""
    subject = await prepare(tasks["masked_softmax_attention_fp32"], CPU, "attention")
    fits, misfits = match_all([recipes["fused-sdpa"]], subject)
    assert [fit.facts["mask"] for fit in fits] == ["causal"], misfits


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_references_written_in_another_way(name: str, recipes: dict[str, Recipe]) -> None:
    assert check(VARIANTS[name], recipes, limit=3) >= 4


ODD = {
    # Names that a careless template would use for its own variables.
    "names": (
        "def run(rows, cols, block, n, i):\n    return (rows + cols) * block + n * i\n",
        dict.fromkeys(("rows", "cols", "block", "n", "i"), ("m c", "float32")),
    ),
    "scalars": (
        "def run(x, y):\n    return 2 - x / (1 + y.abs()) + 3 * x\n",
        {"x": ("m c", "float32"), "y": ("m c", "float32")},
    ),
    "mask": (
        "import torch\ndef run(x, k):\n    return torch.where(k > 0, x, 0.5 * x).clamp(-1, 1)\n",
        {"x": ("m c", "float32"), "k": ("m c", "float32")},
    ),
    "per row": ("def run(x, r):\n    return x * r - r\n", {"x": ("m c", "float32"), "r": ("m one", "float32")}),
    "halves": (
        "import torch\ndef run(x):\n    a, b = x.chunk(2, -1)\n    return torch.tanh(a) * b\n",
        {"x": ("m two", "float32")},
    ),
    "repeating": (
        "def run(x, w):\n    return (x.view(-1, 4, 12) * w).view(-1, 12)\n",
        {"x": ("m c", "float32"), "w": ("four c", "float32")},
    ),
}


@pytest.mark.parametrize("name", sorted(ODD))
def test_odd_shapes_names_and_numbers(name: str, recipes: dict[str, Recipe]) -> None:
    reference, inputs = ODD[name]
    axes = {"m": None, "c": 12, "one": 1, "two": 24, "four": 4}
    problem = small_problem(reference, inputs, {"out": ("m c", "float32")}, axes, [{"m": 8}, {"m": 4000}])
    assert check(problem, recipes, limit=3) >= 4
