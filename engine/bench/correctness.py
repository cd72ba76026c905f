"""Is it right? Fresh inputs each round, in every call style, all outputs compared by the judge."""

from __future__ import annotations

import asyncio
import time

import msgspec

from engine.bench import judge_wire as jw
from engine.bench import wire
from engine.bench.contender import Contender, Failure, fill
from engine.bench.plan_calls import (
    FRESH,
    REFERENCE_S,
    REFILLED,
    calls_to_check,
    style_of_round,
)
from engine.bench.sandbox import why_missing
from engine.bench.session import Session
from engine.bench.spotcheck import chosen

_CALLS_PER_ROUND = 2  # two inputs that differ, so that the second call of a block is checked too


class Correctness(msgspec.Struct):
    """What was found for one workload."""

    reason: str = ""
    detail: str = ""
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    first_call_s: float = 0.0
    rounds: int = 0
    checked: int = 0
    seeds: list[int] = []
    notes: list[str] = []

    def absorb(self, checked: jw.Checked, style: int, where: str) -> bool:
        """Adds findings; true if all were right.

        First calls see new memory and the first round refills it openly; who replays only later, where addresses
        and version counters repeat, evades on purpose (see :func:`name_replay`).
        """
        self.notes = checked.notes
        for finding in checked.findings:
            self.checked += 1
            self.max_abs_error = _worst(self.max_abs_error, finding.max_abs_error)
            self.max_rel_error = _worst(self.max_rel_error, finding.max_rel_error)
            if finding.reason and not self.reason:
                evasion = finding.reason == "wrong.stale-output" and style != REFILLED and self.rounds > 0
                self.reason = "hack.cached-output" if evasion else finding.reason
                self.detail = f"{finding.detail} ({where})"
        return not self.reason


def _worst(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


async def first_call(contender: Contender, workload: int, result: Correctness) -> None:
    """A checked call, in which the candidate compiles whatever it compiles. Raises :class:`Fault`.

    Where not all calls of a round are compared every slot is used already: whichever is chosen in the first round,
    which refills inputs openly, has memory that was seen before. Who is right there and wrong in a hidden refill
    evades; of a call with new memory that could not be said.
    """
    calls = _CALLS_PER_ROUND if contender.session.own_inputs else 1
    try:
        await contender.start()
        begin = time.monotonic()
        await one_round(contender, workload, result, index=-1, calls=calls)
        result.first_call_s = time.monotonic() - begin
    except Failure as failure:
        result.reason, result.detail = failure.reason, failure.detail + why_missing(failure.detail)
        if failure.reason.startswith(("wrong.exception", "crash.")) and contender.has_side:
            # Nobody can be right where the reference itself does not run: that is found out before blaming.
            await contender.session.judge.check(
                contender.number, workload, [], wire.Report(event="done"), REFERENCE_S
            )


async def check_rounds(contender: Contender, workload: int, rounds: int, result: Correctness) -> None:
    """``rounds`` rounds of fresh inputs. The candidate's failure is part of the result."""
    if result.reason:
        return
    try:
        if rounds and contender.session.own_inputs and not contender.reuses_output:
            await _Overlapped(contender, workload, result).run(rounds)
            return
        for index in range(rounds):
            if result.reason:
                break
            await one_round(contender, workload, result, index=index)
            result.rounds = index + 1
    except Failure as failure:
        result.reason, result.detail = failure.reason, failure.detail


async def name_replay(contender: Contender, workload: int, result: Correctness) -> None:
    """Whether who replayed evades is seen by refilling inputs openly once more: who is right there evades.

    Who replays there as well, after so many calls or seconds, would else be called this or that by the style of
    the block in which it was found. Raises :class:`Fault`.
    """
    if result.reason != "hack.cached-output" or contender.child is None or not contender.child.alive:
        return
    again = Correctness()
    try:
        await one_round(contender, workload, again, index=0)
    except Failure:
        return
    if again.reason.startswith("wrong."):
        result.reason = "wrong.stale-output"


class _Overlapped:
    """Rounds whose outputs are copied off a device: the judge compares one while the next one runs.

    Copies overwrite the last round's, so they wait for its comparison; what the judge is asked at the beginning of
    a round is asked before the comparison that it would have to wait for.
    """

    def __init__(self, contender: Contender, workload: int, result: Correctness) -> None:
        self.contender, self.workload, self.result = contender, workload, result
        self._comparing: asyncio.Task[jw.Checked] | None = None
        self._of = (0, "")  # style and name of the round that is being compared

    async def run(self, rounds: int) -> None:
        """Raises :class:`Failure` unless an earlier round turns out to be wrong."""
        contender = self.contender
        await contender.start()
        try:
            begun = await self._begin()
            for index in range(rounds):
                inputs, filled = begun
                style = style_of_round(index)
                await contender.call(self.workload, inputs, filled, style)
                if not await self._compared():
                    return
                named = _named(contender, self.workload, len(inputs))
                collected = await contender.collect(self.workload, inputs, named)
                if index + 1 < rounds:
                    begun = await self._begin()
                self._comparing = asyncio.create_task(contender.compare(collected))
                self._of = (style, f"round {index + 1}")
                self.result.rounds = index + 1
            await self._compared()
        except Failure:
            if await self._compared():
                raise
        finally:
            if self._comparing is not None:
                self._comparing.cancel()
                await asyncio.wait({self._comparing})

    async def _begin(self) -> tuple[list[jw.Inputs], jw.Filled]:
        session = self.contender.session
        inputs = _drawn(session, self.workload, min(_CALLS_PER_ROUND, session.slots[self.workload]), self.result)
        filled = await fill([self.contender], self.workload, inputs)
        return inputs, filled

    async def _compared(self) -> bool:
        """Whether the round before was right, if there was one."""
        task, self._comparing = self._comparing, None
        return task is None or self.result.absorb(await task, *self._of)


async def one_round(
    contender: Contender,
    workload: int,
    result: Correctness,
    *,
    index: int,
    calls: int = _CALLS_PER_ROUND,
    jitter: bool = False,
) -> None:
    """Calls on fresh inputs, every one compared: in one block, or in one each for who reuses its output.

    Of who hands out one buffer again and again only the last call of a block can be compared.
    """
    session, style = contender.session, FRESH if index < 0 else style_of_round(index)
    calls = min(calls, session.slots[workload])
    blocks = [1] * calls if contender.reuses_output and not jitter else [calls]
    where = f"round {index + 1}" if index >= 0 else "first call"
    for size in blocks:
        inputs = _drawn(session, workload, size, result)
        await contender.run(workload, inputs, style, jitter=jitter)
        named = _named(contender, workload, size)
        if not result.absorb(await contender.check(workload, inputs, named), style, where):
            break


def _drawn(session: Session, workload: int, count: int, result: Correctness) -> list[jw.Inputs]:
    """Fresh inputs, whose seeds are evidence."""
    inputs = session.draw(workload, count)
    result.seeds += dict.fromkeys(call.seed for call in inputs)
    return inputs


def _named(contender: Contender, workload: int, count: int) -> list[int]:
    """Which calls of a round's block are compared."""
    session = contender.session
    return calls_to_check(
        count,
        session.specs[workload].output_stride,
        copied=session.own_inputs,
        last_only=contender.reuses_output,
        compare_s=session.judge.compare_s.get(workload, 0.0),
    )


async def check_one(
    contender: Contender, workload: int, inputs: list[jw.Inputs], result: Correctness, style: int, where: str
) -> bool:
    """Compares one secretly chosen call of the last block, or its last where one buffer is handed out for all.

    False once anything about the workload was wrong. Raises :class:`Failure` and :class:`Fault`.
    """
    named = [len(inputs) - 1] if contender.reuses_output else chosen(len(inputs), 1)
    return result.absorb(await contender.check(workload, inputs, named), style, where)
