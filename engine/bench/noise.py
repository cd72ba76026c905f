"""The A/A noise of a device and problem: how different two processes running the same kernel look.

On the CPU it is the machine's, and is measured once, from pairs of fresh processes. On a GPU it is mostly the
kernel's: a single kernel repeats within 0.2 % from process to process, a row of small launches, whose gaps count,
within 3 to 20 % (H200). There a panel of processes measures it: of a best and its challenger, where the gain is
not far beyond all noise.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from statistics import fmean
from typing import NamedTuple

from engine.bench.api import EvaluationPlan
from engine.bench.build import library_of
from engine.bench.contender import Contender, Failure, close_all
from engine.bench.correctness import Correctness
from engine.bench.device_lock import DeviceLock
from engine.bench.plan_calls import FRESH, REFILLED, device_block_size
from engine.bench.reasons import fault_reason
from engine.bench.session import Session
from engine.bench.stats import (
    NOISE_PAIRS,
    noise_floor,
    paired_interval,
    process_noise_floor,
    standard_error,
)
from engine.bench.stats import aggregate as over_workloads
from engine.bench.timing import Pairing
from engine.errors import Fault
from engine.problems.solution import Solution

_MOST_PAIRS = 12
_BUDGET_S = 8.0
_PROCESSES, _ROUNDS, _MOST_ROUNDS, _PANEL_S, _PANEL_CALLS = 5, 3, 10, 1.0, 4
_ROUND_S = 1.5  # of all processes on all workloads: the longest are left out
_PLAN = EvaluationPlan(min_pairs=5, max_pairs=8)  # five blocks where they agree, more where they scatter


async def measure_noise(session: Session, lock: DeviceLock, solution: Solution) -> tuple[float, list[float]]:
    """(noise floor as a fraction, one value per pair of fresh processes, or per process of a panel).

    What makes identical kernels differ is mostly fixed for a process's life, so every value comes from a new pair.
    At least four, more while there is time. Raises :class:`Fault` if the solution fails.
    """
    try:
        library = await library_of(session, solution)
    except Failure as failure:
        raise _fault(failure) from None

    def side(role: str) -> Contender:
        made = Contender(session, solution, role)
        made.library = library
        return made

    if session.on_gpu:
        processes = session.sides_that_fit(_PROCESSES)
        async with session.room.taken(processes, urgent=True):
            rounds = await _panel([side("noise") for _ in range(processes)], lock)
        return process_noise_floor(rounds), [fmean(row) for row in rounds]
    begin = time.monotonic()
    values: list[float] = []
    errors: list[float] = []
    while len(values) < NOISE_PAIRS or (len(values) < _MOST_PAIRS and time.monotonic() - begin < _BUDGET_S):
        pairs = await one_pair([side("candidate"), side("incumbent")], lock, _PLAN)
        values.append(paired_interval(pairs).mid)
        errors.append(standard_error(pairs))
    return noise_floor(values, errors), values


def _fault(failure: Failure) -> Fault:
    return Fault(fault_reason("noise", failure.reason), f"{failure.reason} {failure.detail}")


async def _panel(sides: list[Contender], lock: DeviceLock) -> list[list[float]]:
    """Log-times by process and round, the mean over workloads; all processes in turn within a round."""
    session = sides[0].session
    try:
        listed = list(range(session.listed))
        await _warm(sides[0], listed)
        await sides[0].save_compiled()  # the others need not compile
        workloads = affordable(await _warm(sides[0], listed), len(sides))
        await asyncio.gather(*(_warm(side, workloads) for side in sides[1:]))
        for side in sides:
            await side.pin(session.timing_cores)
        rounds: list[list[float]] = [[] for _ in sides]
        async with lock.held(urgent=True) as turn:
            begin = time.monotonic()
            while len(rounds[0]) < _ROUNDS or (
                len(rounds[0]) < _MOST_ROUNDS and time.monotonic() - begin < _PANEL_S
            ):
                logs = []
                for workload in workloads:
                    logs.append(await _blocks(sides, workload))
                    await turn.breathe()
                for row, found in zip(rounds, zip(*logs, strict=True), strict=True):
                    row.append(fmean(found))
        return rounds
    except Failure as failure:
        raise _fault(failure) from None
    finally:
        await close_all(sides)


class Cost(NamedTuple):
    """Of one call: what it claims, which is the kernels' time, and what it takes with drawing its inputs."""

    claimed_s: float
    taken_s: float


def affordable(costs: dict[int, Cost], processes: int) -> list[int]:
    """The workloads of a panel: those with the shortest kernels first, each that a round still has time for.

    What differs from process to process is launching above all, and that weighs least where kernels are long.
    """
    chosen: list[int] = []
    left = _ROUND_S
    for workload in sorted(costs, key=costs.__getitem__):
        taken = costs[workload].taken_s
        needed = processes * device_block_size(_PANEL_CALLS, 1, taken, _PANEL_CALLS) * taken
        if needed <= left:
            chosen.append(workload)
            left -= needed
    return sorted(chosen) or [min(costs, key=lambda workload: costs[workload].taken_s)]


async def _blocks(sides: list[Contender], workload: int) -> list[float]:
    """ln(ms) of a call, by process; one block each, in random order."""
    session = sides[0].session
    slowest = max(side.call_s.get(workload, 0.0) for side in sides)
    count = device_block_size(_PANEL_CALLS, 1, slowest, session.slots[workload])
    logs = [0.0] * len(sides)
    for index in random.SystemRandom().sample(range(len(sides)), len(sides)):
        block = await sides[index].run(workload, session.draw(workload, count), REFILLED)
        logs[index] = math.log(block.mean_ms)
    return logs


async def one_pair(sides: list[Contender], lock: DeviceLock, plan: EvaluationPlan) -> list[float]:
    """ln(second / first) of two fresh processes of one solution, per block pair, the mean over workloads."""
    session = sides[0].session
    workloads = list(range(session.listed))
    try:
        await asyncio.gather(*(_warm(side, workloads) for side in sides))
        results = {w: Correctness() for w in workloads}
        async with lock.held(urgent=True):
            for side in sides:
                await side.pin(session.timing_cores)
            timing = await Pairing(sides[0], sides[1:], plan, results).run()
        wrong = next((r for r in results.values() if r.reason), None)
        if wrong is not None:
            raise Fault(
                "fault.noise", f"the kernel that noise is measured with failed: {wrong.reason} {wrong.detail}"
            )
        return over_workloads(timing.log_ratios("incumbent", workloads))
    except Failure as failure:
        raise _fault(failure) from None
    finally:
        await close_all(sides)


async def _warm(side: Contender, workloads: list[int]) -> dict[int, Cost]:
    """A call of each."""
    costs: dict[int, Cost] = {}
    for workload in workloads:
        begin = time.monotonic()
        block = await side.run(workload, side.session.draw(workload, 1), FRESH)
        costs[workload] = Cost(block.mean_ms / 1e3, time.monotonic() - begin)
    return costs
