"""Searching one recipe's parameters: declared points first, then a seeded optimizer over what was measured.

The study is rebuilt from the agent's stored candidates for every question, so nothing but the store carries it
from one engine to the next, and the same history with the same random state gives the same point.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from engine.proposers.base import PastCandidate
from engine.proposers.recipes.choice import RECIPE
from engine.recipes.model import Parameter, RecipeFile, Value
from engine.recipes.space import active, complete, every_point, random_points, starting_points, violation

Point = dict[str, Value]
Facts = dict[str, Any]

STARTUP = 4
"""Measured points of a recipe before the optimizer has anything to say."""
ASKED = 16
RANDOM_TRIES = 64
SMALL = 256
"""Spaces up to this size are finished by enumeration."""
FAILED_FACTOR = 3.0
"""A point that failed counts as this many times slower than the slowest that ran."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """One measured point: ``latency_ms`` is ``None`` if it failed."""

    point: Mapping[str, Any]
    latency_ms: float | None


def observed(recipe: RecipeFile, history: Sequence[PastCandidate]) -> list[Observed]:
    """What the agent's own candidates of this recipe measured, in order. REJECTs measured nothing."""
    found = []
    for past in history:
        if past.parameters.get(RECIPE) == recipe.name and past.outcome != "REJECT":
            point = {name: past.parameters[name] for name in recipe.parameters if name in past.parameters}
            found.append(Observed(point=point, latency_ms=past.latency_ms))
    return found


def points(
    recipe: RecipeFile, facts: Facts, seen: Sequence[Observed], *, seed: int, local: bool
) -> Iterator[Point]:
    """Legal points to try, the best idea first; the caller takes the first whose source is new.

    ``local`` looks at the neighbours of the fastest point before it asks the optimizer.
    """
    rng = random.Random(seed)
    yield from starting_points(recipe, facts)
    if not recipe.parameters:
        return
    fastest = min((o for o in seen if o.latency_ms is not None), key=lambda o: o.latency_ms or 0.0, default=None)
    if local and fastest is not None:
        yield from neighbours(recipe, facts, fastest.point, rng)
    if len(seen) >= STARTUP:
        yield from asked(recipe, facts, seen, seed)
    if fastest is not None and not local:
        yield from neighbours(recipe, facts, fastest.point, rng)
    whole = every_point(recipe, facts, SMALL)
    rng.shuffle(whole)
    yield from whole
    drawn = random_points(recipe, facts, rng) if whole else iter(())
    for _ in range(RANDOM_TRIES):
        point = next(drawn, None)
        if point is None:
            return
        yield point


def neighbours(recipe: RecipeFile, facts: Facts, centre: Mapping[str, Any], rng: random.Random) -> list[Point]:
    """Legal points that differ from ``centre`` in one active parameter: ordered values by one step."""
    found: list[Point] = []
    for name, parameter in recipe.parameters.items():
        if not active(recipe, name, dict(centre), facts) or centre.get(name) not in parameter.values():
            continue
        for value in _next_to(parameter, centre[name]):
            point = complete(recipe, {**centre, name: value}, facts)
            if point not in found and violation(recipe, point, facts) is None:
                found.append(point)
    rng.shuffle(found)
    return found


def asked(recipe: RecipeFile, facts: Facts, seen: Sequence[Observed], seed: int) -> Iterator[Point]:
    """Points that a TPE sampler suggests from what was seen. Imports optuna."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed % (1 << 32), n_startup_trials=STARTUP)
    study = optuna.create_study(direction="minimize", sampler=sampler)
    slowest = max((o.latency_ms for o in seen if o.latency_ms is not None), default=1.0)
    for one in seen:
        study.add_trial(_trial(optuna, recipe, facts, one, slowest * FAILED_FACTOR))
    for _ in range(ASKED):
        trial = study.ask()
        point = _suggested(recipe, facts, trial.suggest_categorical, trial.suggest_int)
        if violation(recipe, point, facts) is None:
            yield point


def _suggested(
    recipe: RecipeFile, facts: Facts, categorical: Callable[..., Any], integer: Callable[..., Any]
) -> Point:
    """One value per active parameter; ordered values are asked for by their index."""
    chosen: Point = {}
    for name, parameter in recipe.parameters.items():
        if not active(recipe, name, chosen, facts):
            chosen[name] = parameter.fallback()
        elif parameter.kind == "categorical":
            chosen[name] = categorical(name, parameter.choices)
        else:
            values = parameter.values()
            chosen[name] = values[integer(name, 0, len(values) - 1)]
    return complete(recipe, chosen, facts)


def _trial(optuna: Any, recipe: RecipeFile, facts: Facts, one: Observed, failed_ms: float) -> Any:
    """A finished trial as the optimizer would have made it. Latencies are milliseconds."""
    params: dict[str, Any] = {}
    distributions: dict[str, Any] = {}
    for name, parameter in recipe.parameters.items():
        value = one.point.get(name)
        if value not in parameter.values() or not active(recipe, name, dict(one.point), facts):
            continue
        if parameter.kind == "categorical":
            params[name] = value
            distributions[name] = optuna.distributions.CategoricalDistribution(parameter.choices)
        else:
            params[name] = parameter.values().index(value)
            distributions[name] = optuna.distributions.IntDistribution(0, len(parameter.values()) - 1)
    value_ms = failed_ms if one.latency_ms is None else one.latency_ms
    return optuna.trial.create_trial(params=params, distributions=distributions, value=value_ms)


def _next_to(parameter: Parameter, value: Value) -> list[Value]:
    values = parameter.values()
    if parameter.kind == "categorical":
        return [other for other in values if other != value]
    at = values.index(value)
    return [values[index] for index in (at + 1, at - 1) if 0 <= index < len(values)]
