"""How fast is it? Interleaved blocks of all sides in random order, checked like any other call."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence

import msgspec

from engine.bench import judge_wire as jw
from engine.bench.api import EvaluationPlan
from engine.bench.contender import Block, Contender, Failure
from engine.bench.correctness import Correctness, absorb
from engine.bench.plan_calls import block_size, new_seed, round_inputs, style_of_round
from engine.bench.stats import PairDecision, decide_pairs

_BUDGET_S = 60.0
_WARM_UP = 2  # blocks per side and workload before the first pair


class Timing(msgspec.Struct):
    """Raw material of one evaluation: blocks by role and workload, in order; equal indices form a pair."""

    sizes: dict[int, int]  # workload → k
    blocks: dict[str, dict[int, list[Block]]]
    decision: PairDecision | None = None
    pairs: int = 0
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


class Pairing:
    """Times a candidate against its rivals on the workloads it is right on."""

    def __init__(
        self,
        candidate: Contender,
        rivals: Sequence[Contender],
        plan: EvaluationPlan,
        results: dict[int, Correctness],
    ) -> None:
        self.candidate, self.sides = candidate, [candidate, *rivals]
        self.plan, self.results = plan, results
        self.workloads = [index for index, result in results.items() if not result.reason]
        slots = candidate.session.slots
        self.timing = Timing(
            sizes={
                w: block_size(plan.calls, plan.min_pairs, max(s.call_s.get(w, 0.0) for s in self.sides), slots[w])
                for w in self.workloads
            },
            blocks={side.role: {w: [] for w in self.workloads} for side in self.sides},
        )

    async def run(self) -> Timing:
        """Until the decision is clear, the pairs are used up or the time is. Raises :class:`Fault`."""
        begin = time.monotonic()
        for _ in range(_WARM_UP):
            for workload in list(self.workloads):
                for side in self.sides:
                    await self._block(side, workload, round_inputs(1, new_seed()))
        for pair in range(self.plan.max_pairs):
            for workload in list(self.workloads):
                await self._pair(workload, pair)
            self.timing.pairs = pair + 1
            late = time.monotonic() - begin > _BUDGET_S
            if not self.workloads or self._settled(final=late):
                break
        self.timing.seconds = time.monotonic() - begin
        return self.timing

    async def _pair(self, workload: int, pair: int) -> None:
        size = self.timing.sizes[workload]
        inputs = round_inputs(size if pair % 2 == 0 else 2 * size, new_seed())
        style = style_of_round(3)
        order = list(self.sides)
        secrets.SystemRandom().shuffle(order)
        blocks: dict[str, Block] = {}
        for side in order:
            block = await self._block(side, workload, inputs, style)
            if block is None:
                return
            blocks[side.role] = block
        named = [secrets.choice(inputs)]
        findings = await self.candidate.check(workload, named)
        if not absorb(self.results[workload], findings, style, "a timed call"):
            self.workloads.remove(workload)
            return
        for role, block in blocks.items():
            self.timing.blocks[role][workload].append(block)

    async def _block(
        self, side: Contender, workload: int, inputs: list[jw.Inputs], style: int = 0
    ) -> Block | None:
        try:
            return await side.run(workload, inputs, style)
        except Failure as failure:
            result = self.results[workload]
            if side is self.candidate:
                result.reason, result.detail = failure.reason, f"{failure.detail} (while being timed)"
            else:
                result.reason = f"fault.{side.role}"
                result.detail = f"the {side.role} failed while being timed: {failure.reason} {failure.detail}"
            if workload in self.workloads:
                self.workloads.remove(workload)
            return None

    def _settled(self, *, final: bool) -> bool:
        if len(self.sides) < 2:
            return self.timing.pairs >= self.plan.min_pairs or final
        decision = decide_pairs(
            self.timing.log_ratios(self.sides[1].role, self.workloads),
            self.plan.margin,
            min_pairs=self.plan.min_pairs,
            max_pairs=self.plan.max_pairs,
            final=final,
        )
        self.timing.decision = decision
        return decision.verdict != "continue"
