"""One call with its money: put aside and committed before it is sent, settled after it whatever becomes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
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
IN_FLIGHT = "the rest of the budget is in flight"
FIRST_SHARE, GAP_SHARE = 0.4, 0.2
"""How much of a proposal's time a call may take to its first token, and between two: room for a second call."""
LONGEST_GAP_S = 60.0
HANG_UP_S = 2.0
"""How long hanging up may take at an agent's end; a call that takes longer is charged in full without it."""

log = logging.getLogger("kernelarc.engine")


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
        self._settling: set[asyncio.Task[None]] = set()
        self._calls: dict[asyncio.Task[Any], int | None] = {}  # in progress, with its reservation if it has one

    async def call(self, turn: Turn, asked: Asked, prompt: Prompt) -> Said:
        """One call. Its cost, as the ledger has it, is added to the turn's usage.

        Raises:
            ModelFailure: no reply came.
            BudgetSpent: the call could pass a cap and none is in flight that may give money back.
            StoreError: the money could not be put aside; nothing was sent.
        """
        task = asyncio.current_task()
        assert task is not None, "a call is awaited inside a task"
        self._calls[task] = None
        try:
            return await self._called(task, turn, asked, prompt)
        finally:
            del self._calls[task]

    async def _called(self, task: asyncio.Task[Any], turn: Turn, asked: Asked, prompt: Prompt) -> Said:
        held = money.reservation(asked.price, prompt.messages, asked.window.reply)
        turn.usage = msgspec.structs.replace(turn.usage, model=asked.model.name)
        self._calls[task] = number = await self._reserve(turn, asked, held)
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
        """Wait a little until the calls that were hung up are written in the ledger."""
        await self._ended(CANCEL_GRACE_S)

    async def close(self) -> None:
        """Wait until they are, for :data:`HANG_UP_S` at most; what still hangs then is charged in full."""
        await self._ended(HANG_UP_S)
        for number in self._calls.values():
            if number is not None:
                await _written(self._ledger.lose(number))

    async def _ended(self, seconds: float) -> None:
        """The calls first: their charge is written only when they have been hung up."""
        for pending in (self._calls, self._settling):
            if pending:
                await asyncio.wait(set(pending), timeout=seconds)

    async def _reserve(self, turn: Turn, asked: Asked, held: money.Reservation) -> int:
        """Waits while other calls hold money that they may give back, and tells the turn so."""
        while True:
            limits = self._caps()
            caps = money.caps_for(asked.price, limits.usd, limits.tokens)
            reserve = self._ledger.reserve(
                self._agent, asked.model.name, held.usd, held.tokens, cap_usd=caps.usd, cap_tokens=caps.tokens
            )
            try:
                number = await self._number(reserve)
            except OverBudget as error:
                if error.totals.reserved_usd <= 0 and error.totals.reserved_tokens <= 0:
                    raise BudgetSpent(error.message) from error
            else:
                turn.waiting = False
                return number
            turn.waiting = turn.waited = True
            turn.live.state(AgentState.WAITING_MODEL, IN_FLIGHT)
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

    def _settle_later(self, write: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Started at once, waited for at the end of the proposal or of the agent."""
        task = asyncio.create_task(_written(write))
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


async def _written(write: Coroutine[Any, Any, Any]) -> None:
    """A charge that the disk refuses waits in the store's queue: what was paid for is not lost with it."""
    try:
        await write
    except StoreError as error:
        log.error("fault.store: a charge is not written yet: %s", error.message)


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
                text = _joined(parts)
                turn.live.reply(text[-TAIL:], size // 4)
                return text, piece.finish_reason, piece.counted
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


def _joined(parts: Sequence[str]) -> str:
    """The whole text. Pieces may cut a surrogate pair in two; half of one is no character that can be stored."""
    text = "".join(parts)
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
