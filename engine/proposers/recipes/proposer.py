"""The recipe proposer: picks a recipe, then a point of its space that nobody in the campaign has tried."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from engine.problems.solution import Solution, solution_sha
from engine.proposers.base import Context, Exhausted, LiveSink, Proposal, UnusableReply
from engine.proposers.recipes.choice import RECIPE, Option, ordered
from engine.proposers.recipes.search import Observed, Point, observed, points
from engine.proposers.recipes.tunables import space_of, tunables_of, with_values
from engine.recipes.match import Fit, match_all
from engine.recipes.model import RecipeFile, load_recipes
from engine.recipes.render import describe, render
from engine.recipes.tracing import prepare
from engine.records import AgentState, Evaluation, Mode, Outcome

if TYPE_CHECKING:
    from engine.session import Session
    from engine.store.writer import StoreWriter

_fits: WeakKeyDictionary[StoreWriter, asyncio.Task[dict[str, Fit]]] = WeakKeyDictionary()


class RecipeProposer:
    """One offline agent. Its whole state is the history in each :class:`Context`."""

    name = "recipes"
    model: str | None = None

    def __init__(self, session: Session) -> None:
        self._session = session

    async def strategies(self, eligible: Sequence[str]) -> tuple[str, ...]:
        """Those of ``eligible`` that carry a recipe for this problem."""
        skills = {fit.recipe.skill for fit in (await self._recipes()).values()}
        return tuple(name for name in eligible if name in skills)

    async def propose(self, context: Context, live: LiveSink) -> Proposal | UnusableReply:
        """The first new point of the first recipe that has one. Raises :class:`Exhausted` when none has."""
        live.state(AgentState.PROPOSING, "matching recipes")
        fits = await self._recipes()
        live.state(AgentState.PROPOSING, f"{len(fits)} recipes fit")
        return await asyncio.to_thread(proposal_for, context, fits)

    async def judged(
        self, proposal: Proposal, outcome: Outcome, evaluation: Evaluation | None, reason: str
    ) -> None:
        return None

    async def close(self) -> None:
        return None

    async def _recipes(self) -> dict[str, Fit]:
        """Found once per engine, by whichever agent asks first."""
        task = _fits.get(self._session.writer)
        if task is None or task.cancelled():
            task = asyncio.ensure_future(fitting(self._session))
            _fits[self._session.writer] = task
        return await asyncio.shield(task)


async def fitting(session: Session) -> dict[str, Fit]:
    """The recipes that fit the campaign's problem, by name."""
    subject = await prepare(session.problem, session.bench.device, session.kernel_type)
    recipes, _ = await asyncio.to_thread(load_recipes, session.skills)
    fits, _ = await asyncio.to_thread(match_all, recipes, subject)
    return {fit.recipe.name: fit for fit in fits}


@dataclass(frozen=True)
class Material:
    """Something with a search space: a recipe that fits, or a solution whose constants may be tuned."""

    file: RecipeFile
    skill: str
    facts: Mapping[str, Any]
    render: Callable[[Point], Solution]
    describe: Callable[[Point], tuple[str, str]]

    @property
    def option(self) -> Option:
        return Option(name=self.file.name, skill=self.skill, family=self.file.family, cost=self.file.cost)


def proposal_for(context: Context, fits: Mapping[str, Fit]) -> Proposal:
    """What to try at ``context.position``: decided by the context alone. Imports optuna once it has data.

    Raises:
        Exhausted: every point of every fitting recipe was tried, or none fits.
    """
    rng = random.Random(f"recipes/{context.seed}/{context.agent}/{context.position}")
    materials = {m.file.name: m for m in (*map(_of_fit, fits.values()), *_to_tune(context))}
    order = ordered(
        [material.option for material in materials.values()],
        context.history,
        strategy=context.strategy,
        mode=context.mode,
        ordinal=context.ordinal,
        rng=rng,
        wins=context.wins,
        traps=context.traps,
    )
    for option in order:
        found = _new_point(context, materials[option.name], rng)
        if found is not None:
            return _proposal(materials[option.name], *found)
    what = f"{len(materials)} recipes have no point left" if materials else "no recipe fits this problem"
    raise Exhausted(what)


def _of_fit(fit: Fit) -> Material:
    return Material(
        file=fit.recipe.file,
        skill=fit.recipe.skill,
        facts=fit.facts,
        render=partial(render, fit),
        describe=partial(describe, fit),
    )


def _to_tune(context: Context) -> list[Material]:
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
            )
        )
    return found


def _said(words: tuple[str, str], point: Point) -> tuple[str, str]:
    return words


def _new_point(context: Context, material: Material, rng: random.Random) -> tuple[Point, Solution] | None:
    """The first point whose source is new to the campaign."""
    name = material.file.name
    seen = observed(material.file, context.history) + _from_siblings(context, name)
    seed = int.from_bytes(hashlib.sha256(f"{rng.random()}/{name}".encode()).digest()[:4], "big")
    local = context.mode is Mode.REFINE and context.position % 2 == 0
    for point in points(material.file, dict(material.facts), seen, seed=seed, local=local):
        solution = material.render(point)
        if solution_sha(solution) not in context.taken:
            return point, solution
    return None


def _from_siblings(context: Context, recipe: str) -> list[Observed]:
    """Faster siblings' points of the same recipe: read, never written."""
    return [
        Observed(point=sibling.parameters, latency_ms=sibling.latency_ms)
        for sibling in context.siblings
        if sibling.parameters.get(RECIPE) == recipe
    ]


def _proposal(material: Material, point: Point, solution: Solution) -> Proposal:
    hypothesis, predicted = material.describe(point)
    return Proposal(
        solution=solution,
        strategy=material.skill,
        family=material.file.family,
        hypothesis=hypothesis,
        predicted_change=predicted,
        reflection=hypothesis,
        parameters={RECIPE: material.file.name, **point},
    )
