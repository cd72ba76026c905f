"""Numbers that follow the problem's axes: a value per traced workload, a Python expression for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce


class NotGeneral(ValueError):
    """A number of the trace is no simple function of axes and scalar inputs. The message says which."""


@dataclass(frozen=True)
class Size:
    """A whole number per sample. ``text`` computes it from the axis names."""

    text: str
    values: tuple[int, ...]

    @property
    def constant(self) -> int | None:
        return self.values[0] if len(set(self.values)) == 1 else None

    def same(self, other: Size) -> bool:
        return self.values == other.values

    def __mul__(self, other: Size) -> Size:
        values = tuple(a * b for a, b in zip(self.values, other.values, strict=True))
        if self.constant == 1:
            return other
        if other.constant == 1:
            return self
        if self.constant is not None and other.constant is not None:
            return Size(str(self.constant * other.constant), values)
        return Size(f"{_factor(self.text)} * {_factor(other.text)}", values)

    def __str__(self) -> str:
        return self.text


def const(value: int, samples: int) -> Size:
    return Size(str(value), (value,) * samples)


def product(sizes: Sequence[Size], samples: int) -> Size:
    return reduce(lambda a, b: a * b, sizes, const(1, samples))


def as_size(values: Sequence[int], axes: Sequence[Mapping[str, int]]) -> Size:
    """The expression for ``values`` (one per sample) in axes that vary. Raises :class:`NotGeneral`."""
    wanted = tuple(values)
    if len(set(wanted)) == 1:
        return Size(str(wanted[0]), wanted)
    columns = {
        name: tuple(sample[name] for sample in axes) for name in axes[0] if len({s[name] for s in axes}) > 1
    }
    for name, column in columns.items():
        if column == wanted:
            return Size(name, wanted)
    for name, column in columns.items():
        text = _scaled(name, column, wanted)
        if text:
            return Size(text, wanted)
    names = list(columns)
    for i, first in enumerate(names):
        for second in names[i:]:
            both = tuple(a * b for a, b in zip(columns[first], columns[second], strict=True))
            text = f"{first} * {second}" if both == wanted else _scaled(f"{first} * {second}", both, wanted)
            if text:
                return Size(text, wanted)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            for third in names[i + 2 :]:
                cube = tuple(
                    a * b * c for a, b, c in zip(columns[first], columns[second], columns[third], strict=True)
                )
                text = f"{first} * {second} * {third}"
                found = text if cube == wanted else _scaled(text, cube, wanted)
                if found:
                    return Size(found, wanted)
    for name, column in columns.items():
        offsets = {w - c for w, c in zip(wanted, column, strict=True)}
        if len(offsets) == 1:
            offset = offsets.pop()
            return Size(f"{name} {'+' if offset > 0 else '-'} {abs(offset)}", wanted)
    raise NotGeneral(f"the sizes {list(wanted[:4])} follow no axis")


def as_number(
    values: Sequence[float], scalars: Sequence[Mapping[str, float]], axes: Sequence[Mapping[str, int]]
) -> str:
    """A Python expression for a float literal in scalar inputs and axes. Raises :class:`NotGeneral`."""
    first = values[0]
    if all(_close(v, first) for v in values):
        return repr(first)
    names = {name: [float(s[name]) for s in scalars] for name in scalars[0]}
    names |= {name: [float(s[name]) for s in axes] for name in axes[0] if name not in names}
    for name, column in names.items():
        if len(set(column)) == 1:
            continue
        for form, function in _FORMS.items():
            try:
                mapped = [function(c) for c in column]
            except (ValueError, ZeroDivisionError, OverflowError):
                continue
            if all(_close(m, v) for m, v in zip(mapped, values, strict=True)):
                return form.format(name)
            if mapped[0] and all(
                _close(v / m, values[0] / mapped[0]) if m else False for v, m in zip(values, mapped, strict=True)
            ):
                return f"({values[0] / mapped[0]!r} * {form.format(name)})"
    raise NotGeneral(f"the numbers {list(values[:4])} follow no scalar input and no axis")


_FORMS: dict[str, Callable[[float], float]] = {
    "{0}": lambda x: x,
    "(1.0 / {0})": lambda x: 1.0 / x,
    "(-{0})": lambda x: -x,
    "(1.0 - {0})": lambda x: 1.0 - x,
    "(1.0 + {0})": lambda x: 1.0 + x,
    "(1.0 / (1.0 - {0}))": lambda x: 1.0 / (1.0 - x),
    "({0} ** -0.5)": lambda x: x**-0.5,
    "({0} ** 0.5)": lambda x: x**0.5,
    "({0} ** 2)": lambda x: x * x,
}


def _close(a: float, b: float) -> bool:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    return math.isclose(a, b, rel_tol=1e-12)


def _scaled(name: str, column: Sequence[int], wanted: Sequence[int]) -> str | None:
    """``wanted`` = ``name`` times or divided by one whole number."""
    if not all(column) or not all(wanted):
        return None
    factor, rest = divmod(wanted[0], column[0])
    if not rest and all(c * factor == w for c, w in zip(column, wanted, strict=True)):
        return f"{name} * {factor}"
    divisor, rest = divmod(column[0], wanted[0])
    if not rest and divisor > 1 and all(c == w * divisor for c, w in zip(column, wanted, strict=True)):
        return f"{_factor(name)} // {divisor}"
    return None


def _factor(text: str) -> str:
    simple = text.isidentifier() or text.isdigit() or all(c.isalnum() or c in "_ *" for c in text)
    return text if simple else f"({text})"
