"""The bench: runs untrusted solutions in isolation, checks them, times them. The door is :func:`open_bench`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.bench.api import Bench, EvaluationPlan
    from engine.problems.model import Problem
    from engine.problems.solution import Solution
    from engine.records import Evaluation


def open_bench(problem: Problem, device: str, scratch: Path, *, owner: str = "") -> Bench:
    """A bench for one problem on one device (``cpu``, ``cuda``, ``cuda:1``); its processes start on first use."""
    from engine.bench.bench import ProcessBench

    return ProcessBench(problem, device, scratch, owner=owner)


def evaluate_many(
    problem: Problem,
    solutions: Sequence[Solution],
    device: str,
    plan: EvaluationPlan,
    evidence_dir: Path | None = None,
    against: Solution | None = None,
) -> AsyncIterator[Evaluation]:
    """The guard alone on several solutions, against the reference and ``against``, in one warm session."""
    from engine.bench.bench import evaluate_many as run

    return run(problem, solutions, device, plan, evidence_dir, against)
