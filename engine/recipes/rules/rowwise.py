"""Row programs: references made of element-wise steps and reductions along rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.recipes.emit_torch import spell
from engine.recipes.index import Unsupported
from engine.recipes.rows import Program
from engine.recipes.subject import Subject, axis_lines

_TEMPORARY = re.compile(r"\b(t\d+)\b")


def rows_torch(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for PyTorch over blocks of rows."""
    programs = subject.native_programs
    for program in programs:
        spell(program)
    return common(subject) | {
        "programs": [_described(p, i) for i, p in enumerate(programs)],
        "spell": lambda index, squares, gelu="native": spell(
            programs[index], prefix=f"p{index}_", squares=squares, gelu=gelu
        ),
        "tail": lambda index, text: _TEMPORARY.sub(rf"p{index}_\1", text),
        "axis_lines": axis_lines(subject.definition, _texts(programs)),
        "squares": any(_takes_squares(p) for p in programs),
        "gelu": any(s.op == "gelu_tanh" for p in programs for s in p.statements),
        "reductions": sum(len(p.reductions) for p in programs),
    }


def common(subject: Subject) -> dict[str, Any]:
    """Facts that every template needs: names, signature, kernel type, device."""
    return {
        "problem": subject.definition.name,
        "inputs": subject.inputs,
        "outputs": subject.outputs,
        "signature": ", ".join([*subject.inputs, *subject.outputs]),
        "tensor": next(n for n, s in subject.definition.inputs.items() if s.shape is not None),
        "kernel_type": subject.kernel_type,
        "dtypes": {n: s.dtype for n, s in {**subject.definition.inputs, **subject.definition.outputs}.items()},
    }


def _described(program: Program, index: int) -> dict[str, Any]:
    domain = program.domain
    return {
        "index": index,
        "rows": domain.rows.text,
        "cols": domain.cols.text,
        "most_cols": max(domain.cols.values),
        "outputs": [p for p in program.outputs if p not in program.tails],
        "tails": program.tails,
        "scalars": program.scalars,
        "row_outputs": [
            int(s.source) for s in program.statements if s.kind == "store" and not s.var.col and s.var.row
        ],
    }


def _takes_squares(program: Program) -> bool:
    squares = {s.var for s in program.statements if s.op == "pow2"}
    return any(s.args[0] in squares for s in program.reductions)


def _texts(programs: tuple[Program, ...]) -> list[str]:
    texts: list[str] = []
    for program in programs:
        texts += [program.domain.rows.text, program.domain.cols.text, *program.scalars.values()]
        texts += program.tails.values()
        for statement in program.statements:
            for term in statement.terms:
                texts += [term.stride.text, term.size.text, term.ix.div.text, term.ix.add]
                texts += [term.ix.mod.text] if term.ix.mod else []
    if not texts:
        raise Unsupported("nothing to compute")
    return texts
