"""The search space of a recipe: which parameters are active, which points are legal, where to start. Pure."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from engine.recipes.model import Parameters, RecipeFile, Value


def complete(recipe: RecipeFile, chosen: Parameters, facts: dict[str, Any]) -> dict[str, Value]:
    """Fill in defaults, and set inactive parameters to theirs: one canonical point per distinct source."""
    point: dict[str, Value] = {}
    for name, parameter in recipe.parameters.items():
        active = not parameter.when or bool(evaluate(parameter.when, point, facts))
        point[name] = chosen[name] if active and name in chosen else parameter.fallback()
    return point


def active(recipe: RecipeFile, name: str, point: Parameters, facts: dict[str, Any]) -> bool:
    """Whether parameter ``name`` matters, given the parameters before it in ``point``."""
    when = recipe.parameters[name].when
    return not when or bool(evaluate(when, dict(point), facts))


def violation(recipe: RecipeFile, point: Parameters, facts: dict[str, Any]) -> str | None:
    """Why a point is not legal, or ``None``."""
    for name, value in point.items():
        if name not in recipe.parameters or value not in recipe.parameters[name].values():
            return f"{name}={value!r} is outside the search space"
    for rule in recipe.restrictions:
        if not evaluate(rule.expr, dict(point), facts):
            return rule.why
    return None


def starting_points(recipe: RecipeFile, facts: dict[str, Any]) -> list[dict[str, Value]]:
    """The declared points that are legal here in the recipe's order, then the defaults; without duplicates."""
    found: list[dict[str, Value]] = []
    for chosen in recipe.points:
        point = complete(recipe, chosen, facts)
        if point not in found and violation(recipe, point, facts) is None:
            found.append(point)
    if recipe.order:
        found.sort(key=lambda point: float(evaluate(recipe.order, point, facts)))
    default = complete(recipe, {}, facts)
    if default not in found and violation(recipe, default, facts) is None:
        found.append(default)
    return found


def every_point(recipe: RecipeFile, facts: dict[str, Any], limit: int = 4096) -> list[dict[str, Value]]:
    """All distinct legal points of a small space (at most ``limit`` raw combinations are looked at)."""
    names = list(recipe.parameters)
    axes = [recipe.parameters[name].values() for name in names]
    seen: dict[tuple[Value, ...], dict[str, Value]] = {}
    for combination in itertools.islice(itertools.product(*axes), limit):
        point = complete(recipe, dict(zip(names, combination, strict=True)), facts)
        if violation(recipe, point, facts) is None:
            seen.setdefault(tuple(point.values()), point)
    return list(seen.values())


def obstacle(recipe: RecipeFile, facts: dict[str, Any], tries: int = 600) -> str | None:
    """``None`` if some point is legal; otherwise the restriction that refuses most of a fixed sample of points."""
    refused: Counter[str] = Counter()
    rng = random.Random(0)
    for chosen in (*recipe.points, {}):
        why = violation(recipe, complete(recipe, chosen, facts), facts)
        if why is None:
            return None
        refused[why] += 1
    for _ in range(tries):
        chosen = {name: rng.choice(parameter.values()) for name, parameter in recipe.parameters.items()}
        why = violation(recipe, complete(recipe, chosen, facts), facts)
        if why is None:
            return None
        refused[why] += 1
    return refused.most_common(1)[0][0]


def random_points(recipe: RecipeFile, facts: dict[str, Any], rng: random.Random) -> Iterator[dict[str, Value]]:
    """Endless legal points, uniform over each parameter's values."""
    while True:
        chosen = {name: rng.choice(parameter.values()) for name, parameter in recipe.parameters.items()}
        point = complete(recipe, chosen, facts)
        if violation(recipe, point, facts) is None:
            yield point


def evaluate(expression: str, point: Parameters, facts: dict[str, Any]) -> Any:
    """Evaluate a condition of a recipe in Jinja's sandbox: parameters by name, facts as ``f``."""
    return _compiled(expression)(**point, f=facts)


@lru_cache(maxsize=512)
def _compiled(expression: str) -> Any:
    from jinja2.sandbox import SandboxedEnvironment

    return SandboxedEnvironment().compile_expression(expression)
