"""Row programs: references made of element-wise steps and reductions along rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.recipes.emit_loops import has_online_pair, parts, spell_looped, spell_split
from engine.recipes.emit_torch import spell
from engine.recipes.emit_triton import Kernel, Style, spell_row
from engine.recipes.index import Unsupported
from engine.recipes.rows import Program
from engine.recipes.rules.facts import arguments, common, texts_of
from engine.recipes.sizes import product
from engine.recipes.subject import Subject, axis_lines

_LOAD = re.compile(r"_x\d+ = tl\.load\(")
_COMPUTED = re.compile(r"\b_[xvr]\d+")
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


def rows_triton(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for Triton kernels, one per program: whole rows in registers, or loops over columns."""
    programs = subject.programs
    for program in programs:
        spell_row(program, Style())
    biggest = max(max(p.domain.total.values) for p in programs)
    int64 = max(biggest, _largest_input(subject)) >= 2**31

    def kernel(index: int, looped: bool, wide: bool, stream: bool, online: bool = False) -> Kernel:
        style = Style(wide=wide, stream=stream, int64=int64)
        program = programs[index]
        return spell_looped(program, style, online) if looped else spell_row(program, style)

    return common(subject) | {
        "programs": [_described(p, i) for i, p in enumerate(programs)],
        "kernel": kernel,
        "early": loads_first,
        "split": lambda index, wide, online: spell_split(programs[index], Style(wide=wide, int64=int64), online),
        "parts": lambda index: parts(programs[index]),
        "arguments": lambda index, code: arguments(subject, code, f"_p{index}"),
        "tail": lambda index, text: _TEMPORARY.sub(rf"_p{index}\1", text),
        "axis_lines": axis_lines(subject.definition, [t for p in programs for t in texts_of(p)]),
        "reductions": sum(len(p.reductions) for p in programs),
        "passes": max(p.passes for p in programs),
        "online": any(has_online_pair(p) for p in programs),
        "half": any(d in ("bfloat16", "float16") for d in _dtypes(programs)),
        "most_cols": max(max(p.domain.cols.values) for p in programs),
        "least_cols": min(min(p.domain.cols.values) for p in programs),
        "most_rows": max(max(p.domain.rows.values) for p in programs),
        "least_rows": min(min(p.domain.rows.values) for p in programs),
        "columns_pow2": 1 << (max(max(p.domain.cols.values) for p in programs) - 1).bit_length(),
    }


def tiles_triton(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for Triton kernels over tiles that may end anywhere in a row: element-wise steps alone."""
    along = [s for program in subject.programs for s in program.statements if s.kind in ("reduce", "partial")]
    if along:
        raise Unsupported(f"{along[0].op or 'a reduction'} runs along whole rows")
    return rows_triton(subject, options)


def loads_first(lines: list[str]) -> list[str]:
    """Statements in an order that issues the loads whose places are known from the start before anything waits.

    The compiler cannot move a load over a store, and does not move one over a reduction.
    """
    free = [line for line in lines if _LOAD.match(line) and not _COMPUTED.search(line.partition("=")[2])]
    return free + [line for line in lines if line not in free]


def _dtypes(programs: tuple[Program, ...]) -> set[str]:
    return {s.var.dtype for p in programs for s in p.statements}


def _largest_input(subject: Subject) -> int:
    graph = subject.need_graph()
    return max((max(product(graph.values[n].shape, graph.samples).values) for n in graph.inputs), default=0)


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
