"""Prompts from the templates in ``engine/prompts``, within a token budget and a stated order of what is cut."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec

from engine.proposers.base import Context
from engine.proposers.llm.money import Message
from engine.proposers.llm.reply import Unusable
from engine.proposers.llm.view import Room, fence, values
from engine.records import Mode
from engine.resources import resource_dir
from engine.skills import SkillSet
from engine.text import clean

if TYPE_CHECKING:
    import jinja2

PROTOCOLS = ("memory-protocol", "benchmark-protocol")
BYTES_PER_TOKEN = 3.0
"""Cautious for prose and code: the budget is about room in the model's window, not about money."""
REPAIR_ECHO = 8000
"""Characters of an unusable reply that its author sees again."""
SHORTEST_ECHO = 300

CUTS: tuple[dict[str, Any], ...] = (
    {"sibling_sources": 1},
    {"sibling_sources": 0},
    {"wins": 8, "traps": 8},
    {"history": 5, "detail": 400},
    {"protocols": False},
    {"wins": 4, "traps": 4, "siblings": 1},
    {"skill": 3000},
    {"failed": False},
    {"history": 2, "detail": 250},
    {"workloads": 12},
    {"reference": 6000},
    {"skill": 0, "wins": 0, "traps": 0, "siblings": 0},
    {"history": 1, "detail": 160, "workloads": 6, "reference": 2500},
)
"""What gives way, in this order, until the prompt fits: siblings' sources, all but the best-ranked memory,
older verdicts, the protocols, more memory, the skill's later sections, the program that failed last, all
verdicts but two, workloads but the slowest, the middle of the reference, then the rest of skill, memory and
siblings, and for a small window more of verdicts, workloads and reference. Never cut: the solution to start
from, the last verdict, hints, mode, format."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered prompt. ``cuts`` says how many of :data:`CUTS` were needed."""

    kind: str  # first | refine | draft | repair
    messages: tuple[Message, ...]
    cuts: int = 0

    @property
    def text(self) -> str:
        """For the store: the messages under their roles."""
        return "\n\n".join(f"=== {message.role}\n{message.content}" for message in self.messages)


def tokens(messages: tuple[Message, ...]) -> int:
    """An estimate for the budget."""
    return int(sum(len(message.content.encode("utf-8", "replace")) for message in messages) / BYTES_PER_TOKEN)


def kind_of(context: Context) -> str:
    if context.mode is Mode.DRAFT:
        return "draft"
    return "refine" if context.history else "first"


def propose_prompt(context: Context, skills: SkillSet, budget: int, *, tuner: bool = False) -> Prompt:
    """The prompt for one proposal in at most ``budget`` tokens (estimated), or cut as far as it can be.

    ``tuner``: an agent of the campaign searches the constants that a solution declares tunable.
    """
    kind = kind_of(context)
    skill = skills.skills.get(context.strategy)
    protocols = [skills.skills[name] for name in PROTOCOLS if name in skills.skills]
    room = Room()
    for cut in range(len(CUTS) + 1):
        told = values(context, skill, protocols, room) | {"tuner": tuner}
        messages = (Message("system", _render("system", told)), Message("user", _render(kind, told)))
        if tokens(messages) <= budget or cut == len(CUTS):
            return Prompt(kind=kind, messages=messages, cuts=cut)
        room = msgspec.structs.replace(room, **CUTS[cut])
    raise AssertionError("unreachable")


def repair_prompt(
    before: Prompt,
    reply: str,
    unusable: Unusable,
    context: Context,
    skills: SkillSet,
    *,
    room: int | None = None,
) -> Prompt:
    """The same dialogue, with the reply that could not be used and why.

    Where it takes more than ``room`` tokens (estimated), little of the reply is shown and the form of an answer,
    which stands in the dialogue already, is not said again.
    """
    told = values(context, skills.skills.get(context.strategy), (), Room(history=0))
    told |= {"reason": unusable.reason, "detail": unusable.detail, "tuner": False}
    for brief, echo in ((False, REPAIR_ECHO), (True, SHORTEST_ECHO)):
        said = clean(reply, echo) or "(nothing)"
        turn = (Message("assistant", said), Message("user", _render("repair", told | {"brief": brief})))
        prompt = Prompt(kind="repair", messages=before.messages + turn, cuts=before.cuts)
        if room is None or tokens(prompt.messages) <= room:
            break
    return prompt


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_dir("prompts")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        autoescape=False,
    )
    environment.filters["fence"] = fence
    return environment


def _render(name: str, told: dict[str, Any]) -> str:
    return _environment().get_template(f"{name}.j2").render(told).strip() + "\n"
