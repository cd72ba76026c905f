"""Reservations are upper bounds, so a cap that they respect is never passed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.proposers.llm.access import _price
from engine.proposers.llm.money import (
    Caps,
    Counted,
    Message,
    Price,
    add,
    caps_for,
    cost,
    prompt_bound,
    reservation,
)
from engine.records import Usage

PRICE = Price(prompt=2e-6, reply=1e-5, cached=5e-7)


@given(st.text(max_size=300), st.integers(0, 5000), st.data())
def test_no_count_within_the_limits_costs_more_than_the_reservation(
    text: str, limit: int, data: st.DataObject
) -> None:
    messages = [Message("system", "s"), Message("user", text)]
    held = reservation(PRICE, messages, limit)
    prompt = data.draw(st.integers(0, len(text.encode("utf-8", "replace")) + 1))
    counted = Counted(prompt=prompt, reply=data.draw(st.integers(0, limit)), cached=data.draw(st.integers(0, 400)))
    spent = cost(PRICE, counted)
    assert spent is not None and held.usd is not None and spent <= held.usd + 1e-12
    assert counted.prompt + counted.reply <= held.tokens


def test_the_prompt_is_bounded_by_its_bytes() -> None:
    assert prompt_bound([Message("user", "π" * 100)]) >= 200


def test_tokens_read_from_a_cache_are_cheaper() -> None:
    assert cost(PRICE, Counted(prompt=1000, reply=0, cached=400)) == pytest.approx(600 * 2e-6 + 400 * 5e-7)


def test_an_unknown_price_stays_unknown() -> None:
    assert reservation(None, [Message("user", "x")], 100).usd is None
    assert cost(None, Counted(prompt=1, reply=1)) is None
    assert add(Usage(model="m"), None, 10, 5, None) == Usage(model="m", tokens_in=10, tokens_out=5)


@pytest.mark.parametrize(
    ("price", "usd", "tokens", "caps"),
    [
        (PRICE, 20.0, None, Caps(usd=20.0)),
        (PRICE, 20.0, 1000, Caps(usd=20.0, tokens=1000)),
        (PRICE, None, None, Caps()),
        (None, None, None, Caps()),
        (None, None, 1000, Caps(tokens=1000)),
        (None, 2.0, None, Caps(tokens=200_000)),
        (None, 2.0, 1000, Caps(tokens=1000)),
    ],
)
def test_which_cap_applies(price: Price | None, usd: float | None, tokens: int | None, caps: Caps) -> None:
    assert caps_for(price, usd, tokens) == caps


def test_dear_thoughts_are_within_what_is_put_aside() -> None:
    """Some providers take more for a token of thought than for one of the answer, and count both as the reply."""
    listed = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6, "output_cost_per_reasoning_token": 8e-6}
    assert _price(listed) == Price(prompt=1e-6, reply=8e-6)
    assert _price({**listed, "output_cost_per_reasoning_token": 1e-6}) == Price(prompt=1e-6, reply=2e-6)
