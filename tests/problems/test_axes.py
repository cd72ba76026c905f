"""Expressions: the format's grammar, exact arithmetic, no way to run code or to eat the machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.problems.axes import MAX_VALUE, ExpressionError, evaluate, names_in

AXES = {"m": 7, "n": 256, "k": 0, "big": 2**53 + 1}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("m", 7),
        ("n // 2 + 1", 129),
        ("(m + 1) * n", 2048),
        ("n / 2", 128),
        ("n % m", 4),
        ("2 ** m", 128),
        ("-m + n", 249),
        ("+m", 7),
        ("4 ** 0.5", 2),
        ("1.5 * 4", 6),
        (" big * 2 / 2 ", 2**53 + 1),
        ("k * n", 0),
    ],
)
def test_values(expression: str, value: int) -> None:
    assert evaluate(expression, AXES) == value


@pytest.mark.parametrize(
    "expression",
    ["", "m +", "m; n", "x", "m.real", "m()", "[m]", "m if n else k", "m < n", "'a'", "True", "m @ n", "m | n",
     "~m", "not m", "lambda: 1", "n / m", "m / k", "m - n", "(0 - m) ** 0.5", "9 ** 9 ** 9", "2 ** 63",
     "1e300 * 1e300", "1e999", "m := 3", "__import__('os')", "(" * 300 + "m" + ")" * 300, "-" * 399 + "m",
     "1j", "n" * 500],
)  # fmt: skip
def test_refused(expression: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(expression, AXES)


@given(st.text(max_size=60))
def test_any_text_is_a_value_or_a_clear_refusal(text: str) -> None:
    try:
        assert 0 <= evaluate(text, AXES) <= MAX_VALUE
    except ExpressionError as error:
        assert str(error)


_LEAF = st.sampled_from([*AXES]) | st.integers(0, 10**6).map(str)
_TREE = st.recursive(
    _LEAF,
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
        lambda t: f"({t[0]} {t[1]} {t[2]})"
    ),
)


@given(_TREE)
def test_integer_arithmetic_is_pythons(expression: str) -> None:
    try:
        expected = eval(expression, {}, dict(AXES))
    except ZeroDivisionError:
        expected = None
    if expected is None or expected < 0 or len(expression) > 400:
        with pytest.raises(ExpressionError):
            evaluate(expression, AXES)
        return
    try:
        assert evaluate(expression, AXES) == expected
    except ExpressionError as error:
        assert "too large" in str(error)


@given(_TREE)
def test_names(expression: str) -> None:
    if len(expression) <= 400:
        assert names_in(expression) == {name for name in AXES if name in expression}
