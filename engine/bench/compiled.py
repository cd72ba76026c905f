"""The reference under ``torch.compile``: what a user gets for one line, measured once when a GPU campaign starts.

It is evaluated like any candidate, in the same sandbox and against the eager reference. Whatever goes wrong with
it is a note, never a campaign's fault.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable

import msgspec

from engine.bench.api import EvaluationPlan
from engine.problems.model import Problem
from engine.problems.reference import parse_source, signature
from engine.problems.solution import Solution, python_solution
from engine.records import Evaluation

MODES = ("default", "max-autotune-no-cudagraphs")
MOST_S = 120.0
LEAST_S = 20.0
_TIMING_S = 12.0
_AGAIN = 3.0  # another mode is tried if this many times what the first one took is left

# One graph per shape: the default limit of eight would silently leave the other shapes eager.
_WRAPPER = """

import torch as _torch
import torch._dynamo.config as _limits

for _limit in ("recompile_limit", "accumulated_recompile_limit"):
    if hasattr(_limits, _limit):
        setattr(_limits, _limit, 1024)
_compiled_run = _torch.compile(run, mode="@MODE@", dynamic=False)


def run(@ARGUMENTS@):
    return _compiled_run(@ARGUMENTS@)
"""


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in ms by workload uuid, of the best mode; empty where none could be measured."""

    latency_ms: dict[str, float] = {}
    mode: str = ""
    notes: list[str] = []


def compiled_reference(problem: Problem, mode: str) -> Solution:
    """The reference's source with ``run`` compiled in ``mode``, one graph per shape."""
    reference = problem.definition.reference
    found = signature(parse_source(reference), "run")
    names = ", ".join(found.positional if found is not None else problem.definition.inputs)
    wrapper = _WRAPPER.replace("@MODE@", mode).replace("@ARGUMENTS@", names)
    return python_solution(reference.rstrip() + "\n" + wrapper, definition=problem.name, name=f"compile-{mode}")


async def measure_compiled(
    problem: Problem,
    evaluate: Callable[[Solution, EvaluationPlan], Awaitable[Evaluation]],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Compiled:
    """The best mode that could be measured within ``seconds``."""
    if seconds < LEAST_S:
        why = f"torch.compile was not measured: {seconds:.0f} s of the time budget are too few for it"
        return Compiled(notes=[why])
    best = Compiled()
    begin = clock()
    for mode in MODES:
        started = clock()
        plan = EvaluationPlan(
            rounds=1,
            against_reference=True,
            timing_s=_TIMING_S,
            unlisted_shape=False,
            deadline_s=seconds - (started - begin),
        )
        evaluation = await evaluate(compiled_reference(problem, mode), plan)
        best = _better(best, mode, evaluation)
        if seconds - (clock() - begin) < _AGAIN * (clock() - started):
            break
    return best


def _better(best: Compiled, mode: str, evaluation: Evaluation) -> Compiled:
    times = {w.uuid: w.latency_ms for w in evaluation.workloads if w.latency_ms is not None and w.latency_ms > 0}
    if evaluation.verdict != "PASS" or len(times) < len(evaluation.workloads) or not times:
        why = f"{evaluation.reason or 'no time'} {evaluation.detail[:200]}".strip()
        return msgspec.structs.replace(
            best, notes=[*best.notes, f"torch.compile ({mode}) was not measured: {why}"]
        )
    speedup = evaluation.geomean_speedup or 0.0
    notes = [*best.notes, f"torch.compile ({mode}): {speedup:.2f}x the eager reference"]
    if best.latency_ms and _mean(best.latency_ms) <= _mean(times):
        return msgspec.structs.replace(best, notes=notes)
    return Compiled(latency_ms=times, mode=mode, notes=notes)


def _mean(times: dict[str, float]) -> float:
    return math.fsum(map(math.log, times.values())) / len(times)
