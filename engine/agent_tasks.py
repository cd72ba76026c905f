"""The coroutines of a campaign's agents: started, watched, restarted and stopped, one change after the other.

An agent is always one of these, and every change but the agent's own pauses is made here, under one lock, because
commands run beside each other and beside the launcher:

| | coroutine | ``control.stopped`` | ``control.paused`` |
|---|---|---|---|
| going | one | | |
| paused by a person, or by its own errors | one | | user, errors |
| broken: crashed too often, or cannot be built | none | | breaker |
| stopped by the guard, a budget or a person | none | the reason | |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from engine.admission import rebuilt_state
from engine.breaker import Breaker
from engine.errors import BadInput, KernelArcError
from engine.guard.stop import Stop
from engine.records import AgentState as Live
from engine.records import StopReason
from engine.session import AgentControl, Session, log
from engine.store import events as ev
from engine.text import one_line

TROUBLE = ("agent.errors", "breaker.open", "agent.setup")
"""Attention lines of an agent that a resume takes back."""

RunAgent = Callable[[AgentControl], Coroutine[Any, Any, Stop]]


class AgentTasks:
    """At most one coroutine an agent. Nothing runs before :meth:`begin`, and nothing is started after a close."""

    def __init__(self, session: Session, run: RunAgent) -> None:
        self._session, self._run = session, run
        self._tasks: dict[str, asyncio.Task[Stop]] = {}
        self._breakers: dict[str, Breaker] = {}
        self._changing = asyncio.Lock()
        self._begun = self._closed = False

    @property
    def running(self) -> set[asyncio.Task[Stop]]:
        """To be waited for, not to be cancelled."""
        return set(self._tasks.values())

    def begin(self) -> None:
        """Start everybody who was not stopped."""
        self._begun = True
        for control in self._session.agents.values():
            self._start(control)

    async def settle(self) -> None:
        """Record what became of agents whose coroutines are over; crashed ones start again."""
        async with self._changing:
            for name in [name for name, task in self._tasks.items() if task.done()]:
                await self._ended(self._session.agents[name], self._tasks.pop(name))

    async def stop(self, name: str, stop: Stop) -> None:
        """What the agent has in flight is given up."""
        async with self._changing:
            await self._cancel(name)
            await self._mark_stopped(self._session.agents[name], stop)

    async def renew(self, name: str) -> None:
        """Build the agent's proposer anew, for another model: what it has in flight is given up.

        Raises :class:`BadInput` when the campaign is ending.
        """
        async with self._changing:
            self._refuse_closed()
            await self._cancel(name)
            self._restart(self._session.agents[name])
        self._session.changed.set()

    async def resume(self, name: str, by: str = "user") -> None:
        """Go on with a paused, broken or stopped agent; its breaker and error streak start over.

        Raises :class:`BadInput` when the campaign is ending.
        """
        async with self._changing:
            self._refuse_closed()
            control = self._session.agents[name]
            self._breakers.pop(name, None)
            await self._session.record(ev.AgentResumed(agent=name, by=by))
            for code in TROUBLE:
                await self._session.withdraw(code, name)
            control.stopped = None
            control.resume()
            if name in self._tasks:
                control.clear_errors()
            else:
                self._restart(control)
        self._session.changed.set()

    async def close(self, stop: Stop | None = None) -> None:
        """End every coroutine, for good. With ``stop`` everybody who had not stopped is marked by it."""
        async with self._changing:
            self._closed = True
            await self._cancel(*self._tasks)
            if stop is not None:
                for control in self._session.agents.values():
                    await self._mark_stopped(control, stop)

    # Under the lock

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BadInput("the campaign is ending", fix="nothing can go on in it any more")

    def _start(self, control: AgentControl) -> None:
        if self._begun and not self._closed and control.stopped is None and control.paused != "breaker":
            name = control.spec.name
            self._tasks[name] = asyncio.create_task(self._run(control), name=f"agent {name}")

    def _restart(self, control: AgentControl) -> None:
        """From the store: what was in flight has left no trace."""
        control.state = rebuilt_state(self._session, control.spec.name)
        self._start(control)

    async def _cancel(self, *names: str) -> None:
        tasks = {self._tasks.pop(name) for name in names if name in self._tasks}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (crash := task.exception()) is not None:
                log.error("%s crashed as it was cancelled", task.get_name(), exc_info=crash)

    async def _ended(self, control: AgentControl, task: asyncio.Task[Stop]) -> None:
        """A coroutine is over by itself. Those cancelled here are not among them: a cancellation is a crash."""
        if task.cancelled():
            await self._crashed(control, asyncio.CancelledError("by nobody here, so by a library"))
            return
        crash = task.exception()
        if crash is None:
            await self._mark_stopped(control, task.result())
        elif isinstance(crash, KernelArcError):
            await self._give_up(control, "agent.setup", crash.message)
        else:
            await self._crashed(control, crash)

    async def _crashed(self, control: AgentControl, crash: BaseException) -> None:
        """Restart from the store, unless the breaker opens."""
        name = control.spec.name
        log.error("agent %s crashed", name, exc_info=crash)
        verdicts = self._session.summary.agents[name].candidates
        breaker = self._breakers.get(name, Breaker()).after_crash(time.monotonic(), verdicts)
        self._breakers[name] = breaker
        why = one_line(f"{type(crash).__name__}: {crash}")
        if breaker.open:
            await self._give_up(control, "breaker.open", f"{breaker.why}, the last: {why}")
            return
        await self._session.record(ev.AgentRestarted(agent=name, why=why, crashes=breaker.counted))
        self._restart(control)

    async def _give_up(self, control: AgentControl, code: str, why: str) -> None:
        """Pause an agent that cannot go on by itself; a person's resume starts it again."""
        name = control.spec.name
        control.pause("breaker", why)
        self._session.writer.live(name, state=Live.BROKEN.value, detail=why)
        text = f"agent {name} paused: {why}"
        await self._session.record(
            ev.AgentPaused(agent=name, by="breaker", why=why),
            ev.Attention(code=code, text=text, level="error", agent=name),
        )

    async def _mark_stopped(self, control: AgentControl, stop: Stop) -> None:
        name = control.spec.name
        if control.stopped is not None:
            return
        control.stopped = stop.reason
        self._session.writer.live(name, state=Live.STOPPED.value, detail=stop.detail, hypothesis="", reply="")
        await self._session.record(ev.AgentStopped(agent=name, reason=stop.reason, detail=stop.detail))


def taken_up(session: Session) -> list[ev.Event]:
    """What happens to agents when a person has a stored campaign go on: what only ERRORs, crashes and faults
    kept from going on goes on, its attention lines are taken back. What a person stopped or paused stays so."""
    summary = session.summary
    broken = [name for name, agent in summary.agents.items() if agent.broken or agent.stopped is StopReason.FAULT]
    return [
        *(ev.AgentResumed(agent=name, by="user") for name in broken),
        *(
            ev.Attention(code=note.code, text="", agent=note.agent, clear=True)
            for note in summary.attention
            if note.code == "campaign.fault" or (note.code in TROUBLE and note.agent in broken)
        ),
    ]
