"""Element-wise operators that row programs understand, and how Triton and PyTorch spell them.

In a Triton spelling ``{0}`` is a float32 (or integer, or boolean) expression; half-precision values are held in
float32 and rounded where the reference rounds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pointwise:
    """``triton``: expression template. ``torch``: function under ``torch`` with an ``out=`` form, or empty."""

    triton: str
    torch: str
    arity: int = 1
    floats: bool = True  # computes in floating point even where the inputs are whole numbers


POINTWISE: dict[str, Pointwise] = {
    "add": Pointwise("({0} + {1})", "add", 2, False),
    "sub": Pointwise("({0} - {1})", "sub", 2, False),
    "rsub": Pointwise("({1} - {0})", "", 2, False),
    "mul": Pointwise("({0} * {1})", "mul", 2, False),
    "div": Pointwise("({0} / {1})", "div", 2),
    "neg": Pointwise("(-{0})", "neg", 1, False),
    "abs": Pointwise("tl.abs({0})", "abs", 1, False),
    "square": Pointwise("({0} * {0})", "square", 1, False),
    "rsqrt": Pointwise("tl.rsqrt({0})", "rsqrt"),
    "sqrt": Pointwise("tl.sqrt({0})", "sqrt"),
    "reciprocal": Pointwise("(1.0 / {0})", "reciprocal"),
    "exp": Pointwise("tl.exp({0})", "exp"),
    "exp2": Pointwise("tl.exp2({0})", "exp2"),
    "log": Pointwise("tl.log({0})", "log"),
    "log2": Pointwise("tl.log2({0})", "log2"),
    "sin": Pointwise("tl.sin({0})", "sin"),
    "cos": Pointwise("tl.cos({0})", "cos"),
    "erf": Pointwise("tl.erf({0})", "erf"),
    "tanh": Pointwise("(2.0 * tl.sigmoid(2.0 * {0}) - 1.0)", "tanh"),
    "sigmoid": Pointwise("tl.sigmoid({0})", "sigmoid"),
    "silu": Pointwise("({0} * tl.sigmoid({0}))", "silu"),
    "gelu": Pointwise("(0.5 * {0} * (1.0 + tl.erf({0} * 0.7071067811865476)))", "gelu"),
    "gelu_tanh": Pointwise(
        "({0} * tl.sigmoid(1.5957691216057308 * ({0} + 0.044715 * {0} * {0} * {0})))", "gelu_tanh"
    ),
    "relu": Pointwise("tl.maximum({0}, 0)", "relu", 1, False),
    "softplus": Pointwise("tl.where({0} > 20.0, {0}, tl.log(1.0 + tl.exp({0})))", ""),
    "maximum": Pointwise("tl.maximum({0}, {1})", "maximum", 2, False),
    "minimum": Pointwise("tl.minimum({0}, {1})", "minimum", 2, False),
    "where": Pointwise("tl.where({0}, {1}, {2})", "where", 3, False),
    "eq": Pointwise("({0} == {1})", "eq", 2, False),
    "ne": Pointwise("({0} != {1})", "ne", 2, False),
    "lt": Pointwise("({0} < {1})", "lt", 2, False),
    "le": Pointwise("({0} <= {1})", "le", 2, False),
    "gt": Pointwise("({0} > {1})", "gt", 2, False),
    "ge": Pointwise("({0} >= {1})", "ge", 2, False),
    "logical_not": Pointwise("({0} == 0)", "logical_not", 1, False),
    "bitwise_not": Pointwise("({0} == 0)", "bitwise_not", 1, False),
    "bitwise_and": Pointwise("({0} & {1})", "bitwise_and", 2, False),
    "bitwise_or": Pointwise("({0} | {1})", "bitwise_or", 2, False),
    "bitwise_xor": Pointwise("({0} ^ {1})", "bitwise_xor", 2, False),
    "__rshift__": Pointwise("({0} >> {1})", "bitwise_right_shift", 2, False),
    "__lshift__": Pointwise("({0} << {1})", "bitwise_left_shift", 2, False),
    "bitwise_right_shift": Pointwise("({0} >> {1})", "bitwise_right_shift", 2, False),
    "bitwise_left_shift": Pointwise("({0} << {1})", "bitwise_left_shift", 2, False),
    "logical_and": Pointwise("({0} & {1})", "logical_and", 2, False),
    "logical_or": Pointwise("({0} | {1})", "logical_or", 2, False),
    "pow2": Pointwise("({0} * {0})", "square", 1, False),
    "pow3": Pointwise("({0} * {0} * {0})", "", 1, False),
    "pow": Pointwise("tl.exp2({1} * tl.log2({0}))", "pow", 2),
    "cast": Pointwise("{0}", "", 1, False),
}

REDUCTIONS = {"sum": "0.0", "mean": "0.0", "amax": "float('-inf')", "amin": "float('inf')"}
