"""Which recipes fit a problem, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engine.recipes.index import MISREAD, Unsupported, misread
from engine.recipes.model import Recipe
from engine.recipes.rules import RULES
from engine.recipes.sizes import NotGeneral
from engine.recipes.space import obstacle
from engine.recipes.subject import Subject


@dataclass(frozen=True)
class Fit:
    """A recipe bound to a problem. ``facts`` are what conditions and templates see as ``f``."""

    recipe: Recipe
    subject: Subject
    facts: dict[str, Any]


@dataclass(frozen=True)
class Misfit:
    """``recipe`` is ``skill/name``; ``why`` is for a person."""

    recipe: str
    why: str


def match_all(recipes: Iterable[Recipe], subject: Subject) -> tuple[list[Fit], list[Misfit]]:
    fits: list[Fit] = []
    misfits: list[Misfit] = []
    for recipe in recipes:
        found = match(recipe, subject)
        if isinstance(found, Fit):
            fits.append(found)
        else:
            misfits.append(found)
    return fits, misfits


def match(recipe: Recipe, subject: Subject) -> Fit | Misfit:
    from jinja2 import TemplateError

    why = _unfit(recipe, subject)
    if why:
        return Misfit(recipe.key, why)
    rule = RULES.get(recipe.file.rule)
    if rule is None:
        return Misfit(recipe.key, f"asks for the matcher {recipe.file.rule!r}, which does not exist")
    try:
        facts = rule(subject, recipe.file.options)
    except (Unsupported, NotGeneral) as error:
        return Misfit(recipe.key, str(error))
    except MISREAD as error:
        return Misfit(recipe.key, f"its matcher cannot read the reference ({misread(error)})")
    try:
        blocked = obstacle(recipe.file, facts)
    except (TemplateError, *MISREAD) as error:
        return Misfit(recipe.key, f"a condition of its search space has no value ({misread(error)})")
    if blocked:
        return Misfit(recipe.key, f"no point of its search space is legal here: {blocked}")
    return Fit(recipe, subject, facts)


def _unfit(recipe: Recipe, subject: Subject) -> str:
    device, document = subject.device, recipe.file
    if device.kind not in document.devices:
        return f"is for {', '.join(document.devices)}; the device is {device.kind}"
    if recipe.capability and (device.compute_capability is None or device.compute_capability < recipe.capability):
        return f"needs compute capability {document.min_capability}"
    return ""
