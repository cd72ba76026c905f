"""Profiles of a campaign's candidates: asked for by a person or after a KEEP, stored, found again for prompts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from engine.errors import BadInput, Fault, KernelArcError
from engine.hardware.facts import device_facts
from engine.problems.load import problem_from_json
from engine.problems.model import Problem
from engine.problems.solution import Solution
from engine.profile.run import profile_solution
from engine.profile.talk import Failed
from engine.profile.text import profile_lines
from engine.records import DeviceFacts, Profile
from engine.session import Session, log
from engine.store import events as ev
from engine.store.offline import edit
from engine.store.reader import PROFILES, StoreReader
from engine.store.tx import Tx
from engine.text import clean, one_line

WAITING = 16  # profiles that may wait at once
NOT_PROFILED = "profile.failed"
"""Code of the standing note about the last profile that came to nothing."""


class ProfileDesk:
    """The engine's: one profile at a time, in the background, through the bench's door."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: list[tuple[int, str]] = []
        self._task: asyncio.Task[None] | None = None

    def ask(self, number: int, workload: str = "") -> None:
        """Profile candidate ``number`` when it is its turn.

        Raises :class:`BadInput` if there is no such solution or workload, :class:`Fault` ``needs.cuda``.
        """
        if self._session.bench.device.kind != "cuda":
            raise Fault("needs.cuda", "a profile is of GPU kernels, and this campaign runs on the CPU")
        solution_of(self._session.reader, number)
        workload = _workload_of(self._session.problem, workload)
        if (number, workload) in self._waiting:
            return
        if len(self._waiting) >= WAITING:
            raise BadInput(f"{WAITING} profiles wait already", fix="try again when they are done")
        self._waiting.append((number, workload))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve(), name="profiles")

    async def close(self) -> None:
        """What waits is given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _serve(self) -> None:
        """One after the other; what goes wrong with one is noted, and the next one has its turn."""
        session = self._session
        while self._waiting:
            number, workload = self._waiting.pop(0)
            try:
                await self._profile(number, workload)
            except KernelArcError as error:
                why = error.message
            except Exception as error:  # noqa: BLE001 - the border to a candidate's run
                why = f"fault.profile: {type(error).__name__}: {error}"
            else:
                await session.withdraw(NOT_PROFILED)
                continue
            log.error("candidate %d was not profiled: %s", number, why)
            await session.note(NOT_PROFILED, one_line(f"candidate {number} was not profiled: {why}", 300))

    async def _profile(self, number: int, workload: str) -> None:
        session = self._session
        agent, solution = solution_of(session.reader, number)
        async with session.door.entered():
            profile = await attempt(session.problem, solution, session.bench.device, workload)
        await session.writer.transact(lambda tx: keep(tx, number, agent, profile))
        if profile.reason:
            log.warning("candidate %d was not profiled: %s %s", number, profile.reason, profile.detail)


async def profile_without_engine(folder: Path, number: int, workload: str = "") -> Profile:
    """Profile a candidate of a campaign that no engine runs, and store what came of it.

    Raises:
        BadInput: no such candidate or workload, or an engine runs the campaign.
        Fault: ``needs.*`` where nothing can be profiled.
    """
    with StoreReader(folder) as reader:
        row = reader.campaign()
        agent, solution = solution_of(reader, number)
    problem = problem_from_json(row.problem.encode())
    workload = _workload_of(problem, workload)
    facts = await asyncio.to_thread(device_facts, row.device)
    if facts.kind != "cuda":
        raise Fault("needs.cuda", f"a profile is of GPU kernels, and {row.name} ran on the CPU")
    profile = await attempt(problem, solution, facts, workload)
    await asyncio.to_thread(edit, folder, lambda tx: keep(tx, number, agent, profile))
    return profile


async def attempt(problem: Problem, solution: Solution, device: DeviceFacts, workload: str) -> Profile:
    """A profile, or one that says why there is none."""
    try:
        return await profile_solution(problem, solution, device, workload=workload)
    except (Failed, Fault) as error:
        return Profile(device=device.name, reason=error.reason, detail=clean(error.detail, 500))


def keep(tx: Tx, number: int, agent: str, profile: Profile) -> None:
    """The record by candidate, replacing an older one, and the event that every viewer sees."""
    tx.memo(PROFILES, str(number), msgspec.to_builtins(profile))
    lines = profile_lines(profile)
    tx.append(ev.CandidateProfiled(number=number, agent=agent, reason=profile.reason, lines=lines))


def solution_of(reader: StoreReader, number: int) -> tuple[str, Solution]:
    """Agent (empty for the seed, number 0) and solution. Raises :class:`BadInput`."""
    row = reader.candidate(number) if number else None
    solution = reader.solution(number) if row is not None or number == 0 else None
    if solution is None:
        what = "holds no solution" if row is not None else "is not there"
        raise BadInput(f"candidate {number} {what}", fix="`kernelarc report` lists the KEEPs")
    return (row.agent if row is not None else ""), solution


def _workload_of(problem: Problem, wanted: str) -> str:
    """A uuid, from a uuid or a number counted from one; empty stays empty."""
    known = [workload.uuid for workload in problem.workloads]
    if not wanted or wanted in known:
        return wanted
    if wanted.isdigit() and 1 <= int(wanted) <= len(known):
        return known[int(wanted) - 1]
    raise BadInput(f"no workload {wanted!r}", where=problem.name, fix=f"use a uuid or a number 1…{len(known)}")
