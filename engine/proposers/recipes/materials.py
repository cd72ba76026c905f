"""What a recipe agent can work with: recipes that fit, constants to tune, winners to dispatch between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean
from typing import Any, TypeVar

from engine.problems.solution import Solution, solution_sha
from engine.proposers.base import Context, Incumbent, PastCandidate
from engine.proposers.recipes.choice import Option
from engine.proposers.recipes.search import Point
from engine.proposers.recipes.tunables import space_of, tunables_of, with_values
from engine.recipes.dispatch import Composition, Measured, compose
from engine.recipes.match import Fit
from engine.recipes.model import RecipeFile
from engine.recipes.render import describe, render
from engine.store.reader import StoreReader
from engine.text import one_line

DISPATCH, DISPATCH_SKILL = "dispatch", "algorithmic-restructuring"
WRAPPER = "reference"
"""The rule that fits everything: such recipes run the reference itself, in another setting."""
DISPATCH_GAIN = 1.02
"""A dispatch is tried if the measured shapes promise at least 2 % over the best single candidate."""
DISPATCH_EVERY = 3
"""Positions between two tries of a dispatch: the winners change, but not that fast."""
MOST_MEASURED = 24


T = TypeVar("T")


class BrokenRecipe(Exception):
    """A recipe whose template cannot be rendered."""

    def __init__(self, recipe: str, why: str) -> None:
        super().__init__(f"{recipe}: {why}")
        self.recipe, self.why = recipe, why


@dataclass(frozen=True)
class Material:
    """Something with a search space. ``free``: of use under any strategy."""

    file: RecipeFile
    skill: str
    facts: Mapping[str, Any]
    render: Callable[[Point], Solution]
    describe: Callable[[Point], tuple[str, str]]
    free: bool = False

    @property
    def option(self) -> Option:
        file = self.file
        return Option(
            name=file.name,
            skill=self.skill,
            family=file.family,
            cost=file.cost,
            free=self.free,
            wrapper=file.rule == WRAPPER,
        )


def of_fit(fit: Fit) -> Material:
    return Material(
        file=fit.recipe.file,
        skill=fit.recipe.skill,
        facts=fit.facts,
        render=partial(_guarded, fit, partial(render, fit)),
        describe=partial(_guarded, fit, partial(describe, fit)),
    )


def _guarded(fit: Fit, make: Callable[[Point], T], point: Point) -> T:
    """A recipe may come from a user's folder: what its template does wrong is the recipe's fault, not ours."""
    from jinja2 import TemplateError

    try:
        return make(point)
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise BrokenRecipe(fit.recipe.key, one_line(f"{type(error).__name__}: {error}")) from error


def to_tune(context: Context) -> list[Material]:
    """Faster siblings' and the agent's own best, where their author declared constants tunable."""
    found = []
    for incumbent in (*context.siblings, context.best):
        tunables = tunables_of(incumbent.solution)
        if not tunables:
            continue
        number, names = incumbent.number, ", ".join(t.name for t in tunables)
        hypothesis = f"Other values of {names} suit this device better than those that #{number} was written with."
        found.append(
            Material(
                file=space_of(f"tune-{number}", tunables),
                skill=incumbent.strategy or context.strategy,
                facts={},
                render=partial(with_values, incumbent.solution, tunables),
                describe=partial(_said, (hypothesis, "A few percent, without a change of the algorithm.")),
                free=True,
            )
        )
    return found


def to_dispatch(context: Context, measured: Sequence[Measured]) -> list[Material]:
    """One solution that runs, for each shape, what was fastest there; if that promises anything."""
    if any(past.family == DISPATCH for past in context.history[-DISPATCH_EVERY:]):
        return []
    composed = compose(context.problem, measured)
    if composed is None:
        return []
    # An earlier dispatch is not among what can be combined, but it may be what there is to beat.
    tried = [p.latency_ms for p in context.history if p.family == DISPATCH and p.latency_ms is not None]
    tried += [s.latency_ms for s in context.siblings if s.family == DISPATCH and s.latency_ms is not None]
    if min([composed.best_single_ms, *tried]) < composed.predicted_ms * DISPATCH_GAIN:
        return []
    file = RecipeFile(
        name=f"{DISPATCH}-{solution_sha(composed.solution)[:8]}",
        family=DISPATCH,
        kernel_types=("any",),
        languages=tuple(composed.solution.spec.languages),
        rule=DISPATCH,
        description="the fastest measured variant for each shape",
        hypothesis="",
        predicted="",
        cost=1,
    )
    return [
        Material(
            file=file,
            skill=DISPATCH_SKILL,
            facts={},
            render=partial(_given, composed.solution),
            describe=partial(_said, _why(composed)),
            free=True,
        )
    ]


def measured_candidates(context: Context, reader: StoreReader) -> list[Measured]:
    """The fastest correct candidates of the agent and its faster siblings, with their latencies by workload.

    Those are scaled to the latency by which a candidate is ranked: who was evaluated while a CPU was busy would
    lose every shape otherwise (:func:`engine.guard.account.comparable_ms`).
    """
    if len(context.problem.workloads) < 2:
        return []
    timed: list[PastCandidate] = sorted(
        (past for past in context.history if past.latency_ms is not None and past.family != DISPATCH),
        key=lambda past: (past.latency_ms or 0.0, past.number),
    )
    ranked: list[PastCandidate | Incumbent] = [*timed[:MOST_MEASURED], *context.siblings]
    shown = {one.number: one.latency_ms for one in ranked}
    found = []
    for number, shown_ms in shown.items():
        solution = reader.solution(number)
        latencies = {w.uuid: w.latency_ms for w in reader.workloads(number) if w.latency_ms}
        if solution is not None and latencies and shown_ms is not None:
            same_day = shown_ms / geometric_mean(latencies.values())
            times = {uuid: same_day * ms for uuid, ms in latencies.items()}
            found.append(Measured(label=f"#{number}", solution=solution, latencies_ms=times))
    return found


def _why(composed: Composition) -> tuple[str, str]:
    parts = sorted(set(composed.table.values()))
    return (
        f"No single candidate is the fastest on every shape: run {', '.join(parts)} each where it was.",
        "The geometric mean over shapes becomes that of the fastest on each, less one table look-up.",
    )


def _said(words: tuple[str, str], point: Point) -> tuple[str, str]:
    return words


def _given(solution: Solution, point: Point) -> Solution:
    return solution
