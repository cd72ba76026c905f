"""Is it right? Fresh inputs each round, in every call style, all outputs compared by the judge."""

from __future__ import annotations

import time

import msgspec

from engine.bench import judge_wire as jw
from engine.bench.contender import Contender, Failure
from engine.bench.plan_calls import HIDDEN, new_seed, round_inputs, style_of_round

_CALLS_PER_ROUND = 2  # two inputs that differ, so that the second call of a block is checked too


class Correctness(msgspec.Struct):
    """What was found for one workload."""

    reason: str = ""
    detail: str = ""
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    first_call_s: float = 0.0
    rounds: int = 0
    seeds: list[int] = []


def _worst(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


def absorb(result: Correctness, findings: list[jw.Finding], style: int, where: str) -> bool:
    """Adds findings; true if all were right. Stale answers under hidden refills are deliberate evasion."""
    for finding in findings:
        result.max_abs_error = _worst(result.max_abs_error, finding.max_abs_error)
        result.max_rel_error = _worst(result.max_rel_error, finding.max_rel_error)
        if finding.reason and not result.reason:
            reason = finding.reason
            if reason == "wrong.stale-output" and style == HIDDEN:
                reason = "hack.cached-output"
            result.reason, result.detail = reason, f"{finding.detail} ({where})"
    return not result.reason


async def check_workload(contender: Contender, workload: int, rounds: int) -> Correctness:
    """First call (which compiles), then ``rounds`` rounds. The candidate's failure is part of the result."""
    result = Correctness()
    try:
        begin = time.monotonic()
        await contender.start()
        await _round(contender, workload, result, index=0, calls=1)
        result.first_call_s = time.monotonic() - begin
        for index in range(rounds):
            if result.reason:
                break
            await _round(contender, workload, result, index=index, calls=_CALLS_PER_ROUND)
            result.rounds = index + 1
    except Failure as failure:
        result.reason, result.detail = failure.reason, failure.detail
    return result


async def _round(contender: Contender, workload: int, result: Correctness, *, index: int, calls: int) -> None:
    seed, style = new_seed(), style_of_round(index)
    result.seeds.append(seed)
    inputs = round_inputs(min(calls, contender.session.slots[workload]), seed)
    await contender.run(workload, inputs, style)
    absorb(result, await contender.check(workload, inputs), style, f"round {index + 1}")
