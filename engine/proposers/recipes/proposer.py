"""The recipe proposer: picks a recipe, then a point of its space that nobody in the campaign has tried."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from engine.problems.program import program_sha
from engine.problems.solution import Solution
from engine.proposers.base import Context, Exhausted, LiveSink, NotYet, Proposal, UnusableReply
from engine.proposers.recipes.choice import RECIPE, ordered
from engine.proposers.recipes.materials import (
    WRAPPER,
    BrokenRecipe,
    Material,
    measured_candidates,
    of_fit,
    to_dispatch,
    to_tune,
)
from engine.proposers.recipes.search import Observed, Point, observed, points
from engine.recipes.dispatch import Measured
from engine.recipes.graph import RawGraph
from engine.recipes.match import Fit, match_all
from engine.recipes.model import load_recipes
from engine.recipes.subject import subject_of
from engine.recipes.tracing import trace_reference
from engine.records import AgentState, Evaluation, Mode, Outcome
from engine.text import counted

if TYPE_CHECKING:
    from engine.session import Session
    from engine.store.writer import StoreWriter

Traced = tuple[list[RawGraph], str]
_traced: WeakKeyDictionary[StoreWriter, asyncio.Task[Traced]] = WeakKeyDictionary()
_fits: WeakKeyDictionary[StoreWriter, asyncio.Task[dict[str, Fit]]] = WeakKeyDictionary()
_proposed: WeakKeyDictionary[StoreWriter, set[str]] = WeakKeyDictionary()
"""Sources that recipe agents have thought of and the guard may not have seen yet: no two submit the same one."""


class RecipeProposer:
    """One offline agent. Its whole state is the history in each :class:`Context`."""

    name = "recipes"
    model: str | None = None

    def __init__(self, session: Session) -> None:
        self._session = session
        self._unjudged = ""  # the program that is with the guard

    async def strategies(self, eligible: Sequence[str]) -> tuple[str, ...]:
        """Those of ``eligible`` that carry a recipe for this problem.

        Those that can only wrap the reference are left out if others carry recipes made for it: their wrappers
        still have their turn, see :func:`ordered`.
        """
        fits = (await self._recipes()).values()
        skills = {fit.recipe.skill for fit in fits}
        made = {fit.recipe.skill for fit in fits if fit.recipe.file.rule != WRAPPER}
        return tuple(n for n in eligible if n in made) or tuple(n for n in eligible if n in skills)

    async def propose(self, context: Context, live: LiveSink) -> Proposal | UnusableReply:
        """The first new point of the first recipe that has one.

        Raises:
            Exhausted: none has, and no other agent will write anything to tune.
            NotYet: none has, but others may.
        """
        live.state(AgentState.PROPOSING, "matching recipes")
        fits = await self._recipes()
        live.state(AgentState.PROPOSING, f"{len(fits)} recipes fit")
        measured = measured_candidates(context, self._session.reader)
        proposed = _proposed.setdefault(self._session.writer, set())
        while True:
            taken = dict.fromkeys(proposed, 0) | self._session.programs
            try:
                asked = msgspec.structs.replace(context, taken=taken)
                proposal = await asyncio.to_thread(proposal_for, asked, fits, measured)
                sha = program_sha(proposal.solution)
                if sha not in proposed:  # nobody was quicker meanwhile
                    proposed.add(sha)
                    self._unjudged = sha
                    return proposal
            except Exhausted as error:
                if self._others_write(context.agent):
                    raise NotYet(f"{error}; waiting for constants to tune") from error
                raise
            except BrokenRecipe as broken:
                await self._session.note(f"recipe.broken:{broken.recipe}", f"recipe {broken}")
                fits = {name: fit for name, fit in fits.items() if fit.recipe.key != broken.recipe}

    async def judged(
        self, proposal: Proposal, outcome: Outcome, evaluation: Evaluation | None, reason: str
    ) -> None:
        if outcome is Outcome.ERROR:  # the machine's fault: it may be proposed again
            _proposed.get(self._session.writer, set()).discard(program_sha(proposal.solution))
        self._unjudged = ""

    async def close(self) -> None:
        """What an agent had in flight when it was stopped, or crashed, may be proposed again."""
        _proposed.get(self._session.writer, set()).discard(self._unjudged)

    def _others_write(self, agent: str) -> bool:
        """Whether an agent that is no recipe agent still works where this one can see its best."""
        if not self._session.config.leaderboard:
            return False
        return any(
            name != agent
            and other.spec.proposer != self.name
            and other.stopped is None
            and not other.paused.startswith(("errors", "breaker"))
            for name, other in self._session.summary.agents.items()
        )

    async def _recipes(self) -> dict[str, Fit]:
        """Found once per engine, by whichever agent asks first."""
        task = _fits.get(self._session.writer)
        if task is None or _failed(task):
            task = asyncio.ensure_future(fitting(self._session))
            _fits[self._session.writer] = task
        return await asyncio.shield(task)


def _failed(task: asyncio.Task[Any]) -> bool:
    """Whether it ended without a result: what went wrong then (no process could be started) may be over."""
    return task.done() and (task.cancelled() or task.exception() is not None)


def begin_tracing(session: Session) -> asyncio.Task[Traced]:
    """Trace the problem for the recipes, once per engine; the sooner it begins, the less an agent waits."""
    task = _traced.get(session.writer)
    if task is None or _failed(task):
        task = asyncio.ensure_future(trace_reference(session.problem))
        _traced[session.writer] = task
    return task


async def fitting(session: Session) -> dict[str, Fit]:
    """The recipes that fit the campaign's problem, by name."""
    traces, why = await asyncio.shield(begin_tracing(session))
    subject = await asyncio.to_thread(
        subject_of, session.problem, traces, session.bench.device, session.kernel_type
    )
    if why:
        subject = replace(subject, why_no_graph=why)
    recipes, _ = await asyncio.to_thread(load_recipes, session.skills)
    fits, _ = await asyncio.to_thread(match_all, recipes, subject)
    return {fit.recipe.name: fit for fit in fits}


def proposal_for(context: Context, fits: Mapping[str, Fit], measured: Sequence[Measured] = ()) -> Proposal:
    """What to try at ``context.position``: decided by its arguments alone. Imports optuna once it has data.

    ``measured`` are correct candidates with their latencies by workload.

    Raises:
        Exhausted: every point of every fitting recipe was tried, or none fits.
        BrokenRecipe: the recipe whose turn it is cannot be rendered.
    """
    rng = random.Random(f"recipes/{context.seed}/{context.agent}/{context.position}")
    found = (*map(of_fit, fits.values()), *to_tune(context), *to_dispatch(context, measured))
    materials = {material.file.name: material for material in found}
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
        new = _new_point(context, materials[option.name], rng)
        if new is not None:
            return _proposal(materials[option.name], *new)
    tried = f"{counted(len(materials), 'recipe')} tried to the end, nothing is left"
    what = tried if materials else "no recipe fits this problem"
    raise Exhausted(what)


def _new_point(context: Context, material: Material, rng: random.Random) -> tuple[Point, Solution] | None:
    """The first point whose source is new to the campaign."""
    name = material.file.name
    seen = observed(material.file, context.history) + _from_siblings(context, name)
    seed = int.from_bytes(hashlib.sha256(f"{rng.random()}/{name}".encode()).digest()[:4], "big")
    local = context.mode is Mode.REFINE and context.position % 2 == 0
    tried = [one.point for one in seen]
    for point in points(material.file, dict(material.facts), seen, seed=seed, local=local):
        if point in tried:
            continue
        tried.append(point)
        solution = material.render(point)
        if program_sha(solution) not in context.taken:
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
