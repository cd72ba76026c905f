"""Every recipe on every bundled problem that it fits: complete, through the gate, the same each time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.guard.gate import check
from engine.problems.model import Problem
from engine.recipes.match import Fit, match_all
from engine.recipes.model import Recipe
from engine.recipes.render import describe, render
from engine.recipes.space import starting_points
from engine.recipes.subject import Subject
from tests.content.helpers import CPU, H200, TASKS, traced

PROMISED = {
    "attention_output_projection_residual_bf16": {"triton-gemm", "triton-gemm-tma", "cublaslt-epilogue"},
    "cross_entropy_v128k_bf16": {"triton-rows-looped"},
    "fused_add_rmsnorm_bf16": {"triton-rows", "triton-rows-looped"},
    "gemm_bf16_4096": {"triton-gemm", "triton-gemm-tma", "cublaslt-epilogue"},
    "gqa_paged_prefill_causal_h32_kv4_d128_bf16": {"triton-varlen-attention"},
    "layernorm_h2048_bf16": {"triton-rows"},
    "moe_swiglu_expert_backward_fp32": {"triton-moe-backward"},
    "moe_swiglu_expert_parallel_backward_fp32": {"triton-moe-backward"},
    "moe_swiglu_expert_backward_small_fp32": {"triton-moe-backward"},
    "nvfp4_gqa_causal_h40_kv8_d128": {"stitched-stages"},
    "qk_rmsnorm_h24_d128_bf16": {"triton-rows"},
    "scaled_softmax_bf16": {"triton-rows", "triton-rows-looped"},
    "swiglu_bf16": {"triton-rows"},
    "text_decoder_layer_bf16": {"stitched-stages"},
    "cross_entropy_fp32": {"row-blocks"},
    "layernorm_bias_residual_fp32": {"row-blocks"},
    "linear_gelu_residual_fp32": {"gemm-epilogue-blocks"},
    "masked_softmax_attention_fp32": {"fused-sdpa"},
    "rmsnorm_residual_fp32": {"row-blocks"},
    "swiglu_fp32": {"row-blocks"},
}


@pytest.fixture(scope="module")
def subjects(tasks: dict[str, Problem]) -> dict[str, Subject]:
    return {n: traced(p, CPU if n.endswith("_fp32") and "moe" not in n else H200) for n, p in tasks.items()}


@pytest.mark.parametrize("name", [p.name for p in TASKS])
def test_fitting_recipes_render_to_solutions_that_pass_the_gate(
    name: str, subjects: dict[str, Subject], recipes: dict[str, Recipe], tasks: dict[str, Problem]
) -> None:
    fits, misfits = match_all(recipes.values(), subjects[name])
    assert {f.recipe.name for f in fits} >= PROMISED[name], misfits
    assert all(m.why and "Error" not in m.why for m in misfits)
    for fit in fits:
        points = starting_points(fit.recipe.file, fit.facts)
        assert points, fit.recipe.name
        for point in points:
            solution = render(fit, point)
            if solution.entry_file.endswith(".py"):
                ast.parse(solution.entry_source)
            result = check(solution, tasks[name])
            assert result.ok, (fit.recipe.name, point, result.reason, result.detail)
            assert all(describe(fit, point))


def test_rendering_is_a_function_of_the_point(subjects: dict[str, Subject], recipes: dict[str, Recipe]) -> None:
    fits, _ = match_all(recipes.values(), subjects["fused_add_rmsnorm_bf16"])
    fit = next(f for f in fits if f.recipe.name == "triton-rows")
    sources = {render(fit, p).entry_source for p in starting_points(fit.recipe.file, fit.facts)}
    assert len(sources) == len(starting_points(fit.recipe.file, fit.facts))
    again = Fit(fit.recipe, fit.subject, fit.facts)
    assert {render(again, p).entry_source for p in starting_points(fit.recipe.file, fit.facts)} == sources


def test_loads_whose_places_are_known_come_first_and_the_others_stay_behind_what_they_need() -> None:
    from engine.recipes.rules.rowwise import loads_first

    lines = [
        "_x1 = tl.load(a_ptr + (row * COLS + col), mask=row_ok & col_ok, other=0.0)",
        "_r2 = tl.sum(_x1, 1, keep_dims=True)",
        "_x3 = tl.load(w_ptr + col, mask=col_ok, other=0.0)",
        "_x4 = tl.load(b_ptr + _x1, mask=row_ok, other=0.0)",
        "tl.store(out_ptr + col, _x3 * _r2 + _x4)",
    ]
    assert loads_first(lines) == [lines[0], lines[2], lines[1], lines[3], lines[4]]


CHANGING = {"rows", "tokens", "tiles", "seqs", "splits", "count", "queries", "heads"}


# The kernels of the expert backward passes take pointers only: their numbers of tokens are data on the device.
COUNTED = [p.name for p in TASKS if not p.name.endswith("_fp32")]


@pytest.mark.parametrize("name", COUNTED)
def test_numbers_that_change_from_call_to_call_are_no_reason_to_compile_again(
    name: str, subjects: dict[str, Subject], recipes: dict[str, Recipe]
) -> None:
    """Triton compiles anew for a number that is one, and for one that is a multiple of sixteen."""
    fits, _ = match_all(recipes.values(), subjects[name])
    looked_at = 0
    for fit in (f for f in fits if "triton" in f.recipe.file.languages):
        source = render(fit, starting_points(fit.recipe.file, fit.facts)[0]).entry_source
        for kernel in launched(source):
            told = {value.value for value in ast.walk(kernel.decorator_list[0]) if isinstance(value, ast.Constant)}
            changing = {argument.arg for argument in kernel.args.args if argument.annotation is None} & CHANGING
            assert changing <= told, (fit.recipe.name, kernel.name)
            looked_at += len(changing)
    assert looked_at


@pytest.mark.parametrize("name", [n for n in PROMISED if n.startswith("moe_")])
def test_kernels_of_expert_passes_take_no_numbers(
    name: str, subjects: dict[str, Subject], recipes: dict[str, Recipe]
) -> None:
    fit = next(f for f in match_all(recipes.values(), subjects[name])[0] if f.recipe.name == "triton-moe-backward")
    kernels = launched(render(fit, starting_points(fit.recipe.file, fit.facts)[0]).entry_source)
    given = {a.arg for kernel in kernels for a in kernel.args.args if a.annotation is None}
    assert len(kernels) == 4 and all(argument.endswith("_ptr") for argument in given)


def launched(source: str) -> list[ast.FunctionDef]:
    """The Triton kernels that the host launches: those that no other kernel calls."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    kernels = [f for f in functions if any("triton.jit" in ast.unparse(d) for d in f.decorator_list)]
    nodes = [node for kernel in kernels for node in ast.walk(kernel)]
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    return [kernel for kernel in kernels if kernel.name not in called]


class CompiledOnce:
    """A kernel as Triton's are called: the first call compiles and tells how the compiled one is launched."""

    fn = "rows"

    def __init__(self) -> None:
        self.compiled: list[tuple[Any, ...]] = []
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def compiling(*arguments: Any, num_warps: int) -> Any:
            self.compiled.append((grid, arguments[-4:]))
            return {grid: lambda *again: self.launched.append((grid, again[-4:]))}

        return compiling


def execute(subject: Subject, recipes: dict[str, Recipe], parts: tuple[str, ...], names: dict[str, Any]) -> None:
    """These parts of the decoder layer's stages, by how they begin, among ``names``."""
    fits, _ = match_all([recipes["stitched-stages"]], subject)
    source = render(fits[0], starting_points(fits[0].recipe.file, fits[0].facts)[0]).entry_source
    texts = {node: ast.unparse(node).removeprefix("@torch.no_grad()\n") for node in ast.parse(source).body}
    wanted = [node for node, text in texts.items() if text.startswith(parts)]
    assert len(wanted) == len(parts)
    exec(compile(ast.Module(wanted, []), "stages", "exec"), names)


def test_stages_launch_again_only_what_was_compiled_for_the_same_call(
    subjects: dict[str, Subject], recipes: dict[str, Recipe]
) -> None:
    host = SimpleNamespace(next_power_of_2=lambda n: 1 << (n - 1).bit_length(), cdiv=lambda a, b: -(-a // b))
    names: dict[str, Any] = {"torch": torch, "triton": host}
    parts = ("_MOST =", "_compiled =", "def _depends", "def _launch")
    execute(subjects["text_decoder_layer_bf16"], recipes, parts, names)
    launch, kernel, tensor = names["_launch"], CompiledOnce(), torch.empty(64, 256)

    for rows, cols, number, factor in ((64, 128, 7, 0.5), (64, 128, 7, 0.25), (64, 128, 7, 0.5)):
        launch(kernel, rows, cols, (tensor, factor, number))
    assert len(kernel.compiled) == 1 and kernel.launched == kernel.compiled * 2
    for rows, cols, number, given in ((64, 256, 7, tensor), (32, 128, 7, tensor), (64, 128, 8, tensor)):
        launch(kernel, rows, cols, (given, 0.5, number))
    launch(kernel, 64, 128, (tensor.view(-1)[1:], 0.5, 7))  # not aligned as the first was
    assert len(kernel.compiled) == 5 and len(kernel.launched) == 2


class OnCard(torch.Tensor):
    is_cuda = True


class Graphs:
    """What the stages need of ``torch.cuda``; a captured call is made again when it is replayed."""

    def __init__(self, names: dict[str, Any], *, replay_ms: float) -> None:
        self.captured, self.replayed, self.calls = 0, 0, 0
        self._names, self._replay_ms, self._last = names, replay_ms, ()
        graphs = self

        def stages(*arguments: Any) -> None:
            graphs.calls += 1
            graphs._last = arguments
            arguments[-1].copy_(arguments[0] * arguments[-2])

        class Graph:
            def replay(self) -> None:
                graphs.replayed += 1
                stages(*self.of)

        class Event:
            at = 0

            def __init__(self, enable_timing: bool) -> None: ...

            def record(self) -> None:
                self.at = graphs.replayed

            def synchronize(self) -> None: ...

            def elapsed_time(self, end: Any) -> float:
                return graphs._replay_ms if end.at > self.at else 1.0

        @contextmanager
        def capture(graph: Any, pool: Any) -> Iterator[None]:
            yield
            graph.of, graphs.captured = graphs._last, graphs.captured + 1

        stream = SimpleNamespace(wait_stream=lambda other: None)
        cuda = SimpleNamespace(
            Stream=lambda: stream, current_stream=lambda: stream, stream=lambda s: nullcontext(), CUDAGraph=Graph,
            Event=Event, graph=capture, graph_pool_handle=lambda: (0, 0),
        )  # fmt: skip
        names["_stages"] = stages
        names["torch"] = SimpleNamespace(
            cuda=cuda, Tensor=torch.Tensor, no_grad=torch.no_grad, uint8=torch.uint8, empty_like=torch.empty_like,
            _foreach_copy_=torch._foreach_copy_,
        )  # fmt: skip


REPLAYING = (
    "_MOST_SHAPES =", "_MOST_BYTES =", "_plans,", "def _raw", "def _took", "def _plain", "def _planned", "def run"
)  # fmt: skip


@pytest.mark.parametrize(
    ("replay_ms", "most_bytes", "replays"), [(0.5, 1 << 20, True), (0.99, 1 << 20, False), (0.5, 8, False)]
)
def test_stages_are_replayed_with_every_calls_inputs_where_that_is_quicker(
    subjects: dict[str, Subject], recipes: dict[str, Recipe], replay_ms: float, most_bytes: int, replays: bool
) -> None:
    names: dict[str, Any] = {}
    graphs = Graphs(names, replay_ms=replay_ms)
    execute(subjects["text_decoder_layer_bf16"], recipes, REPLAYING, names)
    names["_MOST_BYTES"] = most_bytes
    weights = [torch.ones(2, 3) for _ in range(9)]
    for rows, factor in ((4, 2.0), (4, 2.0), (5, 2.0), (4, 3.0), (4, 2.0)):
        given, out = torch.randn(rows, 3).as_subclass(OnCard), torch.zeros(rows, 3)
        names["run"](given, *weights, 1e-6, factor, out)
        assert torch.equal(out, given.as_subclass(torch.Tensor) * factor)
    assert graphs.captured == (3 if most_bytes > 8 else 0)  # for two shapes, and another number
    assert (len(names["_held"]) > 0) is replays  # what no graph uses is not kept
