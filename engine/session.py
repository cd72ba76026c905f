"""What the agents, the guard and the commands of one running campaign share: records and the doors to I/O."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.agent_state import AgentState, Mailbox, was_correct
from engine.bench.api import Bench
from engine.config import CampaignConfig
from engine.door import BenchDoor
from engine.errors import Fault, StoreError
from engine.grading import Scale
from engine.guard.plateau import PlateauConfig
from engine.memory import memory_entry, visible
from engine.presets import margin_of
from engine.problems.model import Problem
from engine.profile.text import profile_lines
from engine.proposers.base import DUPLICATES, Incumbent, MemoryEntry, PastCandidate
from engine.records import Baselines, Evaluation, StopReason
from engine.skills import SkillSet
from engine.store import events as ev
from engine.store.events import AgentSpec
from engine.store.reader import StoreReader
from engine.store.summary import BROKEN, Summary
from engine.store.tx import Tx
from engine.store.writer import StoreWriter

if TYPE_CHECKING:
    from engine.profile.campaign import ProfileDesk

log = logging.getLogger("kernelarc.engine")

INCUMBENTS = 16
"""Solutions with their evaluations that are kept at hand."""
STORE_RETRY_S = 2.0


@dataclass
class AgentControl:
    """One agent as commands and the launcher see it. The coroutine owns ``state``; a veto changes it too."""

    spec: AgentSpec
    state: AgentState
    mailbox: Mailbox = field(default_factory=Mailbox)
    paused: str = ""  # who paused it: user, errors, breaker; empty while it runs
    why: str = ""
    stopped: StopReason | None = None
    confirming: bool = False  # what it found is nearly kept: a budget that ends waits for it
    going: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def broken(self) -> bool:
        """Paused because it fails: it needs a person."""
        return self.paused in BROKEN

    def pause(self, by: str, why: str) -> None:
        self.paused, self.why = by, why
        self.going.clear()

    def resume(self) -> None:
        self.paused = self.why = ""
        self.going.set()

    def clear_errors(self) -> None:
        self.state = msgspec.structs.replace(self.state, errors=0)


@dataclass
class Session:
    """One campaign with its open store and bench. ``measured`` and ``graphs`` (traced references by workload uuid)
    come with its admission."""

    folder: Path
    config: CampaignConfig
    problem: Problem
    kernel_type: str
    writer: StoreWriter
    reader: StoreReader
    bench: Bench
    skills: SkillSet
    measured: Baselines | None = None
    graphs: dict[str, Any] = field(default_factory=dict)
    scale: Scale = field(default_factory=Scale)
    shapes: str = ""
    agents: dict[str, AgentControl] = field(default_factory=dict)
    door: BenchDoor = field(default_factory=BenchDoor)
    programs: dict[str, int] = field(default_factory=dict)  # program_sha → candidate number; 0 in flight
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # something was committed
    profiles: ProfileDesk | None = None
    _memory: list[MemoryEntry] | None = None
    _incumbents: dict[int, Incumbent] = field(default_factory=dict)

    @property
    def summary(self) -> Summary:
        return self.writer.summary

    @property
    def baselines(self) -> Baselines:
        if self.measured is None:
            raise Fault("fault.not-measured", "the reference has not been measured yet")
        return self.measured

    @property
    def reference_by_workload_ms(self) -> dict[str, float]:
        """The reference's latency by workload uuid, as measured when the campaign began."""
        results = self.baselines.workloads
        return {r.uuid: r.reference_latency_ms for r in results if r.reference_latency_ms is not None}

    @property
    def margin(self) -> float:
        """The KEEP margin as a fraction, before the noise floor."""
        return margin_of(self.config)

    def noise_of(self, number: int) -> float:
        """The A/A noise to compare with candidate ``number`` by: the machine's, on a GPU the kernel's own.

        Zero where a best's own is not known yet: it is measured before anybody is kept in its place.
        """
        return self.scatter_of(number) if self.noise_is_known(number) else 0.0

    def scatter_of(self, number: int) -> float:
        """What equals of ``number`` may be off by: its own noise if it was measured, else the seed's if known."""
        known = self.summary.noise_of
        return known.get(number, known.get(0, self.baselines.noise or 0.0))

    def noise_is_known(self, number: int) -> bool:
        """Whether :meth:`noise_of` is of this very kernel, or of a machine whose noise is the same for all."""
        machines = self.bench.device.kind == "cpu" or (number == 0 and self.baselines.noise is not None)
        return machines or number in self.summary.noise_of

    @property
    def plateau(self) -> PlateauConfig:
        return PlateauConfig(r_draft=self.config.draft_after, r_stop=self.config.stop_after)

    def committed(self, stored: Sequence[ev.Stored]) -> None:
        """The writer's callback: wake the launcher, forget what memory looked like if it changed."""
        if any(isinstance(item.event, _MEMORY_EVENTS) for item in stored):
            self._memory = None
        self.changed.set()

    async def record(self, *events: ev.Event) -> None:
        """Append decisions. If the disk fails they wait in the writer's queue; the campaign goes on."""
        try:
            await self.writer.append(*events)
        except StoreError as error:
            log.error("%s", error.message)

    async def reconcile(self, why: str) -> None:
        """Show money that was charged and is part of no verdict or ERROR; for when no call is in flight."""
        try:
            await self.writer.reconcile(why)
        except StoreError as error:
            log.error("%s", error.message)

    async def decide(self, *events: ev.Event, agent: str, memo: dict[str, Any]) -> None:
        """Append decisions together with what the agent must find again after a crash."""

        def run(tx: Tx) -> None:
            for event in events:
                tx.append(event)
            for key, value in memo.items():
                tx.memo(agent, key, value)

        try:
            await self.writer.transact(run)
        except StoreError as error:
            log.error("%s", error.message)

    async def note(self, code: str, text: str, *, level: str = "warning", agent: str = "") -> None:
        """Tell a person that something needs them, unless that very line stands already."""
        standing = [(note.code, note.agent, note.text) for note in self.summary.attention]
        if (code, agent, text) not in standing:
            await self.record(ev.Attention(code=code, text=text, level=level, agent=agent))

    async def withdraw(self, code: str, agent: str = "") -> None:
        """Take a standing attention line back."""
        if any((note.code, note.agent) == (code, agent) for note in self.summary.attention):
            await self.record(ev.Attention(code=code, text="", agent=agent, clear=True))

    def memory_for(self, agent: str) -> list[MemoryEntry]:
        """Live wins and traps that ``agent`` may recall."""
        if self._memory is None:
            self._memory = [memory_entry(row) for row in self.reader.memory(kernel_type=self.kernel_type)]
        return visible(self._memory, agent, self.config)

    def incumbent(self, number: int, agent: str) -> Incumbent:
        """A stored solution with what was measured of it; number 0 is the seed."""
        if number == 0:
            return self._seed(agent)
        known = self._incumbents.get(number)
        if known is None:
            known = self._load(number)
            while len(self._incumbents) >= INCUMBENTS:
                self._incumbents.pop(next(iter(self._incumbents)))
            self._incumbents[number] = known
        return known

    def failed(self, history: Sequence[PastCandidate], agent: str) -> Incumbent | None:
        """The last of ``history`` with its program, if it was judged and is not right: to be repaired."""
        last = history[-1] if history else None
        if last is None or was_correct(last) or last.source_sha == "" or last.reason in DUPLICATES:
            return None
        return self.incumbent(last.number, agent)

    def profile_of(self, number: int) -> str:
        """At most five lines of what a profiler saw of a stored solution; empty if nobody looked."""
        profile = self.reader.profile(number)
        return "\n".join(profile_lines(profile)) if profile is not None and not profile.reason else ""

    def siblings(self, agent: str) -> tuple[Incumbent, ...]:
        """Other agents' bests that are faster than ``agent``'s, fastest first; none without the leaderboard."""
        if not self.config.leaderboard:
            return ()
        mine = self.summary.agents[agent].best_ms
        ahead = sorted(
            (other.best_ms, other.best, name)
            for name, other in self.summary.agents.items()
            if name != agent
            and other.best
            and other.best_ms is not None
            and (mine is None or other.best_ms < mine)
        )
        return tuple(self.incumbent(number, name) for _, number, name in ahead)

    def _seed(self, agent: str) -> Incumbent:
        known = self._incumbents.get(0)
        if known is None:
            solution = self.reader.solution(0)
            if solution is None:
                raise StoreError(f"{self.folder}: the seed solution is missing")
            known = self._incumbents[0] = Incumbent(
                agent=agent,
                number=0,
                solution=solution,
                latency_ms=self.baselines.seed_ms,
                speedup=self.baselines.seed_speedup,
                evaluation=Evaluation(verdict="PASS", workloads=self.baselines.workloads),
            )
        return known

    def _load(self, number: int) -> Incumbent:
        row, solution = self.reader.candidate(number), self.reader.solution(number)
        if row is None or solution is None:
            raise StoreError(f"{self.folder}: candidate {number} is missing")
        return Incumbent(
            agent=row.agent,
            number=number,
            solution=solution,
            latency_ms=row.latency_ms,
            speedup=row.speedup,
            evaluation=self.reader.evaluation(number),
            strategy=row.strategy,
            family=row.family,
            parameters=row.parameters,
        )


_MEMORY_EVENTS = (ev.MemoryAdded, ev.MemoryExpired, ev.MemoryPinned, ev.MemoryNoted, ev.Vetoed)
