"""The replay proposer: replies from a JSONL file, or the candidates of a recorded campaign, judged again.

Which reply comes is decided by the agent's position alone, so an interrupted replay goes on where it was. A line
is ``{"reply": "…"}`` (a model's text, read as an LLM agent's would be), ``{"source": "…"}`` (a Python file with
``run``) or ``{"solution": {…}}`` (a solution.json); ``agent``, ``strategy``, ``family``, ``hypothesis`` and
``predicted_change`` are optional. Lines without ``agent`` are dealt to the agents in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.decoding import decode_json
from engine.errors import BadInput
from engine.problems.files import is_file
from engine.problems.model import Problem
from engine.problems.solution import Solution
from engine.proposers.base import Context, Exhausted, LiveSink, Proposal, UnusableReply
from engine.proposers.parameters import plain_parameters
from engine.records import AgentState, Evaluation, Outcome
from engine.store.reader import StoreReader


class ReplayLine(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded reply. ``reason`` and ``detail`` say why a reply held no solution, in recorded campaigns."""

    reply: str = ""
    source: str = ""
    solution: Solution | None = None
    agent: str | None = None
    strategy: str = ""
    family: str = ""
    hypothesis: str = ""
    predicted_change: str = ""
    reflection: str = ""
    parameters: dict[str, Any] = {}
    reason: str = ""
    detail: str = ""


class ReplayProposer:
    """Gives ``lines[position - 1]`` and is :class:`Exhausted` after the last."""

    name = "replay"
    model: str | None = None

    def __init__(self, lines: Sequence[ReplayLine]) -> None:
        self._lines = lines

    async def propose(self, context: Context, live: LiveSink) -> Proposal | UnusableReply:
        if context.position > len(self._lines):
            raise Exhausted(f"the recording has {len(self._lines)} replies for agent {context.agent}")
        line = self._lines[context.position - 1]
        live.state(AgentState.PROPOSING, f"reply {context.position} of {len(self._lines)}")
        if line.reply:
            live.reply(line.reply[-400:], len(line.reply) // 4)
        return _as_reply(line, context)

    async def judged(
        self, proposal: Proposal, outcome: Outcome, evaluation: Evaluation | None, reason: str
    ) -> None:
        return None

    async def close(self) -> None:
        return None


def check_recording(recording: str) -> None:
    """Raises :class:`BadInput` unless there is such a file, every line of it a reply, or such a campaign."""
    from engine.store.campaigns import resolve_campaign

    if not _is_lines(recording):
        resolve_campaign(recording)
    elif not read_lines(Path(recording)):
        raise BadInput("no reply in this file", where=recording, fix="one JSON object a line")


def lines_for(recording: str, agent: str, ordinal: int, agents: int) -> list[ReplayLine]:
    """The replies of one agent from a JSONL file or a recorded campaign. Raises :class:`BadInput`."""
    lines = read_lines(Path(recording)) if _is_lines(recording) else recorded_lines(recording)
    return deal(lines, agent, ordinal, agents)


def _is_lines(recording: str) -> bool:
    return is_file(Path(recording)) and Path(recording).suffix != ".db"


def deal(lines: Sequence[ReplayLine], agent: str, ordinal: int, agents: int) -> list[ReplayLine]:
    """An agent's share: the lines that name it, and every ``agents``-th of those that name nobody.

    Lines of an agent that this campaign does not have (a recording of more agents) are dealt with the rest.
    """
    names = {str(number) for number in range(1, agents + 1)}
    mine = [line for line in lines if line.agent == agent]
    free = [line for line in lines if line.agent is None or line.agent not in names]
    return mine + free[ordinal::agents]


def read_lines(path: Path) -> list[ReplayLine]:
    """The lines of a JSONL file. Raises :class:`BadInput` naming the line."""
    try:
        recorded = path.read_bytes().splitlines()
    except OSError as error:
        raise BadInput(f"cannot be read ({error.strerror})", where=str(path)) from None
    lines = []
    for number, raw in enumerate(recorded, 1):
        if not raw.strip():
            continue
        fix = "one JSON object a line"
        line: ReplayLine = decode_json(raw, where=f"{path}:{number}", kind=ReplayLine, fix=fix)
        if not (line.reply or line.source or line.solution):
            raise BadInput(
                "no reply in this line", where=f"{path}:{number}", fix="give one of reply, source, solution"
            )
        lines.append(line)
    return lines


def recorded_lines(campaign: str) -> list[ReplayLine]:
    """Every candidate of a campaign in its order, as lines."""
    from engine.store.campaigns import resolve_campaign

    reader = StoreReader(resolve_campaign(campaign) / "campaign.db")
    try:
        lines: list[ReplayLine] = []
        after = 0
        while rows := reader.candidates_after(after, 200):
            for row in rows:
                lines.append(
                    ReplayLine(
                        solution=reader.solution(row.number),
                        agent=row.agent,
                        strategy=row.strategy,
                        family=row.family,
                        hypothesis=row.hypothesis,
                        predicted_change=row.predicted_change,
                        parameters=row.parameters,
                        reply=reader.blob(row.reply).decode() if row.reply else "",
                        reason=row.reason,
                        detail=row.detail,
                    )
                )
            after = rows[-1].number
        return lines
    finally:
        reader.close()


def _as_reply(line: ReplayLine, context: Context) -> Proposal | UnusableReply:
    strategy = line.strategy or context.strategy
    solution = line.solution or _from_source(line.source, context.problem)
    if solution is not None:
        return Proposal(
            solution=solution,
            strategy=strategy,
            family=line.family or "replay",
            hypothesis=line.hypothesis,
            predicted_change=line.predicted_change,
            reflection=line.reflection,
            parameters=plain_parameters(line.parameters),
            reply=line.reply,
        )
    if line.reason:
        return UnusableReply(reason=line.reason, detail=line.detail, strategy=strategy, reply=line.reply)
    return _parsed(line, context, strategy)


def _parsed(line: ReplayLine, context: Context, strategy: str) -> Proposal | UnusableReply:
    """A recorded text, read as an LLM agent's would be."""
    from engine.proposers.llm.reply import Unusable, read_reply

    found = read_reply(line.reply, context.problem, name=f"{context.agent}-{context.position}")
    said = found.metadata
    if isinstance(found, Unusable):
        return UnusableReply(reason=found.reason, detail=found.detail, strategy=strategy, reply=line.reply)
    return Proposal(
        solution=found.solution,
        strategy=strategy,
        family=line.family or said.family or "replay",
        hypothesis=line.hypothesis or said.hypothesis,
        predicted_change=line.predicted_change or said.predicted_change,
        reflection=line.reflection or said.reflection,
        parameters=plain_parameters(line.parameters) or said.parameters,
        reply=line.reply,
    )


def _from_source(source: str, problem: Problem) -> Solution | None:
    if not source:
        return None
    from engine.problems.solution_io import solution_from_source

    return solution_from_source(source, problem, name="replay")
