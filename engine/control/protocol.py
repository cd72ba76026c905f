"""Commands over the engine's Unix socket: one JSON object a line, one answer a line.

The socket is 0600 in a 0700 folder of the user; there is no other authentication. The engine records each
command and its answer as a :class:`engine.store.events.CommandAnswered` event.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

LARGEST = 2**53
"""More would not survive SQLite's integers, or JSON's."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """``id`` is the caller's; a repeated id is answered from the record, never carried out twice."""

    id: str
    verb: str
    agent: str | None = None  # None: the whole campaign
    text: str = ""  # hint text, note text, strategy or model name, reason
    number: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)] | None = None  # candidate or memory id
    candidates: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)] | None = None
    minutes: float | None = None
    max_cost_usd: float | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    ok: bool
    text: str  # one line for a person
    seq: int = 0  # of the CommandAnswered event


VERBS = {
    "pause": "pause the campaign, or one agent",
    "resume": "continue the campaign, or one agent; broken ones start again",
    "draft": "the agent's next proposal is a draft",
    "hint": "text for the agent's next prompt",
    "stop": "stop the campaign, or one agent",
    "veto": "take a KEEP back: the best returns to the previous one",
    "budget": "change the candidate, time or cost budget",
    "strategy": "switch an agent's strategy",
    "model": "switch an agent's model",
    "profile": "profile a candidate's kernels; text names a workload",
    "memory.pin": "keep a memory entry whatever the retention",
    "memory.unpin": "let retention decide again",
    "memory.expire": "take a memory entry out of recall",
    "memory.note": "write a person's note on a memory entry",
    "ping": "is the engine there",
}
