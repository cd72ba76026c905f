"""The bench's one door: run a solution in isolation, check it, time it against an incumbent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from engine.problems.model import Problem
from engine.problems.solution import Solution
from engine.records import Baselines, DeviceFacts, Evaluation

SEARCH_S = 6.0  # of timing per candidate while searching: a clear gain needs far less, a tie is not worth more
CONFIRM_S = 20.0
KEEP_ROUNDS = 10  # of fresh inputs before a KEEP is archived, those while searching counted in

PhaseSink = Callable[[str, str], None]
"""Called with (phase, detail) as an evaluation moves on: compiling, waiting device, benching, confirming."""


class EvaluationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How thoroughly to evaluate. Defaults are the search's; :meth:`final` is what a KEEP needs."""

    rounds: int = 3  # fresh-input correctness rounds per workload
    min_pairs: int = 5  # interleaved blocks before the sequential test may stop
    max_pairs: int = 40
    calls: int = 20  # timed calls per side per workload, at least
    margin: float = 0.02  # KEEP margin as a fraction; never below the measured noise
    workloads: tuple[str, ...] = ()  # uuids; empty means all
    against_reference: bool = False  # also pair with the reference, for ``geomean_speedup``
    timing: bool = True
    timing_s: float = 45.0  # after this an unclear comparison ends as "not better by the margin"
    unlisted_shape: bool = True  # also try one shape and scalar value that the problem does not list
    check_claims: bool = False  # on a GPU: by the outside clock; a search leaves that to its KEEP's confirmation
    urgent: bool = False  # before evaluations of the same campaign that also wait for the device
    deadline_s: float = 600.0  # the parent's wall clock for the whole evaluation

    def final(self, *, clear: bool = False) -> EvaluationPlan:
        """The confirmation of a KEEP: ten rounds in all, fresh children, paired with the reference too.

        It is urgent: other agents learn from a win, not from a search that is done a little sooner. A gain that is
        ``clear`` beyond all noise needs no more time than its search had: what is slow there is the best it beats.
        """
        rounds = max(self.rounds, KEEP_ROUNDS - self.rounds)
        timing_s = self.timing_s if clear else CONFIRM_S
        return msgspec.structs.replace(
            self, rounds=rounds, against_reference=True, timing_s=timing_s, check_claims=True, urgent=True
        )


class Bench(Protocol):
    """One problem on one device. All methods are coroutines of the engine's loop; the work is in children.

    Raises :class:`engine.errors.Fault` only from ``open`` and ``measure_baselines``; an evaluation reports a
    fault as ``Evaluation(verdict="ERROR")``.
    """

    device: DeviceFacts

    async def measure_baselines(
        self, seed: Solution, on_phase: PhaseSink | None = None, *, compile_s: float = 0.0
    ) -> Baselines:
        """The seed against the reference, the noise, and within ``compile_s`` the compiled reference (0: not)."""
        ...

    async def evaluate(
        self,
        solution: Solution,
        plan: EvaluationPlan,
        incumbent: Solution | None = None,
        on_phase: PhaseSink | None = None,
    ) -> Evaluation:
        """Correctness then timing. ``incumbent`` is the other side of every pair; ``None`` = the reference."""
        ...

    async def noise_of(self, solution: Solution) -> float | None:
        """The A/A noise of this very kernel, a fraction; ``None`` where the baselines' serves for all kernels."""
        ...

    async def suspend(self) -> None:
        """Give the device back: no child, context or lock of ours remains. The next call rebuilds."""
        ...

    async def close(self) -> None: ...


OpenBench = Callable[[Problem, str, Path], "Bench"]
"""(problem, device such as ``cpu`` or ``cuda:0``, scratch folder) → a bench, not yet started."""
