"""How much of a model's context window a prompt and its reply may take. Pure arithmetic in tokens."""

from __future__ import annotations

import re

import msgspec

TEMPLATE = 256
"""Kept free for the chat template and for what the estimate of a prompt's tokens leaves out."""
SMALLEST = 1024
"""A window below this holds no useful prompt; nothing smaller is believed or tried."""
_SAID = re.compile(
    r"(?:context (?:length|window|size)(?: is| of)?|n_ctx\W{1,4}|maximum number of tokens allowed|tokens >)"
    r"[^\d]{0,12}(\d{2,8})",
    re.IGNORECASE,
)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """``prompt`` is what a prompt is cut to, ``reply`` is sent as ``max_tokens``; ``context`` holds both."""

    prompt: int
    reply: int
    context: int | None = None

    @property
    def used(self) -> int:
        """What one call takes at most."""
        return self.prompt + self.reply


def window(*, prompt: int, reply: int, context: int | None, longest_reply: int | None = None) -> Window:
    """The settings ``prompt`` and ``reply`` within a model's limits; a reply gets at most half of the context.

    ``context`` ``None``: nobody knows it, and the settings are taken at their word.
    """
    if longest_reply is not None:
        reply = min(reply, longest_reply)
    if context is None:
        return Window(prompt=prompt, reply=reply)
    reply = min(reply, context // 2)
    return Window(prompt=max(0, min(prompt, context - reply - TEMPLATE)), reply=reply, context=context)


def said_limit(text: str) -> int | None:
    """The context window that a server's refusal names, if it does."""
    found = _SAID.search(text)
    return int(found[1]) if found else None


def narrower(used: Window, said: int | None) -> int | None:
    """The context to try after a prompt within ``used`` was too long, or ``None`` when none is left to try.

    The server's own number; half of what was sent if it names none; less again if that had been kept to.
    """
    before = used.used if used.context is None else used.context
    if said is not None and said < before:
        context = said
    elif used.context is None:
        context = before // 2
    else:
        context = before * 3 // 4
    return context if context >= SMALLEST else None
