"""Axes: safe evaluation of expressions and the concrete shapes of a workload.

An expression may hold numbers, axis names, ``+ - * / // % **``, parentheses and a sign: SOL-ExecBench's grammar,
evaluated from the syntax tree, never with ``eval``. The size limits are ours: a power must not eat the machine.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from engine.errors import BadInput
from engine.problems.dtypes import tensor_bytes
from engine.problems.model import ConstAxis, Definition, ExprAxis, TensorSpec, VarAxis, Workload

MAX_EXPRESSION = 400  # characters
MAX_VALUE = 2**62

Number = int | float


class ExpressionError(ValueError):
    """An expression that cannot be evaluated; the message says why in a few words."""


_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _divide(a: Number, b: Number) -> Number:
    # Whole quotients stay integers, so that large axes do not lose digits in a float.
    if isinstance(a, int) and isinstance(b, int) and b and a % b == 0:
        return a // b
    return a / b


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > 64:
        raise ExpressionError(f"the exponent {exponent} is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise ExpressionError("a root of a negative number")
    return result  # type: ignore[no-any-return]


def _binary(node: ast.BinOp, values: Mapping[str, int]) -> Number:
    left, right = _value(node.left, values), _value(node.right, values)
    try:
        if isinstance(node.op, ast.Div):
            result = _divide(left, right)
        elif isinstance(node.op, ast.Pow):
            result = _power(left, right)
        else:
            result = _OPERATORS[type(node.op)](left, right)
    except KeyError:
        raise ExpressionError(f"operator {type(node.op).__name__} is not allowed") from None
    except ZeroDivisionError:
        raise ExpressionError("division by zero") from None
    except OverflowError:
        raise ExpressionError("a value is too large") from None
    if not math.isfinite(result) or abs(result) > MAX_VALUE:
        raise ExpressionError("a value is too large")
    return result


def _value(node: ast.expr, values: Mapping[str, int]) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        number: Number = node.value  # type: ignore[assignment]
        if not math.isfinite(number) or abs(number) > MAX_VALUE:
            raise ExpressionError("a number is too large")
        return number
    if isinstance(node, ast.Name):
        if node.id not in values:
            raise ExpressionError(f"{node.id!r} is not an axis defined before it")
        return values[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        operand = _value(node.operand, values)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        return _binary(node, values)
    raise ExpressionError(f"{type(node).__name__} is not allowed: use numbers, axis names and + - * / // % **")


def _parse(expression: str) -> ast.expr:
    if len(expression) > MAX_EXPRESSION:
        raise ExpressionError(f"longer than {MAX_EXPRESSION} characters")
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError("not an arithmetic expression") from None


def names_in(expression: str) -> set[str]:
    """Axis names that an expression refers to. Raises :class:`ExpressionError`."""
    return {node.id for node in ast.walk(_parse(expression)) if isinstance(node, ast.Name)}


def evaluate(expression: str, values: Mapping[str, int]) -> int:
    """The whole, non-negative value of an expression over ``values``. Raises :class:`ExpressionError`."""
    try:
        result = _value(_parse(expression), values)
    except RecursionError:
        raise ExpressionError("nested too deeply") from None
    if isinstance(result, float):
        if not result.is_integer():
            raise ExpressionError(f"the value {result:g} is not whole")
        result = int(result)
    if result < 0:
        raise ExpressionError(f"the value {result} is negative")
    return result


def resolve_axes(definition: Definition, workload: Workload) -> dict[str, int]:
    """Every axis of a workload as a number, in definition order.

    A workload's own value wins over a const axis, as in SOL-ExecBench. Raises :class:`BadInput` for a var axis
    without a value and for an expression that has none.
    """
    resolved: dict[str, int] = {}
    for name, axis in definition.axes.items():
        if isinstance(axis, ExprAxis):
            try:
                resolved[name] = evaluate(axis.expression, resolved)
            except ExpressionError as error:
                raise BadInput(
                    f"axis {name!r}: expression {axis.expression!r}: {error}",
                    where=f"{definition.name}, workload {workload.uuid}",
                    fix="correct the expression in definition.json or the axes of the workload",
                ) from None
        elif name in workload.axes:
            resolved[name] = workload.axes[name]
        elif isinstance(axis, ConstAxis):
            resolved[name] = axis.value
        elif isinstance(axis, VarAxis):
            raise BadInput(
                f"axes: no value for the var axis {name!r}",
                where=f"{definition.name}, workload {workload.uuid}",
                fix=f'add "{name}" to the workload\'s axes',
            )
    return resolved


def shape_of(spec: TensorSpec, axes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The declared shape in numbers; ``()`` is a 0-dim tensor, ``None`` a plain Python scalar."""
    if spec.shape is None:
        return None
    return tuple(axes[token] if token in axes else int(token) for token in spec.shape)


def spec_bytes(spec: TensorSpec, axes: Mapping[str, int]) -> int:
    shape = shape_of(spec, axes)
    return 0 if shape is None else tensor_bytes(spec.dtype, shape)


def input_bytes(definition: Definition, axes: Mapping[str, int]) -> int:
    """Bytes of one set of inputs."""
    return sum(spec_bytes(spec, axes) for spec in definition.inputs.values())


def output_bytes(definition: Definition, axes: Mapping[str, int]) -> int:
    """Bytes of one set of outputs."""
    return sum(spec_bytes(spec, axes) for spec in definition.outputs.values())
