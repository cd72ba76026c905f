"""The LLM proposer: prompt, call, reply, at most one repair; all of it under one wall-clock deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.config import CampaignConfig
from engine.errors import StoreError
from engine.problems.program import program_sha
from engine.proposers.base import (
    AskAgain,
    BudgetSpent,
    Context,
    LiveSink,
    Proposal,
    ProposerError,
    UnusableReply,
)
from engine.proposers.llm import access
from engine.proposers.llm.calls import IN_FLIGHT, Caller, Ledger, Said
from engine.proposers.llm.failures import TOO_LONG, ModelFailure, pause_s
from engine.proposers.llm.money import Caps
from engine.proposers.llm.pool import ModelPool, Served
from engine.proposers.llm.prompt import Prompt, propose_prompt, repair_prompt
from engine.proposers.llm.reply import MAX_REPLY, Parsed, Unusable, read_reply
from engine.proposers.llm.turn import Asked, DeadlinePassed, Turn, within
from engine.proposers.llm.window import Window, narrower, window
from engine.records import AgentState, Evaluation, Outcome
from engine.skills import SkillSet
from engine.text import clean

MARGIN_S = 1.0
"""How much earlier than the agent's own deadline a proposal gives up, so that it can say what it cost."""
REPAIR_SHARE = 0.25
"""A repair needs at least this share of the deadline."""
REPAIR_MARGIN = 0.05
"""And it ends this share before the deadline, so that the reply which did arrive is not lost with it."""
FINE_DETAIL = 1000


class LlmProposer:
    """One agent's LLM; ``model`` is its own one. ``skills`` and ``caps`` are asked anew for each proposal."""

    name = "llm"

    def __init__(
        self,
        *,
        config: CampaignConfig,
        agent: str,
        model: str,
        pool: ModelPool,
        ledger: Ledger,
        skills: Callable[[], SkillSet],
        caps: Callable[[], Caps],
    ) -> None:
        self._config = config
        self._agent, self._own = agent, model
        self._pool, self._caller = pool, Caller(agent, ledger, caps)
        self._skills = skills
        self._served = pool.planned(model, 0)
        self.model: str | None = self._served.name
        # Only an agent that sees its siblings finds the constants that they declare.
        self._tuner = "recipes" in config.proposer and config.leaderboard

    async def propose(self, context: Context, live: LiveSink) -> Proposal | UnusableReply:
        """One proposal within the deadline.

        Raises:
            ProposerError: no reply came; its ``usage`` says what was charged all the same.
            BudgetSpent: the next call could pass a cap and none is in flight that may give money back.
            AskAgain: all of the time went by waiting for such calls.
        """
        limit = self._config.proposal_deadline_s
        turn = Turn(context, live, limit - min(MARGIN_S, 0.1 * limit))
        try:
            return await within(turn.seconds, self._propose(turn))
        except DeadlinePassed:
            if turn.waiting and turn.last is None:
                raise AskAgain(IN_FLIGHT) from None
            await self._caller.settled()
            failure = _too_late(turn)
            if not turn.waited:  # a model is not to blame for the time that waiting for money took
                await self._pool.failed(self._agent, self._served, failure)
        except ModelFailure as error:
            failure = error
            await self._pool.failed(self._agent, self._served, failure)
        except StoreError as error:
            raise ProposerError("fault.store", clean(error.message, FINE_DETAIL), turn.bill()) from error
        finally:
            self._pool.release(self._agent)
        raise ProposerError(failure.reason, clean(failure.detail, FINE_DETAIL), turn.bill())

    async def judged(
        self, proposal: Proposal, outcome: Outcome, evaluation: Evaluation | None, reason: str
    ) -> None:
        return None

    async def close(self) -> None:
        """Hang up what is left and have every call in the ledger, in a few seconds at most."""
        await self._caller.close()

    async def _propose(self, turn: Turn) -> Proposal | UnusableReply:
        context = turn.context
        self._served = await self._pool.choose(self._agent, self._own, context.position - 1)
        self.model = self._served.name
        turn.live.state(AgentState.WAITING_MODEL, self.model)
        facts = await access.facts_of(self._served)
        earlier = _earlier(context)
        asked = Asked(model=self._served, price=facts.price, window=self._window(self._served, facts))
        asked, prompt, reply = await self._first_reply(turn, asked, facts)
        read = self._read(reply, context, earlier)
        if isinstance(read, Unusable) and self._may_repair(read, turn):
            room = None if asked.window.context is None else asked.window.context - asked.window.reply
            repair = repair_prompt(prompt, reply.text, read, context, self._skills(), room=room)
            second = await self._repair(turn, asked, repair)
            if second is not None:
                prompt, reply = repair, second
                read = self._read(reply, context, earlier)
        await self._pool.succeeded(asked.model)
        return self._finished(turn, prompt, reply, read)

    def _window(self, model: Served, facts: access.ModelFacts) -> Window:
        """What prompt and reply may take: the settings within what is known of the model.

        On a server of one's own the person's word stands before the table's; what a server refused before both.
        """
        own = self._config.context_tokens if model.api_base or facts.context is None else None
        known = own or facts.context
        learnt = self._pool.context_of(model)
        context = known if learnt is None else min(learnt, known or learnt)
        return window(
            prompt=self._config.prompt_tokens,
            reply=self._config.reply_tokens,
            context=context,
            longest_reply=facts.longest_reply,
        )

    def _prompt(self, turn: Turn, asked: Asked) -> Prompt:
        return propose_prompt(turn.context, self._skills(), asked.window.prompt, tuner=self._tuner)

    async def _first_reply(self, turn: Turn, asked: Asked, facts: access.ModelFacts) -> tuple[Asked, Prompt, Said]:
        """The reply, if need be to a prompt that is cut further after a server called the first one too long."""
        prompt = self._prompt(turn, asked)
        try:
            return asked, prompt, await self._ask(turn, asked, prompt)
        except ModelFailure as failure:
            context = narrower(asked.window, failure.context_tokens) if failure.reason == TOO_LONG else None
            if context is None:
                raise
            turn.last = failure
        self._pool.learn_context(asked.model, context)
        asked = Asked(model=asked.model, price=asked.price, window=self._window(asked.model, facts))
        prompt = self._prompt(turn, asked)
        return asked, prompt, await self._ask(turn, asked, prompt)

    async def _ask(self, turn: Turn, asked: Asked, prompt: Prompt) -> Said:
        """Call until a reply arrives, the failure is one that waiting will not cure, or time is up."""
        tries = 0
        while True:
            tries += 1
            try:
                return await self._caller.call(turn, asked, prompt)
            except ModelFailure as failure:
                turn.last = failure
                pause = pause_s(failure, tries, turn.left_s, turn.rng)
                if pause is None:
                    raise
                turn.live.state(AgentState.WAITING_MODEL, f"{failure.reason}, again in {pause:.0f} s")
                await asyncio.sleep(pause)

    def _may_repair(self, read: Unusable, turn: Turn) -> bool:
        return read.reason != "reply.too-large" and turn.left_s >= REPAIR_SHARE * turn.seconds

    async def _repair(self, turn: Turn, asked: Asked, prompt: Prompt) -> Said | None:
        """The second and last answer; ``None`` if none came in time: then the first one stands as it is."""
        turn.live.state(AgentState.WAITING_MODEL, f"{asked.model.name}, asking again")
        try:
            async with asyncio.timeout(turn.left_s - REPAIR_MARGIN * turn.seconds):
                return await self._caller.call(turn, asked, prompt)
        except (ModelFailure, BudgetSpent, StoreError, TimeoutError):
            return None

    def _read(self, reply: Said, context: Context, earlier: dict[str, int]) -> Parsed | Unusable:
        return read_reply(
            reply.text,
            context.problem,
            name=f"{context.agent}-{context.position}",
            finish_reason=reply.finish_reason,
            parent=program_sha(context.base.solution),
            earlier=earlier,
        )

    def _finished(
        self, turn: Turn, prompt: Prompt, reply: Said, read: Parsed | Unusable
    ) -> Proposal | UnusableReply:
        context, said = turn.context, clean(reply.text, MAX_REPLY)
        if isinstance(read, Unusable):
            return UnusableReply(
                reason=read.reason,
                detail=read.detail,
                strategy=context.strategy,
                prompt=prompt.text,
                reply=said,
                usage=turn.bill(),
            )
        about = read.metadata
        return Proposal(
            solution=read.solution,
            strategy=context.strategy,
            family=about.family or context.strategy,
            hypothesis=about.hypothesis,
            predicted_change=about.predicted_change,
            reflection=about.reflection,
            parameters=about.parameters,
            prompt=prompt.text,
            reply=said,
            usage=turn.bill(),
        )


def _earlier(context: Context) -> dict[str, int]:
    """Position by :func:`program_sha` of what was judged of the agent before."""
    positions = {past.number: past.position for past in context.history}
    return {sha: positions[number] for sha, number in context.taken.items() if number in positions}


def _too_late(turn: Turn) -> ModelFailure:
    detail = f"no usable reply within {turn.seconds:.1f} s"
    if turn.waited:
        detail += ", some of them spent waiting for money in flight"
    if turn.last is not None:
        detail += f"; the last failure was {turn.last.reason}: {turn.last.detail}"
    return ModelFailure("model.deadline", detail)
