"""The LLM proposer: prompt, money, call, reply, at most one repair; all of it under one wall-clock deadline."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import msgspec

from engine.config import CampaignConfig
from engine.errors import StoreError
from engine.problems.solution import Solution
from engine.proposers.base import BudgetSpent, Context, LiveSink, Proposal, ProposerError, UnusableReply
from engine.proposers.llm import access, money
from engine.proposers.llm.failures import ModelFailure, pause_s
from engine.proposers.llm.money import Caps, Price
from engine.proposers.llm.pool import ModelPool, Served
from engine.proposers.llm.prompt import Prompt, propose_prompt, repair_prompt
from engine.proposers.llm.reply import MAX_REPLY, Parsed, Unusable, read_reply
from engine.proposers.llm.sources import program_sha
from engine.records import AgentState, Evaluation, Outcome, Usage
from engine.skills import SkillSet
from engine.store.ledger import OverBudget
from engine.text import clean

MARGIN_S = 1.0
"""How much earlier than the agent's own deadline a proposal gives up, so that it can say what it cost."""
CANCEL_GRACE_S = 0.5
TAIL = 4000
LIVE_EVERY_S = 0.2
BUDGET_POLL_S = 0.25
FIRST_SHARE, GAP_SHARE = 0.4, 0.2
"""How much of a proposal's time a call may take to its first token, and between two: room for a second call."""
LONGEST_GAP_S = 60.0
REPAIR_SHARE = 0.25
"""A repair needs at least this share of the deadline."""
FINE_DETAIL = 1000

T = TypeVar("T")


class Ledger(Protocol):
    """The store writer's ledger. ``reserve`` commits before it returns and raises ``OverBudget``."""

    async def reserve(
        self,
        agent: str,
        model: str,
        usd: float | None,
        tokens: int,
        *,
        cap_usd: float | None = None,
        cap_tokens: int | None = None,
    ) -> int: ...

    async def settle(self, reservation: int, usd: float | None, tokens_in: int, tokens_out: int) -> bool: ...

    async def lose(self, reservation: int) -> bool: ...


class _Text(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that arrived."""

    text: str
    finish_reason: str


class _DeadlinePassed(Exception):
    pass


class _Turn:
    """One proposal in progress: its context, what it has cost, when it must end."""

    def __init__(self, context: Context, live: LiveSink, seconds: float) -> None:
        self.context, self.live = context, live
        self.seconds = seconds
        self.end = time.monotonic() + seconds
        self.usage = Usage(model="")
        self.rng = random.Random(f"llm/{context.seed}/{context.agent}/{context.position}")
        self.started = time.monotonic()
        self.last: ModelFailure | None = None

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    def bill(self) -> Usage | None:
        """What was used so far; ``None`` if no call was made."""
        if not self.usage.model:
            return None
        return msgspec.structs.replace(self.usage, seconds=time.monotonic() - self.started)


class LlmProposer:
    """One agent's LLM; ``model`` is its own one. ``skills`` and ``caps`` are asked anew for each proposal.

    ``recorded`` gives the agent's earlier (position, solution) pairs when a campaign goes on after a restart.
    """

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
        recorded: Callable[[], Iterable[tuple[int, Solution]]] | None = None,
    ) -> None:
        self._config = config
        self._agent, self._own = agent, model
        self._pool, self._ledger = pool, ledger
        self._skills, self._caps = skills, caps
        self._recorded = recorded
        self._earlier: dict[str, int] | None = None
        self._settling: set[asyncio.Task[Any]] = set()
        self.model: str | None = pool.planned(model, 0).name

    async def propose(self, context: Context, live: LiveSink) -> Proposal | UnusableReply:
        """One proposal within the deadline.

        Raises:
            ProposerError: no reply came; its ``usage`` says what was charged all the same.
            BudgetSpent: the next call could pass a cap and none is in flight that may give money back.
        """
        limit = self._config.proposal_deadline_s
        turn = _Turn(context, live, limit - min(MARGIN_S, 0.1 * limit))
        try:
            return await _within(turn.seconds, self._propose(turn))
        except _DeadlinePassed:
            await self._settled()
            detail = f"no usable reply within {turn.seconds:.1f} s"
            if turn.last is not None:
                detail += f"; the last failure was {turn.last.reason}: {turn.last.detail}"
            failure = ModelFailure("model.deadline", detail)
        except ModelFailure as error:
            failure = error
        except StoreError as error:
            raise ProposerError("fault.store", clean(error.message, FINE_DETAIL), turn.bill()) from error
        await self._pool.failed(self.model or "", failure)
        raise ProposerError(failure.reason, clean(failure.detail, FINE_DETAIL), turn.bill())

    async def judged(
        self, proposal: Proposal, outcome: Outcome, evaluation: Evaluation | None, reason: str
    ) -> None:
        return None

    async def close(self) -> None:
        """Wait until every call that was hung up is written in the ledger."""
        await self._settled()

    async def _settled(self) -> None:
        if self._settling:
            await asyncio.wait(self._settling, timeout=CANCEL_GRACE_S)

    async def _propose(self, turn: _Turn) -> Proposal | UnusableReply:
        context = turn.context
        model = await self._pool.choose(self._agent, self._own, context.position - 1)
        self.model = model.name
        turn.live.state(AgentState.WAITING_MODEL, model.name)
        price = await access.price_of(model)
        skills = self._skills()
        prompt = propose_prompt(context, skills, self._config.prompt_tokens)
        earlier = await self._programs(context)
        reply = await self._ask(turn, model, price, prompt)
        read = self._read(reply, context, earlier)
        if isinstance(read, Unusable) and self._may_repair(read, turn):
            repair = repair_prompt(prompt, reply.text, read, context, skills)
            second = await self._repair(turn, model, price, repair)
            if second is not None:
                prompt, reply = repair, second
                read = self._read(reply, context, earlier)
        await self._pool.succeeded(model.name)
        return self._finished(turn, prompt, reply, read)

    def _finished(
        self, turn: _Turn, prompt: Prompt, reply: _Text, read: Parsed | Unusable
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
        if self._earlier is not None:
            self._earlier.setdefault(read.sha, context.position)
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

    def _read(self, reply: _Text, context: Context, earlier: dict[str, int]) -> Parsed | Unusable:
        return read_reply(
            reply.text,
            context.problem,
            name=f"{context.agent}-{context.position}",
            finish_reason=reply.finish_reason,
            parent=program_sha(context.base.solution),
            earlier=earlier,
        )

    async def _programs(self, context: Context) -> dict[str, int]:
        """The agent's earlier programs by :func:`program_sha`; read back from the store once after a restart."""
        if self._earlier is None:
            self._earlier = {}
            if context.history and self._recorded is not None:
                for position, solution in self._recorded():
                    self._earlier.setdefault(program_sha(solution), position)
        return {sha: at for sha, at in self._earlier.items() if at < context.position}

    def _may_repair(self, read: Unusable, turn: _Turn) -> bool:
        return read.reason != "reply.too-large" and turn.left_s >= REPAIR_SHARE * turn.seconds

    async def _repair(self, turn: _Turn, model: Served, price: Price | None, prompt: Prompt) -> _Text | None:
        """The second and last answer; ``None`` if it did not come, and then the first one stands as it is."""
        turn.live.state(AgentState.WAITING_MODEL, f"{model.name}, asking again")
        try:
            return await self._call(turn, model, price, prompt)
        except (ModelFailure, BudgetSpent):
            return None

    async def _ask(self, turn: _Turn, model: Served, price: Price | None, prompt: Prompt) -> _Text:
        """Call until a reply arrives, the failure is one that waiting will not cure, or time is up."""
        tries = 0
        while True:
            tries += 1
            try:
                return await self._call(turn, model, price, prompt)
            except ModelFailure as failure:
                turn.last = failure
                pause = pause_s(failure, tries, turn.left_s, turn.rng)
                if pause is None:
                    raise
                turn.live.state(AgentState.WAITING_MODEL, f"{failure.reason}, again in {pause:.0f} s")
                await asyncio.sleep(pause)

    async def _call(self, turn: _Turn, model: Served, price: Price | None, prompt: Prompt) -> _Text:
        """One call with its money put aside before and settled after, whatever happens to it."""
        held = money.reservation(price, prompt.messages, self._config.reply_tokens)
        turn.usage = msgspec.structs.replace(turn.usage, model=model.name)
        number = await self._reserve(turn, model, price, held)
        counted: money.Counted | None = None
        free = False
        try:
            text, finish, counted = await self._streamed(turn, model, prompt)
            return _Text(text=text, finish_reason=finish)
        except ModelFailure as failure:
            free = not failure.billed
            raise
        finally:
            await self._charge(turn, number, price, held, counted, free=free)

    async def _reserve(self, turn: _Turn, model: Served, price: Price | None, held: money.Reservation) -> int:
        """Waits while other calls hold money that they may give back."""
        while True:
            asked = self._caps()
            caps = money.caps_for(price, asked.usd, asked.tokens)
            try:
                return await self._held(
                    self._ledger.reserve(
                        self._agent, model.name, held.usd, held.tokens, cap_usd=caps.usd, cap_tokens=caps.tokens
                    )
                )
            except OverBudget as error:
                if error.totals.reserved_usd <= 0 and error.totals.reserved_tokens <= 0:
                    raise BudgetSpent(error.message) from error
            turn.live.state(AgentState.WAITING_MODEL, "the rest of the budget is in flight")
            await asyncio.sleep(BUDGET_POLL_S)

    async def _held(self, reserve: Coroutine[Any, Any, int]) -> int:
        """A reservation's number. What is put aside while we are being cancelled goes back: no call was sent."""
        task = asyncio.ensure_future(reserve)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._settle_later(self._give_back(task))
            raise

    async def _give_back(self, reserved: asyncio.Task[int]) -> None:
        try:
            number = await reserved
        except (OverBudget, StoreError):
            return
        await self._ledger.settle(number, 0.0, 0, 0)

    def _settle_later(self, write: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Started at once, waited for at the end of the proposal or of the agent."""
        task = asyncio.ensure_future(write)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _charge(
        self,
        turn: _Turn,
        number: int,
        price: Price | None,
        held: money.Reservation,
        counted: money.Counted | None,
        *,
        free: bool,
    ) -> None:
        """Write the ledger even while being cancelled. The turn's usage is what the ledger says."""
        if free:
            counted = money.Counted(prompt=0, reply=0)
        if counted is None:
            turn.usage = money.add(turn.usage, price, 0, held.tokens, held.usd)
            write: Coroutine[Any, Any, bool] = self._ledger.lose(number)
        else:
            usd = money.cost(price, counted)
            turn.usage = money.add(turn.usage, price, counted.prompt, counted.reply, usd)
            write = self._ledger.settle(number, usd, counted.prompt, counted.reply)
        await asyncio.shield(self._settle_later(write))

    async def _streamed(self, turn: _Turn, model: Served, prompt: Prompt) -> tuple[str, str, money.Counted | None]:
        """The whole text, shown as it grows."""
        parts: list[str] = []
        size, shown = 0, 0.0
        talking = False
        patience = access.Patience(
            first_s=FIRST_SHARE * turn.seconds, gap_s=min(LONGEST_GAP_S, GAP_SHARE * turn.seconds)
        )
        pieces = access.stream(
            model,
            prompt.messages,
            reply_tokens=self._config.reply_tokens,
            patience=patience,
            left_s=max(1.0, turn.left_s),
        )
        async with aclosing(pieces):
            async for piece in pieces:
                if isinstance(piece, access.End):
                    turn.live.reply("".join(parts)[-TAIL:], size // 4)
                    return "".join(parts), piece.finish_reason, piece.counted
                if not talking:
                    talking = bool(piece.text)
                    note = model.name if talking else f"{model.name} is thinking"
                    turn.live.state(AgentState.PROPOSING, note)
                parts.append(piece.text)
                size += len(piece.text)
                now = time.monotonic()
                if now - shown >= LIVE_EVERY_S:
                    shown = now
                    turn.live.reply(_tail(parts), size // 4)
        raise ModelFailure("model.cut-stream", "the stream ended without an end", billed=True)


def _tail(parts: list[str]) -> str:
    """The last characters of a growing text, without joining all of it each time."""
    taken: list[str] = []
    size = 0
    for part in reversed(parts):
        taken.append(part)
        size += len(part)
        if size >= TAIL:
            break
    return "".join(reversed(taken))[-TAIL:]


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``; :class:`_DeadlinePassed` after ``seconds`` even if it does not heed cancellation.

    A cancellation from outside is passed on at once and not waited for.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieved)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
    except asyncio.CancelledError:
        task.cancel()
        raise
    raise _DeadlinePassed


def _retrieved(task: asyncio.Future[Any]) -> None:
    """Nobody may be left to look at the result of a call that was given up."""
    if not task.cancelled():
        task.exception()
