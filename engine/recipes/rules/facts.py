"""Facts that every template needs."""

from __future__ import annotations

from typing import Any

from engine.recipes.emit_triton import Kernel
from engine.recipes.rows import Program
from engine.recipes.subject import Subject


def common(subject: Subject) -> dict[str, Any]:
    """Names, signature, kernel type and element types."""
    return {
        "problem": subject.definition.name,
        "device": subject.device.kind,
        "inputs": subject.inputs,
        "outputs": subject.outputs,
        "signature": ", ".join([*subject.inputs, *subject.outputs]),
        "prepare": _contiguous(subject),
        "tensor": next(n for n, s in subject.definition.inputs.items() if s.shape is not None),
        "kernel_type": subject.kernel_type,
        "dtypes": {n: s.dtype for n, s in {**subject.definition.inputs, **subject.definition.outputs}.items()},
    }


def _contiguous(subject: Subject) -> list[str]:
    """A custom input function may hand out expanded or transposed tensors; addresses here assume dense ones."""
    if not subject.definition.custom_inputs_entrypoint:
        return []
    return [f"{n} = {n}.contiguous()" for n, s in subject.definition.inputs.items() if s.shape]


def texts_of(program: Program) -> list[str]:
    """Every size expression of a program: the axes that its code must know."""
    texts = [
        program.domain.rows.text,
        program.domain.cols.text,
        *program.scalars.values(),
        *program.tails.values(),
    ]
    for statement in program.statements:
        for term in statement.terms:
            texts += [term.stride.text, term.size.text, term.ix.div.text, term.ix.add, term.ix.after]
            texts += [term.ix.mod.text] if term.ix.mod else []
            texts += [term.ix.clamp.text] if term.ix.clamp else []
    return texts


def arguments(subject: Subject, code: Kernel, prefix: str, names: list[str] | None = None) -> str:
    """What the host passes to a kernel, in the order of its parameters. ``names``: buffers in place of outputs."""
    packed = {n for n, s in subject.definition.inputs.items() if s.dtype.startswith("float4")}
    inputs = [f"{n}.view(torch.uint8)" if n in packed else n for n in code.inputs]
    outputs = [(names or subject.outputs)[p] for p in code.outputs]
    partials = [f"{prefix}{t}" for t in code.partials]
    return ", ".join([*inputs, *outputs, *partials, *code.scalars.values(), *code.sizes.values()])
