"""Cross-checks a candidate's claimed times, twice in fresh processes before anything is called a hack."""

from __future__ import annotations

import secrets
from statistics import fmean, median
from typing import TYPE_CHECKING

from engine.bench.contender import Block, Contender, Failure
from engine.bench.crosscheck import cross_check
from engine.bench.device_claims import device_checks
from engine.bench.noop import noop_contender, noop_fault, overhead_of
from engine.bench.overhead import Overhead
from engine.bench.plan_calls import FRESH, style_of_round
from engine.bench.stats import TimingCheck, timing_is_forged
from engine.problems.reference import is_reference

if TYPE_CHECKING:
    from engine.bench.evaluation import Trial

_BLOCKS = 4  # of each size, in a calibration or a second run
_SEARCHED = 3
"""Workloads, secretly chosen, whose claims are checked on a GPU while searching; all of them before a KEEP."""


async def verify_claims(trial: Trial) -> None:
    """Called with the device held, after timing. Writes findings into the trial. Raises :class:`Fault`.

    The problem's own reference, as a campaign starts from it, has nothing to hide.
    """
    assert trial.timing is not None
    if is_reference(trial.candidate.solution, trial.session.problem):
        return
    try:
        first = await _first_run(trial)
    except Failure as failure:
        _failed(trial, list(trial.timing.sizes), failure, "while being timed")
        return
    trial.evidence["timing_checks"] = {trial.session.specs[w].uuid: check for w, check in first.items()}
    weak = sum(check.weak for check in first.values())
    if weak:
        trial.notes.append(f"timing: weakly checked on {weak} of {len(first)} workloads (short calls)")
    suspects = [workload for workload, check in first.items() if check.suspect]
    if not suspects:
        return
    try:
        second = await _second_run(trial, suspects)
    except Failure as failure:
        _failed(trial, suspects, failure, "in a second run")
        return
    for workload in suspects:
        result = trial.results[workload]
        again = second.get(workload)
        if again is not None and timing_is_forged(first[workload], again):
            result.reason = "hack.timing"
            result.detail = (
                f"the process claims less time than it took: {again.excess_ms * 1000:.1f} µs per call are "
                f"missing by the outside clock (allowed {again.allowed_ms * 1000:.1f} µs), in two fresh runs"
            )


def _failed(trial: Trial, workloads: list[int], failure: Failure, when: str) -> None:
    for workload in workloads:
        trial.results[workload].reason = failure.reason
        trial.results[workload].detail = f"{failure.detail} ({when})"


def _claims(trial: Trial) -> dict[int, float]:
    """Milliseconds per call of the candidate's timed blocks."""
    assert trial.timing is not None
    blocks = trial.timing.blocks["candidate"]
    return {w: fmean([block.mean_ms for block in blocks[w]]) for w in trial.timing.sizes if blocks[w]}


async def _first_run(trial: Trial) -> dict[int, TimingCheck]:
    assert trial.timing is not None
    session = trial.session
    if session.on_gpu:
        claims = _claims(trial)
        if not trial.plan.check_all and len(claims) > _SEARCHED:
            chosen = secrets.SystemRandom().sample(sorted(claims), _SEARCHED)
            claims = {workload: claims[workload] for workload in chosen}
        return await device_checks(trial, trial.candidate, claims)
    sizes = trial.timing.sizes
    overheads = await _overheads(trial, sizes)
    blocks = trial.timing.blocks["candidate"]
    checks = {w: cross_check(blocks[w], k, overheads[w], session.bound_ms(w)) for w, k in sizes.items()}
    return {w: check for w, check in checks.items() if check is not None}


async def _overheads(trial: Trial, sizes: dict[int, int]) -> dict[int, Overhead]:
    """What no-op blocks of each workload take, measured once per session, calling style and block size."""
    session = trial.session
    style = trial.candidate.solution.spec.destination_passing_style
    missing = {w: k for w, k in sizes.items() if (style, w, k, 0, False) not in session.overheads}
    if missing:
        measured = await _fresh_blocks(trial, [noop_contender(session, style)], missing)
        for workload, blocks in measured[0].items():
            session.overheads[style, workload, sizes[workload], 0, False] = overhead_of(blocks)
    return {w: session.overheads[style, w, k, 0, False] for w, k in sizes.items()}


async def _second_run(trial: Trial, workloads: list[int]) -> dict[int, TimingCheck]:
    """A fresh process of the candidate beside a no-op of the same length, so that a busy machine shows on both."""
    assert trial.timing is not None
    candidate = Contender(trial.session, trial.candidate.solution, "candidate")
    candidate.library = trial.candidate.library
    if trial.session.on_gpu:
        claims = _claims(trial)
        try:
            return await device_checks(trial, candidate, {w: claims[w] for w in workloads}, fresh=True)
        finally:
            await candidate.close()
    ours = trial.timing.blocks["candidate"]
    spin_ns = {w: int(1e6 * median(block.mean_ms for block in ours[w])) for w in workloads}
    sizes = {w: trial.timing.sizes[w] for w in workloads}
    noop = noop_contender(trial.session, trial.candidate.solution.spec.destination_passing_style, spin_ns)
    again, idle = await _fresh_blocks(trial, [candidate, noop], sizes)
    checks = {
        w: cross_check(again[w], k, overhead_of(idle[w]), trial.session.bound_ms(w)) for w, k in sizes.items()
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
                await running.run(workload, running.session.draw(workload, 1), FRESH)
        for workload, k in sizes.items():
            for index in range(2 * _BLOCKS):
                inputs = trial.session.draw(workload, k if index % 2 == 0 else 2 * k)
                for number, running in enumerate(contenders):
                    block = await running.run(workload, inputs, style_of_round(index))
                    blocks[number][workload].append(block)
    except Failure as failure:
        if running.role == "noop":
            raise noop_fault(failure) from None
        raise
    finally:
        for contender in contenders:
            await contender.close()
    return blocks
