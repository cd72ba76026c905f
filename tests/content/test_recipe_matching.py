"""Matching by dataflow: names and order do not matter, what does not fit says why."""

from __future__ import annotations

import pytest

from engine.problems.model import Problem
from engine.recipes.match import Fit, Misfit, match
from engine.recipes.model import Recipe
from tests.content.helpers import A100, CPU, H200, small_problem, traced

NORM = """
import torch

def run({arguments}):
    {before}
    scale = torch.rsqrt((h * h).mean(-1, keepdim=True) + {eps})
    return {result}
"""


def norm(arguments: str, before: str = "h = x", eps: str = "1e-6", result: str = "h * scale * w") -> str:
    return NORM.format(arguments=arguments, before=before, eps=eps, result=result)


def rows(
    reference: str, order: str = "x w", outputs: str = "y", scalars: dict[str, float] | None = None, n: int = 64
) -> Problem:
    kinds = {"w": ("cols", "float32"), "e": (None, "float32")}
    return small_problem(
        reference,
        {name: kinds.get(name, ("rows cols", "float32")) for name in order.split()},
        dict.fromkeys(outputs.split(), ("rows cols", "float32")),
        {"rows": None, "cols": n},
        [{"rows": 4}, {"rows": 7}],
        scalars,
    )


VARIANTS = {
    "plain": rows(norm("x, w")),
    "weight first": rows(norm("w, x"), "w x"),
    "eps is an input": rows(norm("x, e, w", eps="e"), "x e w", scalars={"e": 1e-5}),
    "weight offset by one": rows(norm("x, w", result="h * scale * (1 + w)")),
    "with residual": rows(norm("r, w, x", before="h = x + r"), "r w x"),
    "residual returned": rows(norm("x, r, w", before="h = x + r", result="(h, h * scale * w)"), "x r w", "s y"),
    "the built-in norm": rows(
        "import torch.nn.functional as F\ndef run(x, w):\n    return F.rms_norm(x, (64,), w, 1e-6)\n"
    ),
    "layer norm": rows(
        "import torch.nn.functional as F\ndef run(x, w):\n    return F.layer_norm(x, (64,), w, None, 1e-6)\n"
    ),
    "steps in place": rows(
        "def run(x, w):\n    y = x * x\n    y = y.mean(-1, keepdim=True).add_(1e-6).rsqrt_()\n"
        "    return (x * y).mul_(w)\n"
    ),
    "softmax by hand": rows(
        "import torch\ndef run(x):\n    e = (x - x.amax(-1, keepdim=True)).exp()\n"
        "    return e / e.sum(-1, keepdim=True)\n",
        "x",
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("recipe", "device"), [("row-blocks", CPU), ("triton-rows", A100)])
def test_row_recipes_fit_however_the_reference_is_written(
    name: str, recipe: str, device: object, recipes: dict[str, Recipe]
) -> None:
    found = match(recipes[recipe], traced(VARIANTS[name], device))  # type: ignore[arg-type]
    assert isinstance(found, Fit), found


def test_a_scalar_input_stays_an_argument_and_a_constant_a_constant(recipes: dict[str, Recipe]) -> None:
    by_input = match(recipes["row-blocks"], traced(VARIANTS["eps is an input"]))
    by_number = match(recipes["row-blocks"], traced(VARIANTS["plain"]))
    assert isinstance(by_input, Fit) and isinstance(by_number, Fit)
    assert [p["scalars"] for p in by_input.facts["programs"]] == [{"_s0": "e"}]
    assert [p["scalars"] for p in by_number.facts["programs"]] == [{}]


REFUSED = {
    "a product": ("def run(x, w):\n    return x @ x.T @ x * w\n", "mm"),
    "along the first dimension": ("def run(x, w):\n    return x - x.mean(0, keepdim=True) + w\n", "leading dim"),
    "a sort": ("def run(x, w):\n    return x.sort(-1).values * w\n", "sort"),
    "a branch on data": (
        "def run(x, w):\n    return x if x.sum() > 0 else w + x\n",
        "depends on its inputs' data",
    ),
    "an error": ("def run(x, w):\n    return x.nonsense()\n", "could not be traced"),
    "in place": (
        "import torch\ndef run(x, w):\n    y = torch.zeros_like(x)\n    y[:, 1:] = x[:, :-1]\n    return y * w\n",
        "in place",
    ),
    "by shape": ("def run(x, w):\n    return x + w if x.shape[0] > 5 else x * w\n", "different operators"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_says_why(name: str, recipes: dict[str, Recipe]) -> None:
    reference, why = REFUSED[name]
    found = match(recipes["row-blocks"], traced(rows(reference)))
    assert isinstance(found, Misfit) and found.recipe == "memory-layout/row-blocks"
    assert why in found.why


def test_the_device_is_checked_first(recipes: dict[str, Recipe]) -> None:
    subject = traced(VARIANTS["plain"], CPU)
    assert match(recipes["triton-rows"], subject) == Misfit(
        "operator-fusion/triton-rows", "is for cuda; the device is cpu"
    )
    found = match(recipes["triton-gemm-tma"], traced(VARIANTS["plain"], A100))
    assert isinstance(found, Misfit) and found.why == "needs compute capability 9.0"


GEMMS = {
    "linear": ("F.linear(a, b)", "n k", "m n"),
    "bias": ("F.linear(a, b, c)", "n k", "n"),
    "residual first": ("c + a @ b", "k n", "m n"),
    "gelu": ("F.gelu(F.linear(a, b) + c, approximate='tanh')", "n k", "n"),
    "addmm": ("torch.addmm(c, a, b.T)", "n k", "n"),
}


@pytest.mark.parametrize("name", GEMMS)
def test_one_product_with_an_epilogue_fits(name: str, recipes: dict[str, Recipe]) -> None:
    body, right, third = GEMMS[name]
    problem = small_problem(
        f"import torch\nimport torch.nn.functional as F\ndef run(c, b, a):\n    return {body}\n",
        {"c": (third, "float16"), "b": (right, "float16"), "a": ("m k", "float16")},
        {"y": ("m n", "float16")},
        {"m": None, "n": 64, "k": 128},
        [{"m": 8}, {"m": 24}],
    )
    subject = traced(problem, H200)
    for recipe in ("triton-gemm", "triton-gemm-tma"):
        found = match(recipes[recipe], subject)
        assert isinstance(found, Fit), found
        assert (found.facts["a"], found.facts["b"]) == ("a", "b")
        assert found.facts["b_transposed"] is (right == "n k")
    library = match(recipes["cublaslt-epilogue"], subject)
    assert isinstance(library, Fit), library
    if name == "residual first":
        assert (library.facts["residual"], library.facts["bias"]) == ("c", None)


def test_the_vendor_librarys_epilogue_refuses_what_it_cannot_do(recipes: dict[str, Recipe]) -> None:
    problem = small_problem(
        "import torch\ndef run(a, b, c):\n    return torch.sigmoid(a @ b) * c\n",
        {"a": ("m k", "float16"), "b": ("k n", "float16"), "c": ("m n", "float16")},
        {"y": ("m n", "float16")},
        {"m": None, "n": 64, "k": 64},
        [{"m": 8}, {"m": 24}],
    )
    found = match(recipes["cublaslt-epilogue"], traced(problem, H200))
    assert isinstance(found, Misfit) and "sigmoid" in found.why


def attention(mask: str, layout: str = "b h s d", group: int = 1) -> Problem:
    repeat = f".repeat_interleave({group}, dim=1)" if group > 1 else ""
    swap = ".transpose(1, 2)" if layout == "b s h d" else ""
    return small_problem(
        "import torch\ndef run(v, q, k):\n"
        f"    q, k, v = q{swap}, k{swap}{repeat}, v{swap}{repeat}\n"
        "    s, n = q @ k.transpose(-1, -2) * 0.125, q.shape[2]\n"
        f"    s = {mask}\n"
        f"    return (torch.softmax(s, -1) @ v){swap}\n",
        {
            "v": (layout.replace("h", "g"), "float32"),
            "q": (layout, "float32"),
            "k": (layout.replace("h", "g"), "float32"),
        },
        {"y": (layout, "float32")},
        {"b": None, "h": 4, "g": 4 // group, "s": None, "d": 16},
        [{"b": 1, "s": 8}, {"b": 2, "s": 12}, {"b": 3, "s": 5}],
    )


CAUSAL = {
    "tril": "s.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), float('-inf'))",
    "triu": "s + torch.full((n, n), float('-inf')).triu(1)",
    "positions": "torch.where(torch.arange(n)[:, None] >= torch.arange(n)[None, :], s, float('-inf'))",
}


@pytest.mark.parametrize("mask", CAUSAL)
@pytest.mark.parametrize("layout", ["b h s d", "b s h d"])
def test_a_causal_mask_is_recognised_however_it_is_built(
    mask: str, layout: str, recipes: dict[str, Recipe]
) -> None:
    found = match(recipes["fused-sdpa"], traced(attention(CAUSAL[mask], layout)))
    assert isinstance(found, Fit), found
    assert found.facts["causal"] is True and found.facts["scale"] == "0.125"
    assert [found.facts[side]["name"] for side in "qkv"] == ["q", "k", "v"]


def test_grouped_heads_and_no_mask(recipes: dict[str, Recipe]) -> None:
    found = match(recipes["fused-sdpa"], traced(attention("s", group=2)))
    assert isinstance(found, Fit), found
    assert found.facts["causal"] is False and found.facts["grouped"] is True
    assert found.facts["k"]["group"] == "2"


@pytest.mark.parametrize(
    "mask", ["s + torch.arange(n)", "torch.tanh(s)", "s.masked_fill(torch.ones(n, n).tril(-1) > 0, -1e30)"]
)
def test_other_scores_are_refused(mask: str, recipes: dict[str, Recipe]) -> None:
    found = match(recipes["fused-sdpa"], traced(attention(mask)))
    assert isinstance(found, Misfit) and "scores" in found.why


def test_roles_of_paged_attention_come_from_what_flows_where(
    recipes: dict[str, Recipe], tasks: dict[str, Problem]
) -> None:
    import msgspec

    problem = tasks["gqa_paged_prefill_causal_h32_kv4_d128_bf16"]
    definition = problem.definition
    swapped = {"k_cache": "cache_b", "v_cache": "cache_a", "q": "tokens", "qo_indptr": "one", "kv_indptr": "two"}

    def renamed(text: str) -> str:
        import re

        for old, new in swapped.items():
            text = re.sub(rf"\b{old}\b", new, text)
        return text

    order = ["cache_a", "two", "one", "kv_indices", "tokens", "sm_scale", "cache_b"]
    inputs = {renamed(n): s for n, s in definition.inputs.items()}
    reference = renamed(definition.reference)
    head = "def run(tokens, cache_b, cache_a, one, two, kv_indices, sm_scale):"
    assert head in reference
    other = msgspec.structs.replace(
        definition,
        inputs={n: inputs[n] for n in order},
        reference=reference.replace(head, f"def run({', '.join(order)}):"),
    )
    workloads = [
        msgspec.structs.replace(w, inputs={renamed(n): s for n, s in w.inputs.items()})
        for w in problem.workloads[1:3]
    ]
    found = match(
        recipes["triton-varlen-attention"],
        traced(msgspec.structs.replace(problem, definition=other, workloads=workloads), H200),
    )
    assert isinstance(found, Fit), found
    roles = found.facts["roles"]
    assert (roles.q, roles.k, roles.v, roles.pages) == ("tokens", "cache_b", "cache_a", "kv_indices")
    assert (roles.q_offsets, roles.kv_offsets, roles.scale) == ("one", "two", "sm_scale")
    assert roles.causal and roles.lse_base_two


def test_twins_of_an_expert_layer_are_told_apart(recipes: dict[str, Recipe], tasks: dict[str, Problem]) -> None:
    found = match(recipes["triton-moe-backward"], traced(tasks["moe_swiglu_expert_backward_small_fp32"], H200))
    assert isinstance(found, Fit), found
    roles = found.facts["roles"]
    assert (roles.gate, roles.up, roles.down) == ("gate_weights", "up_weights", "down_weights")
    assert (roles.grad, roles.hidden) == ("grad_output", "hidden_states")
    assert (roles.grad_gate, roles.grad_up) == ("grad_gate_weights", "grad_up_weights")


def test_an_arange_is_matched_but_not_as_a_mask(recipes: dict[str, Recipe]) -> None:
    """Positions inside a row program: a bias that grows along the row."""
    reference = "import torch\ndef run(x):\n    return (x + torch.arange(64)).softmax(-1)\n"
    assert isinstance(match(recipes["triton-rows"], traced(rows(reference, "x"), H200)), Fit)
