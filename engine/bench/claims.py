"""Cross-checks a candidate's claimed times, three times before anything is called a hack; on the CPU it also
replaces claims that the outside clock does not cover.

The later runs are other processes, and they are asked about the first one's claims: a candidate that knows which
of them it is in, and tells the truth there, has said what its first claims were worth.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING

from engine.bench.contender import Block, Contender, Failure, close_all
from engine.bench.correctness import check_one, one_round
from engine.bench.crosscheck import covered, cross_check, outside_ms
from engine.bench.device_claims import HIDDEN_MS, device_checks, too_busy
from engine.bench.noop import noop_contender, noop_fault, overhead_of
from engine.bench.overhead import Overhead
from engine.bench.plan_calls import FRESH, style_of_round
from engine.bench.reasons import fault_reason
from engine.bench.stats import TimingCheck, decide_pairs, timing_is_forged
from engine.errors import Fault
from engine.problems.reference import is_reference

if TYPE_CHECKING:
    from engine.bench.evaluation import Trial

_BLOCKS = 4  # of each size, in a calibration or a fresh run
_FRESH_RUNS = 2
"""That must contradict the claims as well: a machine that stutters has honest processes look wrong at times."""


async def verify_claims(trial: Trial) -> None:
    """Called with the device held, after timing. Writes findings into the trial. Raises :class:`Fault`.

    The problem's own reference, as a campaign starts from it, has nothing to hide; and whoever a search on a GPU
    finds too fast has to prove it in the confirmation, where all claims are checked.
    """
    assert trial.timing is not None
    if is_reference(trial.candidate.solution, trial.session.problem):
        return
    if trial.session.on_gpu and not trial.plan.check_claims:
        return
    if trial.session.large:  # the no-ops need the memory, and nobody is timed against rivals any more
        await close_all(trial.rivals)
    left = _claims(trial)
    while left and not any(result.reason for result in trial.results.values()):
        left = await _examined(trial, left)
    checks = trial.evidence.get("timing_checks", {})
    weak = sum(check.weak for check in checks.values())
    if weak:
        trial.notes.append(f"timing: weakly checked on {weak} of {len(checks)} workloads (short, or slow inputs)")
    if not trial.session.on_gpu:
        _count_only_what_is_covered(trial)


async def _examined(trial: Trial, claims: dict[int, float]) -> dict[int, float]:
    """Looks at these claims until one is found forged; returns those that are not looked at yet."""
    assert trial.timing is not None
    try:
        checks = await _first_run(trial, claims)
    except Failure as failure:
        _failed(trial, list(claims), failure, "while being timed")
        return {}
    first = _telling(checks)
    found = trial.evidence.setdefault("timing_checks", {})
    found.update({trial.session.specs[w].uuid: check for w, check in first.items()})
    suspects = [workload for workload, check in first.items() if check.suspect]
    again: dict[int, TimingCheck] = {}
    for _ in range(_FRESH_RUNS):
        if not suspects:
            break
        await trial.breathe()
        try:
            again = await _fresh_run(trial, {w: claims[w] for w in suspects})
        except Failure as failure:
            _failed(trial, suspects, failure, "in a fresh run")
            return {}
        contradicted = [w for w in suspects if w in again and timing_is_forged(first[w], again[w])]
        if len(contradicted) < len(suspects):
            trial.notes.append("timing: a fresh process cleared what the outside clock first found missing")
        suspects = [w for w in contradicted if not trial.results[w].reason]
    for workload in suspects:
        result = trial.results[workload]
        result.reason, result.detail = accusation(again[workload], on_gpu=trial.session.on_gpu)
    return {workload: claim for workload, claim in claims.items() if workload not in checks}


def accusation(check: TimingCheck, *, on_gpu: bool) -> tuple[str, str]:
    """Reason and detail for a claim that every run contradicted. Pure."""
    if on_gpu and too_busy(check):
        return "resource.host-time", (
            f"a call keeps the host busy for {check.excess_ms:.0f} ms beside its kernels' time; more than "
            f"{HIDDEN_MS:.0f} ms cannot be told from work that is hidden from the clock"
        )
    if check.below_bound:
        return "hack.timing", (
            "the process claims less time than the device needs for the bytes and operations of this workload at "
            "its datasheet's rates"
        )
    return "hack.timing", (
        f"the process claims less time than it took: {check.excess_ms * 1000:.1f} µs per call are missing by the "
        f"outside clock (allowed {check.allowed_ms * 1000:.1f} µs), in {1 + _FRESH_RUNS} runs"
    )


def _count_only_what_is_covered(trial: Trial) -> None:
    """Claims of the candidate's blocks become what the outside clock covers, and the decision is made again."""
    timing = trial.timing
    assert timing is not None
    ours, style = timing.blocks["candidate"], trial.candidate.solution.spec.destination_passing_style
    total = changed = 0
    for workload, k in timing.sizes.items():
        blocks = covered(ours[workload], trial.session.overheads[style, workload, k])
        changed += sum(new is not old for new, old in zip(blocks, ours[workload], strict=True))
        total += len(blocks)
        ours[workload] = blocks
    if not changed:
        return
    trial.notes.append(f"timing: {changed} of {total} blocks claimed less than the outside clock saw; that counts")
    if timing.decision is not None:
        timing.decision = decide_pairs(
            timing.log_ratios(trial.rivals[0].role, [w for w in timing.sizes if ours[w]]),
            trial.plan.margin,
            min_pairs=trial.plan.min_pairs,
            max_pairs=trial.plan.max_pairs,
            final=True,
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


async def _first_run(trial: Trial, claims: dict[int, float]) -> dict[int, TimingCheck | None]:
    """By workload that was looked at; on a GPU not always all of them."""
    assert trial.timing is not None
    session = trial.session
    if session.on_gpu:
        return await device_checks(trial, trial.candidate, claims)
    sizes = {w: k for w, k in trial.timing.sizes.items() if w in claims}
    overheads = await _overheads(trial, sizes)
    blocks = trial.timing.blocks["candidate"]
    return {w: cross_check(blocks[w], k, overheads[w], session.least_ms(w)) for w, k in sizes.items()}


async def _overheads(trial: Trial, sizes: dict[int, int]) -> dict[int, Overhead]:
    """What no-op blocks of each workload take, measured once per session, calling style and block size."""
    session = trial.session
    style = trial.candidate.solution.spec.destination_passing_style
    missing = {w: k for w, k in sizes.items() if (style, w, k) not in session.overheads}
    if missing:
        measured = await _fresh_blocks(trial, [noop_contender(session, style)], missing, _BLOCKS + 1)
        for workload, blocks in measured[0].items():
            session.overheads[style, workload, sizes[workload]] = overhead_of(blocks)
    return {w: session.overheads[style, w, k] for w, k in sizes.items()}


async def _fresh_run(trial: Trial, claims: dict[int, float]) -> dict[int, TimingCheck]:
    """What a fresh process of the candidate takes, by the outside clock, against what the first one claimed.

    Beside it run a no-op of the same length and the rival, so that a busy or a slower machine shows on them too.
    """
    assert trial.timing is not None
    candidate = Contender(trial.session, trial.candidate.solution, "candidate")
    candidate.library = trial.candidate.library
    if trial.session.on_gpu:
        candidate.call_s = dict(trial.candidate.call_s)  # its blocks may take as long as the first process's
        try:
            await candidate.pin(trial.session.timing_cores)
            return _telling(await device_checks(trial, candidate, claims, fresh=True))
        finally:
            await candidate.close()
    spin_ns = {w: int(1e6 * claim) for w, claim in claims.items()}
    sizes = {w: trial.timing.sizes[w] for w in claims}
    noop = noop_contender(trial.session, trial.candidate.solution.spec.destination_passing_style, spin_ns)
    again, idle, *rivals = await _fresh_blocks(trial, [candidate, noop, *trial.rivals[:1]], sizes, _BLOCKS + 1)
    checks: dict[int, TimingCheck | None] = {}
    for workload, k in sizes.items():
        told_ms = claims[workload]
        if rivals:
            told_ms *= max(
                1.0, _slowdown(trial.timing.blocks[trial.rivals[0].role][workload], rivals[0][workload])
            )
        overhead, bound_ms = overhead_of(idle[workload]), trial.session.least_ms(workload)
        # Each size's first block fills page tables and caches: the no-op's is left out as well.
        checks[workload] = cross_check(again[workload][2:], k, overhead, bound_ms, claimed_ms=told_ms)
    return _telling(checks)


def _telling(checks: dict[int, TimingCheck | None]) -> dict[int, TimingCheck]:
    return {workload: check for workload, check in checks.items() if check is not None}


def _slowdown(before: list[Block], after: list[Block]) -> float:
    """By how much the same kernel takes longer than it did, by the outside clock."""
    seen = all(block.cpu_ns for block in (*before, *after))
    then, now = (
        median(outside_ms(block, seen=seen) / len(block.claimed_ns) for block in blocks)
        for blocks in (before, after)
    )
    return now / then


async def _fresh_blocks(
    trial: Trial, contenders: list[Contender], sizes: dict[int, int], count: int
) -> list[dict[int, list[Block]]]:
    """``count`` interleaved blocks of k and of 2k calls on the timing core, in new processes (or a rival's).

    A candidate is first called as one is that comes for its rounds, and one secretly chosen call of each of its
    blocks is compared: knowing where it is must not help it. Raises :class:`Failure` for the candidate,
    :class:`Fault` for anybody else.
    """
    blocks: list[dict[int, list[Block]]] = [{w: [] for w in sizes} for _ in contenders]
    running = contenders[0]
    try:
        for running in contenders:
            await running.pin(trial.session.timing_cores)
            for workload in sizes:
                await running.run(workload, running.session.draw(workload, 1), FRESH)
            for workload in sizes if running.role == "candidate" else ():
                for index in range(trial.plan.rounds):
                    await one_round(running, workload, trial.results[workload], index=index)
        for index in range(2 * count):
            style = style_of_round(index)
            for workload, k in sizes.items():
                inputs = trial.session.draw(workload, k if index % 2 == 0 else 2 * k)
                for number, running in enumerate(contenders):
                    blocks[number][workload].append(await running.run(workload, inputs, style))
                    if running.role == "candidate":
                        result = trial.results[workload]
                        await check_one(running, workload, inputs, result, style, "in a fresh run")
    except Failure as failure:
        if running.role == "candidate":
            raise
        if running.role == "noop":
            raise noop_fault(failure) from None
        reason = fault_reason(running.role, failure.reason)
        raise Fault(reason, f"{failure.reason} {failure.detail} (in a fresh run)") from None
    finally:
        await close_all(contenders)
    return blocks
