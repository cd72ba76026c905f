"""Attention: two matrix products with a softmax between them, found by dataflow, operands as strided views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.recipes.dag import Graph, Node
from engine.recipes.emit_triton import Kernel, Speller, Style
from engine.recipes.evaluate import Unknown, at_point, corners, position
from engine.recipes.expressions import evaluate
from engine.recipes.graph import Ref
from engine.recipes.index import Dims, Domain, Term, Unsupported
from engine.recipes.rows import Builder, Program, Var
from engine.recipes.rules.facts import arguments, common, texts_of
from engine.recipes.sizes import NotGeneral, Size, as_size, product
from engine.recipes.subject import Subject, axis_lines

MAX_HEADS = 1 << 16  # each is looked at
THROUGH = ("view", "expand", "_to_copy", "unsqueeze", "squeeze")


@dataclass(frozen=True)
class Side:
    """A strided view [batch, heads, length, depth] of input ``name``; ``group`` query heads share one head."""

    name: str
    strides: tuple[Size, Size, Size, Size]
    group: Size
    dtype: str


@dataclass(frozen=True)
class Core:
    """softmax(score(q kᵀ)) v. ``score`` computes variable ``last`` from ``_acc`` on rows batch · heads · query."""

    batch: Size
    heads: Size
    queries: Size
    keys: Size
    depth: Size
    value_depth: Size
    q: Side
    k: Side
    v: Side
    out: tuple[Size, Size, Size, Size]
    score: Program
    last: Var
    scale: str
    mask: str  # none | causal (aligned to the first row) | causal-end (to the last) | other
    graph: Graph

    @property
    def square(self) -> bool:
        return self.queries.same(self.keys)


def only_core(graph: Graph) -> Core:
    """The whole reference as one attention. Raises :class:`Unsupported` with what does not fit."""
    softmaxes = [n for n in graph.nodes if n.base == "_softmax"]
    if len(softmaxes) != 1:
        raise Unsupported(f"has {len(softmaxes)} softmax operators; an attention has one")
    if len([n for n in graph.nodes if n.base in ("mm", "addmm", "bmm", "baddbmm")]) != 2:
        raise Unsupported("has other matrix products than the attention's two")
    return find_core(graph, softmaxes[0])


def core_products(graph: Graph, softmax: Node) -> tuple[Node, Node]:
    """The products before and after a softmax. Raises :class:`Unsupported`."""
    return _preceding_product(graph, softmax.args[0].id), _following_product(graph, softmax.outs[0])


def find_core(graph: Graph, softmax: Node) -> Core:
    """The attention around ``softmax``; its result is the graph's only output, or what leads there."""
    product_node, weigh = core_products(graph, softmax)
    scores = graph.values[product_node.outs[0]].shape
    shape = graph.values[softmax.args[0].id].shape
    batch, heads = _split_heads(shape, scores[0], graph)
    queries, keys = scores[1], scores[2]
    depth = graph.values[product_node.args[0].id].shape[2]
    value_depth = graph.values[weigh.outs[0]].shape[2]
    rows = scores[0] * queries
    builder = Builder(
        graph, Domain(rows, keys), given={product_node.outs[0]: Var("_acc", True, True, "float32", 0)}
    )
    last = builder.value(softmax.args[0].id, builder.domain.whole(shape))
    frame = (batch, heads)
    q = _side(graph, product_node.args[0], queries, depth, frame, transposed=False)
    k = _side(graph, product_node.args[1], keys, depth, frame, transposed=True)
    v = _side(graph, weigh.args[1], keys, value_depth, frame, transposed=False)
    scale, mask = _score(builder.program, last, graph, queries, keys)
    return Core(
        batch, heads, queries, keys, depth, value_depth, q, k, v, _out(graph, weigh, frame, queries, value_depth),
        builder.program, last, scale, mask, graph,
    )  # fmt: skip


def _following_product(graph: Graph, number: int) -> Node:
    while True:
        users = graph.users(number)
        if len(users) != 1:
            raise Unsupported("the softmax is used by more than the weighted sum")
        node = users[0]
        if node.base == "bmm" and isinstance(node.args[0], Ref) and node.args[0].id == number:
            return node
        if node.base not in THROUGH:
            raise Unsupported(f"{node.base} lies between the softmax and the values")
        number = node.outs[0]


def _preceding_product(graph: Graph, number: int) -> Node:
    found: dict[int, Node] = {}
    stack, seen = [number], set()
    while stack:
        value = stack.pop()
        if value in seen or value not in graph.producer or value in graph.inputs:
            continue
        seen.add(value)
        node = graph.producer[value]
        if node.base in ("bmm", "mm"):
            found[node.outs[0]] = node
            continue
        stack += node.inputs()
    products = [n for n in found.values() if n.base == "bmm" and len(graph.values[n.outs[0]].shape) == 3]
    if len(products) != 1 or len(found) != 1:
        raise Unsupported("the softmax is not over one batched matrix product")
    return products[0]


def _split_heads(shape: Sequence[Size], both: Size, graph: Graph) -> tuple[Size, Size]:
    if len(shape) < 4:
        return Size("1", (1,) * graph.samples), both
    heads = product(shape[1:-2], graph.samples)
    if not (shape[0] * heads).same(both):
        raise Unsupported("batch and heads are arranged in an unusual way")
    return shape[0], heads


def _side(graph: Graph, item: Any, length: Size, depth: Size, frame: tuple[Size, Size], transposed: bool) -> Side:
    shape = graph.values[item.id].shape
    domain = Domain(frame[0] * frame[1] * length, depth)
    builder = Builder(graph, domain)
    head, row, col = *domain.split(_dim(domain, "row"), (frame[0] * frame[1], length)), _dim(domain, "col")
    dims: Dims = (head, col, row) if transposed else (head, row, col)
    if [d.size.values for d in dims] != [s.values for s in shape]:
        raise Unsupported("a product whose operands do not line up")
    builder.value(item.id, dims)
    loads = builder.program.loads
    rest = [s for s in builder.program.statements if s.kind != "load" and s.op != "cast"]
    if len(loads) != 1 or rest:
        raise Unsupported("queries, keys or values are computed first (a norm, a rotation, a scale)")
    load = loads[0]
    strides, group = strided(load.terms, domain, frame, length, graph)
    return Side(load.source, strides, group, load.var.dtype)


def _dim(domain: Domain, base: str) -> Any:
    from engine.recipes.index import Dim, Ix

    return Dim(domain.rows if base == "row" else domain.cols, Ix(base, domain.one))


def strided(
    terms: Sequence[Term], domain: Domain, frame: tuple[Size, Size], length: Size, graph: Graph
) -> tuple[tuple[Size, Size, Size, Size], Size]:
    """Strides of batch, head, position and depth, and the group: read off addresses, then checked at others."""
    columns: list[tuple[int, ...]] = []
    for sample in range(graph.samples):
        batch, heads = (size.values[sample] for size in frame)
        if heads > MAX_HEADS:
            raise Unsupported(f"{heads} heads")
        size, depth = length.values[sample], domain.cols.values[sample]

        def place(
            b: int, h: int, s: int, d: int, heads: int = heads, size: int = size, sample: int = sample
        ) -> int:
            row = (b * heads + h) * size + s
            cols = domain.cols.values[sample]
            return sum(position(t.ix, sample, row, d, cols, {}) * t.stride.values[sample] for t in terms)

        origin = place(0, 0, 0, 0)
        group = next((g for g in range(1, heads) if place(0, g, 0, 0) != origin), heads)
        strides = (
            place(1, 0, 0, 0) - origin if batch > 1 else 0,
            place(0, group, 0, 0) - origin if group < heads else 0,
            place(0, 0, 1, 0) - origin if size > 1 else 0,
            place(0, 0, 0, 1) - origin if depth > 1 else 0,
        )
        for b in {0, batch - 1}:
            for h in {0, group - 1, heads // 2, heads - 1}:
                for s in {0, size // 2, size - 1}:
                    for d in {0, depth - 1}:
                        expected = (
                            origin + b * strides[0] + h // group * strides[1] + s * strides[2] + d * strides[3]
                        )
                        if place(b, h, s, d) != expected or origin:
                            raise Unsupported("queries, keys or values are not a strided view of an input")
        columns.append((*strides, group))
    axes = graph.axes
    head, position_, unit, group_ = (_general([c[i] for c in columns], axes, i) for i in range(1, 5))
    batch_ = _batch_stride([c[0] for c in columns], head, group_, frame[1], length * position_, axes)
    return (batch_, head, position_, unit), group_


def _batch_stride(
    values: list[int], head: Size, group: Size, heads: Size, rows: Size, axes: Sequence[Mapping[str, int]]
) -> Size:
    """A whole number of heads, or of positions, between two sequences: that also holds where batch is 1."""
    if any(values) and all(v in (0, w) for v, w in zip(values, rows.values, strict=True)):
        return rows
    whole = [h * s // g for h, s, g in zip(heads.values, head.values, group.values, strict=True)]
    if all(v in (0, w) for v, w in zip(values, whole, strict=True)):
        grouped = group.constant == 1
        text = f"{heads.text} * {head.text}" if grouped else f"({heads.text}) // ({group.text}) * ({head.text})"
        return Size(text, tuple(whole))
    return _general(values, axes, 0)


def _general(values: list[int], axes: Sequence[Mapping[str, int]], which: int) -> Size:
    """A stride that reads 0 where its dimension has one element follows the other workloads."""
    known = [i for i, v in enumerate(values) if v] if which < 4 else list(range(len(values)))
    if not known:
        return Size("0", tuple(values))
    try:
        text = as_size([values[i] for i in known], [axes[i] for i in known]).text
    except NotGeneral as error:
        raise Unsupported(f"a stride follows no axis ({error})") from None
    return Size(text, tuple(values))


class _Capture(Builder):
    """Notes where an output reads the attention's result."""

    def __init__(self, graph: Graph, domain: Domain, number: int) -> None:
        super().__init__(graph, domain)
        self.number, self.dims = number, []

    dims: list[Dims]

    def _value(self, number: int, dims: Dims) -> Var:
        if number == self.number:
            self.dims.append(dims)
            return Var("_attended", True, True, self.graph.values[number].dtype, 0)
        return super()._value(number, dims)


def _out(graph: Graph, weigh: Node, frame: tuple[Size, Size], queries: Size, depth: Size) -> Any:
    number = weigh.outs[0]
    users = graph.users(number)
    if len(users) == 1 and users[0].base == "view" and len(graph.values[users[0].outs[0]].shape) == 4:
        number = users[0].outs[0]
    if len(graph.outputs) != 1:
        raise Unsupported("an attention with more than one output")
    shape = graph.values[graph.outputs[0]].shape
    domain = Domain(product(shape[:-1], graph.samples), shape[-1])
    builder = _Capture(graph, domain, number)
    builder.value(graph.outputs[0], domain.whole(shape))
    if len(builder.dims) != 1 or any(s.op != "cast" for s in builder.program.statements):
        raise Unsupported("the attention's result is computed with before it is returned")
    dims = builder.dims[0]
    strides = []
    for dim in dims:
        scale = {"lin": domain.one, "col": domain.one, "row": domain.cols}.get(dim.ix.base)
        if dim.ix.base == "zero":
            strides.append(Size("0", (0,) * graph.samples))
        elif scale is None or dim.ix.add != "0":
            raise Unsupported("the attention's result is rearranged in an unusual way")
        else:
            strides.append(dim.ix.div * scale)
    if len(strides) == 3:
        strides = [queries * depth * frame[1], strides[0], *strides[1:]]
    return tuple(strides)


def _score(program: Program, last: Var, graph: Graph, queries: Size, keys: Size) -> tuple[str, str]:
    """(scale as text, kind of mask) of ``last`` as a function of ``acc``; ``other`` needs the program itself."""
    scaling = [s for s in program.statements if s.kind == "point" and s.op in ("mul", "div")]
    literals = [(s.op, a) for s in scaling for a in s.args if not isinstance(a, Var)]
    texts = [(op, program.scalars.get(a, str(a))) for op, a in literals]
    scale = texts[0][1] if len(texts) == 1 and len(scaling) == 1 else "1.0"
    if len(texts) == 1 and texts[0][0] == "div":
        scale = f"1.0 / ({scale})"
    kinds: set[str] = set()
    for sample in range(graph.samples):
        try:
            kinds.add(_mask_kind(program, last, graph, sample, queries.values[sample], keys.values[sample], scale))
        except Unknown:
            return scale, "other"
    kinds.discard("any")
    if kinds == {"causal", "both"} or kinds == {"both"}:
        return scale, "causal"
    if kinds == {"causal-end", "both"}:
        return scale, "causal-end"
    return scale, kinds.pop() if len(kinds) == 1 else ("none" if not kinds else "other")


def _mask_kind(program: Program, last: Var, graph: Graph, sample: int, queries: int, keys: int, scale: str) -> str:
    numbers: dict[str, Any] = {**graph.axes[sample], **graph.scalar_values[sample]}
    factor = float(evaluate(scale, numbers))
    possible = {"none", "causal", "causal-end"}
    for row, col in corners(program.domain.rows.values[sample], keys, queries):
        low = at_point(program, last, sample, row, col, {"_acc": 1.0}, numbers)
        high = at_point(program, last, sample, row, col, {"_acc": 3.0}, numbers)
        masked = low < -1e30 and high < -1e30
        if not masked and (abs(high - low - 2.0 * factor) > 1e-5 * abs(factor) or abs(low - factor) > 1e-5):
            return "other"
        seen = {"none": True, "causal": col <= row, "causal-end": col <= row + keys - queries}
        possible = {kind for kind in possible if seen[kind] != masked}
    if possible == {"none", "causal", "causal-end"} or (queries == 1 and "none" in possible):
        return "any"
    if possible == {"causal", "causal-end"}:
        return "both"
    return possible.pop() if len(possible) == 1 else "other"


def sdpa(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for PyTorch's fused attention on strided views."""
    core = only_core(subject.need_graph())
    if core.mask == "other":
        raise Unsupported("the scores are changed by more than a scale and a causal mask")
    if core.mask == "causal-end" and not core.square:
        raise Unsupported("a causal mask aligned to the last row, which PyTorch's fused attention lacks")
    return common(subject) | core_facts(subject, core)


def flash(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for a hand-written dense kernel: scores may be anything element-wise."""
    core = only_core(subject.need_graph())
    score_code(core, wide=False)
    facts = core_facts(subject, core)
    return (
        common(subject)
        | facts
        | {
            "core": facts,
            "code": lambda wide: score_code(core, wide),
            "arguments": lambda code: arguments(subject, code, ""),
            "deepest": max(max(core.depth.values), max(core.value_depth.values)),
            "half": core.q.dtype in ("bfloat16", "float16"),
            "changed": core.mask == "other",
        }
    )


def score_code(core: Core, wide: bool) -> Kernel:
    """The scores as statements over ``row``, ``col`` and ``acc``; empty where a scale and a mask say it all."""
    if core.mask != "other":
        return Kernel()
    if core.score.reductions:
        raise Unsupported("scores that are reduced before the softmax")
    speller = Speller(core.score, Style(wide=wide), {"_acc": "acc"})
    for statement in core.score.statements:
        speller.kernel.body += speller.one(statement)
    speller.kernel.result = speller.text(core.last)
    return speller.kernel


def core_facts(subject: Subject, core: Core, lines: bool = True) -> dict[str, Any]:
    texts = [s.text for side in (core.q, core.k, core.v) for s in (*side.strides, side.group)]
    sizes = [core.batch, core.heads, core.queries, core.keys, core.depth, core.value_depth, *core.out]
    texts += [s.text for s in sizes] + [core.scale] + texts_of(core.score)
    return {
        "batch": core.batch.text,
        "heads": core.heads.text,
        "query_count": core.queries.text,
        "key_count": core.keys.text,
        "depth": core.depth.text,
        "value_depth": core.value_depth.text,
        "q": _side_facts(core.q, core.depth),
        "k": _side_facts(core.k, core.depth),
        "v": _side_facts(core.v, core.value_depth),
        "out": [s.text for s in core.out],
        "scale": core.scale,
        "mask": core.mask,
        "causal": core.mask in ("causal", "causal-end"),
        "grouped": any(v > 1 for v in core.k.group.values),
        "most_queries": max(core.queries.values),
        "axis_lines": axis_lines(subject.definition, texts) if lines else [],
    }


def _side_facts(side: Side, depth: Size) -> dict[str, Any]:
    return {
        "name": side.name,
        "strides": [s.text for s in side.strides],
        "group": side.group.text,
        "dtype": side.dtype,
    }
