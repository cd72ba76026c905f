"""Evaluate a row program at single points: how a mask is recognised, however the reference builds it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.recipes.expressions import bounded, evaluate
from engine.recipes.index import Ix, Unsupported
from engine.recipes.rows import Program, Statement, Var


class Unknown(Exception):
    """The value depends on an input's data, or lies beyond what Python computes as a device does."""


_OPS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "rsub": lambda a, b: b - a,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": abs,
    "maximum": max,
    "minimum": min,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "logical_not": lambda a: not a,
    "bitwise_not": lambda a: not a,
    "bitwise_and": lambda a, b: bool(a) and bool(b),
    "bitwise_or": lambda a, b: bool(a) or bool(b),
    "logical_and": lambda a, b: bool(a) and bool(b),
    "logical_or": lambda a, b: bool(a) or bool(b),
    "cast": lambda a: a,
    "tanh": math.tanh,
    "exp": math.exp,
    "sigmoid": lambda a: 1.0 / (1.0 + math.exp(-a)),
    "square": lambda a: a * a,
    "pow2": lambda a: a * a,
}


def at_point(
    program: Program,
    wanted: Var,
    sample: int,
    row: int,
    col: int,
    given: Mapping[str, float],
    numbers: Mapping[str, Any],
) -> float:
    """The value of ``wanted`` at one element of traced workload ``sample``.

    ``given``: values of preset variables. ``numbers``: axes and scalar inputs of that workload. Raises
    :class:`Unknown` if an input's data decides, :class:`Unsupported` for a literal that is no expression.
    """
    made = {s.var.name: s for s in program.statements if s.kind not in ("store", "partial")}
    cols = program.domain.cols.values[sample]
    memo: dict[str, Any] = dict(given)

    def value(item: Any) -> Any:
        if not isinstance(item, Var):
            return evaluate(program.scalars.get(item, item), numbers)
        if item.name not in memo:
            memo[item.name] = compute(made[item.name])
        return memo[item.name]

    def compute(statement: Statement) -> Any:
        if statement.kind == "index":
            return position(statement.terms[0].ix, sample, row, col, cols, numbers)
        if statement.kind != "point":
            raise Unknown(statement.kind)
        if statement.op == "where":
            return value(statement.args[1] if value(statement.args[0]) else statement.args[2])
        if statement.op not in _OPS:
            raise Unknown(statement.op)
        operands = [value(a) for a in statement.args]
        try:
            return bounded(_OPS[statement.op](*operands))
        except (ArithmeticError, Unsupported) as error:  # a device would go on with an infinity, or wrap around
            raise Unknown(statement.op) from error

    return float(value(wanted))


def position(ix: Ix, sample: int, row: int, col: int, cols: int, numbers: Mapping[str, Any]) -> int:
    """The index that ``ix`` stands for at one element."""
    base = {"row": row, "col": col, "lin": row * cols + col, "zero": 0}.get(ix.base)
    if base is None:
        raise Unknown(ix.base)
    found: int | float = base // ix.div.values[sample]
    if ix.mod is not None:
        found %= ix.mod.values[sample]
    found += evaluate(ix.add, numbers)
    if ix.clamp is not None:
        found = min(max(found, 0), ix.clamp.values[sample] - 1)
    return int(found + evaluate(ix.after, numbers))


def corners(rows: int, cols: int, per_matrix: int) -> list[tuple[int, int]]:
    """Elements that tell masks apart: corners, around the diagonals, and a coarse grid of the first matrix."""
    height = min(rows, per_matrix)
    lines = sorted({r for r in (0, 1, 2, height // 3, height // 2, height - 2, height - 1) if 0 <= r < height})
    found: list[tuple[int, int]] = []
    for r in lines:
        offset = r + cols - height
        near = (0, 1, r - 1, r, r + 1, offset - 1, offset, offset + 1, cols // 2, cols - 2, cols - 1)
        found += [(r, c) for c in sorted({c for c in near if 0 <= c < cols})]
    return found
