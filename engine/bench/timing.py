"""How fast is it? Interleaved blocks of all sides in random order, checked like any other call."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from engine.bench import judge_wire as jw
from engine.bench.api import EvaluationPlan
from engine.bench.clocks import disturbance
from engine.bench.contender import Block, Contender, Failure, fill
from engine.bench.correctness import Correctness, check_one, one_round
from engine.bench.plan_calls import (
    FRESH,
    block_size,
    calls_to_draw,
    device_block_size,
    style_of_round,
)
from engine.bench.reasons import fault_reason
from engine.bench.spotcheck import chosen, falls_on, spot_checks
from engine.bench.stats import PairDecision, decide_pairs
from engine.hardware.quiet import QUIET

_REFERENCE_BUDGET_S = 5.0  # without an incumbent there is nothing to decide, only a ratio to estimate
_ALONE_BUDGET_S = 2.0  # the reference by itself, for a campaign to start from: every candidate is paired with it
_PRECISION = 0.05  # half-width of the interval of ln(reference / candidate) that is good enough
_FEWEST = 3  # pairs: the interval of two is as good as none
_REDONE = 3  # times a pair is measured again because the clock moved
_CHECKS_S, _DEVICE_CHECKS_S = 1.0, 0.5  # judge's time for checking timed calls that is always granted
_CHECK_SHARE = 0.5  # beyond it, as a share of the time that blocks took
_WARM_UP = 1  # blocks per side and workload before the first pair
_CONCURRENT_ROUNDS = 6
_CONCURRENT_CALLS = 6


class Timing(msgspec.Struct):
    """Raw material of one evaluation: blocks by role and workload, in order; equal indices form a pair."""

    sizes: dict[int, int]  # workload → k
    blocks: dict[str, dict[int, list[Block]]]
    decision: PairDecision | None = None
    pairs: int = 0
    discarded: int = 0  # pairs during which the GPU's clock moved
    clock_notes: list[str] = []
    seconds: float = 0.0

    def log_ratios(self, rival: str, workloads: Sequence[int]) -> list[list[float]]:
        """Per workload: ln(rival / candidate) of every pair."""
        return [
            [
                math.log(theirs.mean_ms / ours.mean_ms)
                for theirs, ours in zip(
                    self.blocks[rival][workload], self.blocks["candidate"][workload], strict=False
                )
            ]
            for workload in workloads
        ]


class _SideFailed(Exception):
    def __init__(self, side: Contender, failure: Failure) -> None:
        super().__init__(side.role)
        self.side, self.failure = side, failure


async def _no_pause() -> float:
    return 0.0


class Pairing:
    """Times a candidate against its rivals on the workloads it is right on, one core, one side at a time.

    ``breathe`` lets others have the device between two pairs and says for how many seconds.
    """

    def __init__(
        self,
        candidate: Contender,
        rivals: Sequence[Contender],
        plan: EvaluationPlan,
        results: dict[int, Correctness],
        breathe: Callable[[], Awaitable[float]] = _no_pause,
    ) -> None:
        self.breathe = breathe
        self._sure: dict[int, int] = {}
        self._running_s = self._checking_s = 0.0
        self._granted_s = _DEVICE_CHECKS_S if candidate.session.on_gpu else _CHECKS_S
        self._compared: dict[int, int] = {}
        self._comparing_s: dict[int, float] = {}
        self._unchecked: set[int] = set()  # workloads whose last block was not looked at
        self.candidate, self.sides = candidate, [candidate, *rivals]
        self.plan, self.results = plan, results
        self.workloads = [index for index, result in results.items() if not result.reason]
        self.timing = Timing(
            sizes={},
            blocks={side.role: {w: [] for w in self.workloads} for side in self.sides},
        )

    def _size(self, workload: int) -> int:
        if self.candidate.reuses_output:
            return 1  # every call but a second one in its block can be named
        session = self.candidate.session
        slowest = max(side.call_s.get(workload, 0.0) for side in self.sides)
        slots = session.slots[workload]
        if session.on_gpu:
            block_s = self._budget_s / (self.plan.min_pairs * len(self.workloads) * len(self.sides))
            size = device_block_size(self.plan.calls, self.plan.min_pairs, slowest, slots, block_s)
        else:
            size = block_size(self.plan.calls, self.plan.min_pairs, slowest, slots)
        return calls_to_draw(size, session.draw_s(workload, made_there=self.candidate.makes_inputs))

    async def run(self) -> Timing:
        """Until the decision is clear, the pairs are used up or the time is. Raises :class:`Fault`."""
        begin, away_s = time.monotonic(), 0.0  # a budget is of time with the device, not of waiting for others
        for _ in range(_WARM_UP):
            for workload in list(self.workloads):
                for side in self.sides:
                    await self._block(side, workload)
        # Only now: a first call compiles, and says nothing of what a call takes.
        self.timing.sizes = {w: self._size(w) for w in self.workloads}
        for pair in range(self.plan.max_pairs):
            for workload in list(self.workloads):
                if workload in self.workloads:  # a process that has died takes all of them along
                    await self._pair(workload, pair)
                    away_s += await self.breathe()
            self.timing.pairs = pair + 1
            if not self.workloads or self._settled(time.monotonic() - begin - away_s):
                break
        away_s += await self._close()
        self.timing.seconds = time.monotonic() - begin - away_s
        return self.timing

    async def _close(self) -> float:
        """Blocks more, compared at any cost, of each workload whose last one was not looked at; for how many
        seconds others had the device.

        They count for nothing. Where comparing takes longer than running, few timed calls are compared, and who
        computes for some calls and then stops would gain by all that come after; nobody can tell a last block.
        The pairs go on as they were, up to one of the longest: who only stops in those must be met there.
        """
        away_s = 0.0
        for workload in sorted(self._unchecked):
            pairs = (self.timing.pairs, self.timing.pairs + 1)
            calls = [self._calls_of(workload, pair) for pair in pairs]
            for pair in pairs if calls[0] < calls[1] else pairs[:1]:
                if workload in self.workloads:
                    await self._closing_block(workload, pair)
                    away_s += await self.breathe()
        return away_s

    async def _closing_block(self, workload: int, pair: int) -> None:
        candidate, style = self.candidate, style_of_round(pair + 3)
        inputs = candidate.session.draw(workload, self._calls_of(workload, pair))
        try:
            filled = await fill([candidate], workload, inputs)
            await candidate.call(workload, inputs, filled, style)
            if not await check_one(candidate, workload, inputs, self.results[workload], style, "a timed call"):
                self.workloads.remove(workload)
        except Failure as failure:
            self._failed(candidate, workload, failure)

    def _calls_of(self, workload: int, pair: int) -> int:
        """Calls of a block: on the CPU k and 2k in turn, which the outside clock tells apart."""
        size = self.timing.sizes[workload]
        alone = self.candidate.session.on_gpu or pair % 2 == 0 or self.candidate.reuses_output
        return size if alone else 2 * size

    def _calls_to_check(self, workload: int, pair: int, calls: int) -> int:
        """How many calls of this block are compared, 0 for none.

        One secretly chosen early pair is looked at at any cost. What else may be spent is spread over the pairs to
        come: were it spent on the first ones, who lies from some call on would meet no check any more.
        """
        sure = pair == self._sure.setdefault(workload, secrets.randbelow(self.plan.min_pairs))
        compared = self._compared.get(workload, 0)
        each_s = self.candidate.session.judge.compare_s.get(workload, 0.0)
        if compared:
            each_s = self._comparing_s[workload] / compared
        room_s = max(self._granted_s, self._running_s * _CHECK_SHARE) - self._checking_s
        room_s /= len(self.workloads) * max(self.plan.min_pairs - pair, 1)
        if not sure and not falls_on(each_s, room_s):
            return 0
        if self.candidate.session.own_inputs:
            return 1  # copying off a device takes long, and few slots are kept for it
        return spot_checks(calls, self.plan.min_pairs, each_s, room_s)

    async def _pair(self, workload: int, pair: int) -> None:
        session, count = self.candidate.session, self._calls_of(workload, pair)
        style = style_of_round(pair + 3)
        begin = time.monotonic()
        for attempt in range(_REDONE):
            # Fresh ones every time: what was seen in a discarded block must be of no use.
            inputs = session.draw(workload, count)
            filled = await fill(self.sides, workload, inputs)
            try:
                blocks, disturbed = await self._blocks_of(workload, inputs, filled, style)
            except _SideFailed as failed:
                self._failed(failed.side, workload, failed.failure)
                return
            if not disturbed:
                break
            self.timing.discarded += attempt < _REDONE - 1
        if disturbed:
            self.timing.clock_notes.append(disturbed)
        now = time.monotonic()
        self._running_s += now - begin
        if self.candidate.reuses_output and len(inputs) > 1:
            self._one_call_a_block()
            return
        count = self._calls_to_check(workload, pair, len(inputs))
        if count and not await self._check(workload, inputs, style, count):
            return
        (self._unchecked.discard if count else self._unchecked.add)(workload)
        self._checking_s += time.monotonic() - now
        for role, block in blocks.items():
            self.timing.blocks[role][workload].append(block)

    async def _blocks_of(
        self, workload: int, inputs: list[jw.Inputs], filled: jw.Filled, style: int
    ) -> tuple[dict[str, Block], str]:
        """One block per side, in random order, and why they cannot be compared if the GPU's clock moved."""
        watch = self.candidate.session.clocks
        order = list(self.sides)
        secrets.SystemRandom().shuffle(order)
        blocks: dict[str, Block] = {}
        readings = [await watch.read()]
        async with QUIET.closed():
            for side in order:
                try:
                    blocks[side.role] = await side.call(workload, inputs, filled, style)
                except Failure as failure:
                    raise _SideFailed(side, failure) from None
                readings.append(await watch.read())
        return blocks, disturbance([reading for reading in readings if reading is not None])

    def _one_call_a_block(self) -> None:
        """The candidate has begun to hand out one buffer again and again: only a last call can be compared.

        Which call is the last must be no secret to it, so blocks hold one call from now on.
        """
        self.timing.sizes = dict.fromkeys(self.timing.sizes, 1)
        for by_workload in self.timing.blocks.values():
            for blocks in by_workload.values():
                blocks.clear()
        self._unchecked.update(self.workloads)

    async def _check(self, workload: int, inputs: list[jw.Inputs], style: int, count: int) -> bool:
        """``count`` secretly chosen calls of the block that has just been timed."""
        begin = time.monotonic()
        try:
            checked = await self.candidate.check(workload, inputs, chosen(len(inputs), count))
        except Failure as failure:
            self._failed(self.candidate, workload, failure)
            return False
        self._compared[workload] = self._compared.get(workload, 0) + count
        self._comparing_s[workload] = self._comparing_s.get(workload, 0.0) + time.monotonic() - begin
        if not self.results[workload].absorb(checked, style, "a timed call"):
            self.workloads.remove(workload)
            return False
        return True

    async def _block(self, side: Contender, workload: int) -> None:
        try:
            await side.run(workload, side.session.draw(workload, 1), FRESH)
        except Failure as failure:
            self._failed(side, workload, failure)

    def _failed(self, side: Contender, workload: int, failure: Failure) -> None:
        result = self.results[workload]
        if side is self.candidate:
            result.reason, result.detail = failure.reason, f"{failure.detail} (while being timed)"
        else:
            result.reason = fault_reason(side.role, failure.reason)
            result.detail = f"the {side.role} failed while being timed: {failure.reason} {failure.detail}"
        if workload in self.workloads:
            self.workloads.remove(workload)
        if side.child is None or not side.child.alive:
            # Nothing is compared with a process that has just been replaced: this evaluation has failed anyway.
            self.workloads.clear()

    @property
    def _budget_s(self) -> float:
        """Of time with the device, for all pairs of all workloads."""
        rivals = [side.role for side in self.sides[1:]]
        if not rivals:
            return min(_ALONE_BUDGET_S, self.plan.timing_s)
        return self.plan.timing_s if "incumbent" in rivals else min(_REFERENCE_BUDGET_S, self.plan.timing_s)

    def _settled(self, elapsed_s: float) -> bool:
        if len(self.sides) < 2:
            enough = _FEWEST if elapsed_s > self._budget_s else self.plan.min_pairs
            return self.timing.pairs >= enough
        rival = self.sides[1].role
        final = elapsed_s > self._budget_s and self.timing.pairs >= _FEWEST
        decision = decide_pairs(
            self.timing.log_ratios(rival, self.workloads),
            self.plan.margin,
            min_pairs=self.plan.min_pairs,
            max_pairs=self.plan.max_pairs,
            final=final,
        )
        self.timing.decision = decision
        if rival == "reference" and self.timing.pairs >= self.plan.min_pairs:
            interval = decision.interval
            enough = self.candidate.session.on_gpu and self._calls() >= self.plan.calls
            return final or enough or decision.verdict == "keep" or interval.hi - interval.lo < 2 * _PRECISION
        return decision.verdict != "continue"

    def _calls(self) -> int:
        """Timed calls of the candidate so far, on the workload that had the fewest."""
        blocks = self.timing.blocks["candidate"]
        return min((sum(len(b.claimed_ns) for b in blocks[w]) for w in self.workloads), default=0)


async def concurrent_rounds(candidate: Contender, results: dict[int, Correctness], cores: list[int]) -> None:
    """For candidates with threads of their own: rounds on all cores, stopped and continued all the time.

    What can race must race here. Raises :class:`Fault`; the candidate's failure goes into ``results``.
    """
    if not candidate.parallel:
        return
    for workload, result in results.items():
        calls = min(_CONCURRENT_CALLS, candidate.session.slots[workload])
        try:
            await candidate.pin(cores)
            for index in range(_CONCURRENT_ROUNDS):
                if not result.reason:
                    await one_round(candidate, workload, result, index=index + 3, calls=calls, jitter=True)
        except Failure as failure:
            result.reason, result.detail = failure.reason, failure.detail
