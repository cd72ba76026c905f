"""The A/A noise of a device and problem: how different two processes running the same kernel look."""

from __future__ import annotations

import asyncio
import time

from engine.bench.api import EvaluationPlan
from engine.bench.contender import Contender, Failure
from engine.bench.correctness import Correctness
from engine.bench.device_lock import DeviceLock
from engine.bench.plan_calls import FRESH, new_seed, round_inputs
from engine.bench.session import Session
from engine.bench.stats import NOISE_PAIRS, noise_floor, paired_interval, standard_error
from engine.bench.stats import aggregate as over_workloads
from engine.bench.timing import Pairing
from engine.errors import Fault
from engine.problems.solution import Solution

_MOST_PAIRS = 12
_BUDGET_S = 8.0
_PLAN = EvaluationPlan(min_pairs=5, max_pairs=8)  # five blocks where they agree, more where they scatter


async def measure_noise(session: Session, lock: DeviceLock, solution: Solution) -> tuple[float, list[float]]:
    """(noise floor as a fraction, the log-ratio of every pair of fresh processes).

    What makes identical kernels differ is mostly fixed for a process's life, so every value comes from a new pair.
    At least four, more while there is time. Raises :class:`Fault` if the solution fails.
    """
    begin = time.monotonic()
    values: list[float] = []
    errors: list[float] = []
    while len(values) < NOISE_PAIRS or (len(values) < _MOST_PAIRS and time.monotonic() - begin < _BUDGET_S):
        pairs = await one_pair(session, lock, solution, _PLAN)
        values.append(paired_interval(pairs).mid)
        errors.append(standard_error(pairs))
    return noise_floor(values, errors), values


async def one_pair(session: Session, lock: DeviceLock, solution: Solution, plan: EvaluationPlan) -> list[float]:
    """ln(second / first) of two fresh processes of one solution, per block pair, the mean over workloads."""
    sides = [Contender(session, solution, role) for role in ("candidate", "incumbent")]
    workloads = list(range(session.listed))
    try:
        await asyncio.gather(*(_warm(side, workloads) for side in sides))
        results = {w: Correctness() for w in workloads}
        async with lock.held():
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
        raise Fault("fault.noise", f"{failure.reason} {failure.detail}") from None
    finally:
        await asyncio.gather(*(side.close() for side in sides))


async def _warm(side: Contender, workloads: list[int]) -> None:
    for workload in workloads:
        await side.run(workload, round_inputs(1, new_seed()), FRESH)
