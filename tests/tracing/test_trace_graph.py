"""What a trace says about a reference: work, mandatory bytes, dataflow, and what it had to assume."""

from __future__ import annotations

from typing import Any

import pytest

from engine.problems.model import (
    ConstAxis,
    CustomInput,
    Definition,
    Problem,
    ScalarInput,
    TensorSpec,
    Workload,
)
from engine.tracing.graph import TraceGraph
from engine.tracing.kernel_type import kernel_type_of
from engine.tracing.subject import trace_workload

Shapes = dict[str, tuple[str, list[str] | None]]


def _problem(
    reference: str, inputs: Shapes, outputs: Shapes, axes: dict[str, int] | None = None, **workload: Any
) -> Problem:
    def specs(shapes: Shapes) -> dict[str, TensorSpec]:
        return {name: TensorSpec(dtype=dtype, shape=shape) for name, (dtype, shape) in shapes.items()}

    definition = Definition(
        name="p",
        axes={name: ConstAxis(value) for name, value in (axes or {}).items()},
        inputs=specs(inputs),
        outputs=specs(outputs),
        reference="import torch\nimport torch.nn.functional as F\n" + reference,
        custom_inputs_entrypoint="make" if "def make(" in reference else None,
    )
    workload.setdefault("axes", {})
    workload["inputs"] = workload.pop("sources", {})
    if definition.custom_inputs_entrypoint:
        workload["inputs"] = {name: CustomInput() for name in inputs}
    return Problem(definition=definition, workloads=[Workload(uuid="w", **workload)])


def _trace(*args: Any, **kwargs: Any) -> TraceGraph:
    problem = _problem(*args, **kwargs)
    return trace_workload(problem, problem.workloads[0])


M, N, K = "1024", "512", "2048"
GEMM: Shapes = {"a": ("bfloat16", [M, K]), "b": ("bfloat16", [N, K])}
OUT: Shapes = {"c": ("bfloat16", [M, N])}


def test_a_gemm_counts_two_flops_per_product_and_every_byte_once() -> None:
    graph = _trace("def run(a, b): return a @ b.T", GEMM, OUT)
    assert graph.flops == {"tensor:bfloat16": 2.0 * 1024 * 512 * 2048}
    assert graph.read_bytes == {"a": 2.0 * 1024 * 2048, "b": 2.0 * 512 * 2048}
    assert graph.write_bytes == {"c": 2.0 * 1024 * 512}
    assert graph.complete and not graph.needs_cuda and graph.notes == []
    (operator,) = [op for op in graph.operators if op.kind == "matmul"]
    assert operator.name == "aten.mm"
    assert [operand.value for operand in operator.inputs] == [graph.inputs["a"], graph.inputs["b"]]
    assert operator.inputs[1].shape == [2048, 512] and operator.inputs[1].strides == [1, 2048], (
        "b is read transposed"
    )
    assert [value.value for value in operator.outputs] == graph.outputs


@pytest.mark.parametrize(
    ("reference", "read"),
    [
        ("def run(a, b): return (a + 1).to(torch.bfloat16)[:, :512]", {"a": 512 / 2048, "b": 0}),
        ("def run(a, b): return a[:, :512].expand(1024, 512) * b[0, 0]", {"a": 512 / 2048, "b": 1 / (512 * 2048)}),
        ("def run(a, b): return a[:1, :512].expand(1024, 512)", {"a": 512 / (1024 * 2048), "b": 0}),
        ("def run(a, b):\n    unused = a @ b.T\n    return b[:512, :512].repeat(2, 1)", {"a": 0, "b": 512 / 2048}),
        ("def run(a, b):\n    x, y = a.chunk(2, dim=1)\n    return (x * y)[:, :512]", {"a": 0.5, "b": 0}),
        ("def run(a, b): return b[:, :1].T.expand(1024, 512) + b[:, :1].T", {"a": 0, "b": 1 / 2048}),
    ],
    ids=["slice of a result", "slice", "expanded row", "dead product", "halves", "one view twice"],
)
def test_only_needed_elements_are_read(reference: str, read: dict[str, float]) -> None:
    graph = _trace(reference, GEMM, OUT)
    sizes = {"a": 2.0 * 1024 * 2048, "b": 2.0 * 512 * 2048}
    assert graph.complete, graph.notes
    for name, share in read.items():
        assert graph.read_bytes[name] == pytest.approx(share * sizes[name], rel=1e-6), name
    assert "tensor:bfloat16" not in graph.flops
    assert graph.untouched_inputs == [name for name, share in read.items() if share == 0]


def test_a_gather_reads_the_rows_it_touches() -> None:
    reference = (
        "def make(axes, device):\n"
        "    ids = torch.arange(200, device=device) % 50\n"
        "    return {'table': torch.randn(4096, 64, device=device), 'ids': ids}\n"
        "def run(table, ids):\n    return (table * 2.0)[ids]\n"
    )
    graph = _trace(reference, {"table": ("float32", ["4096", "64"]), "ids": ("int64", ["200"])}, OUT)
    assert graph.read_bytes == {"table": 50 * 64 * 4.0, "ids": 200 * 8.0}
    assert graph.flops == {"vector:float32": pytest.approx(50 * 64)}


IMAGE: Shapes = {"x": ("bfloat16", ["2", "8", "9", "9"]), "w": ("bfloat16", ["8", "4", "3", "3"])}


@pytest.mark.parametrize(
    ("call", "products"),
    [
        ("F.conv2d(x, w, groups=2)", 2 * 8 * 4 * (7 * 3) ** 2),
        ("F.conv2d(x, w, groups=2, padding=1)", 2 * 8 * 4 * (3 * 9 - 2) ** 2),
        ("F.conv2d(x, w, groups=2, padding=6, dilation=6)", 2 * 8 * 4 * (9 + 3 + 3) ** 2),
        ("F.conv2d(x, w, groups=2, padding=1, stride=2)", 2 * 8 * 4 * (3 * 5 - 2) ** 2),
        ("F.conv2d(x, w, groups=2, padding=(1, 0))", 2 * 8 * 4 * (3 * 9 - 2) * (3 * 7)),
        ("F.conv_transpose2d(x, w, stride=2)", 2 * 8 * 4 * (9 * 3) ** 2),
        ("F.conv_transpose2d(x, w, stride=2, padding=1)", 2 * 8 * 4 * (9 * 3 - 2) ** 2),
    ],
    ids=["inside", "padded", "dilated", "strided", "one axis", "transposed", "transposed and cut"],
)
def test_a_convolution_multiplies_nothing_by_its_padding(call: str, products: int) -> None:
    graph = _trace(f"def run(x, w): return {call}", IMAGE, {"y": ("bfloat16", ["2", "8", "9", "9"])})
    assert graph.complete and graph.flops["tensor:bfloat16"] == pytest.approx(2.0 * products)


INDICES = "def make(axes, device):\n    return {'x': torch.randn(64, 32, 256, device=device), 'i': %s, 'j': %s}\n"
THREES, ROWS = "torch.arange(48, device=device) % 3", "torch.arange(48, device=device)"


@pytest.mark.parametrize(
    ("i", "j", "result", "read"),
    [
        (ROWS, ROWS, "sum(x[i][:, h] for h in range(4))", 48 * 4 * 256),
        (ROWS, ROWS, "x[i] * 2 + x[i]", 48 * 32 * 256),
        (THREES, ROWS, "x[i] + x[j]", (3 + 48) * 32 * 256),
        (THREES, ROWS, "x[:, i, j]", 64 * 48),
        (THREES, THREES, "x[:, i, j]", 64 * 3),
        (THREES, ROWS, "x[i[:, None], i[None]]", 3 * 3 * 256),
        (THREES, ROWS, "x[0].gather(1, i.expand(32, 48))", 32 * 3),
        (THREES, ROWS, "x[0].index_select(1, i)", 32 * 3),
        (THREES, ROWS, "F.embedding(i, x[0])", 3 * 256),
    ],
)
def test_what_is_gathered_again_is_read_once(i: str, j: str, result: str, read: int) -> None:
    inputs: Shapes = {"x": ("float32", ["64", "32", "256"]), "i": ("int64", ["48"]), "j": ("int64", ["48"])}
    graph = _trace(INDICES % (i, j) + f"def run(x, i, j): return {result}", inputs, OUT)
    assert graph.complete and graph.read_bytes["x"] == 4.0 * read


@pytest.mark.parametrize(
    ("result", "read"),
    [
        ("a[:, :64].unfold(1, 16, 1).sum(-1)", 1024 * 64),
        ("a[:, :64].unfold(1, 16, 3).sum(-1)", 1024 * 64),
        ("a[:, :64].unfold(1, 4, 8).sum(-1)", 1024 * 32),
        ("a.unfold(0, 3, 1)[:, :64].sum(-1)", 1024 * 64),
        ("a[:, :10] + a[:, 1:11] + a[:, 5:15]", 1024 * 15),
        ("a[:, :10] + a[:, 20:30]", 1024 * 20),
        ("sum(a[0, :end].sum() for end in range(1, 100))", 99),
        ("a[:10] + a[5:15]", 15 * 2048),
        ("a[:, ::2] + a[:, ::2]", 1024 * 1024),
    ],
)
def test_windows_that_overlap_are_read_once(result: str, read: int) -> None:
    graph = _trace(f"def run(a): return {result}", {"a": ("float32", [M, K])}, OUT)
    assert graph.complete and graph.read_bytes["a"] == 4.0 * read


@pytest.mark.parametrize(
    ("call", "flops"),
    [
        ("torch.fft.fft(torch.view_as_complex(z), dim=0)", 5 * 64 * 4096 * 6),
        ("torch.fft.fft(torch.view_as_complex(z), dim=1)", 5 * 64 * 4096 * 12),
        ("torch.fft.fft2(torch.view_as_complex(z))", 5 * 64 * 4096 * 18),
        ("torch.fft.rfft(z[..., 0].contiguous())", 2.5 * 64 * 4096 * 12),
        ("torch.fft.irfft(torch.view_as_complex(z)[:, :2049].contiguous())", 2.5 * 64 * 4096 * 12),
    ],
)
def test_a_transform_counts_the_points_along_its_own_axes(call: str, flops: float) -> None:
    graph = _trace(f"def run(z): return {call}", {"z": ("float32", ["64", "4096", "2"])}, OUT)
    assert graph.complete and graph.flops == {"vector:float32": pytest.approx(flops)}


def test_a_grouped_product_counts_what_its_groups_multiply() -> None:
    groups: Shapes = {
        "x": ("bfloat16", ["64", "128"]),
        "w": ("bfloat16", ["4", "128", "32"]),
        "o": ("int32", ["4"]),
    }
    made = (
        "def make(axes, device):\n    return {'x': torch.randn(64, 128, device=device).bfloat16(),"
        " 'w': torch.randn(4, 128, 32, device=device).bfloat16(),"
        " 'o': torch.tensor([16, 32, 48, 64], dtype=torch.int32, device=device)}\n"
    )
    graph = _trace(made + "def run(x, w, o): return torch._grouped_mm(x, w, offs=o)", groups, OUT)
    assert graph.complete and graph.flops == {"tensor:bfloat16": 2.0 * 64 * 128 * 32}


def test_a_complex_product_is_three_real_ones() -> None:
    shapes: Shapes = {"a": ("float32", ["64", "64", "2"])}
    source = "def run(a):\n    z = torch.view_as_complex(a)\n    return torch.view_as_real(z @ z)"
    assert _trace(source, shapes, OUT).flops == {"tensor:float32": 3 * 2.0 * 64**3}


@pytest.mark.parametrize(
    ("result", "flops"),
    [
        ("a * 2 + 1", {"vector:bfloat16": 2.0 * 1024 * 2048}),  # two numbers at a time, each rounded as it was
        ("(a.float() * 2).to(torch.bfloat16)", {"vector:float32": 1024 * 2048}),
        ("a.sum(0)", {"vector:float32": 1024 * 2048}),
        ("a.double() * 2", {"vector:float64": 1024 * 2048}),
        ("a + torch.arange(1, 2049, device=a.device).sqrt().log().to(a.dtype)", {"vector:bfloat16": 1024 * 2048}),
    ],
    ids=["short", "float", "sum", "double", "constants are not computed from data"],
)
def test_elements_are_computed_in_the_type_of_their_result(result: str, flops: dict[str, float]) -> None:
    assert _trace(f"def run(a): return {result}", {"a": ("bfloat16", [M, K])}, OUT).flops == flops


MOE = """
def make(axes, device):
    ids = torch.stack([torch.randperm(4, device=device)[:2] for _ in range(64)])
    return {'x': torch.randn(64, 256, device=device), 'ids': ids, 'w': torch.randn(16, 256, 256, device=device)}

def run(x, ids, w):
    out = torch.zeros_like(x)
    mask = F.one_hot(ids, 16).permute(2, 1, 0)
    for e in range(16):
        slot, token = torch.where(mask[e])
        if token.numel() == 0:
            continue
        out.index_add_(0, token, F.silu(x[token] @ w[e]) @ w[e].T)
    return out
"""
MOE_INPUTS: Shapes = {
    "x": ("float32", ["64", "256"]),
    "ids": ("int64", ["64", "2"]),
    "w": ("float32", ["16", "256", "256"]),
}


def test_an_expert_loop_reads_only_the_experts_in_use() -> None:
    problem = _problem(MOE, MOE_INPUTS, {"out": ("float32", ["64", "256"])})
    graph = trace_workload(problem, problem.workloads[0])
    assert graph.complete, graph.notes
    assert graph.read_bytes["w"] == 4 * 256 * 256 * 4.0
    assert graph.flops["tensor:float32"] == 2 * (2.0 * 64 * 2 * 256 * 256)
    assert kernel_type_of(problem.definition, graph) == "moe"


def test_routing_that_depends_on_data_is_assumed_plausibly() -> None:
    reference = (
        "def run(x, gate, w):\n"
        "    weight, ids = torch.topk(torch.softmax(x @ gate.T, -1), 2, dim=-1)\n"
        "    out = torch.zeros_like(x)\n"
        "    for e in range(16):\n"
        "        picked = (ids == e).any(dim=1)\n"
        "        if not picked.any():\n"
        "            continue\n"
        "        token = picked.nonzero().squeeze(1)\n"
        "        out[token] += x[token] @ w[e]\n"
        "    return out\n"
    )
    inputs: Shapes = {**MOE_INPUTS, "gate": ("float32", ["16", "256"])}
    del inputs["ids"]
    problem = _problem(
        reference, dict(sorted(inputs.items(), key=lambda item: ["x", "gate", "w"].index(item[0]))), OUT
    )
    graph = trace_workload(problem, problem.workloads[0])
    assert graph.complete and graph.notes == ["chooses indices by data: random ones were assumed"]
    experts = 2.0 * 64 * 2 * 256 * 256
    assert graph.flops["tensor:float32"] == pytest.approx(experts + 2 * 64 * 16 * 256)
    assert graph.read_bytes["w"] == 16 * 256 * 256 * 4.0


@pytest.mark.parametrize(
    ("body", "flops"),
    [
        (
            "x = x.detach().requires_grad_(True)\n"
            "    with torch.enable_grad():\n        y = (x @ x.T).sin().sum()\n"
            "        (g,) = torch.autograd.grad(y, x)\n    return g",
            3 * 2 * 512 * 512 * 256,
        ),
        ("return torch.func.grad(lambda a: (a @ a.T).sin().sum())(x)", 3 * 2 * 512 * 512 * 256),
        (
            "m = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))\n"
            "    return m(x)",
            2 * 2 * 512 * 256 * 1024,
        ),
        ("o = torch.empty(512, 512)\n    torch.mm(x, x.T, out=o)\n    return o[:, :256]", 512 * 512 * 256),
        ("return torch.einsum('ij,kj,kl->il', x, x, x)", 2 * 2 * 512 * 512 * 256),
        (
            "w = torch.randn(1, 1, 3, 3)\n"
            "    return torch.nn.grad.conv2d_input((1, 1, 512, 256), w, x[None, None], padding=1)[0, 0]",
            2 * (3 * 512 - 2) * (3 * 256 - 2),  # what lies in the padding needs no product
        ),
        ("return torch.vmap(lambda r: r * r.sum())(x)", 0),
        ("z = torch.view_as_complex(x.view(512, 128, 2)) * 2\n    return torch.view_as_real(z).flatten(1)", 0),
        ("y = x.clone()\n    y.mul_(2).add_(1)\n    y[:, ::2] *= 3\n    return y", 0),
        (
            "from torch.utils.checkpoint import checkpoint\n"
            "    return checkpoint(lambda a: a * 2, x, use_reentrant=False)",
            0,
        ),
        ("y = x.clone()\n    y[y > 0] = 0\n    return y", 0),
        (
            "h, out = torch.zeros(256), []\n    for t in range(512):\n        h = torch.tanh(h + x[t])\n"
            "        out.append(h)\n    return torch.stack(out)",
            0,
        ),
    ],
    ids=[
        "autograd",
        "functional grad",
        "module",
        "out=",
        "einsum",
        "convolution backward",
        "vmap",
        "complex",
        "in place",
        "checkpoint",
        "masked write",
        "recurrence",
    ],
)
def test_ways_to_write_a_reference(body: str, flops: float) -> None:
    shape = ("float32", ["512", "256"])
    graph = _trace(f"def run(x):\n    {body}\n", {"x": shape}, {"y": shape})
    assert graph.complete, graph.notes
    assert graph.flops.get("tensor:float32", 0.0) == pytest.approx(flops)
    assert graph.read_bytes == {"x": 512 * 256 * 4.0}


def test_products_run_at_the_type_their_values_came_in() -> None:
    dequantised = (
        "def run(a, b):\n"
        "    def quantised(x):\n"
        "        scale = x.float().abs().amax(dim=1, keepdim=True) / 448\n"
        "        return (x.float() / scale).to(torch.float8_e4m3fn), scale\n"
        "    (qa, sa), (qb, sb) = quantised(a), quantised(b)\n"
        "    return ((qa.float() * sa) @ (qb.float() * sb).T).to(a.dtype)\n"
    )
    assert list(_trace(dequantised, GEMM, OUT).flops) == ["vector:float32", "tensor:float8_e4m3fn"]
    widened = "def run(a, b): return (a.float() @ b.float().T).to(a.dtype)"
    assert list(_trace(widened, GEMM, OUT).flops) == ["tensor:bfloat16"]
    changed = "def run(a, b): return (torch.exp(a.float()) @ b.float().T).to(a.dtype)"
    assert "tensor:float32" in _trace(changed, GEMM, OUT).flops


HEADS: Shapes = {name: ("bfloat16", ["2", "4", "256", "64"]) for name in ("q", "k", "v")}
FULL = 2.0 * (2.0 * 2 * 4 * 256 * 256 * 64)
CAUSAL = FULL * 257 / 512
SOFTMAX = "    return torch.softmax(s, dim=-1, dtype=torch.float32).to(q.dtype) @ v\n"
SCORES = "def run(q, k, v{}):\n    s = q @ k.transpose(-1, -2) / 8\n"


@pytest.mark.parametrize(
    ("reference", "mask", "flops"),
    [
        (SCORES.format("") + SOFTMAX, None, FULL),
        (
            SCORES.format("")
            + "    s = s.masked_fill(torch.ones(256, 256, device=q.device).triu(1).bool(), float('-inf'))\n"
            + SOFTMAX,
            None,
            CAUSAL,
        ),
        (
            SCORES.format("")
            + "    i = torch.arange(256, device=q.device)\n"
            + "    s = torch.where(i[None, :] <= i[:, None], s, float('-inf'))\n"
            + SOFTMAX,
            None,
            CAUSAL,
        ),
        (
            SCORES.format(", attention_mask") + "    s = s + attention_mask\n" + SOFTMAX,
            ["2", "1", "256", "256"],
            CAUSAL,
        ),
        (SCORES.format(", bias") + "    s = s + bias\n" + SOFTMAX, ["2", "1", "256", "256"], FULL),
        ("def run(q, k, v): return F.scaled_dot_product_attention(q, k, v, is_causal=True)", None, CAUSAL),
        ("def run(q, k, v): return F.scaled_dot_product_attention(q, k, v)", None, FULL),
    ],
    ids=["full", "triu", "where", "mask input", "bias input", "fused causal", "fused"],
)
def test_what_a_causal_mask_removes_is_not_counted(reference: str, mask: list[str] | None, flops: float) -> None:
    inputs = dict(HEADS)
    if mask is not None:
        inputs["attention_mask" if "attention_mask" in reference else "bias"] = ("bfloat16", mask)
    problem = _problem(reference, inputs, {"o": HEADS["q"]})
    graph = trace_workload(problem, problem.workloads[0])
    assert graph.complete, graph.notes
    assert sum(v for key, v in graph.flops.items() if key.startswith("tensor")) == pytest.approx(flops)
    assert kernel_type_of(problem.definition, graph) == "attention"


def test_a_softmax_computes_what_its_mask_leaves() -> None:
    window = (
        SCORES.format("")
        + "    i = torch.arange(256, device=q.device)\n    far = (i[:, None] - i[None]).abs() > 4\n"
        + "    s = s.masked_fill(far, float('-inf'))\n"
        + SOFTMAX
    )
    whole, masked = (
        sum(v for key, v in _trace(source, HEADS, {"o": HEADS["q"]}).flops.items() if key.startswith("vector"))
        for source in (SCORES.format("") + SOFTMAX, window)
    )
    kept = (9 * 256 - 2 * (4 + 3 + 2 + 1)) / 256**2
    assert masked == pytest.approx(kept * whole)


def test_numbers_that_depend_on_data_are_assumed_and_said() -> None:
    graph = _trace("def run(a, b):\n    return a @ b.T if a.abs().max() > 0 else a @ b.T * 2", GEMM, OUT)
    assert graph.complete
    assert graph.notes == ["branches on data: a condition was assumed false"]
    asserting = "def run(a, b):\n    assert bool((a.abs() < 100).all())\n    return a @ b.T"
    graph = _trace(asserting, GEMM, OUT)
    assert graph.complete and graph.notes == ["branches on data: a condition was assumed true"]


def test_a_reference_that_cannot_be_followed_still_has_its_bytes() -> None:
    graph = _trace("def run(a, b):\n    raise ValueError('not today')", GEMM, OUT)
    assert not graph.complete and graph.flops == {}
    assert "ValueError: not today" in graph.notes[0]
    assert graph.total_bytes == 2.0 * (1024 * 2048 + 512 * 2048 + 1024 * 512)


def test_a_hard_coded_device_is_followed_and_told() -> None:
    reference = (
        "def run(a, b):\n"
        "    w = torch.ones(512, device='cuda')\n"
        "    return (a.to('cuda') @ b.cuda().T * w).to(a.dtype)"
    )
    graph = _trace(reference, GEMM, OUT)
    assert graph.complete and graph.needs_cuda
    assert graph.flops["tensor:bfloat16"] == 2.0 * 1024 * 512 * 2048


def test_a_loop_over_data_is_cut_short_and_said() -> None:
    reference = (
        "def run(x):\n    out = torch.zeros_like(x)\n"
        "    for i in range(x.shape[0]):\n"
        "        for j in range(x.shape[1]):\n"
        "            out[i, j] = x[i, j] * 2 + 1\n"
        "    return out\n"
    )
    shape = ("float32", ["400", "400"])
    problem = _problem(reference, {"x": shape}, {"y": shape})
    graph = trace_workload(problem, problem.workloads[0], budget=300)
    assert not graph.complete
    assert "loops over its data" in graph.notes[0]
    assert graph.read_bytes == {"x": 400 * 400 * 4.0}, "what the loop would still have read"
    assert len(graph.operators) < 20, "equal rounds are listed once or twice"


def test_values_that_python_reads_out_are_needed() -> None:
    reference = (
        "def make(axes, device):\n"
        "    offsets = torch.tensor([0, 1000, 3000], device=device)\n"
        "    return {'x': torch.randn(4096, 64, device=device), 'offsets': offsets}\n"
        "def run(x, offsets):\n"
        "    return torch.stack([x[offsets[i].item():offsets[i + 1].item()].sum(0) for i in range(2)])\n"
    )
    graph = _trace(
        reference,
        {"x": ("float32", ["4096", "64"]), "offsets": ("int64", ["3"])},
        {"y": ("float32", ["2", "64"])},
    )
    assert graph.read_bytes == {"x": 3000 * 64 * 4.0, "offsets": 24.0}


def test_scalars_and_empty_axes() -> None:
    graph = _trace(
        "def run(x, s): return x * s",
        {"x": ("float32", ["n", "8"]), "s": ("float32", None)},
        {"y": ("float32", ["n", "8"])},
        axes={"n": 0},
        sources={"s": ScalarInput(value=2.0)},
    )
    assert graph.complete and graph.total_bytes == 0 and graph.total_flops == 0


@pytest.mark.parametrize(
    ("reference", "inputs", "kind"),
    [
        ("def run(x): return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)", 1, "norm"),
        ("def run(x): return F.layer_norm(x, (64,))", 1, "norm"),
        ("def run(x): return F.silu(x) * 2", 1, "elementwise"),
        ("def run(x): return torch.softmax(x, -1)", 1, "softmax"),
        ("def run(x): return x.sum(-1, keepdim=True).expand(64, 64)", 1, "reduction"),
        ("def run(x): return F.gelu(x @ x.T) + x", 1, "gemm"),
        ("def run(x): return F.conv2d(x[None, None], x[None, None, :3, :3], padding=1)[0, 0]", 1, "conv"),
        ("def run(x): return torch.fft.rfft(x).real[:, :32].repeat(1, 2)", 1, "fft"),
        ("def run(x): return x.sort(dim=-1)[0]", 1, "sort"),
        ("def run(x): return x.to(torch.float8_e4m3fn).to(torch.float32)", 1, "quant"),
    ],
)
def test_kernel_types(reference: str, inputs: int, kind: str) -> None:
    shape = ("float32", ["64", "64"])
    problem = _problem(reference, {"x": shape}, {"y": shape})
    graph = trace_workload(problem, problem.workloads[0])
    assert graph.complete, graph.notes
    assert kernel_type_of(problem.definition, graph) == kind


def test_kernel_type_without_a_trace_is_the_declared_one() -> None:
    definition = _problem("def run(x): return x", {"x": ("float32", ["4"])}, {"y": ("float32", ["4"])}).definition
    assert kernel_type_of(definition) == "elementwise"
    for declared, kind in [
        ("gqa_paged", "attention"),
        ("moe", "moe"),
        ("rmsnorm", "norm"),
        ("fp8-linear", "quant"),
    ]:
        changed = Definition(
            name="x", op_type=declared, axes={}, inputs={}, outputs={"y": definition.outputs["y"]}, reference=""
        )
        assert kernel_type_of(changed) == kind
