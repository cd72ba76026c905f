"""The guard as the agents meet it: one candidate in, one verdict committed, nothing else believed.

Gate → duplicate check → bench against the agent's best → keep rule → confirmation of a KEEP in fresh children →
one store transaction with the candidate, its archive rows, memory entry and events. The policy is in this room's
pure modules; here is only the order of the steps.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import msgspec

from engine.agent_state import CORRECT, AgentState, after_verdict
from engine.bench.api import SEARCH_S, EvaluationPlan, PhaseSink
from engine.errors import StoreError
from engine.grading import graded
from engine.guard import gate, keep
from engine.guard.account import DETAIL_LIMIT, HYPOTHESIS_LIMIT, past_of
from engine.guard.confirmation import Confirmation
from engine.guard.keep import Decision
from engine.guard.plateau import draft_due
from engine.memory import Lesson, adding, trap_of, win_of, write_of
from engine.problems.program import program_sha
from engine.problems.solution import Solution
from engine.proposers.base import DUPLICATES, Context, PastCandidate, Proposal, UnusableReply
from engine.records import AgentState as Live
from engine.records import Evaluation, Outcome
from engine.session import STORE_RETRY_S, Session
from engine.store import events as ev
from engine.store import memories
from engine.store.rows import Committed, VerdictRecord
from engine.store.tx import Tx
from engine.text import clean, one_line, redact

log = logging.getLogger("kernelarc.guard")

SLOW_GATE_BYTES = 64 << 10
"""Sources longer than this are parsed in a thread: the gate may take more than a few milliseconds."""
VETO_RETRIES = 3
COMMIT_GRACE_S = 5.0
"""How long a stop waits for a verdict that the store is writing."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One reply of one agent, with what it was asked under."""

    agent: str
    reply: Proposal | UnusableReply
    context: Context
    delivered: tuple[str, ...] = ()  # hints that the prompt carried
    model: str | None = None
    started: float = 0.0  # monotonic clock, when the agent began to propose


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a submission. An ERROR has no number and no position; nothing of it was archived."""

    outcome: Outcome
    reason: str
    detail: str
    number: int = 0
    evaluation: Evaluation | None = None


class Guard:
    """Judges candidates one at a time per agent; the bench's own lock orders them on the device."""

    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._measuring_noise = asyncio.Lock()
        config = session.config
        self._plan = EvaluationPlan(
            rounds=config.rounds, timing_s=SEARCH_S, deadline_s=config.evaluation_deadline_s
        )

    async def submit(self, submission: Submission) -> Judged:
        """Judge and commit. Cancelling it loses the candidate, whose position is then used again."""
        reply = submission.reply
        if isinstance(reply, UnusableReply):
            refusal = Decision(outcome=Outcome.REJECT, reason=reply.reason, detail=reply.detail)
            return await self._settle(submission, None, refusal, None)
        solution = reply.solution
        sha = program_sha(solution)
        refused = await self._refuse(submission, solution, sha)
        if refused is not None:
            return await self._settle(submission, solution, refused, None)
        self._session.programs[sha] = 0
        try:
            decision, evaluation = await self._bench(submission, solution)
            if decision.outcome is Outcome.ERROR:
                return Judged(
                    outcome=Outcome.ERROR,
                    reason=decision.reason,
                    detail=clean(decision.detail, DETAIL_LIMIT),
                    evaluation=evaluation,
                )
            return await self._settle(submission, solution, decision, evaluation)
        finally:
            if self._session.programs.get(sha) == 0:
                del self._session.programs[sha]

    async def _refuse(self, submission: Submission, solution: Solution, sha: str) -> Decision | None:
        """Why the candidate fails before any benchmark, or ``None``."""
        self._live(submission, Live.GATING)
        problem = self._session.problem
        size = sum(len(source.content) for source in solution.sources)
        if size > SLOW_GATE_BYTES:
            result = await asyncio.to_thread(gate.check, solution, problem)
        else:
            result = gate.check(solution, problem)
        if not result.ok:
            return Decision(outcome=Outcome.REJECT, reason=result.reason, detail=result.detail)
        if sha not in self._session.programs:
            return None
        number = self._session.programs[sha]
        of = f"candidate #{number}" if number else "a candidate that is being judged"
        from_model, from_other = DUPLICATES
        reason = from_model if submission.model else from_other
        return Decision(outcome=Outcome.REJECT, reason=reason, detail=f"the same program as {of}")

    async def _bench(self, submission: Submission, solution: Solution) -> tuple[Decision, Evaluation]:
        """Evaluate against the agent's best; again if a veto took that best away meanwhile."""
        for attempt in range(VETO_RETRIES):
            best = self._session.agents[submission.agent].state.best
            decision, evaluation = await self._measure(submission, solution, best)
            if self._session.agents[submission.agent].state.best == best or attempt == VETO_RETRIES - 1:
                break
        return decision, evaluation

    async def _measure(self, submission: Submission, solution: Solution, best: int) -> tuple[Decision, Evaluation]:
        session = self._session
        incumbent = session.incumbent(best, submission.agent).solution
        noise = session.noise_of(best)
        plan = msgspec.structs.replace(self._plan, margin=keep.effective_margin(session.margin, noise))
        async with self._inside(submission):
            evaluation = await session.bench.evaluate(
                solution, plan, incumbent, self._sink(submission, confirming=False)
            )
        evaluation = graded(evaluation, session.scale)
        decision = keep.decide(evaluation, session.margin, noise, session.scatter_of(best))
        if decision.outcome is not Outcome.KEEP:
            return decision, evaluation
        self._live(submission, Live.CONFIRMING)
        confirmation = Confirmation(
            session=session,
            agent=submission.agent,
            solution=solution,
            best=best,
            on_phase=self._sink(submission, confirming=True),
            measuring=self._measuring_noise,
        )
        async with self._confirming(submission):
            return await confirmation.run(decision, evaluation, plan, noise)

    @asynccontextmanager
    async def _inside(self, submission: Submission) -> AsyncIterator[None]:
        """Through the bench's door; while the campaign is paused the candidate waits in front of it."""
        door = self._session.door
        if not door.is_open:
            self._live(submission, Live.PAUSED, "its candidate waits for the device")
        async with door.entered():
            yield

    @asynccontextmanager
    async def _confirming(self, submission: Submission) -> AsyncIterator[None]:
        """Through the door for a confirmation, which is finished once begun, whoever shuts the door meanwhile.

        A used-up budget waits for who is inside, not in front.
        """
        control = self._session.agents[submission.agent]
        async with self._inside(submission):
            control.confirming = True
            try:
                yield
            finally:
                control.confirming = False

    async def _settle(
        self, submission: Submission, solution: Solution | None, decision: Decision, evaluation: Evaluation | None
    ) -> Judged:
        """Commit whole or not at all: a stop in the middle of it waits for what was handed to the store."""
        work = asyncio.ensure_future(self._commit(submission, solution, decision, evaluation))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work}, timeout=COMMIT_GRACE_S)
            work.cancel()
            raise

    async def _commit(
        self, submission: Submission, solution: Solution | None, decision: Decision, evaluation: Evaluation | None
    ) -> Judged:
        """The one transaction of a verdict, tried until the store takes it; then the agent's new state."""
        session = self._session
        control = session.agents[submission.agent]
        control.mailbox = control.mailbox.delivered(submission.delivered)
        best = session.incumbent(control.state.best, submission.agent)
        past = past_of(
            submission.reply,
            submission.context,
            decision,
            evaluation,
            best_ms=best.latency_ms,
            reference_ms=session.baselines.reference_ms,
        )
        record = self._record(submission, solution, past, evaluation)
        committed = await self._durably(record)
        if solution is not None:
            program = program_sha(solution)
            session.programs[program] = session.programs.get(program) or committed.number
        past = msgspec.structs.replace(past, number=committed.number)
        control.state = after_verdict(control.state, past, session.plateau)
        return Judged(
            outcome=past.outcome,
            reason=past.reason,
            detail=past.detail,
            number=committed.number,
            evaluation=evaluation and msgspec.structs.replace(evaluation, latency_ms=past.latency_ms),
        )

    def _record(
        self,
        submission: Submission,
        solution: Solution | None,
        past: PastCandidate,
        evaluation: Evaluation | None,
    ) -> VerdictRecord:
        """Everything that the verdict commits together."""
        session, context, reply = self._session, submission.context, submission.reply
        control = session.agents[submission.agent]
        after = after_verdict(control.state, past, session.plateau)
        verdict = self._verdict(submission, past, evaluation, after)
        events: list[ev.Event] = [
            ev.HintDelivered(agent=submission.agent, text=hint, position=context.position)
            for hint in submission.delivered
        ]
        if control.state.plateau.line_open and not after.plateau.line_open:
            events.append(ev.DraftLineClosed(agent=submission.agent, kept=past.outcome is Outcome.KEEP))
        usage = reply.usage
        return VerdictRecord(
            verdict=verdict,
            evaluation=evaluation,
            solution=solution,
            parameters=past.parameters,
            predicted_change=one_line(getattr(reply, "predicted_change", ""), HYPOTHESIS_LIMIT),
            prompt=redact(reply.prompt),
            reply=redact(reply.reply),
            tokens_in=usage.tokens_in if usage else 0,
            tokens_out=usage.tokens_out if usage else 0,
            source_sha=past.source_sha,
            events=tuple(events),
            memo={"mailbox": msgspec.to_builtins(control.mailbox)},
            then=self._afterwards(submission, past, verdict, evaluation),
        )

    def _verdict(
        self, submission: Submission, past: PastCandidate, evaluation: Evaluation | None, after: AgentState
    ) -> ev.Verdict:
        usage, passed = submission.reply.usage, evaluation is not None and evaluation.verdict == "PASS"
        comparison = evaluation.comparison if evaluation is not None and passed else None
        plateau = after.plateau
        return ev.Verdict(
            number=0,
            agent=submission.agent,
            position=past.position,
            mode=past.mode,
            strategy=past.strategy,
            family=past.family,
            outcome=past.outcome,
            reason=past.reason,
            detail=past.detail,
            latency_ms=past.latency_ms,
            speedup=evaluation.geomean_speedup if evaluation is not None and passed else None,
            log_ratio=past.log_ratio,
            log_ratio_ci=(comparison.lo, comparison.hi) if comparison else None,
            sol_score=evaluation.sol_score if evaluation is not None and passed else None,
            parent=submission.context.base.number,
            r=plateau.r,
            draft_due=draft_due(plateau, self._session.plateau),
            draft_line=plateau.line_tries if plateau.line_open else 0,
            model=usage.model if usage else submission.model,
            tokens=usage.tokens_in + usage.tokens_out if usage else 0,
            cost_usd=usage.cost_usd if usage else None,
            seconds=max(0.0, self._clock() - submission.started),
            hypothesis=past.hypothesis,
        )

    def _afterwards(
        self, submission: Submission, past: PastCandidate, verdict: ev.Verdict, evaluation: Evaluation | None
    ) -> Callable[[Tx, int], None]:
        """What depends on the candidate's number or on the stored memory; runs inside the transaction."""
        session = self._session
        noise = evaluation.comparison.noise if evaluation is not None and evaluation.comparison else 0.0
        lesson = self._lesson(submission, past, verdict)
        best = session.agents[verdict.agent].state.best
        scatter = session.scatter_of(best)
        if not session.noise_is_known(best):
            scatter = max(scatter, keep.UNKNOWN_NOISE)
        near_best = -keep.accept_threshold(keep.effective_margin(session.margin, scatter))
        learnt = win_of(lesson) or trap_of(lesson, near_best)
        write = None
        if learnt is not None:
            write = write_of(learnt, agent=submission.agent, device=session.bench.device)
        config = session.config

        def run(tx: Tx, number: int) -> None:
            if noise and math.isfinite(noise) and past.outcome is Outcome.KEEP:
                tx.append(ev.NoiseMeasured(candidate=number, noise=noise))
            if write is not None:
                learnt_here = msgspec.structs.replace(write, candidate=number)
                memories.remember(tx, [learnt_here], partial(adding, config=config))
            if tx.summary.best == number:
                speedup = f", {verdict.speedup:.2f}× of the reference" if verdict.speedup else ""
                text = f"agent {verdict.agent} leads with #{number}: {verdict.latency_ms:.4g} ms{speedup}"
                tx.append(ev.Attention(code="best.new", text=text, level="info"))

        return run

    def _lesson(self, submission: Submission, past: PastCandidate, verdict: ev.Verdict) -> Lesson:
        session = self._session
        best = session.incumbent(session.agents[submission.agent].state.best, submission.agent)
        return Lesson(
            kernel_type=session.kernel_type,
            strategy=past.strategy,
            family=past.family,
            hypothesis=past.hypothesis,
            reflection=getattr(submission.reply, "reflection", ""),
            parameters=past.parameters,
            before_parameters=submission.context.base.parameters,
            outcome=past.outcome,
            reason="" if past.reason.startswith(CORRECT) else past.reason,
            detail="" if past.reason.startswith(CORRECT) else past.detail,
            before_ms=best.latency_ms,
            after_ms=past.latency_ms,
            log_ratio=past.log_ratio,
            speedup=verdict.speedup,
            shapes=session.shapes,
        )

    async def _durably(self, record: VerdictRecord) -> Committed:
        """Commit; while the disk is full or failing, wait and try again (a verdict is idempotent)."""
        while True:
            try:
                return await self._session.writer.commit_verdict(record)
            except StoreError as error:
                log.error("%s", error.message)
                await asyncio.sleep(STORE_RETRY_S)

    def _sink(self, submission: Submission, *, confirming: bool) -> PhaseSink:
        def show(phase: str, detail: str) -> None:
            state = Live.CONFIRMING if confirming and phase == Live.BENCHING else phase
            self._session.writer.live(submission.agent, state=str(state), detail=detail)

        return show

    def _live(self, submission: Submission, state: Live, detail: str = "") -> None:
        self._session.writer.live(submission.agent, state=state.value, detail=detail)
