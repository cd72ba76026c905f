"""The reference itself as material: for any problem, with its ``run`` renamed so that a template can wrap it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from engine.recipes.index import Unsupported
from engine.recipes.subject import Subject

INNER = "_reference"
_FLOATS = ("float32", "float16", "bfloat16", "float64")


def wrapped_reference(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for wrappers around the reference. Raises :class:`Unsupported` if there is no plain ``run`` in it.

    ``rtol`` is the tightest relative tolerance of the workloads, ``matmul`` and ``image`` whether the reference
    seems to multiply matrices or takes four-dimensional inputs.
    """
    definition = subject.definition
    tensors = [name for name, spec in definition.inputs.items() if spec.shape is not None]
    if not tensors:
        raise Unsupported("the problem has no tensor input")
    floats = [name for name in tensors if definition.inputs[name].dtype in _FLOATS]
    return {
        "problem": definition.name,
        "reference": renamed(definition.reference),
        "inner": INNER,
        "inputs": subject.inputs,
        "outputs": subject.outputs,
        "signature": ", ".join(subject.inputs),
        "tensors": tensors,
        "floats": floats,
        "images": [name for name in floats if len(definition.inputs[name].shape or ()) == 4],
        "float32": any(definition.inputs[name].dtype == "float32" for name in floats),
        "matmul": _mentions(
            definition.reference, ("matmul", "linear", "einsum", "bmm", "mm", "conv", "attention")
        ),
        "rtol": min(workload.tolerance.max_rtol for workload in subject.workloads),
        "atol": min(workload.tolerance.max_atol for workload in subject.workloads),
        "device": subject.device.kind,
        "cores": subject.device.cores or 1,
        "kernel_type": subject.kernel_type,
        "captures": subject.graph is not None,
        "operators": len(subject.graph.nodes) if subject.graph is not None else 0,
    }


def renamed(source: str) -> str:
    """The reference with its top-level ``run`` called ``_reference``, everything else as it was."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise Unsupported("the reference does not parse") from error
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "run"]
    if len(found) != 1 or calls:
        raise Unsupported("the reference has no single plain run()")
    lines = source.splitlines()
    row = found[0].lineno - 1
    before, _, after = lines[row].partition("def run")
    lines[row] = f"{before}def {INNER}{after}"
    return "\n".join(lines).rstrip() + "\n"


def _mentions(source: str, words: tuple[str, ...]) -> bool:
    """Whether a function of such a name is called, or ``@`` is used."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return True
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if any(name == word or name.endswith(f"_{word}") or f"{word}" in name.split("_") for word in words):
                return True
    return False
