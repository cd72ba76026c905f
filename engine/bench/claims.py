"""Cross-checks a candidate's claimed times, twice in fresh processes before anything is called a hack."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from engine.bench.contender import Block, Contender, Failure
from engine.bench.crosscheck import cross_check
from engine.bench.overhead import Overhead, noop_solution
from engine.bench.plan_calls import FRESH, new_seed, round_inputs, style_of_round
from engine.bench.stats import TimingCheck, timing_is_forged
from engine.errors import Fault

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
        check = cross_check(
            blocks, k, overheads[workload], trial.session.bound_ms(workload), on_gpu=trial.session.on_gpu
        )
        if check is not None:
            first[workload] = check
    trial.evidence["timing_checks"] = {trial.session.specs[w].uuid: check for w, check in first.items()}
    if any(check.weak for check in first.values()):
        trial.notes.append("timing: weakly checked (calls below 10 µs)")
    suspects = [workload for workload, check in first.items() if check.suspect]
    if not suspects:
        return
    second = await _second_run(trial, suspects)
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
    """What no-op blocks of each workload take, measured once per session, calling style and block size."""
    session = trial.session
    style = trial.candidate.solution.spec.destination_passing_style
    missing = {w: k for w, k in sizes.items() if (style, w, k) not in session.overheads}
    if missing:
        measured = await _fresh_blocks(trial, [_noop(trial)], missing)
        for workload, blocks in measured[0].items():
            session.overheads[style, workload, sizes[workload]] = overhead_of(blocks)
    return {w: session.overheads[style, w, k] for w, k in sizes.items()}


def _noop(trial: Trial, spin_ns: dict[int, int] | None = None) -> Contender:
    style = trial.candidate.solution.spec.destination_passing_style
    return Contender(
        trial.session,
        noop_solution(trial.session.specs, trial.session.device, destination_passing=style, spin_ns=spin_ns),
        "noop",
    )


def overhead_of(blocks: list[Block]) -> Overhead:
    sizes = sorted({len(block.claimed_ns) for block in blocks})
    groups = {size: [block for block in blocks if len(block.claimed_ns) == size] for size in sizes}
    return Overhead(
        wall={size: [block.wall_ns / 1e6 for block in group] for size, group in groups.items()},
        cpu={size: [block.cpu_ns / 1e6 for block in group] for size, group in groups.items()},
        claimed={size: [sum(block.claimed_ns) / 1e6 for block in group] for size, group in groups.items()},
        cpu_known=all(block.cpu_ns for block in blocks),
    )


async def _second_run(trial: Trial, workloads: list[int]) -> dict[int, TimingCheck]:
    """A fresh process of the candidate beside a no-op of the same length, so that a busy machine shows on both."""
    assert trial.timing is not None
    ours = trial.timing.blocks["candidate"]
    spin_ns = {w: int(1e6 * median(block.mean_ms for block in ours[w])) for w in workloads}
    sizes = {w: trial.timing.sizes[w] for w in workloads}
    candidate = Contender(trial.session, trial.candidate.solution, "candidate")
    candidate.library = trial.candidate.library
    try:
        again, idle = await _fresh_blocks(trial, [candidate, _noop(trial, spin_ns)], sizes)
    except Failure as failure:
        for workload in workloads:
            trial.results[workload].reason = failure.reason
            trial.results[workload].detail = f"{failure.detail} (in a second run)"
        return {}
    checks = {
        w: cross_check(again[w], k, overhead_of(idle[w]), trial.session.bound_ms(w), on_gpu=trial.session.on_gpu)
        for w, k in sizes.items()
    }
    return {w: check for w, check in checks.items() if check is not None}


async def _fresh_blocks(
    trial: Trial, contenders: list[Contender], sizes: dict[int, int]
) -> list[dict[int, list[Block]]]:
    """Interleaved blocks of k and 2k calls in new processes on the timing core.

    Raises :class:`Failure` for the candidate, :class:`Fault` for a no-op (that is our own).
    """
    blocks: list[dict[int, list[Block]]] = [{w: [] for w in sizes} for _ in contenders]
    running = contenders[0]
    try:
        for running in contenders:
            await running.pin(trial.session.timing_cores)
            for workload in sizes:
                await running.run(workload, round_inputs(1, new_seed()), FRESH)
        for workload, k in sizes.items():
            for index in range(2 * _BLOCKS):
                inputs = round_inputs(k if index % 2 == 0 else 2 * k, new_seed())
                for number, running in enumerate(contenders):
                    block = await running.run(workload, inputs, style_of_round(index))
                    blocks[number][workload].append(block)
    except Failure as failure:
        if running.role == "noop":
            raise Fault("fault.overhead", f"the no-op failed: {failure.reason} {failure.detail}") from None
        raise
    finally:
        for contender in contenders:
            await contender.close()
    return blocks
