"""What a person may change in a campaign's record: one definition of each verb, for an engine and for no engine.

A running engine carries these out in its writer (:meth:`StoreWriter.edit`), :mod:`engine.store.offline` under the
campaign's lock; the events and the words are the same.
"""

from __future__ import annotations

import msgspec

from engine.errors import BadInput
from engine.store import events as ev
from engine.store import memories, verdicts
from engine.store.tx import Tx
from engine.text import clean, one_line

ARGUMENT_LIMIT = 300
WHY_LIMIT = 200


class Edited(msgspec.Struct, frozen=True, kw_only=True):
    """``text`` is the line for a person."""

    text: str
    vetoed: ev.Vetoed | None = None


def carry_out(tx: Tx, verb: str, number: int | None, text: str = "") -> Edited:
    """``veto`` of candidate ``number``, or ``memory.pin|unpin|expire|note`` of that entry.

    Raises:
        BadInput: nothing has that number, or it cannot be changed so.
    """
    if verb == "veto":
        return _veto(tx, number)
    if number is None:
        raise BadInput("no memory entry named", fix="`kernelarc memory list` shows them")
    entry = f"memory entry {number}"
    match verb:
        case "memory.pin":
            memories.pin(tx, number, True)
            return Edited(text=f"{entry} is pinned")
        case "memory.unpin":
            memories.pin(tx, number, False)
            return Edited(text=f"{entry} is no longer pinned")
        case "memory.expire":
            if not memories.expire(tx, number, one_line(text, WHY_LIMIT) or "user", by="user"):
                raise BadInput(f"{entry} has expired already")
            return Edited(text=f"{entry} is expired, out of recall")
        case "memory.note":
            words = clean(text, memories.NOTE_LIMIT).strip()
            memories.note(tx, number, words)
            return Edited(text=f"{entry} has {'a' if words else 'no'} note")
    raise BadInput(f"{verb} needs a running engine", fix="`kernelarc resume` starts one")


def _veto(tx: Tx, number: int | None) -> Edited:
    if number is None:
        raise BadInput("no candidate named", fix="for instance: veto 57")
    vetoed = verdicts.veto(tx, number)
    back = f"#{vetoed.best}" if vetoed.best else "the seed"
    return Edited(text=f"#{number} is vetoed; the best of agent {vetoed.agent} is {back} again", vetoed=vetoed)


def arguments(**given: object) -> dict[str, str]:
    """What was asked, for every viewer: texts cleaned, what is absent or empty left out."""
    return {
        name: one_line(str(value), ARGUMENT_LIMIT)
        for name, value in given.items()
        if value is not None and value != ""
    }
