"""A person's commands, carried out on the running campaign and written down with their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from engine.admission import eligible_strategies, why_not
from engine.agent_state import forced, without
from engine.campaign import Launcher
from engine.control.protocol import Answer, Command
from engine.errors import BadInput, KernelArcError
from engine.guard.stop import Stop, split_budget
from engine.presets import check_model
from engine.records import CampaignState, StopReason
from engine.session import AgentControl, Session
from engine.store import events as ev
from engine.store.edits import arguments
from engine.store.tx import Tx
from engine.text import clean, one_line

HINT_LIMIT = 1000
HINTS_WAITING = 16
BY_USER = Stop(StopReason.USER, "stopped by the user")


class Commands:
    """The control socket's handler. Refusals are answers too; only a ``ping`` leaves no event."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._session: Session = launcher.session
        self._verbs: dict[str, Callable[[Command], Awaitable[str]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "draft": self._draft,
            "hint": self._hint,
            "stop": self._stop,
            "veto": self._veto,
            "budget": self._budget,
            "strategy": self._strategy,
            "model": self._model,
            "profile": self._profile,
            "memory.pin": self._memory,
            "memory.unpin": self._memory,
            "memory.expire": self._memory,
            "memory.note": self._memory,
        }

    async def handle(self, command: Command) -> Answer:
        """Carry one command out. A refusal is recorded like any other answer."""
        if command.verb == "ping":
            return Answer(id=command.id, ok=True, text=f"running, {self._session.summary.state.value}")
        carry_out = self._verbs.get(command.verb)
        if carry_out is None:
            return Answer(id=command.id, ok=False, text=f"the engine does not know {command.verb!r}")
        ok = True
        try:
            text = await carry_out(command)
        except KernelArcError as error:
            ok, text = False, error.message
        return await self._answered(command, ok, one_line(text, 300))

    async def recall(self, identity: str) -> Answer | None:
        """The answer that an earlier engine gave to the same command."""
        found = await self._session.writer.answer_of(identity)
        return None if found is None else Answer(id=identity, ok=found[0], text=found[1], seq=found[2])

    async def _answered(self, command: Command, ok: bool, text: str) -> Answer:
        event = ev.CommandAnswered(id=command.id, verb=command.verb, args=_args(command), ok=ok, text=text)
        stored = await self._session.writer.append(event)
        return Answer(id=command.id, ok=ok, text=text, seq=stored[0].seq)

    # One handler a verb: each returns the line for a person, or raises

    async def _pause(self, command: Command) -> str:
        if command.agent is not None:
            control = self._going(command.agent)
            if control.paused:
                raise BadInput(f"agent {command.agent} is paused already ({control.paused})")
            control.pause("user", command.text)
            await self._session.record(ev.AgentPaused(agent=command.agent, by="user", why=one_line(command.text)))
            self._session.changed.set()
            return f"agent {command.agent} pauses after the candidate it is working on"
        if self._session.summary.state is CampaignState.PAUSED:
            raise BadInput("the campaign is paused already")
        await self._launcher.pause()
        return "pausing: what is being benched ends first, then the device is given back"

    async def _resume(self, command: Command) -> str:
        if command.agent is None:
            if self._session.summary.state is not CampaignState.PAUSED:
                raise BadInput("the campaign is not paused", fix="name an agent to resume that one")
            await self._launcher.resume()
            return "the campaign goes on"
        control = self._agent(command.agent)
        if control.stopped not in (None, StopReason.USER):
            raise BadInput(
                f"the guard stopped agent {command.agent} ({control.stopped})", fix="raise the budget instead"
            )
        if not control.paused and control.stopped is None:
            raise BadInput(f"agent {command.agent} is not paused")
        await self._launcher.agents.resume(command.agent)
        return f"agent {command.agent} goes on"

    async def _draft(self, command: Command) -> str:
        names = [command.agent] if command.agent is not None else self._active()
        for name in names:
            control = self._going(name)
            if control.state.plateau.line_open:
                if command.agent is not None:
                    return f"agent {name} is drafting already"
                continue
            control.state = forced(control.state)
            control.mailbox = msgspec.structs.replace(control.mailbox, draft=True)
            await self._keep_mailbox(name)
        return f"{_whose(names)} next proposal is a draft"

    async def _hint(self, command: Command) -> str:
        text = clean(command.text, HINT_LIMIT).strip()
        if not text:
            raise BadInput("the hint is empty", fix='for instance: hint "try an online softmax"')
        names = [command.agent] if command.agent is not None else self._active()
        for name in names:
            control = self._going(name)
            hints = (*control.mailbox.hints, text)[-HINTS_WAITING:]
            control.mailbox = msgspec.structs.replace(control.mailbox, hints=hints)
            await self._keep_mailbox(name, ev.HintGiven(agent=name, text=text))
        return self._who_reads(names)

    def _who_reads(self, names: list[str]) -> str:
        """Only models read prompts: nobody should wait for a recipe to follow a hint."""
        proposers = [self._session.agents[name].spec.proposer for name in names]
        others = ", ".join(sorted(set(proposers) - {"llm"}))
        if "llm" not in proposers:
            who = f"agent {names[0]}" if len(names) == 1 else "every agent"
            return f"the hint is on record, but {who} proposes from {others} and reads no prompt"
        return f"the hint is in {_whose(names)} next prompt" + (f", but {others} read none" if others else "")

    async def _stop(self, command: Command) -> str:
        if command.agent is None:
            self._launcher.request_stop()
            return "stopping: what is in flight is given up"
        control = self._agent(command.agent)
        if control.stopped is not None:
            raise BadInput(f"agent {command.agent} has stopped already ({control.stopped})")
        await self._launcher.agents.stop(command.agent, BY_USER)
        self._session.changed.set()
        return f"agent {command.agent} stopped"

    async def _veto(self, command: Command) -> str:
        done = await self._session.writer.edit("veto", command.number, command.text)
        control = self._session.agents.get(done.vetoed.agent) if done.vetoed else None
        if control is not None and done.vetoed is not None:
            control.state = without(control.state, done.vetoed.number)
        return done.text

    async def _budget(self, command: Command) -> str:
        session = self._session
        changes = _limits(command)
        agents: dict[str, int] = {}
        if command.candidates is not None:
            shares = split_budget(command.candidates, len(session.summary.agents))
            agents = {name: share or 0 for name, share in zip(session.summary.agents, shares, strict=True)}
        config = msgspec.structs.replace(session.config, **changes)
        event = ev.BudgetChanged(
            candidates=command.candidates,
            minutes=command.minutes,
            max_cost_usd=command.max_cost_usd,
            agents=agents,
        )

        def run(tx: Tx) -> None:
            tx.set_campaign(config=config)
            tx.append(event)

        # What the disk refuses is refused: it must not come true later, from the writer's queue.
        await session.writer.transact(run, durable=True, keep=False)
        session.config = config
        for name, control in session.agents.items():
            if self._may_go_on(name, control, command):
                await self._launcher.agents.resume(name, by="budget")
        session.changed.set()
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in changes.items())

    def _may_go_on(self, name: str, control: AgentControl, command: Command) -> bool:
        """Whether the changed budget is the one that an agent had stopped for."""
        if control.stopped is StopReason.COST:
            return command.max_cost_usd is not None
        if control.stopped is StopReason.TIME:
            return command.minutes is not None
        known = self._session.summary.agents[name]
        return control.stopped is StopReason.CANDIDATES and (
            known.budget is None or known.candidates < known.budget
        )

    async def _strategy(self, command: Command) -> str:
        name = self._named(command)
        control = self._going(name)
        wanted = command.text.strip()
        if wanted == "auto":
            control.mailbox = msgspec.structs.replace(control.mailbox, strategy="")
            await self._keep_mailbox(name)
            return f"the policy chooses agent {name}'s strategy again"
        skill = self._session.skills.skills.get(wanted)
        if skill is None or skill.meta:
            known = ", ".join(eligible_strategies(self._session))
            raise BadInput(f"there is no strategy {wanted!r}", fix=f"eligible here: {known}, or auto")
        why = why_not(self._session, skill)
        if why:
            raise BadInput(f"{wanted} is not eligible here: it {why}")
        control.mailbox = msgspec.structs.replace(control.mailbox, strategy=wanted)
        await self._keep_mailbox(
            name, ev.StrategyChosen(agent=name, strategy=wanted, why="chosen by a person", by="user")
        )
        return f"agent {name} uses {wanted} from its next proposal on"

    async def _model(self, command: Command) -> str:
        name = self._named(command)
        control = self._going(name)
        wanted = one_line(command.text, 200)
        if control.spec.proposer != "llm":
            raise BadInput(f"agent {name} is a {control.spec.proposer} agent and has no model")
        if not wanted:
            raise BadInput("no model named", fix="for instance: openai/gpt-5")
        check_model(command.text)
        control.mailbox = msgspec.structs.replace(control.mailbox, model=wanted)
        await self._keep_mailbox(
            name, ev.ModelChosen(agent=name, model=wanted, why="chosen by a person", by="user")
        )
        await self._launcher.agents.renew(name)
        return f"agent {name} goes on with {wanted}"

    async def _profile(self, command: Command) -> str:
        desk = self._session.profiles
        if desk is None or command.number is None:
            raise BadInput("no candidate named" if desk else "the reference is still being measured")
        desk.ask(command.number, command.text)
        return f"#{command.number} is profiled next; its screen and `kernelarc profile` show the result"

    async def _memory(self, command: Command) -> str:
        done = await self._session.writer.edit(command.verb, command.number, command.text)
        return done.text

    # Helpers

    def _agent(self, name: str) -> AgentControl:
        control = self._session.agents.get(name)
        if control is None:
            known = ", ".join(self._session.agents)
            if not known:
                raise BadInput("the reference is still being measured", fix="try again when agents have started")
            raise BadInput(f"there is no agent {name!r}", fix=f"agents: {known}")
        return control

    def _going(self, name: str) -> AgentControl:
        control = self._agent(name)
        if control.stopped is not None:
            raise BadInput(f"agent {name} has stopped ({control.stopped})")
        return control

    def _active(self) -> list[str]:
        names = [name for name, control in self._session.agents.items() if control.stopped is None]
        if not names:
            raise BadInput("no agent is going", fix="try again when agents have started")
        return names

    def _named(self, command: Command) -> str:
        if command.agent is None:
            raise BadInput("no agent named", fix=f"agents: {', '.join(self._session.agents)}")
        return command.agent

    async def _keep_mailbox(self, name: str, *events: ev.Event) -> None:
        """What waits for an agent survives the engine, together with the event that says so."""
        memo = msgspec.to_builtins(self._session.agents[name].mailbox)

        def run(tx: Tx) -> None:
            for event in events:
                tx.append(event)
            tx.memo(name, "mailbox", memo)

        await self._session.writer.transact(run)


def _whose(names: list[str]) -> str:
    return f"agent {names[0]}'s" if len(names) == 1 else "every agent's"


def _limits(command: Command) -> dict[str, float]:
    """The budgets that a command names, by their keys in the configuration. Raises :class:`BadInput`."""
    named = {"candidates": command.candidates, "minutes": command.minutes, "max_cost": command.max_cost_usd}
    changes = {name: value for name, value in named.items() if value is not None}
    if not changes:
        raise BadInput("no budget named", fix="give candidates, minutes or cost")
    for name, value in changes.items():
        if not 0 < value < float("inf"):
            raise BadInput(f"{name} is {value}", fix="use more than 0")
    return changes


def _args(command: Command) -> dict[str, str]:
    return arguments(
        agent=command.agent,
        text=command.text,
        number=command.number,
        candidates=command.candidates,
        minutes=command.minutes,
        max_cost_usd=command.max_cost_usd,
    )
