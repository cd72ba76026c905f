"""Tuning what another agent wrote: constants whose line says which values they may take.

``BLOCK = 128  # tune: 32, 64, 128, 256`` in Python, ``constexpr int BLOCK = 128;  // tune: 32, 64, 128`` in C++.
Only the number on that line is ever replaced, so the rest of the source stays what the guard has judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from engine.problems.solution import Solution, SourceFile
from engine.recipes.model import Parameter, RecipeFile, Value

MOST_TUNABLES = 8
MOST_VALUES = 16
_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
_LINE = re.compile(
    rf"^(?P<head>\s*(?:[\w:<> ]+\s)?(?P<name>[A-Za-z_]\w{{0,63}})\s*=\s*)(?P<value>{_NUMBER})"
    rf"(?P<tail>\s*;?\s*(?:#|//)\s*tune:\s*(?P<choices>{_NUMBER}(?:\s*,\s*{_NUMBER}){{1,31}})\s*)$"
)


class Tunable(msgspec.Struct, frozen=True, kw_only=True):
    """One constant: where it stands and the values it may take, its own among them."""

    file: str
    line: int
    name: str
    value: Value
    choices: tuple[Value, ...]


def tunables_of(solution: Solution) -> list[Tunable]:
    """The declared constants of all sources, in order; names that stand twice are left out."""
    found: list[Tunable] = []
    for source in solution.sources:
        for number, text in enumerate(source.content.splitlines()):
            match = _LINE.match(text)
            if match is None:
                continue
            value = _number(match["value"])
            choices = tuple(dict.fromkeys([*map(_number, match["choices"].split(",")), value]))[:MOST_VALUES]
            if len(choices) > 1 and value in choices:
                found.append(
                    Tunable(file=source.path, line=number, name=match["name"], value=value, choices=choices)
                )
    names = [tunable.name for tunable in found]
    return [tunable for tunable in found if names.count(tunable.name) == 1][:MOST_TUNABLES]


def space_of(name: str, tunables: list[Tunable]) -> RecipeFile:
    """The declared constants as a search space, so that it is searched like any recipe's."""
    return RecipeFile(
        name=name,
        family="tuning",
        kernel_types=("any",),
        languages=("pytorch",),
        rule="tunables",
        description="constants that their author declared tunable",
        hypothesis="",
        predicted="",
        parameters={t.name: Parameter(choices=t.choices, default=t.value) for t in tunables},
        cost=2,
    )


def with_values(solution: Solution, tunables: list[Tunable], point: Mapping[str, Value]) -> Solution:
    """The solution with other constants; everything else byte for byte."""
    sources = []
    for source in solution.sources:
        lines = source.content.splitlines(keepends=True)
        for tunable in tunables:
            if tunable.file == source.path and tunable.name in point:
                lines[tunable.line] = _replaced(lines[tunable.line], point[tunable.name])
        sources.append(SourceFile(path=source.path, content="".join(lines)))
    words = "-".join(f"{name}{value}" for name, value in point.items())
    return msgspec.structs.replace(solution, name=f"{solution.name[:60]}-{words[:60]}", sources=sources)


def _replaced(line: str, value: Value) -> str:
    ending = line[len(line.rstrip("\r\n")) :]
    match = _LINE.match(line.rstrip("\r\n"))
    return line if match is None else f"{match['head']}{value}{match['tail']}{ending}"


def _number(text: str) -> Value:
    text = text.strip()
    return float(text) if "." in text else int(text)
