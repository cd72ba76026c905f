"""Compile a traced reference into a row program: loads, element-wise steps, row reductions, stores.

The compiler asks for each output element and works backwards: reshapes, slices, broadcasts, transposes and
concatenations only change where an element is read (:mod:`engine.recipes.index`); element-wise operators become
steps; reductions over a row become one value per row. Norms, softmaxes, gated activations, rotary embeddings and
losses all end up as the same few statements, for PyTorch and Triton to spell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.recipes.dag import Graph, Node, Sym
from engine.recipes.graph import Ref
from engine.recipes.index import Dim, Dims, Domain, Ix, Term, Unsupported, address, lane
from engine.recipes.sizes import Size, product
from engine.recipes.views import View, terms_of

MAX_STEPS = 20_000
"""Of one program: slices of slices can ask for the same few values at more places than there is memory for."""


@dataclass(frozen=True)
class Var:
    """A value of the program: per element, per row, per column or one. ``level``: reductions it waits for."""

    name: str
    row: bool
    col: bool
    dtype: str
    level: int


@dataclass(frozen=True)
class Statement:
    """``kind``: load, point, index, reduce, pick, store, partial.

    load: ``source`` is an input's name. point: ``op`` of :data:`engine.recipes.ops.POINTWISE`. reduce: ``op`` is
    sum, mean, amax or amin. pick: one column of each row. store: ``source`` is an output's number. partial: one
    value per row into a temporary.
    """

    kind: str
    var: Var
    op: str = ""
    source: str = ""
    args: tuple[Any, ...] = ()  # Var, or a literal as text
    terms: tuple[Term, ...] = ()


@dataclass
class Program:
    """Statements in order, the outputs they fill, and what PyTorch still does with per-row results (``tails``)."""

    domain: Domain
    statements: list[Statement] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    tails: dict[int, str] = field(default_factory=dict)
    scalars: dict[str, str] = field(default_factory=dict)  # kernel argument → host expression

    @property
    def reductions(self) -> list[Statement]:
        return [s for s in self.statements if s.kind == "reduce"]

    @property
    def loads(self) -> list[Statement]:
        return [s for s in self.statements if s.kind == "load"]

    @property
    def passes(self) -> int:
        return max((s.var.level for s in self.statements), default=0)


class Builder:
    """Emits statements on demand; equal requests share one variable.

    ``given`` presets what another part of a kernel computes: a matrix product's result, by its value number.
    ``native`` keeps a softmax as one step, for PyTorch, instead of taking it apart.
    """

    def __init__(
        self, graph: Graph, domain: Domain, given: dict[int, Var] | None = None, native: bool = False
    ) -> None:
        self.graph, self.domain, self.native = graph, domain, native
        self.program = Program(domain)
        self._given = given or {}
        self._memo: dict[Any, Var] = {}
        self._count = 0

    # --- emission

    def fresh(self, args: Sequence[Any], dtype: str, prefix: str = "v", up: int = 0) -> Var:
        self._count += 1
        known = [a for a in args if isinstance(a, Var)]
        return Var(
            f"_{prefix}{self._count}",
            any(a.row for a in known),
            any(a.col for a in known),
            dtype,
            max((a.level for a in known), default=0) + up,
        )

    def point(self, op: str, args: Sequence[Any], dtype: str) -> Var:
        key = ("point", op, tuple(args), dtype)
        if key not in self._memo:
            var = self.fresh(args, dtype)
            self.program.statements.append(Statement("point", var, op=op, args=tuple(args)))
            self._memo[key] = var
        return self._memo[key]

    def cast(self, var: Var, dtype: str) -> Var:
        return var if var.dtype == dtype else self.point("cast", [var], dtype)

    def reduce(self, op: str, arg: Var) -> Var:
        key = ("reduce", op, arg)
        if key not in self._memo:
            self._count += 1
            var = Var(f"_r{self._count}", True, False, arg.dtype, arg.level + 1)
            self.program.statements.append(Statement("reduce", var, op=op, args=(arg,)))
            self._memo[key] = var
        return self._memo[key]

    def pick(self, var: Var, where: Var) -> Var:
        """The element of each row of ``var`` at the column that ``where`` holds."""
        self._count += 1
        found = Var(f"_v{self._count}", True, False, var.dtype, max(var.level, where.level))
        self.program.statements.append(Statement("pick", found, args=(var, where)))
        return found

    def literal(self, item: Any) -> str:
        """Numbers as text; numbers that follow the workload become arguments of the kernel.

        Raises :class:`Unsupported` for anything else: a text of a trace is never an expression.
        """
        if isinstance(item, bool):
            return "1" if item else "0"
        if isinstance(item, float) and not math.isfinite(item):
            return f"float('{item}')"
        if isinstance(item, int | float):
            return repr(item)
        if not isinstance(item, Sym | Size):
            raise Unsupported(f"{type(item).__name__} where a number is meant")
        text = item.text
        if text.lstrip("-").isdigit():
            return text
        for name, known in self.program.scalars.items():
            if known == text:
                return name
        name = f"_s{len(self.program.scalars)}"
        self.program.scalars[name] = text
        return name

    def index(self, dim: Dim) -> Var:
        key = ("index", dim)
        if key not in self._memo:
            terms = (Term(dim.ix, self.domain.one, dim.size),)
            row, col = lane(terms)
            self._count += 1
            var = Var(f"_i{self._count}", row, col, "int64", 0)
            self.program.statements.append(Statement("index", var, terms=terms))
            self._memo[key] = var
        return self._memo[key]

    # --- values

    def value(self, number: int, dims: Dims) -> Var:
        """The element of value ``number`` at ``dims``. Raises :class:`Unsupported`."""
        key = ("value", number, dims)
        if key not in self._memo:
            if len(self._memo) > MAX_STEPS:
                raise Unsupported(f"more than {MAX_STEPS} steps")
            self._memo[key] = self._value(number, dims)
        return self._memo[key]

    def _value(self, number: int, dims: Dims) -> Var:
        if number in self._given:
            merged = self.domain.merge(dims)
            if len(merged) == 1 and merged[0].ix.base == "lin" and merged[0].ix.plain:
                from engine.recipes import lower

                return lower.product_value(self, self.graph.producer[number], self._given[number], number, dims)
            raise Unsupported("the product is rearranged before it is used")
        if number in self.graph.inputs:
            return self._load(number, dims)
        constant = self.graph.constants.get(number)
        if constant is not None and len(constant) == 1:
            return self.point("cast", [self.literal(constant[0])], self.graph.values[number].dtype)
        node = self.graph.producer.get(number)
        if node is None:
            raise Unsupported("a tensor that the reference builds from many numbers")
        from engine.recipes import lower

        return lower.lower(self, node, number, dims)

    def load_as(self, number: int, dims: Dims, dtype: str) -> Var:
        """An input's bytes as another type of the same size."""
        return self._load(number, dims, dtype)

    def load_view(self, view: View, dims: Dims) -> Var:
        """An element of a strided view of an input."""
        return self._load_terms(view.source, terms_of(self.domain, view, dims), "")

    def _load(self, number: int, dims: Dims, dtype: str = "") -> Var:
        return self._load_terms(number, address(self.domain, dims), dtype)

    def _load_terms(self, number: int, terms: tuple[Term, ...], dtype: str) -> Var:
        name = self.graph.inputs[number]
        key = ("load", name, terms, dtype)
        if key not in self._memo:
            row, col = lane(terms)
            self._count += 1
            level = max((self._at_level(t.ix) for t in terms), default=0)
            var = Var(f"_x{self._count}", row, col, dtype or self.graph.values[number].dtype, level)
            self.program.statements.append(Statement("load", var, source=name, terms=terms))
            self._memo[key] = var
        return self._memo[key]

    def named(self, name: str) -> Var:
        return next(s.var for s in self.program.statements if s.var.name == name)

    def _at_level(self, ix: Ix) -> int:
        return self.named(ix.base.removeprefix("at:")).level if ix.base.startswith("at:") else 0

    def argument(self, node: Node, position: int, dims: Dims, number: int) -> Any:
        """Argument ``position`` of an element-wise node at the output's ``dims``: a Var or a literal."""
        item = node.args[position]
        if not isinstance(item, Ref):
            return self.literal(item)
        shape = self.graph.values[item.id].shape
        return self.value(item.id, self.broadcast(dims, self.graph.values[number].shape, shape))

    def broadcast(self, dims: Dims, whole: Sequence[Size], shape: Sequence[Size]) -> Dims:
        """``dims`` of the result shape ``whole`` as dims of an operand of ``shape``."""
        offset = len(whole) - len(shape)
        return tuple(
            self.domain.zero() if size.constant == 1 and whole[offset + i].constant != 1 else dims[offset + i]
            for i, size in enumerate(shape)
        )

    def row_of(self, dims: Dims) -> Dims:
        """Check that ``dims`` run over the rows, once and in order; the only place a row result can be used."""
        merged = self.domain.merge(dims)
        plain = len(merged) == 1 and merged[0].ix.base == "row" and merged[0].ix.plain
        if not plain and not (not merged and self.domain.rows.constant == 1):
            raise Unsupported("a reduction's result is used in another order than its rows")
        return dims

    # --- outputs

    def output(self, position: int, number: int) -> None:
        """Store output ``position`` or, for a full reduction, leave a tail for PyTorch."""
        shape = self.graph.values[number].shape
        total = product(shape, self.domain.samples)
        if total.same(self.domain.total):
            dims = self.domain.whole(shape)
        elif total.same(self.domain.rows):
            dims = self.domain.per_row(shape)
        elif total.constant == 1:
            from engine.recipes.lower_tail import tail

            self.program.tails[position] = tail(self, number)
            self.program.outputs.append(position)
            return
        else:
            raise Unsupported(f"an output of {total} elements beside rows of {self.domain.cols}")
        var = self.cast(self.value(number, dims), self.graph.values[number].dtype)
        terms = address(self.domain, dims)
        self.program.statements.append(Statement("store", var, source=str(position), args=(var,), terms=terms))
        self.program.outputs.append(position)

    def partial(self, var: Var) -> str:
        """Keep a per-row value in a float32 temporary of R elements; returns its name."""
        name = f"_t{sum(s.kind == 'partial' for s in self.program.statements)}"
        self.program.statements.append(Statement("partial", var, source=name, args=(var,)))
        return name


def compile_rows(graph: Graph, native: bool = False) -> list[Program]:
    """One program per group of outputs that share a domain. Raises :class:`Unsupported` with the reason."""
    from engine.recipes.lower_tail import domain_of

    groups: list[tuple[Domain, list[int]]] = []
    for position, number in enumerate(graph.outputs):
        domain = domain_of(graph, number)
        known = next((members for other, members in groups if _alike(domain, other)), None)
        if known is None:
            groups.append((domain, [position]))
        else:
            known.append(position)
    programs = []
    for domain, positions in groups:
        builder = Builder(graph, domain, native=native)
        for position in positions:
            builder.output(position, graph.outputs[position])
        programs.append(builder.program)
    return programs


def _alike(a: Domain, b: Domain) -> bool:
    return a.rows.same(b.rows) and a.cols.same(b.cols)
