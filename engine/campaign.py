"""The launcher: admits the problem, starts the agents, keeps them going, ends the campaign.

It restarts an agent that crashed (with a breaker), never one that the guard stopped; it enforces the budgets that
count for everybody; it gives the device back while nobody needs it. Commands are in :mod:`engine.commands`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

from engine import budget
from engine.admission import admit, eligible_strategies, rebuilt_state
from engine.agent import Agent
from engine.breaker import CRASHES, WINDOW_S, Breaker
from engine.errors import Fault, KernelArcError
from engine.guard.guard import Guard
from engine.guard.stop import Stop, campaign_reason, campaign_stop
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

PAUSED_CAMPAIGN, ALL_PAUSED = "campaign", "agents"


class Launcher:
    """One campaign in one engine process. ``end_when_stuck``: nobody is there to help a broken agent."""

    def __init__(
        self, session: Session, *, proposers: BuildProposer = build_proposer, end_when_stuck: bool = False
    ) -> None:
        self.session = session
        self._build = proposers
        self._end_when_stuck = end_when_stuck
        self._guard: Guard | None = None
        self._tasks: dict[str, asyncio.Task[Stop]] = {}
        self._breakers: dict[str, Breaker] = {}
        self._requested: Stop | None = None
        self._shut: set[str] = set()  # why the door is shut
        self._parking: asyncio.Task[None] | None = None
        self._suspending = False

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
                for control in session.agents.values():
                    if control.stopped is None:
                        self._start(control)
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
            await self._cancel_agents()
        await self._end()

    async def _reopen(self) -> None:
        """An engine is only ever started on a paused or ended campaign to go on with it."""
        if self.session.summary.state in (CampaignState.PAUSED, CampaignState.FINISHED, CampaignState.STOPPED):
            await self.session.record(ev.CampaignResumed(by="user"))

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
            for name in [name for name, task in self._tasks.items() if task.done()]:
                await self._ended(name, self._tasks.pop(name))
            stop = self._spent()
            if stop is None and self._stuck():
                stop = Stop(StopReason.FAULT, "every agent that is left is paused by errors")
            if stop is not None:
                await self._stop_all(stop)
                return
            if all(control.stopped is not None for control in session.agents.values()):
                return
            await self._watch_cost()
            self._park_if_idle()
            await self._wait(set(self._tasks.values()))

    async def _wait(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Until a task is done, something was committed or commanded, or the time budget ends."""
        changed = asyncio.create_task(self.session.changed.wait())
        try:
            await asyncio.wait(
                {changed, *tasks},
                timeout=budget.seconds_left(self.session.summary, time.time()),
                return_when=asyncio.FIRST_COMPLETED,
            )
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

    def _start(self, control: AgentControl) -> None:
        name = control.spec.name
        if self._guard is None:
            raise Fault("fault.not-measured", "the campaign is still being admitted")
        self._tasks[name] = asyncio.create_task(self._run_agent(control, self._guard), name=f"agent {name}")

    async def _run_agent(self, control: AgentControl, guard: Guard) -> Stop:
        """Build the agent anew and run it: what it knows comes from the store."""
        session, name = self.session, control.spec.name
        session.writer.live(name, state=Live.STARTING.value, detail="")
        proposer = self._build(session, control)
        try:
            agent = Agent(
                session=session,
                control=control,
                proposer=proposer,
                guard=guard,
                eligible=eligible_strategies(session),
                patient=control.spec.proposer in PATIENT,
            )
            return await agent.run()
        finally:
            await proposer.close()

    async def _ended(self, name: str, task: asyncio.Task[Stop]) -> None:
        """An agent's coroutine is over: it stopped, was told to stop, or crashed."""
        control = self.session.agents[name]
        if task.cancelled():
            return
        crash = task.exception()
        if crash is None:
            await self._mark_stopped(control, task.result())
        elif isinstance(crash, KernelArcError):
            await self._give_up(control, "setup", crash.message)
        else:
            await self._crashed(control, crash)

    async def _crashed(self, control: AgentControl, crash: BaseException) -> None:
        """Restart from the store; three crashes in thirty seconds open the breaker."""
        name = control.spec.name
        log.error("agent %s crashed", name, exc_info=crash)
        breaker = self._breakers.get(name, Breaker()).after_crash(time.monotonic())
        self._breakers[name] = breaker
        why = one_line(f"{type(crash).__name__}: {crash}")
        if breaker.open:
            text = f"{CRASHES} crashes within {WINDOW_S:g} s, the last: {why}"
            await self._give_up(control, "breaker", text)
            return
        await self.session.record(ev.AgentRestarted(agent=name, why=why, crashes=len(breaker.crashes)))
        control.state = rebuilt_state(self.session, name)
        self._start(control)

    async def _give_up(self, control: AgentControl, by: str, why: str) -> None:
        """Pause an agent that cannot go on by itself; a person's resume starts it again."""
        name = control.spec.name
        control.pause("breaker", why)
        self.session.writer.live(name, state=Live.BROKEN.value, detail=why)
        code = "breaker.open" if by == "breaker" else "agent.setup"
        text = f"agent {name} paused: {why}"
        await self.session.record(
            ev.AgentPaused(agent=name, by="breaker", why=why),
            ev.Attention(code=code, text=text, level="error", agent=name),
        )

    async def _mark_stopped(self, control: AgentControl, stop: Stop) -> None:
        name = control.spec.name
        if control.stopped is not None:
            return
        control.stopped = stop.reason
        self.session.writer.live(name, state=Live.STOPPED.value, detail=stop.detail, hypothesis="", reply="")
        await self.session.record(ev.AgentStopped(agent=name, reason=stop.reason, detail=stop.detail))

    async def _stop_all(self, stop: Stop) -> None:
        self._requested = stop
        await self._cancel_agents()
        for control in self.session.agents.values():
            await self._mark_stopped(control, stop)

    async def _cancel_agents(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._parking is not None:
            self._parking.cancel()

    def _stuck(self) -> bool:
        """Nobody is left who could go on, and nobody is there to help."""
        left = [control for control in self.session.agents.values() if control.stopped is None]
        broken = all(control.paused in ("errors", "breaker") for control in left)
        return self._end_when_stuck and bool(left) and broken

    # What commands and signals ask for

    def request_stop(self, detail: str = "stopped by the user") -> None:
        """Stop the campaign: what is in flight is given up at once."""
        if self._requested is None:
            self._requested = Stop(StopReason.USER, detail)
        self.session.changed.set()

    async def stop_agent(self, name: str) -> None:
        await self._cancel(name)
        await self._mark_stopped(self.session.agents[name], Stop(StopReason.USER, "stopped by the user"))

    async def renew_agent(self, name: str) -> None:
        """Build the agent's proposer anew, for another model: what it has in flight is given up."""
        await self._cancel(name)
        control = self.session.agents[name]
        if control.stopped is None:
            control.state = rebuilt_state(self.session, name)
            self._start(control)
        self.session.changed.set()

    async def _cancel(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def pause(self) -> None:
        """No new proposals or benches; the device is given back once the running bench has ended."""
        await self.session.record(ev.CampaignPaused(by="user"))
        self._close_door(PAUSED_CAMPAIGN)

    async def resume(self) -> None:
        await self.session.record(ev.CampaignResumed(by="user"))
        await self._open_door(PAUSED_CAMPAIGN)

    async def resume_agent(self, name: str, by: str = "user") -> None:
        """Go on with a paused, broken or stopped agent; its breaker and error streak start over."""
        control = self.session.agents[name]
        self._breakers.pop(name, None)
        await self.session.record(ev.AgentResumed(agent=name, by=by))
        for code in ("agent.errors", "breaker.open", "agent.setup"):
            await self.session.withdraw(code, name)
        control.stopped = None
        if name not in self._tasks:
            control.state = rebuilt_state(self.session, name)
        control.clear_errors()
        await self._open_door(ALL_PAUSED)
        control.resume()
        if name not in self._tasks:
            self._start(control)
        self.session.changed.set()

    # The device

    def _close_door(self, why: str) -> None:
        self._shut.add(why)
        self.session.door.shut()
        if self._parking is None or self._parking.done():
            self._parking = asyncio.create_task(self._park(), name="park")

    async def _open_door(self, why: str) -> None:
        self._shut.discard(why)
        if self._shut:
            return
        parking = self._parking
        if parking is not None and not parking.done():
            if not self._suspending:
                parking.cancel()
            await asyncio.wait({parking})
        self.session.door.reopen()

    async def _park(self) -> None:
        await self.session.door.emptied()
        self._suspending = True
        try:
            await self.session.bench.suspend()
        finally:
            self._suspending = False

    def _park_if_idle(self) -> None:
        """Everybody who is left is paused one by one: the device is given back as for a pause of the campaign."""
        left = [control for control in self.session.agents.values() if control.stopped is None]
        if left and all(control.paused for control in left) and ALL_PAUSED not in self._shut:
            self._close_door(ALL_PAUSED)

    async def _watch_cost(self) -> None:
        summary = self.session.summary
        if budget.nearly_spent(summary):
            await self.session.note("cost.90", f"{summary.cost_usd:.2f} of {summary.max_cost_usd:.2f} USD spent")
