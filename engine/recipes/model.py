"""Recipes as data: ``skills/<skill>/recipes/<recipe>/recipe.yaml`` and the source template beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.decoding import read_text, read_yaml
from engine.errors import BadInput
from engine.problems.solution import CPP_LANGUAGES, PYTHON_LANGUAGES
from engine.skills import BrokenSkill, SkillSet

RECIPE_FILE = "recipe.yaml"
TEMPLATES = ("kernel.py.j2", "kernel.cu.j2")
MOST_VALUES = 4096  # of one parameter
KINDS = ("categorical", "int", "log")

Value = bool | int | float | str
Parameters = Mapping[str, Value]


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dimension of a search space.

    ``kind``: ``categorical`` (``choices``), ``int`` (``low``..``high`` by ``step``) or ``log`` (the powers of two
    from ``low`` to ``high``). ``when``: expression over earlier parameters and the facts ``f``; where it is false
    the parameter is inactive and takes its ``default``.
    """

    kind: str = "categorical"
    choices: tuple[Value, ...] = ()
    low: int = 0
    high: int = 0
    step: int = 1
    default: Value | None = None
    when: str = ""

    def values(self) -> tuple[Value, ...]:
        """Every value in order: small spaces are searched by enumeration."""
        if self.kind == "categorical":
            return self.choices
        if self.kind == "int":
            return tuple(range(self.low, self.high + 1, self.step))
        powers, value = [], self.low
        while value <= self.high:
            powers.append(value)
            value *= 2
        return tuple(powers)

    def fallback(self) -> Value:
        return self.values()[0] if self.default is None else self.default


class Restriction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``expr`` over parameters and facts must hold; ``why`` says what it protects."""

    expr: str
    why: str


class RecipeFile(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The YAML document. ``rule`` names the matcher in :mod:`engine.recipes.rules`, ``options`` are its own."""

    name: str
    family: str
    kernel_types: tuple[str, ...]
    languages: tuple[str, ...]
    rule: str
    description: str
    hypothesis: str
    predicted: str
    devices: tuple[str, ...] = ("cpu", "cuda")
    min_capability: str = ""
    options: dict[str, Any] = {}
    parameters: dict[str, Parameter] = {}
    restrictions: tuple[Restriction, ...] = ()
    points: tuple[dict[str, Value], ...] = ()  # worth trying first, in this order
    order: str = ""  # over parameters and facts: points for which it is smaller come before the others
    returns: bool = False  # the template's ``run`` returns its outputs instead of writing into given ones
    ld_flags: tuple[str, ...] = ()  # further libraries of a C++ recipe
    cost: int = 1  # relative expense of one try: compile time mostly; cheap recipes go first


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded recipe: its document, the skill that carries it, and the template's text."""

    skill: str
    file: RecipeFile
    template: str
    template_name: str
    folder: str

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def key(self) -> str:
        return f"{self.skill}/{self.file.name}"

    @property
    def capability(self) -> tuple[int, int] | None:
        if not self.file.min_capability:
            return None
        major, _, minor = self.file.min_capability.partition(".")
        return int(major), int(minor or 0)


def load_recipes(skills: SkillSet) -> tuple[list[Recipe], list[BrokenSkill]]:
    """All recipes of all readable skills, cheap ones first, and those that could not be read with the reason."""
    recipes: list[Recipe] = []
    broken: list[BrokenSkill] = []
    for skill in skills.skills.values():
        for name in skill.recipes:
            try:
                recipes.append(read_recipe(skill.recipe_folder(name), skill.name))
            except BadInput as error:
                where = f"{skill.name}/{name}"
                broken.append(BrokenSkill(name=where, path=str(skill.recipe_folder(name)), why=error.message))
    return sorted(recipes, key=lambda r: (r.file.cost, r.key)), broken


def read_recipe(folder: Path, skill: str) -> Recipe:
    """Raises :class:`BadInput` naming the file and the field."""
    path = folder / RECIPE_FILE
    document: RecipeFile = read_yaml(path, RecipeFile)
    _check(document, folder, path)
    template = next((folder / name for name in TEMPLATES if (folder / name).is_file()), None)
    if template is None:
        raise BadInput("no source template", where=str(folder), fix=f"add {' or '.join(TEMPLATES)}")
    return Recipe(
        skill=skill,
        file=document,
        template=read_text(template),
        template_name=template.name,
        folder=str(folder),
    )


def _check(document: RecipeFile, folder: Path, path: Path) -> None:
    where = str(path)
    if document.name != folder.name:
        raise BadInput(f"name is {document.name!r}", where=where, fix=f"the folder is called {folder.name!r}")
    if not re.fullmatch(r"(\d{1,3}(\.\d{1,3})?)?", document.min_capability, re.ASCII):
        raise BadInput(f"min-capability is {document.min_capability!r}", where=where, fix='write it as "9.0"')
    for language in document.languages:
        if language not in PYTHON_LANGUAGES + CPP_LANGUAGES:
            raise BadInput(f"languages: {language!r} is not a SOL-ExecBench language", where=where)
    for name, parameter in document.parameters.items():
        if parameter.kind not in KINDS:
            raise BadInput(f"parameters.{name}.kind is {parameter.kind!r}", where=where, fix=f"use {KINDS}")
        if parameter.kind == "log" and parameter.low < 1:
            raise BadInput(f"parameters.{name}.low is {parameter.low}", where=where, fix="a power of two ≥ 1")
        if parameter.kind == "int" and parameter.step < 1:
            raise BadInput(f"parameters.{name}.step is {parameter.step}", where=where, fix="a whole number ≥ 1")
        if parameter.kind == "int" and (parameter.high - parameter.low) // parameter.step >= MOST_VALUES:
            raise BadInput(f"parameters.{name}: more than {MOST_VALUES} values", where=where, fix="a larger step")
        if not parameter.values():
            raise BadInput(f"parameters.{name} has no values", where=where)
        if parameter.default is not None and parameter.default not in parameter.values():
            raise BadInput(f"parameters.{name}.default is not one of its values", where=where)
    for index, point in enumerate(document.points):
        for name, value in point.items():
            if name not in document.parameters or value not in document.parameters[name].values():
                raise BadInput(f"points[{index}]: {name}={value!r} is outside the search space", where=where)
