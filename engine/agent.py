"""One agent: the coroutine that proposes until the guard says stop. Everything it learns is in the store.

Until told to stop: wait while paused, take hints and a forced draft, recall, look at faster siblings, choose the
mode by the plateau and a strategy by the policy, ask the proposer, submit to the guard.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from engine import budget, strategy
from engine.agent_state import AgentState, base_number, begun
from engine.breaker import ERROR_STREAK, backoff_s
from engine.errors import BadInput, KernelArcError
from engine.guard.guard import Guard, Judged, Submission
from engine.guard.plateau import draft_due
from engine.guard.plateau import mode as plateau_mode
from engine.guard.stop import Stop, stop_reason
from engine.memory import recall
from engine.proposers.base import (
    AskAgain,
    BudgetSpent,
    Choosy,
    Context,
    Exhausted,
    NotYet,
    Proposal,
    Proposer,
    ProposerError,
    UnusableReply,
)
from engine.records import AgentState as Live
from engine.records import Mode, Outcome, StopReason, Usage
from engine.session import AgentControl, Session
from engine.skills import SkillSet
from engine.store import events as ev
from engine.text import clean, one_line

ERROR_LIMIT = 500
NEWS_POLL_S = 0.5
ASK_AGAIN_S = 0.5

Standing = tuple[int, StopReason | None, str]
"""Of another agent: its best, why it stopped, who paused it."""


@dataclass
class Agent:
    """``eligible`` says which strategies suit the kernel, in the skills' order of promise."""

    session: Session
    control: AgentControl
    proposer: Proposer
    guard: Guard
    eligible: Callable[[], tuple[str, ...]]
    patient: bool = False  # waits for a person: no deadline per proposal
    clock: Callable[[], float] = time.time
    _skills: SkillSet | None = None  # whose strategies these are
    _strategies: tuple[str, ...] = ()
    _fitting: int = 0  # how many suit the kernel, of which its proposer can serve those

    @property
    def name(self) -> str:
        return self.control.spec.name

    async def run(self) -> Stop:
        """Propose until stopped; says why. Cancelling it stops at once and loses the candidate in flight."""
        while True:
            await self._while_paused()
            stop = self._stop()
            if stop is not None:
                return stop
            await self._look_at_skills()
            others = self._others()  # as they are before anybody looks, so that no news falls between
            context = await self._prepare()
            started = time.monotonic()
            try:
                reply = await self._propose(context)
            except BudgetSpent as error:
                return Stop(StopReason.COST, one_line(str(error)))
            except Exhausted as error:
                return Stop(StopReason.CANDIDATES, one_line(str(error)) or "the proposer has nothing more")
            except NotYet as error:
                await self._until_news(others, one_line(str(error)))
                continue
            except AskAgain:  # what the proposer said last stays on show meanwhile
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            except ProposerError as error:
                await self._error(error.reason, error.detail, error.usage)
                continue
            await self._submit(context, reply, started)

    async def _look_at_skills(self) -> None:
        """Skills that come or go while the campaign runs count from the next proposal on.

        Where none of those is left that the campaign names, the agent goes on with what it has.
        """
        if self._skills is self.session.skills:
            return
        first, self._skills = self._skills is None, self.session.skills
        try:
            found = self.eligible()
        except BadInput:
            if first:
                raise
            return
        if isinstance(self.proposer, Choosy):
            self._fitting = len(found)
            found = await self.proposer.strategies(found) or found
        self._strategies = found

    def _stop(self) -> Stop | None:
        summary = self.session.summary
        return stop_reason(
            budget.agent_standing(summary, self.name, plateau=self.control.state.plateau.stop),
            budget.campaign_standing(summary, self.session.config, self.clock()),
        )

    async def _while_paused(self) -> None:
        """Until neither the campaign nor this agent is paused."""
        session, control = self.session, self.control
        while not (session.door.is_open and control.going.is_set()):
            state = Live.BROKEN if control.broken else Live.PAUSED
            session.writer.live(self.name, state=state.value, detail=control.why, hypothesis="", reply="")
            await session.door.opened()
            await control.going.wait()

    async def _until_news(self, known: list[Standing], why: str) -> None:
        """Until another agent has a new best or has stopped, or this one is paused or has to stop."""
        self.session.writer.live(self.name, state=Live.PROPOSING.value, detail=why, hypothesis="", reply="")
        while self._others() == known and self._stop() is None:
            if not (self.session.door.is_open and self.control.going.is_set()):
                return
            await asyncio.sleep(NEWS_POLL_S)

    def _others(self) -> list[Standing]:
        agents = self.session.summary.agents
        return [(a.best, a.stopped, a.paused) for name, a in agents.items() if name != self.name]

    async def _prepare(self) -> Context:
        """Everything the proposer may see: mode, strategy, base, memory, siblings, hints."""
        session, control = self.session, self.control
        session.writer.live(self.name, state=Live.RECALLING.value, detail="", hypothesis="", reply="", tokens=0)
        state = await self._begin(control.state)
        chosen = await self._choose(state)
        wins, traps = recall(
            session.memory_for(self.name),
            kernel_type=session.kernel_type,
            strategy=chosen,
            shapes=session.shapes,
        )
        mode = plateau_mode(state.plateau, session.plateau)
        session.writer.live(self.name, strategy=chosen, mode=mode.value)
        return Context(
            problem=session.problem,
            kernel_type=session.kernel_type,
            device=session.bench.device,
            agent=self.name,
            ordinal=control.spec.ordinal,
            position=state.position,
            seed=session.config.seed,
            mode=mode,
            strategy=chosen,
            base=session.incumbent(base_number(state), self.name),
            best=session.incumbent(state.best, self.name),
            history=state.history,
            wins=wins,
            traps=traps,
            siblings=session.siblings(self.name),
            hints=control.mailbox.hints,
            tried_families=state.families,
            reference_ms=session.baselines.reference_ms,
            roofline_ms=session.scale.bound_ms,
            limits=session.scale.limit,
            profile=session.profile_of(base_number(state)),
            reference_by_workload_ms=session.reference_by_workload_ms,
            forced_draft=state.plateau.line_forced,
            line_tries=state.plateau.line_tries,
            failed=session.failed(state.history, self.name),
            taken=session.programs,
        )

    async def _begin(self, state: AgentState) -> AgentState:
        """Open a draft line that is due and say so, once."""
        session, control = self.session, self.control
        if not draft_due(state.plateau, session.plateau):
            return state
        control.state = state = begun(state, Mode.DRAFT, session.plateau)
        control.mailbox = msgspec.structs.replace(control.mailbox, draft=False)
        opened = ev.DraftLineOpened(agent=self.name, forced=state.plateau.line_forced)
        memo = msgspec.to_builtins(control.mailbox)
        await session.decide(opened, agent=self.name, memo={"mailbox": memo})
        return state

    async def _choose(self, state: AgentState) -> str:
        """The strategy for this proposal; a person's choice stands before the policy's."""
        wanted = self.control.mailbox.strategy
        if wanted:
            return wanted
        choice = strategy.choose(
            self._strategies,
            state.history,
            seed=self.session.config.seed,
            agent=self.name,
            ordinal=self.control.spec.ordinal,
            position=state.position,
            mode=plateau_mode(state.plateau, self.session.plateau),
            line=state.plateau.line_tries > 0,
            of=self._fitting,
        )
        if choice.strategy != self.session.summary.agents[self.name].strategy:
            await self.session.record(ev.StrategyChosen(agent=self.name, strategy=choice.strategy, why=choice.why))
        return choice.strategy

    async def _propose(self, context: Context) -> Proposal | UnusableReply:
        """Ask the proposer under the one deadline of a proposal."""
        deadline = None if self.patient else self.session.config.proposal_deadline_s
        sink = _Live(self.session, self.name)
        sink.state(Live.PROPOSING)
        try:
            async with asyncio.timeout(deadline):
                return await self.proposer.propose(context, sink)
        except TimeoutError as error:
            raise ProposerError("model.deadline", f"no reply within {deadline:g} s") from error

    async def _submit(self, context: Context, reply: Proposal | UnusableReply, started: float) -> None:
        if isinstance(reply, Proposal):
            hypothesis = one_line(reply.hypothesis, 300)
            self.session.writer.live(self.name, hypothesis=hypothesis, strategy=reply.strategy)
        submission = Submission(
            agent=self.name,
            reply=reply,
            context=context,
            delivered=context.hints,
            model=self.proposer.model,
            started=started,
        )
        for last in (False, True):
            judged = await self.guard.submit(submission)
            if isinstance(reply, Proposal):
                await self.proposer.judged(reply, judged.outcome, judged.evaluation, judged.reason)
            if judged.outcome is not Outcome.ERROR:
                await self._after(judged)
                return
            # The fault is not the candidate's: what was paid for is judged once more before another is asked for.
            # Its cost is told once, with the outcome that is its last.
            await self._error(judged.reason, judged.detail, reply.usage if last else None)
            await self._while_paused()
            if self._stop() is not None:
                return

    async def _after(self, judged: Judged) -> None:
        """A verdict arrived, so whatever was failing works again. A KEEP is profiled if the campaign says so."""
        desk = self.session.profiles
        if judged.outcome is Outcome.KEEP and self.session.config.profile and desk is not None:
            with suppress(KernelArcError):
                desk.ask(judged.number)
        await self.session.withdraw("agent.errors", self.name)

    async def _error(self, reason: str, detail: str, usage: Usage | None) -> None:
        """Count an ERROR: no position, r stays. The fifth in a row pauses the agent; before it, wait a little."""
        session, control = self.session, self.control
        streak = control.state.errors + 1
        control.state = msgspec.structs.replace(control.state, errors=streak)
        detail = clean(detail, ERROR_LIMIT)
        event = ev.CandidateError(
            agent=self.name,
            reason=reason,
            detail=detail,
            streak=streak,
            tokens=usage.tokens_in + usage.tokens_out if usage else 0,
            cost_usd=usage.cost_usd if usage else None,
        )
        if streak < ERROR_STREAK:
            await session.record(event)
            await asyncio.sleep(backoff_s(streak))
            return
        why = f"{streak} errors in a row, the last: {reason}: {one_line(detail)}"
        control.pause("errors", why)
        text = f"agent {self.name} paused: {why}"
        await session.record(
            event,
            ev.AgentPaused(agent=self.name, by="errors", why=why),
            ev.Attention(code="agent.errors", text=text, level="error", agent=self.name),
        )


class _Live:
    """The proposer's view of the agent's live row."""

    def __init__(self, session: Session, agent: str) -> None:
        self._session, self._agent = session, agent

    def state(self, state: str, detail: str = "") -> None:
        self._session.writer.live(self._agent, state=str(state), detail=one_line(detail))

    def reply(self, tail: str, tokens: int) -> None:
        self._session.writer.live(self._agent, reply=clean(tail), tokens=tokens)
