"""One matrix product and what follows it: operands bound by where they are read, the rest as an epilogue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.recipes.dag import Graph, Node
from engine.recipes.emit_torch import spell
from engine.recipes.emit_triton import Kernel, Speller, Style
from engine.recipes.graph import Ref
from engine.recipes.idioms import simplify
from engine.recipes.index import Domain, Unsupported
from engine.recipes.rows import Builder, Program, Var
from engine.recipes.rules.facts import arguments, common, texts_of
from engine.recipes.sizes import Size
from engine.recipes.subject import Subject, axis_lines

PRODUCTS = ("mm", "addmm")


@dataclass(frozen=True)
class Operand:
    """A matrix of ``rows`` × ``cols`` inside input ``name``; ``transposed``: stored as ``cols`` × ``rows``."""

    name: str
    rows: Size
    cols: Size
    transposed: bool
    dtype: str


@dataclass(frozen=True)
class Product:
    """``a`` [M, K] times ``b`` [K, N]; ``epilogue`` runs on the rows of the result, held in variable ``acc``."""

    a: Operand
    b: Operand
    epilogue: Program
    node: Node

    @property
    def m(self) -> Size:
        return self.a.rows

    @property
    def k(self) -> Size:
        return self.a.cols

    @property
    def n(self) -> Size:
        return self.b.cols


def find_product(graph: Graph, native: bool = False) -> Product:
    """The reference as exactly one matrix product with an epilogue. Raises :class:`Unsupported`."""
    products = [n for n in graph.nodes if n.base in PRODUCTS]
    others = [n for n in graph.nodes if n.base in ("bmm", "baddbmm", "convolution", "_scaled_mm")]
    if len(products) != 1 or others:
        raise Unsupported(f"has {len(products) + len(others)} matrix products; this recipe is for exactly one")
    node = products[0]
    first = 1 if node.base == "addmm" else 0
    a, b = (operand(graph, node.args[first + i]) for i in range(2))
    if a.name == b.name:
        raise Unsupported("a matrix times itself")
    (number,) = node.outs
    domain = Domain(a.rows, b.cols)
    builder = Builder(graph, domain, given={number: Var("_acc", True, True, "float32", 0)}, native=native)
    for position, output in enumerate(graph.outputs):
        builder.output(position, output)
    if builder.program.tails:
        raise Unsupported("the product is summed up to one number")
    return Product(a, b, simplify(builder.program, native=native), node)


def operand(graph: Graph, item: Any) -> Operand:
    """The input that a product reads, found through views and transposes. Raises :class:`Unsupported`."""
    if not isinstance(item, Ref):
        raise Unsupported("a product with a number")
    shape = graph.values[item.id].shape
    domain = Domain(shape[0], shape[1])
    builder = Builder(graph, domain)
    builder.value(item.id, domain.whole(shape))
    if len(builder.program.statements) != 1 or builder.program.statements[0].kind != "load":
        raise Unsupported("an operand of the product is computed first")
    load = builder.program.statements[0]
    kinds = [(t.ix.base, t.ix.plain) for t in load.terms]
    dtype = load.var.dtype
    if kinds == [("lin", True)]:
        return Operand(load.source, shape[0], shape[1], False, dtype)
    if kinds == [("col", True), ("row", True)] and load.terms[0].stride.same(shape[0]):
        return Operand(load.source, shape[0], shape[1], True, dtype)
    raise Unsupported(f"the product reads {load.source} in an order that is neither row- nor column-major")


def gemm_triton(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for a Triton product with the epilogue on the accumulator."""
    product = find_product(subject.need_graph())
    if product.epilogue.reductions:
        raise Unsupported("a reduction along the rows of the product, which one tile does not hold")
    dtype = product.a.dtype
    if product.b.dtype != dtype or dtype not in ("float32", "float16", "bfloat16"):
        raise Unsupported(f"operands of type {dtype} and {product.b.dtype}")
    epilogue_code(product, Style())
    return (
        common(subject)
        | shape_facts(product)
        | {
            "element": dtype,
            "epilogue": lambda wide: epilogue_code(product, Style(wide=wide)),
            "arguments": lambda code: arguments(subject, code, ""),
            "steps": sum(s.kind == "point" for s in product.epilogue.statements),
            "fused": [s.source for s in product.epilogue.loads],
            "axis_lines": axis_lines(
                subject.definition, [*texts_of(product.epilogue), product.m.text, product.n.text, product.k.text]
            ),
            "tight": min(w.tolerance.max_rtol for w in subject.workloads) < 1e-3,
        }
    )


def cublaslt(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for one cuBLASLt call: what it adds as C, as bias, and which activation its epilogue knows."""
    product = find_product(subject.need_graph())
    dtype = product.a.dtype
    if product.b.dtype != dtype or dtype not in ("float32", "float16", "bfloat16"):
        raise Unsupported(f"operands of type {dtype} and {product.b.dtype}")
    if product.a.transposed or product.n.constant is None or product.k.constant is None:
        raise Unsupported("the left operand is transposed, or the weight's shape varies")
    if subject.definition.custom_inputs_entrypoint:
        raise Unsupported("inputs of a custom function, which need not be dense")
    residual, bias, activation = library_epilogue(product, dtype)
    if len(subject.outputs) != 1:
        raise Unsupported("more than one output")
    return (
        common(subject)
        | shape_facts(product)
        | {
            "element": dtype,
            "residual": residual,
            "bias": bias,
            "epilogue_name": _EPILOGUES[(bias is not None, activation)],
            "tight": min(w.tolerance.max_rtol for w in subject.workloads) < 1e-3,
        }
    )


_EPILOGUES = {
    (False, ""): "",
    (True, ""): "CUBLASLT_EPILOGUE_BIAS",
    (False, "relu"): "CUBLASLT_EPILOGUE_RELU",
    (True, "relu"): "CUBLASLT_EPILOGUE_RELU_BIAS",
    (False, "gelu_tanh"): "CUBLASLT_EPILOGUE_GELU",
    (True, "gelu_tanh"): "CUBLASLT_EPILOGUE_GELU_BIAS",
}


def library_epilogue(product: Product, dtype: str) -> tuple[str | None, str | None, str]:
    """(residual, bias, activation) in the order in which the library applies them: C first, then bias, then both's
    activation. Raises :class:`Unsupported` for any other chain."""
    residual: str | None = None
    bias: str | None = None
    activation = ""
    made = {s.var: s for s in product.epilogue.statements}
    current = Var("_acc", True, True, "float32", 0)
    for statement in product.epilogue.statements:
        if statement.kind in ("load", "store"):
            continue
        source = statement.args[0] if statement.op == "cast" else None
        if isinstance(source, Var) and source in made and made[source].kind == "load":
            made[statement.var] = made[source]  # widened for the sum: still the input itself
            continue
        if activation or statement.kind != "point" or current not in statement.args:
            raise Unsupported("the epilogue is more than a residual, a bias and an activation")
        others = [a for a in statement.args if a != current]
        if statement.op == "cast":
            pass
        elif statement.op == "add" and len(others) == 1 and others[0] in made and made[others[0]].kind == "load":
            load = made[others[0]]
            plain = len(load.terms) == 1 and load.terms[0].ix.plain
            if plain and load.terms[0].ix.base == "lin" and residual is None and load.var.dtype == dtype:
                residual = load.source
            elif plain and load.terms[0].ix.base == "col" and bias is None and load.var.dtype == dtype:
                bias = load.source
            else:
                raise Unsupported("the epilogue adds something that is neither a residual nor a bias")
        elif statement.op in ("relu", "gelu_tanh") and not others:
            activation = statement.op
        else:
            raise Unsupported(f"the library has no epilogue with {statement.op}")
        current = statement.var
    if activation and residual:
        raise Unsupported("an activation over a residual")
    return residual, bias, activation


def epilogue_code(product: Product, style: Style) -> Kernel:
    """The epilogue as Triton text over ``row``, ``col`` and ``acc``."""
    speller = Speller(product.epilogue, style, {"_acc": "acc"})
    for statement in product.epilogue.statements:
        speller.kernel.body += speller.one(statement)
    return speller.kernel


def shape_facts(product: Product) -> dict[str, Any]:
    a, b = product.a, product.b
    return {
        "a": a.name,
        "b": b.name,
        "a_transposed": a.transposed,
        "b_transposed": b.transposed,
        "m": product.m.text,
        "n": product.n.text,
        "k": product.k.text,
        "least_m": min(product.m.values),
        "most_m": max(product.m.values),
        "most_n": max(product.n.values),
        "most_k": max(product.k.values),
        "fixed": product.n.constant is not None and product.k.constant is not None,
        "k_step": math.gcd(*product.k.values),
        "n_step": math.gcd(*product.n.values),
        "m_step": math.gcd(*product.m.values),
    }


def gemm_torch(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for a product over blocks of rows with the epilogue in place (PyTorch)."""
    product = find_product(subject.need_graph(), native=True)
    if product.a.transposed:
        raise Unsupported("the left operand is transposed: its rows are not blocks of memory")
    spell(product.epilogue, held={"_acc": "_acc"})
    if not any(s.kind == "point" and s.op != "cast" for s in product.epilogue.statements):
        raise Unsupported("a plain product has nothing to fuse")
    return common(subject) | {
        "a": product.a.name,
        "b": product.b.name,
        "b_transposed": product.b.transposed,
        "m": product.m.text,
        "n": product.n.text,
        "k": product.k.text,
        "dtype": subject.need_graph().values[product.node.outs[0]].dtype,
        "steps": sum(s.kind == "point" for s in product.epilogue.statements),
        "gelu": any(s.op == "gelu_tanh" for s in product.epilogue.statements),
        "scalars": product.epilogue.scalars,
        "row_outputs": [int(s.source) for s in product.epilogue.statements if s.kind == "store" and not s.var.col],
        "spell": lambda gelu: spell(product.epilogue, gelu=gelu, squares="norm", held={"_acc": "_acc"}),
        "axis_lines": axis_lines(
            subject.definition, [*texts_of(product.epilogue), product.m.text, product.n.text, product.k.text]
        ),
    }
