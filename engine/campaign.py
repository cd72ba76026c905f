"""The launcher: admits the problem, starts the agents, keeps them going, ends the campaign.

It enforces the budgets that count for everybody, and gives the device back while nobody needs it. Agents are
started and restarted in :mod:`engine.agent_tasks`, commands are in :mod:`engine.commands`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from engine import budget
from engine.admission import admit, eligible_strategies
from engine.agent import Agent
from engine.agent_tasks import AgentTasks, taken_up
from engine.door import DeviceParking
from engine.errors import Fault, KernelArcError
from engine.guard.guard import Guard
from engine.guard.stop import Stop, campaign_reason, campaign_stop, confirmation_grace_s
from engine.profile.campaign import ProfileDesk
from engine.proposers import PATIENT, build_proposer, warm_proposers
from engine.proposers.base import Proposer
from engine.records import AgentState as Live
from engine.records import CampaignState, StopReason
from engine.session import AgentControl, Session, log
from engine.skill_watch import watch_skills
from engine.store import events as ev
from engine.text import one_line

BuildProposer = Callable[[Session, AgentControl], Proposer]

LAST = "stop.confirming"
PAUSED_CAMPAIGN, ALL_PAUSED = "campaign", "agents"


class Launcher:
    """One campaign in one engine process. ``end_when_stuck``: nobody is there to help a broken agent."""

    def __init__(
        self, session: Session, *, proposers: BuildProposer = build_proposer, end_when_stuck: bool = False
    ) -> None:
        self.session = session
        self._build = proposers
        self._end_when_stuck = end_when_stuck
        self.agents = AgentTasks(session, self._run_agent)
        self._guard: Guard | None = None
        self._requested: Stop | None = None
        self._parking = DeviceParking(session.door, session.bench.suspend, session.changed.set)

    # The life of a campaign

    async def run(self) -> None:
        """From attaching to the campaign's end. Cancelling it leaves the campaign interrupted, to be resumed."""
        session = self.session
        session.writer.on_commit = session.committed
        await session.record(ev.EngineAttached(pid=os.getpid(), resumed=session.summary.seq > 1))
        await self._reopen()
        if self._build is build_proposer:
            warm_proposers(session)
        try:
            await self._until_requested(admit(session))
            if self._requested is None:
                self._guard = Guard(session)
                self.agents.begin()
                skills = asyncio.create_task(self._follow_skills())
                session.profiles = ProfileDesk(session)
                try:
                    await self._supervise()
                finally:
                    skills.cancel()
                    await session.profiles.close()
        except KernelArcError as fault:
            self._requested = Stop(StopReason.FAULT, fault.message)
            await session.note("campaign.fault", fault.message, level="error")
        finally:
            await self.agents.close()
            await self._parking.close()
        await self._end()

    async def _reopen(self) -> None:
        """An engine is only ever started on a campaign that has begun to go on with it."""
        events = taken_up(self.session)
        if self.session.summary.state in (CampaignState.PAUSED, CampaignState.FINISHED, CampaignState.STOPPED):
            events.insert(0, ev.CampaignResumed(by="user"))
        if events:
            await self.session.record(*events)
        await self.session.withdraw(LAST)  # of an engine that ended meanwhile

    async def _until_requested(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, but not longer than until a stop is requested or a budget of the campaign is used up."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                self.session.changed.clear()
                self._requested = self._spent()
                if self._requested is not None:
                    return
                await self._wait({task})
        finally:
            task.cancel()
            await asyncio.wait({task})
        if task.cancelled():
            raise Fault("fault.admission", "the admission was cancelled, and not by the engine")
        task.result()

    def _spent(self) -> Stop | None:
        """Why everybody must stop: a person said so, or a budget that counts for all is used up."""
        session = self.session
        standing = budget.campaign_standing(session.summary, session.config, time.time())
        return self._requested or campaign_stop(standing)

    async def _supervise(self) -> None:
        """Until every agent has stopped, or something stops them all."""
        session = self.session
        while True:
            session.changed.clear()
            await self.agents.settle()
            stop = self._spent()
            if stop is None and self._stuck():
                stop = Stop(StopReason.FAULT, "every agent that is left is paused by errors")
            if stop is not None:
                await self._let_confirm(stop)
                spent = self._spent()
                if spent is None and confirmation_grace_s(stop.reason):
                    continue  # a person has given more meanwhile
                self._requested = spent or stop
                await self.agents.close(self._requested)
                return
            if not self._left():
                return
            await self._tell()
            self._park_if_idle()
            await self._wait(self.agents.running)

    async def _let_confirm(self, stop: Stop) -> None:
        """Stop everybody, but those whose win is being confirmed only after that, or when a person says so.

        A person may also give more of what is used up: then they go on.
        """
        grace_s = confirmation_grace_s(stop.reason)
        until = time.monotonic() + grace_s
        for control in self._left() if grace_s else ():
            if not control.confirming and self._spent() is not None:
                await self.agents.stop(control.spec.name, stop)
        if not self._confirming() or not grace_s:
            return
        budget_of = f"the {stop.reason.value} budget is used up"
        text = f"{budget_of}: what is being confirmed may finish, for at most {grace_s:.0f} s"
        await self.session.note(LAST, text, level="info")
        while self._confirming() and (left_s := until - time.monotonic()) > 0:
            if self._requested is not None or self._spent() is None:
                break
            self.session.changed.clear()
            await self._wait(self.agents.running, left_s)
            await self.agents.settle()
        await self.session.withdraw(LAST)

    def _confirming(self) -> bool:
        return any(control.confirming for control in self._left())

    async def _wait(self, tasks: Iterable[asyncio.Task[Any]], timeout_s: float | None = None) -> None:
        """Until a task is done, something was committed or commanded, or the time (``None``: the budget) ends."""
        if timeout_s is None:
            timeout_s = budget.seconds_left(self.session.summary, time.time())
        changed = asyncio.create_task(self.session.changed.wait())
        try:
            await asyncio.wait({changed, *tasks}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def _end(self) -> None:
        """Freeze the results."""
        session = self.session
        stop = self._requested
        if stop is None:
            stopped = [control.stopped for control in session.agents.values() if control.stopped is not None]
            reason = campaign_reason(stopped)
            details = [a.stopped_detail for a in session.summary.agents.values() if a.stopped is reason]
            stop = Stop(reason, details[0] if details else "")
        state = CampaignState.STOPPED if stop.reason is StopReason.USER else CampaignState.FINISHED
        await session.reconcile("in flight when its agent was stopped: charged in full")
        await session.record(ev.CampaignEnded(state=state.value, reason=stop.reason, detail=stop.detail))

    async def _follow_skills(self) -> None:
        """Skills that are edited while the campaign runs count from the next proposal on."""
        broken = [
            ev.SkillReloaded(name=b.name, ok=False, detail=one_line(b.why)) for b in self.session.skills.broken
        ]
        if broken:
            await self.session.record(*broken)
        try:
            async for reloaded in watch_skills(self.session.skills):
                self.session.skills = reloaded.skills
                await self.session.record(*reloaded.events)
        except (OSError, RuntimeError) as error:  # no more watches on this machine: the campaign goes on without
            log.warning("skills are not watched: %s", error)

    # Agents

    async def _run_agent(self, control: AgentControl) -> Stop:
        """Build the agent anew and run it: what it knows comes from the store."""
        session, name = self.session, control.spec.name
        if self._guard is None:
            raise Fault("fault.not-measured", "the campaign is still being admitted")
        session.writer.live(name, state=Live.STARTING.value, detail="")
        proposer = self._build(session, control)
        try:
            agent = Agent(
                session=session,
                control=control,
                proposer=proposer,
                guard=self._guard,
                eligible=lambda: eligible_strategies(session),
                patient=control.spec.proposer in PATIENT,
            )
            return await agent.run()
        finally:
            await proposer.close()

    def _left(self) -> list[AgentControl]:
        return [control for control in self.session.agents.values() if control.stopped is None]

    def _stuck(self) -> bool:
        """Nobody is left who could go on, and nobody is there to help."""
        left = self._left()
        return self._end_when_stuck and bool(left) and all(control.broken for control in left)

    # What commands and signals ask for

    def request_stop(self, detail: str = "stopped by the user") -> None:
        """Stop the campaign: what is in flight is given up at once."""
        if self._requested is None:
            self._requested = Stop(StopReason.USER, detail)
        self.session.changed.set()

    async def pause(self) -> None:
        """No new proposals or benches; the device is given back once the running bench has ended."""
        await self.session.record(ev.CampaignPaused(by="user"))
        self._parking.shut(PAUSED_CAMPAIGN)

    async def resume(self) -> None:
        """Go on, broken agents included. What is being suspended is suspended first."""
        await self.session.record(ev.CampaignResumed(by="user"))
        self._parking.open(PAUSED_CAMPAIGN)
        for name in [control.spec.name for control in self._left() if control.broken]:
            await self.agents.resume(name)

    # What follows from how things stand

    def _park_if_idle(self) -> None:
        """Everybody who is left is paused one by one: the device is given back as for a pause of the campaign."""
        left = self._left()
        if left and all(control.paused for control in left):
            self._parking.shut(ALL_PAUSED)
        else:
            self._parking.open(ALL_PAUSED)

    async def _tell(self) -> None:
        """Attention lines that stand as long as their cause does."""
        summary, failure = self.session.summary, self._parking.failure
        spent = f"more than {budget.COST_WARNING:.0%} of {summary.max_cost_usd or 0.0:.2f} USD are spent"
        lines = {
            "cost.90": spent if budget.nearly_spent(summary) else "",
            "device.kept": f"the device was not given back: {failure}" if failure else "",
        }
        for code, text in lines.items():
            await (self.session.note(code, text) if text else self.session.withdraw(code))
