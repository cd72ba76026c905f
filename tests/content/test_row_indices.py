"""Indices that mean whole rows are spelled in rows: a compiler sees that their columns are contiguous."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.recipes.emit_triton import Speller, Style
from engine.recipes.index import Domain, Ix
from engine.recipes.sizes import Size, const

COLS = 128


def speller(cols: Size) -> Speller:
    program: Any = SimpleNamespace(domain=Domain(const(96, 1), cols), scalars={})
    return Speller(cast(Any, program), Style())


def index(div: int = 1, mod: int | None = None, cols: Size | None = None) -> str:
    ix = Ix("lin", const(div, 1), None if mod is None else const(mod, 1))
    return speller(cols or const(COLS, 1)).index(ix)


@pytest.mark.parametrize(
    ("div", "mod", "text"),
    [
        (1, None, "(row * COLS + col)"),
        (1, 48 * COLS, "(row % 48 * COLS + col)"),
        (1, COLS, "col"),
        (COLS, None, "row"),
        (4 * COLS, None, "(row // 4)"),
        (4 * COLS, 6, "((row // 4) % 6)"),
        (COLS, 24, "(row % 24)"),
        (64, None, "((row * COLS + col) // 64)"),
        (1, 192, "((row * COLS + col) % 192)"),
        (2, 2 * COLS, "(((row * COLS + col) // 2) % 256)"),
    ],
)
def test_an_index_is_the_same_number_in_plainer_words(div: int, mod: int | None, text: str) -> None:
    assert index(div, mod) == text
    for row, col in itertools.product((0, 1, 5, 47, 48, 95), (0, 1, 63, 127)):
        wanted = (row * COLS + col) // div
        wanted = wanted if mod is None else wanted % mod
        assert eval(text, {"row": row, "col": col, "COLS": COLS}) == wanted


def test_columns_that_follow_an_axis_are_left_as_they_are() -> None:
    cols = Size("width", (64, 128))
    assert index(64, None, cols) == "((row * COLS + col) // 64)"
