"""Offline proposals: parametrised kernel sources, matched to a problem by its traced dataflow, never by a name.

Doors: :func:`match_report` here; for a proposer :func:`engine.recipes.model.load_recipes`,
:func:`engine.recipes.tracing.prepare`, :func:`engine.recipes.match.match_all` and
:func:`engine.recipes.render.render`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from engine.problems.model import Problem
    from engine.records import DeviceFacts
    from engine.skills import Skill


class RecipeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one recipe of a skill fits a problem on a device; ``why`` says how, or what stands in the way."""

    recipe: str
    fits: bool
    why: str


def match_report(skill: Skill, problem: Problem, device: DeviceFacts) -> list[RecipeReport]:
    """Traces the reference in a limited child process (seconds). Broken recipes are reported too."""
    import asyncio

    from engine.recipes.match import Fit, match
    from engine.recipes.model import load_recipes
    from engine.recipes.tracing import prepare
    from engine.skills import SkillSet

    recipes, broken = load_recipes(SkillSet(skills={skill.name: skill}))
    found = [RecipeReport(recipe=b.name.partition("/")[2], fits=False, why=b.why) for b in broken]
    if not recipes:
        return found
    subject = asyncio.run(prepare(problem, device, problem.definition.op_type or "other"))
    for recipe in recipes:
        result = match(recipe, subject)
        fits = isinstance(result, Fit)
        why = recipe.file.description if isinstance(result, Fit) else result.why
        found.append(RecipeReport(recipe=recipe.name, fits=fits, why=why))
    return found
