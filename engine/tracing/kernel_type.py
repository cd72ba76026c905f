"""What kind of kernel a problem asks for, from its declared type and its traced operators; never from its name."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from engine.problems.model import Definition

if TYPE_CHECKING:
    from engine.tracing.graph import Operator, TraceGraph

KERNEL_TYPES = (
    "gemm",
    "attention",
    "norm",
    "elementwise",
    "reduction",
    "moe",
    "conv",
    "layer",
    "quant",
    "softmax",
    "sort",
    "fft",
    "gather",
)

# Declared types (SOL-ExecBench's and flashinfer-bench's ``op_type``) by the words they are made of.
_DECLARED = (
    ("attention", ("attention", "gqa", "mha", "mla", "mqa", "sdpa", "dsa")),
    ("moe", ("moe",)),
    ("conv", ("conv", "conv1d", "conv2d", "conv3d", "convolution")),
    ("quant", ("quant", "quantization", "dequant", "fp8", "nvfp4")),
    ("gemm", ("gemm", "matmul", "linear", "bmm", "projection")),
    ("norm", ("norm", "rmsnorm", "layernorm", "groupnorm")),
    ("softmax", ("softmax", "cross", "sampling")),
    ("sort", ("sort", "topk")),
    ("fft", ("fft",)),
    ("reduction", ("reduction", "reduce", "scan")),
    ("layer", ("layer", "block", "decoder", "encoder", "mlp")),
    ("gather", ("embedding", "gather", "scatter")),
    ("elementwise", ("elementwise", "activation", "pointwise", "rope", "swiglu", "residual")),
)

_NARROW = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "float4_e2m1")
_ROOTS = ("aten.rsqrt", "aten.sqrt", "aten.reciprocal")
_MIN_MATRIX_SHARE = 1e-3  # a rotary angle computed as an outer product is no GEMM


def kernel_type_of(definition: Definition, graph: TraceGraph | None = None) -> str:
    """One of :data:`KERNEL_TYPES`. The graph decides where there is one, else the declared ``op_type``."""
    if graph is not None and graph.operators:
        return _from_graph(graph)
    return _from_declared(definition) or _from_dtypes(definition)


def _from_declared(definition: Definition) -> str | None:
    words = (definition.op_type or "").lower().replace("-", "_").split("_")
    return next((kind for kind, known in _DECLARED if any(word in known for word in words)), None)


def _from_dtypes(definition: Definition) -> str:
    specs = [*definition.inputs.values(), *definition.outputs.values()]
    return "quant" if any(spec.dtype in _NARROW for spec in specs) else "elementwise"


def _from_graph(graph: TraceGraph) -> str:
    needed = [operator for operator in graph.operators if operator.kind != "factory"]
    matrix = _matrix_operators(needed)
    kinds = Counter(operator.kind for operator in needed)
    if kinds["conv"]:
        return "conv"
    if matrix or kinds["attention"]:
        return _of_matrix_work(needed, matrix, kinds)
    if _casts_to_narrow(needed):
        return "quant"
    if kinds["fft"]:
        return "fft"
    if kinds["softmax"] or any(operator.name == "aten.logsumexp" for operator in needed):
        return "softmax"
    if kinds["norm"] or _is_norm(needed):
        return "norm"
    if kinds["sort"]:
        return "sort"
    if kinds["reduction"]:
        return "reduction"
    if kinds["gather"] or kinds["scatter"]:
        return "gather"
    return "elementwise"


def _of_matrix_work(needed: list[Operator], matrix: list[Operator], kinds: Counter[str]) -> str:
    if _is_expert_loop(needed, matrix):
        return "moe"
    attention = kinds["attention"] > 0 or _is_attention(needed)
    weights = [operator for operator in matrix if _multiplies_input(operator, needed)]
    if attention:
        return "layer" if len(weights) >= 4 else "attention"
    if any(operator.unit_dtype in _NARROW for operator in matrix):
        return "quant"
    if len(matrix) >= 3 and (kinds["norm"] or _is_norm(needed)):
        return "layer"
    return "gemm"


def _matrix_operators(needed: list[Operator]) -> list[Operator]:
    matrix = [operator for operator in needed if operator.kind == "matmul"]
    largest = max((operator.flops for operator in matrix), default=0.0)
    return [
        operator for operator in matrix if operator.flops > 0 and operator.flops >= _MIN_MATRIX_SHARE * largest
    ]


def _multiplies_input(operator: Operator, needed: list[Operator]) -> bool:
    """Whether one side of a product is no operator's result: a weight."""
    made = {value.value for other in needed for value in other.outputs}
    return any(operand.value not in made for operand in operator.inputs[-2:])


def _is_expert_loop(needed: list[Operator], matrix: list[Operator]) -> bool:
    """Products of gathered rows whose results are scattered back, several times over or by one index."""
    gathered = {value.value for op in needed if op.kind == "gather" for value in op.outputs}
    routed = [op for op in matrix if any(operand.value in gathered for operand in op.inputs)]
    scatters = sum(op.kind == "scatter" for op in needed)
    return len(routed) >= 2 and scatters >= 1 and any(op.name in _EXPERT_SCATTERS for op in needed)


_EXPERT_SCATTERS = ("aten.index_add_", "aten.index_add", "aten.index_put_", "aten.index_put", "aten.scatter_add_")


def _is_attention(needed: list[Operator]) -> bool:
    """A softmax (or its parts) between two products: scores of the first, weights of the second."""
    reached: dict[int, str] = {}
    for operator in needed:
        states = {reached[operand.value] for operand in operator.inputs if operand.value in reached}
        if operator.kind == "matmul":
            if "softmax" in states:
                return True
            state: str | None = "product"
        elif operator.kind == "softmax" or operator.name in ("aten.exp", "aten.logsumexp"):
            state = "softmax" if states else None
        elif operator.kind in ("pointwise", "copy", "reduction", "gather", "scatter"):
            state = "softmax" if "softmax" in states else ("product" if states else None)
        else:
            state = None
        if state is not None:
            for value in operator.outputs:
                reached[value.value] = state
    return False


def _is_norm(needed: list[Operator]) -> bool:
    """A mean (of squares) whose root scales something."""
    reduces = any(op.name in ("aten.mean", "aten.var", "aten.var_mean", "aten.sum", "aten.std") for op in needed)
    return reduces and any(op.name in _ROOTS or (op.name == "aten.pow" and _is_root(op)) for op in needed)


def _is_root(operator: Operator) -> bool:
    return bool(operator.outputs) and operator.outputs[0].shape[-1:] == [1]


def _casts_to_narrow(needed: list[Operator]) -> bool:
    return any(value.dtype in _NARROW for op in needed for value in op.outputs)
