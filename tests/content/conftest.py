"""Fixtures of the content tests: shipped recipes and problems, loaded once."""

from __future__ import annotations

import pytest

from engine.problems.load import load_problem
from engine.problems.model import Problem
from engine.recipes.model import Recipe, load_recipes
from engine.resources import resource_dir
from engine.skills import load_skills
from tests.content.helpers import TASKS


@pytest.fixture(scope="session")
def recipes() -> dict[str, Recipe]:
    """The shipped recipes by name."""
    found, broken = load_recipes(load_skills([resource_dir("skills")]))
    assert broken == []
    return {recipe.name: recipe for recipe in found}


@pytest.fixture(scope="session")
def tasks() -> dict[str, Problem]:
    return {path.name: load_problem(path) for path in TASKS}
