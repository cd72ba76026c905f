"""One call with its money: put aside and committed before it is sent, settled after it whatever becomes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from engine.errors import StoreError
from engine.proposers.base import BudgetSpent
from engine.proposers.llm import access, money
from engine.proposers.llm.failures import ModelFailure
from engine.proposers.llm.money import Caps, Price
from engine.proposers.llm.prompt import Prompt
from engine.proposers.llm.turn import CANCEL_GRACE_S, Asked, Turn
from engine.records import AgentState
from engine.store.ledger import OverBudget

TAIL = 4000
"""Characters of a growing reply that are shown."""
LIVE_EVERY_S = 0.2
BUDGET_POLL_S = 0.25
FIRST_SHARE, GAP_SHARE = 0.4, 0.2
"""How much of a proposal's time a call may take to its first token, and between two: room for a second call."""
LONGEST_GAP_S = 60.0


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


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that arrived."""

    text: str
    finish_reason: str


class Caller:
    """Makes an agent's calls. ``caps`` is asked anew for each of them."""

    def __init__(self, agent: str, ledger: Ledger, caps: Callable[[], Caps]) -> None:
        self._agent, self._ledger, self._caps = agent, ledger, caps
        self._settling: set[asyncio.Task[Any]] = set()

    async def call(self, turn: Turn, asked: Asked, prompt: Prompt) -> Said:
        """One call. Its cost, as the ledger has it, is added to the turn's usage.

        Raises:
            ModelFailure: no reply came.
            BudgetSpent: the call could pass a cap and none is in flight that may give money back.
            StoreError: the money could not be put aside; nothing was sent.
        """
        held = money.reservation(asked.price, prompt.messages, asked.window.reply)
        turn.usage = msgspec.structs.replace(turn.usage, model=asked.model.name)
        number = await self._reserve(turn, asked, held)
        counted: money.Counted | None = None
        free = False
        try:
            text, finish, counted = await _streamed(turn, asked, prompt)
            return Said(text=text, finish_reason=finish)
        except ModelFailure as failure:
            free = not failure.billed
            raise
        finally:
            await self._charge(turn, number, asked.price, held, counted, free=free)

    async def settled(self) -> None:
        """Wait until every call that was hung up is written in the ledger."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=CANCEL_GRACE_S)

    async def _reserve(self, turn: Turn, asked: Asked, held: money.Reservation) -> int:
        """Waits while other calls hold money that they may give back."""
        while True:
            limits = self._caps()
            caps = money.caps_for(asked.price, limits.usd, limits.tokens)
            reserve = self._ledger.reserve(
                self._agent, asked.model.name, held.usd, held.tokens, cap_usd=caps.usd, cap_tokens=caps.tokens
            )
            try:
                return await self._number(reserve)
            except OverBudget as error:
                if error.totals.reserved_usd <= 0 and error.totals.reserved_tokens <= 0:
                    raise BudgetSpent(error.message) from error
            turn.live.state(AgentState.WAITING_MODEL, "the rest of the budget is in flight")
            await asyncio.sleep(BUDGET_POLL_S)

    async def _number(self, reserve: Coroutine[Any, Any, int]) -> int:
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
        turn: Turn,
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


async def _streamed(turn: Turn, asked: Asked, prompt: Prompt) -> tuple[str, str, money.Counted | None]:
    """The whole text, shown as it grows, its finish reason and the server's count."""
    name = asked.model.name
    parts: list[str] = []
    size, shown = 0, 0.0
    talking = False
    gap_s = min(LONGEST_GAP_S, GAP_SHARE * turn.seconds)
    pieces = access.stream(
        asked.model,
        prompt.messages,
        window=asked.window,
        patience=access.Patience(first_s=FIRST_SHARE * turn.seconds, gap_s=gap_s),
        left_s=max(1.0, turn.left_s),
    )
    async with aclosing(pieces):
        async for piece in pieces:
            if isinstance(piece, access.End):
                turn.live.reply("".join(parts)[-TAIL:], size // 4)
                return "".join(parts), piece.finish_reason, piece.counted
            if not talking:
                talking = bool(piece.text)
                turn.live.state(AgentState.PROPOSING, name if talking else f"{name} is thinking")
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
