"""Load and admit: what a campaign needs before its first agent may start. Done once, found again on resume."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from engine import budget
from engine import skills as skill_policy
from engine.agent_state import AgentState, mailbox_from, rebuilt
from engine.bench.api import PhaseSink
from engine.bench.ceilings import measure_ceilings
from engine.bench.compiled import MOST_S
from engine.errors import BadInput, Fault
from engine.grading import Scale, below_bound, geomean_of, graded_all, mean_score, scale_for
from engine.hardware.ceilings import Ceilings, kept_ceilings
from engine.memory import adding, carried, memory_entry, shapes_text
from engine.problems.axes import resolve_axes
from engine.problems.program import program_sha
from engine.records import MEASURING, Baselines
from engine.records import AgentState as AgentLive
from engine.session import AgentControl, Session, log
from engine.skills import Skill
from engine.store import events as ev
from engine.store import memories
from engine.store.campaigns import resolve_campaign
from engine.store.reader import StoreReader
from engine.store.rows import MemoryWrite
from engine.store.tx import Tx

PAGE = 100
"""Candidates that are read at once."""


async def admit(session: Session) -> None:
    """Trace and measure (first start) or read back (resume), then set the agents up.

    Raises:
        Fault: the machine cannot run this problem, or the reference or the seed solution fails.
        BadInput: a setting names something that is not there, or that is of no use here.
    """
    eligible_strategies(session)  # before anything is measured
    session.shapes = shapes_text(
        resolve_axes(session.problem.definition, workload) for workload in session.problem.workloads
    )
    tracing = asyncio.create_task(_trace(session))
    try:
        if session.bench.device.kind == "cpu":
            await tracing  # it would compete with what is being timed
        await _measure(session, await _ceilings(session), tracing)
    finally:
        tracing.cancel()
        await asyncio.wait([tracing])
    if session.config.memory_from and not session.reader.memo("").get("carried"):
        await _carry_over(session, session.config.memory_from)
    await _bring_back(session)
    await _tell_left_out(session)


def eligible_strategies(session: Session) -> tuple[str, ...]:
    """Names of the skills that agents may use here, the most promising for the kernel type first.

    With ``strategies`` in the configuration only those, and then a playbook is one too: a person chose it.

    Raises:
        BadInput: none of the named ones is eligible.
    """
    ordered = session.skills.strategies(session.kernel_type)
    wanted = session.config.strategies
    if not wanted:
        return tuple(skill.name for skill in ordered if not why_not(session, skill))
    playbooks = [s for name in wanted if (s := session.skills.skills.get(name)) is not None and s.playbook]
    named = [*playbooks, *(skill for skill in ordered if skill.name in wanted)]
    fitting = tuple(skill.name for skill in named if not why_not(session, skill))
    if not fitting:
        known = ", ".join(skill.name for skill in ordered if not why_not(session, skill)) or "none"
        raise BadInput(f"{', '.join(wanted)}: not eligible here", where="strategies", fix=f"eligible are: {known}")
    return fitting


def why_not(session: Session, skill: Skill) -> str:
    """Why a skill may not be used in this campaign; empty if it may."""
    graph = next(iter(session.graphs.values()), None)
    fits, why = skill_policy.eligible(skill, session.kernel_type, session.bench.device, graph)
    return "" if fits else why


async def _tell_left_out(session: Session) -> None:
    """Strategies that a person named and that cannot be used here are left out, but not silently."""
    for name in session.config.strategies:
        skill = session.skills.skills.get(name)
        why = why_not(session, skill) if skill is not None else "is gone"
        if why:
            await session.note(f"strategy.left-out:{name}", f"strategy {name} is left out: it {why}")


async def _trace(session: Session) -> None:
    """The reference's operators, from a child process; a problem that cannot be traced goes on without."""
    from engine.tracing.kernel_type import kernel_type_of
    from engine.tracing.trace import trace_problem

    for name in session.summary.agents:
        session.writer.live(name, state=AgentLive.STARTING.value, detail="tracing the reference")
    try:
        session.graphs = await asyncio.to_thread(trace_problem, session.problem)
    except Fault as error:
        log.warning("the reference was not traced: %s", error.message)
    graph = next(iter(session.graphs.values()), None)
    kernel_type = kernel_type_of(session.problem.definition, graph)
    if kernel_type != session.kernel_type:
        session.kernel_type = kernel_type
        await session.writer.set_campaign(kernel_type=kernel_type)


async def _ceilings(session: Session) -> Ceilings | None:
    """What the device reaches, from the cache; a GPU that was never measured is measured, once, in seconds."""
    facts = session.bench.device
    found = await asyncio.to_thread(kept_ceilings, facts)
    if found is not None or facts.kind != "cuda" or session.reader.campaign().baselines is not None:
        return found
    try:
        async with session.door.entered():
            return await measure_ceilings(session.config.device)
    except Fault as error:
        log.warning("the device's ceilings were not measured: %s", error.message)
        return None


async def _measure(session: Session, ceilings: Ceilings | None, tracing: asyncio.Task[None]) -> None:
    """The reference and the seed solution, once per campaign; the scale needs what ``tracing`` finds."""
    row = session.reader.campaign()
    if row.baselines is not None:
        session.measured = row.baselines
    else:
        seed = session.reader.solution(0)
        if seed is None:
            raise Fault("fault.store", "the seed solution is missing from the campaign's store")
        on_gpu = session.bench.device.kind == "cuda"
        seconds = budget.share_s(session.config.minutes, MOST_S) if on_gpu else 0.0
        async with session.door.entered():
            session.measured = await session.bench.measure_baselines(seed, _show(session), compile_s=seconds)
    await tracing
    device = session.bench.device
    session.scale = scale_for(
        session.problem,
        device.name,
        session.graphs,
        session.measured.workloads,
        compile_ms=session.measured.compile_ms,
        ceilings=ceilings,
    )
    if row.baselines is None:
        workloads = graded_all(session.measured.workloads, session.scale)
        notes = [*session.measured.notes, *below_bound(workloads, session.scale)]
        session.measured = msgspec.structs.replace(session.measured, workloads=workloads, notes=notes)
        event = baselines_event(session.measured, session.scale, session.kernel_type, device.name)
        await session.writer.set_campaign(event, device_facts=device, baselines=session.measured)


def _show(session: Session) -> PhaseSink:
    """Until there are agents at work their rows say what the engine is doing."""

    def show(phase: str, detail: str) -> None:
        text = f"{MEASURING}: {phase}" + (f" {detail}" if detail else "")
        for name in session.summary.agents:
            session.writer.live(name, state=AgentLive.STARTING.value, detail=text)

    return show


def baselines_event(
    baselines: Baselines, scale: Scale, kernel_type: str, device_name: str
) -> ev.BaselinesMeasured:
    """The decision as it is written down. The bound counts only if every workload has one."""
    score = mean_score(baselines.workloads)
    return ev.BaselinesMeasured(
        reference_ms=baselines.reference_ms,
        seed_ms=baselines.seed_ms,
        seed_speedup=baselines.seed_speedup,
        noise=baselines.noise,
        timer=baselines.timer,
        roofline_ms=geomean_of([result.roofline_ms for result in baselines.workloads]),
        ceiling_ms=geomean_of([result.ceiling_ms for result in baselines.workloads]),
        compile_ms=geomean_of(list(baselines.compile_ms.values())),
        sol_score=score,
        sol_bound=scale.bound if score is not None else None,
        sol_baseline=scale.baseline if score is not None else None,
        notes=baselines.notes,
        kernel_type=kernel_type,
        device_name=device_name,
    )


async def _carry_over(session: Session, campaign: str) -> None:
    """Wins and traps of another campaign on the same kernel type and device, marked as carried over."""
    with StoreReader(resolve_campaign(campaign)) as other:
        device = other.campaign().device_facts
        rows = other.memory()
    if device is not None and device.name != session.bench.device.name:
        raise BadInput(
            f"campaign {campaign!r} ran on {device.name}",
            where="memory_from",
            fix=f"carry over from one on {session.bench.device.name}",
        )
    entries = carried(
        (memory_entry(row) for row in reversed(rows)), kernel_type=session.kernel_type, campaign=campaign
    )
    provenance = {row.id: row for row in rows}
    config = session.config

    writes = [
        MemoryWrite(
            kind=entry.kind,
            kernel_type=entry.kernel_type,
            strategy=entry.strategy,
            reflection=entry.reflection,
            error=entry.error,
            speedup=entry.speedup,
            gain=entry.gain,
            before_ms=entry.before_ms,
            after_ms=entry.after_ms,
            shapes=entry.shapes,
            agent=entry.agent,
            device=provenance[entry.id].device,
            versions=provenance[entry.id].versions,
            carried_from=entry.carried_from,
        )
        for entry in entries
    ]

    def run(tx: Tx) -> None:
        memories.remember(tx, writes, partial(adding, config=config))
        tx.memo("", "carried", campaign)

    await session.writer.transact(run)


async def _bring_back(session: Session) -> None:
    """Agents with the state that their stored verdicts leave them in, and every source judged so far.

    Ten thousand sources take seconds: whoever asks the engine meanwhile is answered between two pages.
    """
    known = session.summary.agents
    for name, summary in known.items():
        control = AgentControl(spec=summary.spec, state=rebuilt_state(session, name))
        control.mailbox = mailbox_from(session.reader.memo(name).get("mailbox"))
        control.stopped = summary.stopped
        if summary.paused:
            control.pause(*summary.paused_by)
        else:
            control.resume()
        session.agents[name] = control
    after = 0
    while rows := session.reader.candidates_after(after, PAGE):
        for row in rows:
            solution = session.reader.solution(row.number) if row.source_sha else None
            if solution is not None:
                session.programs.setdefault(program_sha(solution), row.number)
        after = rows[-1].number
        await asyncio.sleep(0)


def rebuilt_state(session: Session, agent: str) -> AgentState:
    """An agent's state from what is stored of it, and nothing else."""
    rows = []
    after = 0
    while page := session.reader.candidates_after(after, PAGE, agent=agent):
        rows += page
        after = page[-1].number
    mailbox = mailbox_from(session.reader.memo(agent).get("mailbox"))
    return rebuilt(agent, rows, session.plateau, session.summary.agents.get(agent), mailbox)
