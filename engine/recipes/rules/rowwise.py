"""Row programs: references made of element-wise steps and reductions along rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.recipes.emit_torch import spell
from engine.recipes.rows import Program
from engine.recipes.rules.facts import common, texts_of
from engine.recipes.subject import Subject, axis_lines

_TEMPORARY = re.compile(r"\b(_t\d+)\b")


def rows_torch(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for PyTorch over blocks of rows."""
    programs = subject.native_programs
    for program in programs:
        spell(program)
    return common(subject) | {
        "programs": [_described(p, i) for i, p in enumerate(programs)],
        "spell": lambda index, squares, gelu="native": spell(
            programs[index], prefix=f"_p{index}", squares=squares, gelu=gelu
        ),
        "tail": lambda index, text: _TEMPORARY.sub(rf"_p{index}\1", text),
        "axis_lines": axis_lines(subject.definition, [t for p in programs for t in texts_of(p)]),
        "squares": any(_takes_squares(p) for p in programs),
        "gelu": any(s.op == "gelu_tanh" for p in programs for s in p.statements),
        "reductions": sum(len(p.reductions) for p in programs),
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
