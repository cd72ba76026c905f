"""Recognise activations that a reference writes out by hand, so that one native step replaces many."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.recipes.rows import Program, Statement, Var

Pattern = Any  # ("op", pattern, pattern …), a number, or a letter: the same thing everywhere

_CUBIC = ("add", "X", ("mul", 0.044715, ("pow3", "X")))
_TANH = ("tanh", ("mul", math.sqrt(2.0 / math.pi), _CUBIC))
IDIOMS: list[tuple[str, Pattern]] = [
    ("silu", ("mul", "X", ("sigmoid", "X"))),
    ("silu", ("div", "X", ("add", 1.0, ("exp", ("neg", "X"))))),
    ("gelu_tanh", ("mul", ("mul", 0.5, "X"), ("add", 1.0, _TANH))),
    ("gelu_tanh", ("mul", 0.5, ("mul", "X", ("add", 1.0, _TANH)))),
    ("gelu", ("mul", ("mul", 0.5, "X"), ("add", 1.0, ("erf", ("mul", "X", math.sqrt(0.5)))))),
    ("gelu", ("mul", ("mul", 0.5, "X"), ("add", 1.0, ("erf", ("div", "X", math.sqrt(2.0)))))),
    ("gelu", ("mul", 0.5, ("mul", "X", ("add", 1.0, ("erf", ("div", "X", math.sqrt(2.0))))))),
]
_CENTRED = ("sub", "X", ("mean", "X"))
_LAYER_NORM = ("mul", _CENTRED, ("rsqrt", ("add", ("mean", ("pow2", _CENTRED)), "E")))
_SHIFTED = ("exp", ("sub", "X", ("amax", "X")))
NATIVE: list[tuple[str, Pattern]] = [
    ("layer_norm", _LAYER_NORM),
    ("layer_norm", ("div", _CENTRED, ("sqrt", ("add", ("mean", ("pow2", _CENTRED)), "E")))),
    ("softmax", ("div", _SHIFTED, ("sum", _SHIFTED))),
    ("addcmul", ("add", "A", ("mul", "B", "C"))),
]
COMMUTATIVE = {"add", "mul"}


def simplify(program: Program, native: bool = False) -> Program:
    """The same program with idioms folded and dead statements removed. Only in float32: rounding stays.

    ``native`` also folds what PyTorch, but not a single Triton expression, has as one step.
    """
    made = {s.var: s for s in program.statements if s.kind in ("point", "reduce")}
    uses = Counter(a for s in program.statements for a in s.args if isinstance(a, Var))
    statements: list[Statement] = []
    for statement in program.statements:
        folded = _fold(statement, made, IDIOMS)
        if native:
            folded = _fold(folded, made, NATIVE, uses)
        statements.append(folded)
        if folded.kind == "point":
            made[folded.var] = folded
    result = replace(program)
    result.statements = _live(statements)
    return result


def _fold(
    statement: Statement,
    made: dict[Var, Statement],
    idioms: Sequence[tuple[str, Pattern]],
    uses: Counter[Var] | None = None,
) -> Statement:
    if statement.kind != "point" or statement.var.dtype != "float32":
        return statement
    for op, pattern in idioms:
        bound: dict[str, Any] = {}
        if not _matches(pattern, statement, made, bound):
            continue
        if op == "addcmul":
            if _worth_fusing(statement, made, bound, uses):
                return replace(statement, op=op, args=(bound["A"], bound["B"], bound["C"]))
        elif isinstance(bound.get("X"), Var) and bound["X"].col:
            return replace(statement, op=op, args=(bound["X"], *([bound["E"]] if "E" in bound else [])))
    return statement


def _worth_fusing(
    statement: Statement, made: dict[Var, Statement], bound: dict[str, Any], uses: Counter[Var] | None
) -> bool:
    """A product used once, of whole-row tensors: one pass less over the block."""
    operands = [bound["A"], bound["B"], bound["C"]]
    product = next((a for a in statement.args if isinstance(a, Var) and a in made and made[a].op == "mul"), None)
    return (
        product is not None
        and uses is not None
        and uses[product] == 1
        and product.row
        and product.col
        and all(isinstance(o, Var) and o.dtype == "float32" for o in operands)
    )


def _matches(pattern: Pattern, item: Any, made: dict[Var, Statement], bound: dict[str, Any]) -> bool:
    """Whether ``item`` (a statement, variable or literal) has the form of ``pattern``; binds its letters."""
    if isinstance(pattern, str):
        if isinstance(item, Statement) or (pattern == "X" and not isinstance(item, Var)):
            return False
        if pattern == "E" and not isinstance(item, str):
            return False
        return bool(bound.setdefault(pattern, item) == item)
    if isinstance(pattern, float):
        try:
            return isinstance(item, str) and math.isclose(float(item), pattern, rel_tol=1e-6)
        except ValueError:
            return False
    statement = made.get(item) if isinstance(item, Var) else item
    if not isinstance(statement, Statement) or statement.op != pattern[0] or statement.var.dtype != "float32":
        return False
    orders = [tuple(statement.args)]
    if statement.op in COMMUTATIVE and len(statement.args) == 2:
        orders.append(tuple(reversed(statement.args)))
    for order in orders:
        trial = dict(bound)
        if len(order) == len(pattern) - 1 and all(
            _matches(p, a, made, trial) for p, a in zip(pattern[1:], order, strict=True)
        ):
            bound.update(trial)
            return True
    return False


def _live(statements: Sequence[Statement]) -> list[Statement]:
    wanted: set[Var] = set()
    names: set[str] = set()
    kept: list[Statement] = []
    for statement in reversed(statements):
        if statement.kind in ("store", "partial") or statement.var in wanted or statement.var.name in names:
            kept.append(statement)
            wanted |= {a for a in statement.args if isinstance(a, Var)}
            names |= {t.ix.base.removeprefix("at:") for t in statement.terms if t.ix.base.startswith("at:")}
    return kept[::-1]
