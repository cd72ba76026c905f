"""The confirmation of one provisional KEEP: fresh children, both kernels' noise, what compute-sanitizer found."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import msgspec

from engine import budget
from engine.bench.api import CONFIRM_S, EvaluationPlan, PhaseSink
from engine.errors import Fault
from engine.grading import graded
from engine.guard import keep
from engine.guard.account import with_findings
from engine.guard.keep import Decision
from engine.problems.reference import is_reference
from engine.problems.solution import Solution
from engine.profile.sanitize import CALL_S, Sanitized, sanitize, wants_sanitizer
from engine.records import Evaluation, Outcome
from engine.session import Session
from engine.store import events as ev

log = logging.getLogger("kernelarc.guard")


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """Of a candidate against its agent's best. Whoever runs it is inside the bench's door."""

    session: Session
    agent: str
    solution: Solution
    best: int
    on_phase: PhaseSink
    measuring: asyncio.Lock  # all agents have the same best when a campaign starts: its noise is measured once

    @property
    def incumbent(self) -> Solution:
        return self.session.incumbent(self.best, self.agent).solution

    async def run(
        self, first: Decision, searched: Evaluation, plan: EvaluationPlan, noise: float
    ) -> tuple[Decision, Evaluation]:
        """``first``: the search's decision on what it ``searched``; ``noise``: what is known of the best's."""
        wanted = asyncio.Event()
        looking = asyncio.create_task(self._looked_through(wanted))
        try:
            # Without a third side, which may be the slowest, a clear gain needs no more time than its search had.
            alone = is_reference(self.incumbent, self.session.problem)
            final = plan.final(clear=alone and keep.beyond_noise(searched, noise))
            decision, again, noise = await self._measured(first, final, noise)
            if decision.outcome is Outcome.KEEP:
                wanted.set()
                again = with_findings(again, await looking)
                decision = keep.confirm(first, again, self.session.margin, noise)
        finally:
            looking.cancel()
            await asyncio.wait([looking])
        if decision.outcome is Outcome.KEEP:
            slower = keep.regressions(again, self.session.margin, noise)
            again = msgspec.structs.replace(again, notes=[*again.notes, *slower])
        return decision, again

    async def _measured(
        self, first: Decision, final: EvaluationPlan, noise: float
    ) -> tuple[Decision, Evaluation, float]:
        """Decision, what it rests on, and the noise that both kernels are known to have by then."""
        margin = self.session.margin
        again = await self._evaluated(final)
        decision = keep.confirm(first, again, margin, noise)
        if decision.outcome is Outcome.KEEP and not keep.beyond_noise(again, noise):
            again, theirs = await self._with_noise_of_both(again)
            noise = max(noise, theirs)
            if keep.stopped_early(again, margin, noise):
                again = await self._measured_longer(final, again, noise)
            decision = keep.confirm(first, again, margin, noise)
        return decision, again, noise

    async def _evaluated(self, plan: EvaluationPlan) -> Evaluation:
        found = await self.session.bench.evaluate(self.solution, plan, self.incumbent, self.on_phase)
        return graded(found, self.session.scale)

    async def _measured_longer(self, final: EvaluationPlan, evaluation: Evaluation, noise: float) -> Evaluation:
        """Once more, until it is clear for the margin that is known only now that noise is."""
        own = evaluation.comparison.noise if evaluation.comparison else 0.0
        margin = keep.effective_margin(self.session.margin, max(noise, own))
        longer = msgspec.structs.replace(final, margin=margin, timing_s=CONFIRM_S)
        return _with_noise(await self._evaluated(longer), own)

    async def _looked_through(self, wanted: asyncio.Event) -> Sanitized:
        """Kernels of the candidate's own are looked through for stray accesses and races before they are kept.

        The tool takes seconds to start: it starts beside the measurement, and is asked only of what would be kept.
        """
        device = self.session.bench.device
        if not wants_sanitizer(self.solution, device):
            return Sanitized()
        call_s = budget.share_s(self.session.summary.minutes, CALL_S)
        return await sanitize(self.session.problem, self.solution, device, call_s=call_s, wanted=wanted)

    async def _with_noise_of_both(self, evaluation: Evaluation) -> tuple[Evaluation, float]:
        """Where noise is the kernel's own: the evaluation with the candidate's, and its best's beside it."""
        try:
            own = await self.session.bench.noise_of(self.solution)
            theirs = await self._noise_of_best()
        except Fault as fault:
            return Evaluation(verdict="ERROR", reason=fault.reason, detail=fault.detail), 0.0
        return (evaluation if own is None else _with_noise(evaluation, own)), theirs

    async def _noise_of_best(self) -> float:
        """Measured when the best is challenged for the first time; its trouble is none of the challenger's.

        It may not raise the bar beyond what a gain must exceed not to be asked: no best is safe by being erratic.
        """
        session, best = self.session, self.best
        async with self.measuring:
            if session.noise_is_known(best):
                return session.noise_of(best)
            try:
                found = await session.bench.noise_of(self.incumbent)
            except Fault as fault:
                log.warning("the noise of #%d was not measured: %s", best, fault.message)
                found = session.scatter_of(best)
                if best == 0:
                    return found  # the seed has nothing to gain by it: the next challenger asks again
            noise = min(found or 0.0, keep.BEYOND_NOISE)
            await session.record(ev.NoiseMeasured(candidate=best, noise=noise))
            return noise


def _with_noise(evaluation: Evaluation, noise: float) -> Evaluation:
    if evaluation.comparison is None:
        return evaluation
    comparison = msgspec.structs.replace(evaluation.comparison, noise=noise)
    return msgspec.structs.replace(evaluation, comparison=comparison)
