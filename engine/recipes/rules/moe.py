"""Backward pass of a mixture of SwiGLU experts: tensors told apart by axes, twins by what they flow into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.problems.model import TensorSpec
from engine.recipes.graph import Op, RawGraph, refs
from engine.recipes.index import Unsupported
from engine.recipes.rules.facts import common
from engine.recipes.rules.varlen import PRODUCTS, Flow
from engine.recipes.subject import Subject, axis_lines

Shape = tuple[str, ...]


@dataclass(frozen=True)
class Roles:
    """Names of inputs and outputs of the backward pass of Σ w·down(silu(gate x)·up x)."""

    grad: str
    hidden: str
    indices: str
    weights: str
    gate: str
    up: str
    down: str
    grad_hidden: str
    grad_weights: str
    grad_gate: str
    grad_up: str
    grad_down: str


def find_moe_backward(subject: Subject) -> Roles:
    """Raises :class:`Unsupported` where the reference is something else."""
    inputs = {n: s for n, s in subject.definition.inputs.items() if s.shape is not None}
    outputs = subject.definition.outputs
    indices = _one(
        [n for n, s in inputs.items() if "int" in s.dtype and len(s.shape or []) == 2], "expert indices"
    )
    routing = _shape(inputs[indices])
    weights = _one([n for n, s in inputs.items() if _shape(s) == routing and n != indices], "routing weights")
    experts = [n for n, s in inputs.items() if len(_shape(s)) == 3]
    tokens = [n for n, s in inputs.items() if len(_shape(s)) == 2 and n not in (indices, weights)]
    if len(experts) != 3 or len(tokens) != 2 or len(outputs) != 5:
        raise Unsupported("is not three expert weights, tokens and their gradient in, five gradients out")
    shapes = [_shape(inputs[n]) for n in experts]
    twins = [n for n in experts if shapes.count(_shape(inputs[n])) == 2]
    down = _one([n for n in experts if n not in twins], "down projection")
    wide, tall = _shape(inputs[twins[0]]) if twins else ("",), _shape(inputs[down])
    if len(twins) != 2 or (wide[0], wide[2], wide[1]) != tall or wide[1] == wide[2]:
        raise Unsupported("expert weights are not [experts, inner, hidden] twice and [experts, hidden, inner]")
    trace = _trace(subject)
    flow = Flow(trace)
    activation = next((op for op in trace.ops if op.base in ("silu", "sigmoid")), None)
    if activation is None:
        raise Unsupported("no SiLU")
    fed = flow.inputs(activation.outs[0])
    gate = _one([n for n in twins if n in fed], "gate projection")
    up = next(n for n in twins if n != gate)
    hidden = _one([n for n in tokens if n in fed], "tokens")
    grad = next(n for n in tokens if n != hidden)
    grad_up = _one(
        [n for n in _twin_outputs(outputs, wide) if not _written_with(subject, flow, n, up)], "up gradient"
    )
    grad_gate = next(n for n in _twin_outputs(outputs, wide) if n != grad_up)
    return Roles(
        grad, hidden, indices, weights, gate, up, down,
        grad_hidden=_one([n for n, s in outputs.items() if _shape(s) == _shape(inputs[hidden])], "token gradient"),
        grad_weights=_one([n for n, s in outputs.items() if _shape(s) == routing], "routing gradient"),
        grad_gate=grad_gate, grad_up=grad_up,
        grad_down=_one([n for n, s in outputs.items() if _shape(s) == tall], "down gradient"),
    )  # fmt: skip


def _shape(spec: TensorSpec) -> Shape:
    return tuple(spec.shape or ())


def _one(names: list[str], what: str) -> str:
    if len(names) != 1:
        raise Unsupported(f"{len(names)} candidates for the {what}")
    return names[0]


def _trace(subject: Subject) -> RawGraph:
    """A complete trace of the loop over experts."""
    whole = [t for t in subject.traces if t.outputs and not t.error]
    if not whole:
        raise Unsupported("the loop over experts was not traced to its end")
    return min(whole, key=lambda t: len(t.ops))


def _twin_outputs(outputs: Mapping[str, TensorSpec], shape: Shape) -> list[str]:
    names = [n for n, s in outputs.items() if _shape(s) == shape]
    if len(names) != 2:
        raise Unsupported("the gradients of gate and up projections are not both returned")
    return names


def _written_with(subject: Subject, flow: Flow, output: str, weight: str) -> bool:
    """Whether what is written into ``output`` was computed from ``weight``."""
    number = flow.graph.outputs[subject.outputs.index(output)]
    aliases = {number}
    for op in flow.graph.ops:
        if refs(op.args) and refs(op.args)[0] in aliases and op.base in ("select", "slice", "view", "index"):
            aliases |= set(op.outs)
    writes = [
        op
        for op in flow.graph.ops
        if op.base in ("copy_", "add_", "index_put_", "index_add_") and refs(op.args)[0] in aliases
    ]
    if not writes:
        raise Unsupported(f"{output} is not written expert by expert")
    return any(weight in _mixed(flow, source, aliases) for op in writes[:1] for source in refs(op.args)[1:])


def _mixed(flow: Flow, number: int, without: set[int]) -> set[str]:
    """Inputs behind the product that computed ``number``, not those behind the tensor that is written to."""
    operands: list[Op] = [op for op in flow.ancestors(number) if op.base in PRODUCTS][:1]
    return {n for op in operands for source in refs(op.args) if source not in without for n in flow.inputs(source)}


def moe_backward(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for grouped kernels over tokens sorted by expert."""
    roles = find_moe_backward(subject)
    definition = subject.definition
    gate = definition.inputs[roles.gate]
    if gate.dtype != "float32":
        raise Unsupported(f"expert weights of type {gate.dtype}")
    fixed = {"experts": 0, "inner": 1, "hidden": 2}
    numbers: dict[str, int] = {}
    for name, place in fixed.items():
        token = (gate.shape or [])[place]
        values = {a.get(token, int(token) if token.isdigit() else 0) for a in subject.axes}
        if len(values) != 1:
            raise Unsupported("the experts differ between workloads")
        numbers[name] = values.pop()
    return (
        common(subject)
        | numbers
        | {
            "roles": roles,
            "axis_lines": axis_lines(definition, []),
            "rtol": min(w.tolerance.max_rtol for w in subject.workloads),
            "atol": min(w.tolerance.max_atol for w in subject.workloads),
        }
    )
