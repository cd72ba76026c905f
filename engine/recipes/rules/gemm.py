"""One matrix product and what follows it: operands bound by where they are read, the rest as an epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.recipes.dag import Graph, Node
from engine.recipes.emit_torch import spell
from engine.recipes.graph import Ref
from engine.recipes.idioms import simplify
from engine.recipes.index import Domain, Unsupported
from engine.recipes.rows import Builder, Program, Var
from engine.recipes.rules.facts import common, texts_of
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


def gemm_torch(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for a product over blocks of rows with the epilogue in place (PyTorch)."""
    product = find_product(subject.need_graph(), native=True)
    if product.a.transposed:
        raise Unsupported("the left operand is transposed: its rows are not blocks of memory")
    spell(product.epilogue, held={"_acc": "_acc"})
    if not any(s.kind == "point" for s in product.epilogue.statements):
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
