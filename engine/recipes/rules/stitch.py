"""Larger references, stage by stage: vendor products, fused attention, and row kernels for all that lies between.

The graph is cut at its products. What a product reads is either a strided view of something that exists, or is
computed by one row kernel first; what follows the last product is a row kernel that writes the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.problems.model import ScalarInput
from engine.recipes.dag import Graph, Node
from engine.recipes.emit_loops import spell_looped
from engine.recipes.emit_triton import Kernel, Style, spell_row
from engine.recipes.graph import Ref
from engine.recipes.idioms import simplify
from engine.recipes.index import Domain, Unsupported
from engine.recipes.rows import Builder, Program, compile_rows
from engine.recipes.rules.attention import Core, core_facts, core_products, find_core, score_code, strided
from engine.recipes.rules.facts import arguments, common, texts_of
from engine.recipes.rules.gemm import Operand, operand
from engine.recipes.sizes import Size, product
from engine.recipes.subject import Subject, axis_lines, shape_text

STRUCTURAL = {
    "view", "expand", "transpose", "t", "permute", "unsqueeze", "squeeze", "slice", "select", "split", "chunk",
    "split_with_sizes", "unbind",
}  # fmt: skip
HEAVY = {"mm", "addmm", "bmm"}
BARRED = {"convolution", "_scaled_mm", "baddbmm", "sort", "topk", "cumsum", "_fft_r2c", "_fft_c2r", "_fft_c2c"}
ROW_IN_REGISTERS = 16384


@dataclass
class Stage:
    """``kind``: rows, mm, bmm or attention. ``out``: the buffer that it fills, by name."""

    kind: str
    out: list[str]
    program: Program | None = None
    shapes: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    a: Any = None
    b: Any = None
    bias: str = ""
    core: Core | None = None


@dataclass
class Plan:
    """Stages in order; ``direct`` are buffers that are outputs."""

    graph: Graph
    stages: list[Stage] = field(default_factory=list)
    known: dict[int, str] = field(default_factory=dict)  # value number → buffer
    direct: set[str] = field(default_factory=set)

    def extended(self, outputs: tuple[int, ...] | None = None) -> Graph:
        """The graph with every buffer as an input."""
        inputs = {**self.graph.inputs, **self.known}
        return replace(self.graph, inputs=inputs, outputs=outputs or self.graph.outputs)

    def exists(self, number: int) -> bool:
        return number in self.graph.inputs or number in self.known


def plan_stages(graph: Graph, outputs: list[str]) -> Plan:
    """Raises :class:`Unsupported` with what has no stage."""
    if not any(n.base in HEAVY for n in graph.nodes):
        raise Unsupported("has no matrix product to cut at: a row kernel does it all")
    barred = next((n.base for n in graph.nodes if n.base in BARRED), None)
    if barred:
        raise Unsupported(f"{barred} has no stage")
    plan = Plan(graph)
    direct = _direct_outputs(graph, outputs)
    cores = _cores(graph)
    inner = {id(n) for first, last in cores.values() for n in (first, last)}
    for node in graph.nodes:
        if id(node) in cores:
            _attention_stage(plan, node, cores[id(node)], direct, outputs)
        elif node.base in HEAVY and id(node) not in inner:
            _product_stage(plan, node, direct)
        elif node.base == "sum" and _leading(graph, node) is not None:
            _column_stage(plan, node)
    _final_stage(plan, outputs)
    return plan


def _cores(graph: Graph) -> dict[int, tuple[Node, Node]]:
    """Softmaxes that are the middle of an attention with nothing but a scale and a causal mask."""
    found: dict[int, tuple[Node, Node]] = {}
    for node in graph.nodes:
        if node.base != "_softmax":
            continue
        try:
            found[id(node)] = core_products(graph, node)
        except Unsupported:
            continue
    return found


def _direct_outputs(graph: Graph, names: list[str]) -> dict[int, str]:
    """Products whose result is an output as it is: they write it themselves."""
    found: dict[int, str] = {}
    for number, name in zip(graph.outputs, names, strict=True):
        base = number
        while base in graph.producer and graph.producer[base].base == "view":
            base = graph.producer[base].args[0].id
        if base in graph.producer and graph.producer[base].base in HEAVY:
            found[base] = name
    return found


def base_of(graph: Graph, number: int) -> int:
    """The value that ``number`` is a view of."""
    while number in graph.producer and graph.producer[number].base in STRUCTURAL:
        number = graph.producer[number].args[0].id
    return number


def _ensure(plan: Plan, number: int) -> None:
    """Make the value that ``number`` views exist: a row kernel computes it, unless it does already."""
    while not plan.exists(number):
        node = plan.graph.producer.get(number)
        if node is None or node.base not in STRUCTURAL:
            break
        number = node.args[0].id
    if plan.exists(number):
        return
    name = f"_h{len(plan.stages)}"
    programs = [simplify(p) for p in compile_rows(plan.extended((number,)))]
    if programs[0].tails:
        raise Unsupported("one number for the whole tensor is needed in the middle")
    value = plan.graph.values[number]
    stage = Stage("rows", [name], program=programs[0], shapes=[shape_text(value.shape)], dtypes=[value.dtype])
    plan.stages.append(stage)
    plan.known[number] = name


def _product_stage(plan: Plan, node: Node, direct: Mapping[int, str]) -> None:
    first = 1 if node.base == "addmm" else 0
    items = node.args[first : first + 2]
    for item in items:
        if not isinstance(item, Ref):
            raise Unsupported("a product with a number")
        _ensure(plan, item.id)
    graph = plan.extended()
    sides = [_batched(graph, item) if node.base == "bmm" else operand(graph, item) for item in items]
    number = node.outs[0]
    name = direct.get(number, f"_h{len(plan.stages)}")
    value = plan.graph.values[number]
    stage = Stage(node.base if node.base == "bmm" else "mm", [name], a=sides[0], b=sides[1],
                  shapes=[shape_text(value.shape)], dtypes=[value.dtype])  # fmt: skip
    if node.base == "addmm":
        stage.bias = _bias(plan, node)
    if number in direct:
        plan.direct.add(name)
    plan.stages.append(stage)
    plan.known[number] = name


def _leading(graph: Graph, node: Node) -> list[int] | None:
    """The dimensions that a sum runs over, if they are the first ones: a row kernel cannot do that."""
    source = node.args[0].id if isinstance(node.args[0], Ref) else None
    axes = node.args[1] if len(node.args) > 1 else None
    if source is None or not isinstance(axes, list) or not axes:
        return None
    rank = len(graph.values[source].shape)
    found = sorted(a % rank for a in axes)
    return found if found == list(range(len(found))) and len(found) < rank else None


def _column_stage(plan: Plan, node: Node) -> None:
    """A sum over leading dimensions, by PyTorch, of a tensor that exists as a dense buffer."""
    number = node.args[0].id
    _ensure(plan, number)
    base = base_of(plan.graph, number)
    if not plan.exists(base) or any(plan.graph.producer[n].base not in ("view", "unsqueeze", "squeeze")
                                    for n in _chain(plan.graph, number, base)):  # fmt: skip
        raise Unsupported("a sum over the rows of something rearranged")
    name, value = f"_h{len(plan.stages)}", plan.graph.values[node.outs[0]]
    source = plan.known.get(base) or plan.graph.inputs[base]
    shape = shape_text(plan.graph.values[number].shape)
    axes = _leading(plan.graph, node)
    plan.stages.append(
        Stage(
            "sum",
            [name],
            a=f"{source}.view{shape}",
            b=axes,
            shapes=[shape_text(value.shape)],
            dtypes=[value.dtype],
        )
    )
    plan.known[node.outs[0]] = name


def _chain(graph: Graph, number: int, base: int) -> list[int]:
    """Values between ``number`` and the buffer that it views."""
    found = []
    while number != base:
        found.append(number)
        number = graph.producer[number].args[0].id
    return found


def _bias(plan: Plan, node: Node) -> str:
    bias = node.args[0]
    known = isinstance(bias, Ref) and bias.id in plan.graph.inputs and len(plan.graph.values[bias.id].shape) == 1
    if not known or node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
        raise Unsupported("a product with a computed addend")
    return plan.graph.inputs[bias.id]


def _batched(graph: Graph, item: Ref) -> dict[str, Any]:
    """A stack of matrices as a strided view."""
    shape = graph.values[item.id].shape
    domain = Domain(shape[0] * shape[1], shape[2])
    builder = Builder(graph, domain)
    builder.value(item.id, domain.whole(shape))
    if len(builder.program.statements) != 1:
        raise Unsupported("an operand of a batched product is computed first")
    load = builder.program.statements[0]
    one = Size("1", (1,) * graph.samples)
    strides, group = strided(load.terms, domain, (one, shape[0]), shape[1], graph)
    if any(g > 1 for g in group.values) and any(s for s in strides[1].values):
        raise Unsupported("a batched product over repeated matrices")
    return {"name": load.source, "shape": [s.text for s in shape], "strides": [s.text for s in strides[1:]]}


def _attention_stage(
    plan: Plan, node: Node, products: tuple[Node, Node], direct: Mapping[int, str], outputs: list[str]
) -> None:
    target = _target(plan.graph, products[1].outs[0])
    for item in (*products[0].args[:2], products[1].args[1]):
        _ensure(plan, item.id)
    core = find_core(plan.extended((target,)), node)
    score_code(core, wide=False)
    value = plan.graph.values[target]
    name = f"_h{len(plan.stages)}"
    if target in plan.graph.outputs:
        name = outputs[plan.graph.outputs.index(target)]
        plan.direct.add(name)
    plan.stages.append(
        Stage("attention", [name], core=core, shapes=[shape_text(value.shape)], dtypes=[value.dtype])
    )
    plan.known[target] = name


def _target(graph: Graph, number: int) -> int:
    """The furthest rearrangement of an attention's result that everything else reads."""
    while True:
        users = graph.users(number)
        if number in graph.outputs or len(users) != 1:
            return number
        if users[0].base not in ("view", "transpose", "permute", "unsqueeze", "squeeze"):
            return number
        number = users[0].outs[0]


def _final_stage(plan: Plan, outputs: list[str]) -> None:
    left = [(n, name) for n, name in zip(plan.graph.outputs, outputs, strict=True) if name not in plan.direct]
    if not left:
        return
    graph = plan.extended(tuple(n for n, _ in left))
    for program in (simplify(p) for p in compile_rows(graph)):
        names = [left[p][1] for p in program.outputs]
        if program.tails:
            raise Unsupported("an output of one number after a product")
        plan.direct |= set(names)
        plan.stages.append(Stage("rows", names, program=_renumbered(program)))


def _renumbered(program: Program) -> Program:
    """Stores numbered by their place among the stage's own buffers."""
    order = {position: i for i, position in enumerate(program.outputs)}
    renamed = [
        replace(s, source=str(order[int(s.source)])) if s.kind == "store" else s for s in program.statements
    ]
    result = replace(program)
    result.statements, result.outputs = renamed, list(range(len(order)))
    return result


def stitched(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for a solution in stages."""
    graph = subject.need_graph()
    plan = plan_stages(graph, subject.outputs)
    texts = [t for stage in plan.stages for t in _texts(stage)]
    biggest = max(max(product(v.shape, graph.samples).values, default=0) for v in graph.values.values())
    int64 = biggest >= 2**31

    def kernel(index: int, wide: bool) -> Kernel:
        program = plan.stages[index].program
        if program is None:
            raise Unsupported("not a row stage")
        style = Style(wide=wide, int64=int64)
        if max(program.domain.cols.values) <= ROW_IN_REGISTERS:
            return spell_row(program, style)
        return spell_looped(program, style, online=True)

    stages = [_facts(subject, plan, i) for i in range(len(plan.stages))]
    for i, stage in enumerate(plan.stages):
        if stage.kind == "rows":
            kernel(i, False)
    return common(subject) | {
        "stages": stages,
        "kernel": kernel,
        "arguments": lambda index, code: arguments(subject, code, "", plan.stages[index].out),
        "scores": lambda index, wide: score_code(_core_of(plan, index), wide),
        "plain_attentions": sum(s.get("plain", False) for s in stages),
        "placed": any(s.get("plain", False) and s["fresh"] for s in stages),
        "axis_lines": axis_lines(subject.definition, texts),
        "products": sum(s.kind in ("mm", "bmm") for s in plan.stages),
        "attentions": sum(s.kind == "attention" for s in plan.stages),
        "row_stages": sum(s.kind == "rows" for s in plan.stages),
        "nodes": len(graph.nodes),
        "half": any(v.dtype in ("bfloat16", "float16") for v in graph.values.values()),
        "wide_products": any(s.kind == "mm" and s.a.dtype == "float32" for s in plan.stages),
        "fixed_numbers": _fixed_numbers(subject),
        "rtol": min(w.tolerance.max_rtol for w in subject.workloads),
        "atol": min(w.tolerance.max_atol for w in subject.workloads),
    }


def _fixed_numbers(subject: Subject) -> bool:
    """Whether every number among the inputs is the workload's: none is drawn anew for each call."""
    numbers = [name for name, spec in subject.definition.inputs.items() if spec.shape is None]
    return all(isinstance(w.inputs.get(name), ScalarInput) for w in subject.workloads for name in numbers)


def _core_of(plan: Plan, index: int) -> Core:
    core = plan.stages[index].core
    if core is None:
        raise Unsupported("not an attention stage")
    return core


def _facts(subject: Subject, plan: Plan, index: int) -> dict[str, Any]:
    stage = plan.stages[index]
    facts: dict[str, Any] = {
        "index": index,
        "kind": stage.kind,
        "out": stage.out,
        "fresh": [
            (name, shape, dtype)
            for name, shape, dtype in zip(stage.out, stage.shapes, stage.dtypes, strict=False)
            if name not in plan.direct
        ],
    }
    if stage.program is not None:
        domain = stage.program.domain
        facts |= {
            "rows": domain.rows.text,
            "cols": domain.cols.text,
            "looped": max(domain.cols.values) > ROW_IN_REGISTERS,
            "width": 1 << (max(domain.cols.values) - 1).bit_length(),
        }
    if stage.kind == "mm":
        facts |= {"a": _matrix(stage.a), "b": _matrix(stage.b), "bias": stage.bias, "m": stage.a.rows.text,
                  "n": stage.b.cols.text}  # fmt: skip
    if stage.kind in ("bmm", "sum"):
        facts |= {"a": stage.a, "b": stage.b}
    if stage.core is not None:
        plain = stage.core.mask in ("none", "causal") or (stage.core.mask == "causal-end" and stage.core.square)
        facts |= {"core": core_facts(subject, stage.core, lines=False), "plain": plain}
    return facts


def _matrix(side: Operand) -> str:
    shape = f"{side.cols.text}, {side.rows.text}" if side.transposed else f"{side.rows.text}, {side.cols.text}"
    return f"{side.name}.view({shape})" + (".t()" if side.transposed else "")


def _texts(stage: Stage) -> list[str]:
    texts = [t for shape in stage.shapes for t in shape.strip("()").split(",") if t.strip()]
    if stage.program is not None:
        texts += texts_of(stage.program)
    if stage.kind == "mm":
        texts += [s.text for side in (stage.a, stage.b) for s in (side.rows, side.cols)]
    if stage.kind == "bmm":
        texts += [t for side in (stage.a, stage.b) for t in (*side["shape"], *side["strides"])]
    if stage.core is not None:
        core = stage.core
        sides = (core.q, core.k, core.v)
        texts += [s.text for side in sides for s in (*side.strides, side.group)]
        texts += texts_of(core.score)
        sizes = (core.batch, core.heads, core.queries, core.keys, core.depth, core.value_depth, *core.out)
        texts += [s.text for s in sizes] + [core.scale]
    return texts
