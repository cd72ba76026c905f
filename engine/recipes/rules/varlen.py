"""Attention over sequences of different lengths, with or without a page table.

Such references loop over the sequences, so their traces depend on data. Roles are bound by what flowed where in
the first sequence: keys reach the softmax and values do not; a slice of the queries starts where their offsets
say.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.recipes.graph import Op, RawGraph, refs
from engine.recipes.index import Unsupported
from engine.recipes.rules.facts import common
from engine.recipes.subject import Subject, axis_lines

PRODUCTS = ("mm", "bmm", "mv", "dot", "matmul")
MASKING = ("masked_fill", "where", "tril", "triu")


@dataclass(frozen=True)
class Varlen:
    """Names of the inputs and outputs in their roles; ``lse`` and ``pages`` are ``None`` where there are none."""

    q: str
    k: str
    v: str
    q_offsets: str
    kv_offsets: str
    pages: str | None
    scale: str
    causal: bool
    out: str
    lse: str | None
    lse_base_two: bool


class Flow:
    """Which inputs a value comes from, and through what."""

    def __init__(self, graph: RawGraph) -> None:
        self.graph = graph
        self.names = {number: name for name, number in graph.inputs.items()}
        self.producer: dict[int, Op] = {out: op for op in graph.ops for out in op.outs}

    def ancestors(self, number: int, stop: Sequence[str] = ()) -> list[Op]:
        """Operators that ``number`` was computed by, nearest first, not looking behind those in ``stop``."""
        found: list[Op] = []
        stack, seen, known = deque([number]), {number}, set[int]()
        while stack:
            op = self.producer.get(stack.popleft())
            if op is None or id(op) in known:
                continue
            known.add(id(op))
            found.append(op)
            if op.base in stop:
                continue
            for source in self.sources(op):
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
        return found

    def sources(self, op: Op) -> list[int]:
        return [n for a in (*op.args, *op.kwargs.values()) for n in refs(a)]

    def inputs(self, number: int) -> set[str]:
        found = {self.names[number]} if number in self.names else set()
        for op in self.ancestors(number):
            found |= {self.names[n] for n in self.sources(op) if n in self.names}
        return found


def find_varlen(subject: Subject) -> Varlen:
    """Raises :class:`Unsupported` where roles stay open."""
    tried: list[str] = []
    for trace in sorted(subject.traces, key=lambda t: len(t.ops)):
        if not trace.data_dependent or not trace.ops:
            continue
        try:
            return _bind(subject, trace)
        except Unsupported as error:
            tried.append(str(error))
    raise Unsupported(tried[0] if tried else "no loop over sequences that depends on offsets")


def _bind(subject: Subject, graph: RawGraph) -> Varlen:
    flow = Flow(graph)
    softmax = next((op for op in graph.ops if op.base == "_softmax"), None)
    if softmax is None:
        raise Unsupported("no softmax")
    scores = softmax.args[0].id
    product = next((op for op in flow.ancestors(scores, stop=PRODUCTS) if op.base in PRODUCTS), None)
    weigh = _weighing(flow, softmax)
    if product is None or weigh is None:
        raise Unsupported("the softmax does not lie between two products")
    floats = {n for n, s in subject.definition.inputs.items() if s.shape is not None and "int" not in s.dtype}
    value_side = next(n for n in refs(weigh.args) if softmax not in flow.ancestors(n))
    values = flow.inputs(value_side) & floats
    both = flow.inputs(scores) & floats - values
    q, k = _queries_and_keys(subject, both)
    (v,) = values if len(values) == 1 else (None,)
    if v is None or subject.definition.inputs[v].shape != subject.definition.inputs[k].shape:
        raise Unsupported("keys and values have different shapes")
    pages = _pages(flow, value_side, subject)
    q_offsets, kv_offsets = _offsets(subject, flow, q, pages)
    out, lse = _outputs(subject, q)
    return Varlen(
        q=q, k=k, v=v, q_offsets=q_offsets, kv_offsets=kv_offsets, pages=pages,
        scale=_scale(graph, flow, scores, product), causal=_causal(flow, scores, product, graph),
        out=out, lse=lse, lse_base_two=_base_two(graph),
    )  # fmt: skip


def _weighing(flow: Flow, softmax: Op) -> Op | None:
    """The first product that uses the softmax's result."""
    reached = set(softmax.outs)
    for op in flow.graph.ops:
        if reached & set(flow.sources(op)):
            if op.base in PRODUCTS:
                return op
            reached |= set(op.outs)
    return None


def _queries_and_keys(subject: Subject, names: set[str]) -> tuple[str, str]:
    definition = subject.definition
    outputs = [s.shape for s in definition.outputs.values() if s.shape and len(s.shape) == 3]
    queries = [n for n in names if definition.inputs[n].shape in outputs]
    keys = [n for n in names if n not in queries]
    if len(queries) != 1 or len(keys) != 1:
        raise Unsupported("queries and keys cannot be told apart by shape")
    if len(definition.inputs[queries[0]].shape or []) != 3:
        raise Unsupported("queries are not [tokens, heads, dim]")
    return queries[0], keys[0]


def _pages(flow: Flow, value_side: int, subject: Subject) -> str | None:
    for op in flow.ancestors(value_side):
        if op.base in ("index", "index_select", "embedding", "gather"):
            names = {n for source in refs(op.args[1:]) for n in flow.inputs(source)}
            tables = [n for n in names if "int" in subject.definition.inputs[n].dtype]
            direct = [n for n in tables if _feeds_directly(flow, op, n)]
            if len(direct) == 1:
                return direct[0]
    return None


def _feeds_directly(flow: Flow, op: Op, name: str) -> bool:
    """Whether the index itself (not a slice bound) is data of ``name``."""
    number, seen = refs(op.args[1:])[0], set[int]()
    while number not in flow.names and number not in seen:
        seen.add(number)
        source = flow.producer.get(number)
        inputs = flow.sources(source) if source else []
        if not inputs:
            return False
        number = inputs[0]
    return flow.names.get(number) == name


def _offsets(subject: Subject, flow: Flow, q: str, pages: str | None) -> tuple[str, str]:
    """The offsets whose values bound a slice of the queries, and the others."""
    definition = subject.definition
    vectors = [
        n
        for n, s in definition.inputs.items()
        if s.shape and len(s.shape) == 1 and "int" in s.dtype and n != pages
    ]
    answers: dict[str, set[Any]] = {name: set() for name in vectors}
    for op in flow.graph.ops:
        if op.base == "_local_scalar_dense" and refs(op.args):
            for name in flow.inputs(refs(op.args)[0]) & set(vectors):
                answers[name].add(op.kwargs.get("answer"))
    known = [n for n in vectors if answers[n]]
    if len(known) != 2:
        raise Unsupported(f"{len(known)} vectors of offsets are read; queries and keys need one each")
    bounds = [_bounds(op) for op in flow.graph.ops if op.base in ("slice", "select") and q in _roots(flow, op)]
    for first, second in ((known[0], known[1]), (known[1], known[0])):
        fits = [b for b in bounds if b[1] in answers[first] and b[1] not in answers[second]]
        if fits:
            return first, second
    raise Unsupported("the offsets of queries and of keys are equal in every traced workload")


def _bounds(op: Op) -> tuple[Any, Any]:
    place = 2 if len(op.args) > 2 else 0
    end = op.args[3] if op.base == "slice" and len(op.args) > 3 else op.args[place]
    return op.args[place], end


def _roots(flow: Flow, op: Op) -> set[str]:
    """Inputs of a slice's operand, unless it was mixed with another input."""
    names = flow.inputs(refs(op.args)[0])
    return names if len(names) == 1 else set()


def _scale(graph: RawGraph, flow: Flow, scores: int, product: Op) -> str:
    for op in flow.ancestors(scores, stop=PRODUCTS):
        if op.base not in ("mul", "div") or op is product:
            continue
        numbers = [a for a in op.args if isinstance(a, int | float) and not isinstance(a, bool)]
        if len(numbers) != 1:
            continue
        value = float(numbers[0])
        for name, known in graph.scalars.items():
            if math.isclose(float(known), value, rel_tol=1e-6):
                return name if op.base == "mul" else f"1.0 / {name}"
        return repr(value if op.base == "mul" else 1.0 / value)
    return "1.0"


def _causal(flow: Flow, scores: int, product: Op, graph: RawGraph) -> bool:
    if any(op.base in MASKING for op in flow.ancestors(scores, stop=PRODUCTS)):
        return True
    # A loop over queries that reads a growing head of the keys masks without a mask.
    for source in flow.sources(product):
        for op in flow.ancestors(source):
            if op.base != "slice" or refs(op.args)[0] in flow.names:
                continue
            axis, start, end = [*op.args, 0, 0, None][1:4] if len(op.args) > 3 else (0, 0, None)
            if start == 0 and isinstance(end, int) and end < graph.values[refs(op.args)[0]].shape[axis]:
                return True
    return False


def _outputs(subject: Subject, q: str) -> tuple[str, str | None]:
    shape = subject.definition.inputs[q].shape
    outputs = subject.definition.outputs
    out = [n for n, s in outputs.items() if s.shape == shape]
    lse = [n for n, s in outputs.items() if s.shape == (shape or [])[:2]]
    if len(out) != 1 or len(out) + len(lse) != len(outputs):
        raise Unsupported("outputs other than the attention and its log-sum-exp")
    return out[0], lse[0] if lse else None


def _base_two(graph: RawGraph) -> bool:
    numbers = [a for op in graph.ops if op.base in ("mul", "div") for a in op.args if isinstance(a, float)]
    return any(math.isclose(n, math.log(2.0), rel_tol=1e-6) or math.isclose(n, 1 / math.log(2.0), rel_tol=1e-6)
               for n in numbers)  # fmt: skip


def varlen(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for kernels over packed queries [tokens, heads, dim]."""
    roles = find_varlen(subject)
    definition = subject.definition
    keys = definition.inputs[roles.k].shape or []
    axes = subject.axes
    if roles.pages and len(keys) == 4 and any(a.get(keys[1], _number(keys[1])) != 1 for a in axes):
        raise Unsupported("pages of more than one token")
    if len(keys) not in (3, 4):
        raise Unsupported("keys are neither [tokens, heads, dim] nor [pages, 1, heads, dim]")
    _, heads, depth = definition.inputs[roles.q].shape or []
    sizes = {"heads": heads, "kv_heads": keys[-2], "depth": depth}
    fixed = {name: {_value(token, a) for a in axes} for name, token in sizes.items()}
    if any(len(values) > 1 for values in fixed.values()):
        raise Unsupported("the numbers of heads differ between workloads")
    numbers = {name: values.pop() for name, values in fixed.items()}
    offsets = definition.inputs[roles.q_offsets].shape or []
    return (
        common(subject)
        | numbers
        | {
            "roles": roles,
            "group": numbers["heads"] // numbers["kv_heads"],
            "tokens": f"{roles.q}.shape[0]",
            "cached": f"{roles.pages or roles.k}.shape[0]",
            "most_seqs": max(_value(offsets[0], a) for a in axes) - 1,
            "element": definition.inputs[roles.q].dtype,
            "axis_lines": axis_lines(definition, []),
        }
    )


def _number(token: str) -> int:
    return int(token) if token.isdigit() else -1


def _value(token: str, axes: Mapping[str, int]) -> int:
    return axes[token] if token in axes else int(token)
