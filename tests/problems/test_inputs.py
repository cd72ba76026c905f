"""Inputs: deterministic from the seed, SOL-ExecBench's distributions, nothing left behind in the process."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import BadInput, Fault
from engine.problems.axes import resolve_axes
from engine.problems.distributions import Draw, pack_e2m1, random_tensor, role_of
from engine.problems.dtypes import DTYPES, name_of, stored_shape, tensor_bytes, torch_dtype
from engine.problems.inputs import allocate_outputs, make_inputs
from engine.problems.load import load_problem
from engine.problems.model import Definition, TensorSpec, Workload
from engine.problems.outputs import OutputError, normalize_outputs

CPU = torch.device("cpu")


def _draw(
    name: str, shape: tuple[int, ...] = (64, 64), dtype: str = "float32", text: str = "", seed: int = 1
) -> Draw:
    generator = torch.Generator().manual_seed(seed)
    return Draw(name, text, stored_shape(dtype, shape), torch_dtype(dtype), CPU, generator)


def _definition(dtype: str, shape: list[str] | None) -> Definition:
    spec = TensorSpec(dtype=dtype, shape=shape)
    return Definition(name="d", axes={}, inputs={"x": spec}, outputs={"y": spec}, reference="def run(x): return x")


def _bytes(value: Any) -> Any:
    return value.view(torch.uint8) if isinstance(value, torch.Tensor) and value.dim() else value


@pytest.mark.parametrize(
    ("name", "shape", "text", "role"),
    [
        ("norm_weight", (8,), "", "norm weight"),
        ("q_norm_weight", (8,), "", "norm weight"),
        ("input_layernorm_weight", (8,), "", "norm weight"),
        ("norm1_weight", (8,), "", "norm weight"),
        ("norm2_bias", (8,), "", "norm bias"),
        ("attention_mask", (2, 1, 8, 8), "", "causal mask"),
        ("mask", (8, 8), "Causal attention mask", "causal mask"),
        ("attention_mask", (2, 8), "", "binary mask"),
        ("pad_mask", (2, 8), "binary: 1 keeps", "binary mask"),
        ("mask", (2, 8), "optional", None),
        ("cos", (8, 8), "", "rope table"),
        ("idx_cos", (8, 8), "", None),
        ("rstd", (8,), "", "positive"),
        ("row_var2", (8,), "", "positive"),
        ("A", (8, 8), "", "decay"),
        ("g", (8,), "", "decay"),
        ("p_attn", (8, 8), "Softmax output (probabilities)", "softmax output"),
        ("routing_weights", (8, 8), "", "softmax output"),
        ("o_proj_weight", (8, 8), "", "weight matrix"),
        ("up_proj", (8, 8), "", "weight matrix"),
        ("weight3", (8, 8), "", "weight matrix"),
        ("weight", (8,), "", None),
        ("hidden_states", (8, 8), "", None),
    ],
)
def test_roles_by_name_and_description(name: str, shape: tuple[int, ...], text: str, role: str | None) -> None:
    assert role_of(_draw(name, shape, text=text)) == role
    assert role_of(_draw(name, shape, "int64", text)) is None
    assert role_of(_draw(name, shape, "float8_e4m3fn", text)) is None


def test_distributions() -> None:
    assert torch.equal(random_tensor(_draw("norm_weight")), torch.ones(64, 64))
    assert torch.equal(random_tensor(_draw("norm_bias")), torch.zeros(64, 64))
    mask = random_tensor(_draw("attention_mask", (2, 1, 4, 4), "bfloat16"))
    assert mask.is_contiguous() and mask[1, 0].tolist() == mask[0, 0].tolist()
    assert (mask == torch.finfo(torch.bfloat16).min).sum() == 2 * 6 and (mask == 0).sum() == 2 * 10
    assert set(random_tensor(_draw("x_mask", (64, 32))).unique().tolist()) == {0.0, 1.0}
    assert random_tensor(_draw("var")).min() >= 0.1
    assert -1.0 <= random_tensor(_draw("A")).min() <= random_tensor(_draw("A")).max() < 0
    assert (random_tensor(_draw("A_cumsum")).diff(dim=-1) <= 0).all()
    assert torch.allclose(random_tensor(_draw("attn_weights")).sum(-1), torch.ones(64))
    assert random_tensor(_draw("q_proj_weight", (256, 1024))).std() == pytest.approx(1 / 32, rel=0.02)
    assert random_tensor(_draw("x", (512, 512))).std() == pytest.approx(1, rel=0.02)
    cos, sin = random_tensor(_draw("cos")), random_tensor(_draw("sin"))
    assert torch.allclose(cos**2 + sin**2, torch.ones(64, 64))  # the same angles from the same generator


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_every_dtype_is_drawn_twice_alike(dtype: str) -> None:
    definition = _definition(dtype, ["6", "10"])
    workload = Workload(uuid="w", axes={})
    first, again, other = (make_inputs(definition, workload, {}, CPU, seed)[0] for seed in (7, 7, 8))
    assert first.shape == stored_shape(dtype, (6, 10))
    assert first.dtype == torch_dtype(dtype)
    assert first.nbytes == tensor_bytes(dtype, (6, 10))
    assert torch.equal(_bytes(first), _bytes(again))
    assert not torch.equal(_bytes(first), _bytes(other))
    (buffer,) = allocate_outputs(definition, {}, CPU)
    assert buffer.shape == first.shape and buffer.dtype == first.dtype and not _bytes(buffer).any()
    for shape in ([], None):
        value = make_inputs(_definition(dtype, shape), workload, {}, CPU, 7)[0]
        assert value.shape == () if shape is not None else isinstance(value, bool | int | float)


def test_integer_and_low_precision_ranges() -> None:
    int8 = random_tensor(_draw("x", (4096,), "int8"))
    int64 = random_tensor(_draw("x", (65536,), "int64"))
    assert int8.min() == -128 and int8.max() == 127
    assert int64.min() == -1024 and int64.max() == 1023
    assert random_tensor(_draw("x", (4096,), "float8_e5m2")).float().abs().max() == 2.0


def test_e2m1_rounds_to_the_nearest_value_and_ties_to_even() -> None:
    steps = [
        0,
        0.25,
        0.26,
        0.5,
        0.75,
        1,
        1.25,
        1.3,
        1.75,
        2,
        2.5,
        2.6,
        3.5,
        4,
        5,
        5.1,
        6,
        99,
        -0.2,
        -0.25,
        -5.0,
        -7,
    ]
    codes = [0, 0, 1, 1, 2, 2, 2, 3, 4, 4, 4, 5, 6, 6, 6, 7, 7, 7, 8, 8, 14, 15]
    packed = pack_e2m1(torch.tensor([steps])).view(torch.uint8)[0].tolist()
    assert packed == [low + 16 * high for low, high in zip(codes[::2], codes[1::2], strict=True)]


def test_fp4_shapes_follow_the_declared_name() -> None:
    assert stored_shape("float4_e2m1fn_x2", (4, 10)) == (4, 10)  # declared in bytes
    assert stored_shape("float4_e2m1", (4, 10)) == (4, 5)  # declared in values
    assert tensor_bytes("float4_e2m1", (4, 10)) == 20
    assert name_of(torch_dtype("float4_e2m1")) == "float4_e2m1fn_x2"


def test_an_input_depends_on_seed_and_name_only(make_problem: Any) -> None:
    problem = load_problem(make_problem())
    workload = problem.workloads[0]
    axes = resolve_axes(problem.definition, workload)
    before = torch.get_rng_state().clone(), random.getstate(), np.random.get_state()[1].copy()
    torch.set_default_dtype(torch.float64)
    try:
        x, bias, scale = make_inputs(problem.definition, workload, axes, "cpu", 3)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.manual_seed(99)
    again = make_inputs(problem.definition, workload, axes, "cpu", 3)
    assert scale == 0.5
    assert torch.equal(x, again[0]) and torch.equal(bias, again[1])
    assert x.dtype is torch.float32
    assert not torch.equal(x[0], bias)
    assert random.getstate() == before[1] and (np.random.get_state()[1] == before[2]).all()


def _custom(definition: dict[str, Any], workloads: list[dict[str, Any]]) -> None:
    definition["custom_inputs_entrypoint"] = "make"
    for workload in workloads:
        workload["inputs"] = {name: {"type": "custom"} for name in definition["inputs"]}


def test_a_custom_entry_point_sees_axes_and_a_seeded_world(make_problem: Any) -> None:
    problem = load_problem(make_problem(_custom))
    workload = problem.workloads[0]
    axes = resolve_axes(problem.definition, workload)
    torch.manual_seed(5)
    state = torch.get_rng_state().clone()
    x, bias, scale = make_inputs(problem.definition, workload, axes, "cpu", 3)
    assert torch.equal(torch.get_rng_state(), state), "the process's own random state is untouched"
    assert x.shape == (64, 256) and bias.shape == (256,) and scale == 2.0
    torch.manual_seed(6)
    again = make_inputs(problem.definition, workload, axes, "cpu", 3)
    assert torch.equal(x, again[0])
    assert not torch.equal(x, make_inputs(problem.definition, workload, axes, "cpu", 4)[0])

    seen: list[Any] = []

    def entrypoint(given: dict[str, Any], device: torch.device) -> dict[str, Any]:
        seen.append((given, device))
        return {"x": x, "bias": bias}

    with pytest.raises(BadInput, match="returned no scale"):
        make_inputs(problem.definition, workload, axes, "cpu", 3, entrypoint=entrypoint)
    assert seen == [({"rows": 64, "cols": 256, "half": 128}, CPU)]


def test_safetensors_inputs(make_problem: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    def change(_: Any, workloads: list[dict[str, Any]]) -> None:
        workloads[0]["inputs"]["bias"] = {"type": "safetensors", "path": "in/b.safetensors", "tensor_key": "bias"}

    folder = make_problem(change)
    problem = load_problem(folder)
    workload = problem.workloads[0]
    axes = resolve_axes(problem.definition, workload)
    with pytest.raises(Fault, match=r"needs\.blobs: input bias needs in/b\.safetensors"):
        make_inputs(problem.definition, workload, axes, "cpu", 3, root=problem.root)
    bias = torch.arange(256, dtype=torch.float32)
    save_file({"bias": bias}, folder / "b.safetensors")
    assert torch.equal(make_inputs(problem.definition, workload, axes, "cpu", 3, root=problem.root)[1], bias)
    save_file({"bias": bias.half()}, folder / "b.safetensors")
    with pytest.raises(BadInput, match="float16"):
        make_inputs(problem.definition, workload, axes, "cpu", 3, root=problem.root)


def test_sampling_probabilities_are_normalised() -> None:
    spec = TensorSpec(dtype="float32", shape=["4", "100"])
    definition = Definition(
        name="s", op_type="sampling", axes={}, inputs={"probs": spec}, outputs={"y": spec}, reference=""
    )
    (probs,) = make_inputs(definition, Workload(uuid="w", axes={}), {}, CPU, 1)
    assert torch.allclose(probs.sum(-1), torch.ones(4))


def test_returned_values_become_one_tensor_per_output() -> None:
    spec = TensorSpec(dtype="int32", shape=[])
    one = _definition("int32", [])
    two = Definition(name="d", axes={}, inputs={}, outputs={"a": spec, "b": spec}, reference="")
    a, b = torch.tensor(1), torch.tensor(2.5)
    assert normalize_outputs(one, a, CPU) == [a]
    assert normalize_outputs(one, 3, CPU)[0].dtype is torch.int32
    assert normalize_outputs(two, (a, b), CPU) == [a, b]
    assert normalize_outputs(two, {"b": b, "a": a, "c": None}, CPU) == [a, b]
    for wrong in (a, (a,), {"a": a}, (a, "x"), None):
        with pytest.raises(OutputError):
            normalize_outputs(two, wrong, CPU)


def test_empty_axes_make_empty_tensors() -> None:
    value = make_inputs(_definition("float32", ["0", "4"]), Workload(uuid="w", axes={}), {}, CPU, 1)[0]
    assert value.shape == (0, 4)
    assert math.isclose(random_tensor(_draw("w_weight", (3, 0))).numel(), 0)
