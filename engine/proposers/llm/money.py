"""What a call may cost at most, what it did cost, and which cap applies. Pure arithmetic; amounts in US dollars.

A reservation is an upper bound: the prompt is counted in UTF-8 bytes, since no tokenizer in use makes more than
one token of a byte, and the reply at its ``max_tokens``, which is always sent. So what is spent plus what is in
flight never passes a cap that the reservations respect, whatever a provider's tokenizer does.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.records import Usage

MESSAGE_TOKENS = 16
"""Allowance per message for a chat template's own tokens."""
REQUEST_TOKENS = 32
UNPRICED_TOKENS_PER_USD = 100_000
"""Where a price is unknown, a cap in dollars stands for this many tokens each (10 USD a million)."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars per token. ``cached`` is for prompt tokens that the provider read from its cache."""

    prompt: float
    reply: float
    cached: float | None = None


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """The campaign's limits at this moment; ``None`` is no limit."""

    usd: float | None = None
    tokens: int | None = None


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one call can use. ``usd`` is ``None`` when the price is unknown."""

    usd: float | None
    tokens: int


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the provider counted them."""

    prompt: int
    reply: int
    cached: int = 0


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str


def prompt_bound(messages: Sequence[Message]) -> int:
    """Tokens of ``messages`` at most."""
    size = sum(len(message.content.encode("utf-8", "replace")) + MESSAGE_TOKENS for message in messages)
    return size + REQUEST_TOKENS


def reservation(price: Price | None, messages: Sequence[Message], reply_tokens: int) -> Reservation:
    """The upper bound of one call with ``max_tokens`` = ``reply_tokens``."""
    prompt = prompt_bound(messages)
    usd = None if price is None else prompt * price.prompt + reply_tokens * price.reply
    return Reservation(usd=usd, tokens=prompt + reply_tokens)


def cost(price: Price | None, counted: Counted) -> float | None:
    """What a call cost by the provider's own count; ``None`` when the price is unknown."""
    if price is None:
        return None
    cached = min(counted.cached, counted.prompt)
    cheap = price.prompt if price.cached is None else price.cached
    return (counted.prompt - cached) * price.prompt + cached * cheap + counted.reply * price.reply


def caps_for(price: Price | None, max_usd: float | None, max_tokens: int | None) -> Caps:
    """The caps that a call at ``price`` must respect. A token cap alone holds for priced calls too."""
    if price is not None or max_usd is None:
        return Caps(usd=max_usd, tokens=max_tokens)
    stand_in = int(max_usd * UNPRICED_TOKENS_PER_USD)
    return Caps(usd=None, tokens=stand_in if max_tokens is None else min(stand_in, max_tokens))


def add(usage: Usage, price: Price | None, tokens_in: int, tokens_out: int, usd: float | None) -> Usage:
    """``usage`` with one more call; an unknown price keeps the sum unknown only if nothing is known at all."""
    known = usd if price is not None else None
    total = usage.cost_usd if known is None else (usage.cost_usd or 0.0) + known
    return msgspec.structs.replace(
        usage, tokens_in=usage.tokens_in + tokens_in, tokens_out=usage.tokens_out + tokens_out, cost_usd=total
    )
