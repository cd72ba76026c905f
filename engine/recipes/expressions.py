"""Expressions over axes and scalar inputs, evaluated from the syntax tree: never with ``eval``.

What is written in them follows a trace, and a trace is what a foreign process says. An expression may hold
numbers, ``float('inf')`` and the like, names that are given a value, ``+ - * / // % **`` and parentheses.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from keyword import iskeyword

from engine.recipes.index import Unsupported

MAX_TEXT = 10_000  # characters
MAX_WHOLE = 2**63  # beyond it no tensor counts, and Python's whole numbers would grow without end
MAX_POWER = 64

Number = int | float

_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_SPECIAL = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


def usable(name: str) -> bool:
    """Whether an expression can name an axis or a scalar input by ``name``."""
    return name.isidentifier() and not iskeyword(name)


def evaluate(text: str, numbers: Mapping[str, Number]) -> Number:
    """The value of an expression. Raises :class:`Unsupported` for anything else, and where it has no value."""
    try:
        return _value(_parsed(text), numbers)
    except (ArithmeticError, RecursionError, ValueError) as error:
        raise error if isinstance(error, Unsupported) else Unsupported(f"{_shown(text)} has no value") from None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_TEXT:
        raise Unsupported("an expression that is too long")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unsupported(f"{_shown(text)} is no arithmetic expression") from None


def _value(node: ast.expr, numbers: Mapping[str, Number]) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return bounded(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name) and node.id in numbers:
        return bounded(numbers[node.id])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        operand = _value(node.operand, numbers)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, numbers), _value(node.right, numbers)
        if isinstance(node.op, ast.Pow) and abs(right) > MAX_POWER:
            raise Unsupported(f"the power {right}")
        return bounded(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.Call):
        return _special(node)
    raise Unsupported(f"{_shown(ast.unparse(node))} is neither a number nor an axis or scalar input")


def _special(node: ast.Call) -> float:
    """Infinities have no literal in Python: they are written as a call, and only those calls are known."""
    known = isinstance(node.func, ast.Name) and node.func.id == "float" and not node.keywords
    if known and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
        found = _SPECIAL.get(node.args[0].value) if isinstance(node.args[0].value, str) else None
        if found is not None:
            return found
    raise Unsupported("a call in an expression")


def bounded(result: Number) -> Number:
    """``result``, if a tensor could hold it. Raises :class:`Unsupported`."""
    if not isinstance(result, int | float) or (isinstance(result, int) and abs(result) > MAX_WHOLE):
        raise Unsupported("a number that no tensor holds")
    return result


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
