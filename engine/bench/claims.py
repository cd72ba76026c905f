"""Cross-checks a candidate's claimed times, twice in fresh processes before anything is called a hack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.bench.contender import Block, Contender, Failure
from engine.bench.crosscheck import cross_check
from engine.bench.overhead import Overhead, noop_solution
from engine.bench.plan_calls import FRESH, new_seed, round_inputs, style_of_round
from engine.bench.stats import TimingCheck, timing_is_forged
from engine.errors import Fault
from engine.problems.solution import Solution

if TYPE_CHECKING:
    from engine.bench.evaluation import Trial

_BLOCKS = 4  # of each size, in a calibration or a second run


async def verify_claims(trial: Trial) -> None:
    """Called with the device held, after timing. Writes findings into the trial. Raises :class:`Fault`."""
    assert trial.timing is not None
    sizes = trial.timing.sizes
    overheads = await _overheads(trial, sizes)
    first: dict[int, TimingCheck] = {}
    for workload, k in sizes.items():
        blocks = trial.timing.blocks["candidate"][workload]
        check = cross_check(blocks, k, overheads[workload], None)
        if check is not None:
            first[workload] = check
    trial.evidence["timing_checks"] = {trial.session.specs[w].uuid: check for w, check in first.items()}
    if any(check.weak for check in first.values()):
        trial.notes.append("timing: weakly checked (calls below 10 µs)")
    suspects = [workload for workload, check in first.items() if check.suspect]
    if not suspects:
        return
    second = await _second_run(trial, suspects, overheads)
    for workload in suspects:
        result = trial.results[workload]
        again = second.get(workload)
        if again is not None and timing_is_forged(first[workload], again):
            result.reason = "hack.timing"
            result.detail = (
                f"the process claims less time than it took: {again.excess_ms * 1000:.1f} µs per call are "
                f"missing by the outside clock (allowed {again.allowed_ms * 1000:.1f} µs), in two fresh runs"
            )


async def _overheads(trial: Trial, sizes: dict[int, int]) -> dict[int, Overhead]:
    """Walls of no-op blocks for each workload, measured once per session, calling style and block size."""
    session = trial.session
    style = trial.candidate.solution.spec.destination_passing_style
    missing = [w for w, k in sizes.items() if (style, w, k) not in session.overheads]
    if missing:
        noop = noop_solution(session.specs, destination_passing=style)
        walls = await _fresh_blocks(trial, noop, "noop", {w: sizes[w] for w in missing})
        for workload in missing:
            wall: dict[int, list[float]] = {}
            cpu: dict[int, list[float]] = {}
            for block in walls[workload]:
                wall.setdefault(len(block.claimed_ns), []).append(block.wall_ns / 1e6)
                cpu.setdefault(len(block.claimed_ns), []).append(block.cpu_ns / 1e6)
            seen = all(block.cpu_ns for block in walls[workload])
            session.overheads[style, workload, sizes[workload]] = Overhead(wall, cpu if seen else {})
    return {w: session.overheads[style, w, k] for w, k in sizes.items()}


async def _second_run(
    trial: Trial, workloads: list[int], overheads: dict[int, Overhead]
) -> dict[int, TimingCheck]:
    assert trial.timing is not None
    sizes = {w: trial.timing.sizes[w] for w in workloads}
    try:
        blocks = await _fresh_blocks(trial, trial.candidate.solution, "candidate", sizes)
    except Failure as failure:
        for workload in workloads:
            trial.results[workload].reason = failure.reason
            trial.results[workload].detail = f"{failure.detail} (in a second run)"
        return {}
    checks = {w: cross_check(blocks[w], sizes[w], overheads[w], None) for w in workloads}
    return {w: check for w, check in checks.items() if check is not None}


async def _fresh_blocks(
    trial: Trial, solution: Solution, role: str, sizes: dict[int, int]
) -> dict[int, list[Block]]:
    """Blocks of k and 2k calls in a new process on the timing core. A no-op that fails is our own fault."""
    contender = Contender(trial.session, solution, role)
    blocks: dict[int, list[Block]] = {w: [] for w in sizes}
    try:
        await contender.pin(trial.session.cores.timing)
        for workload, k in sizes.items():
            await contender.run(workload, round_inputs(1, new_seed()), FRESH)
            for index in range(2 * _BLOCKS):
                inputs = round_inputs(k if index % 2 == 0 else 2 * k, new_seed())
                blocks[workload].append(await contender.run(workload, inputs, style_of_round(index)))
    except Failure as failure:
        if role == "noop":
            raise Fault("fault.overhead", f"the no-op failed: {failure.reason} {failure.detail}") from None
        raise
    finally:
        await contender.close()
    return blocks
