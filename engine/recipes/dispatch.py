"""Shape-gated dispatch: one solution that runs, for each shape, what the campaign measured to be fastest there."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import msgspec

from engine.problems.axes import resolve_axes
from engine.problems.model import Definition, Problem
from engine.problems.solution import PYTHON_LANGUAGES, Solution, SolutionSpec, SourceFile
from engine.recipes.subject import axis_lines

ENTRY = "kernel.py"
MOST_VARIANTS = 8


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A correct candidate and its median latency per workload uuid, in milliseconds."""

    label: str  # for a person: ``agent 2 #57``
    solution: Solution
    latencies_ms: dict[str, float]


class Composition(msgspec.Struct, frozen=True, kw_only=True):
    """``table``: a workload's uuid → label of the candidate that serves it. Predictions, not measurements."""

    solution: Solution
    table: dict[str, str]
    predicted_ms: float  # geometric mean over workloads
    best_single_ms: float


def compose(problem: Problem, measured: Sequence[Measured], margin: float = 0.01) -> Composition | None:
    """The dispatching solution, or ``None`` where one candidate is best on every shape or none can be combined.

    A shape leaves the overall best only for a candidate that is more than ``margin`` (a fraction) faster there.
    """
    usable = [m for m in measured if _usable(problem, m)]
    if len(usable) < 2:
        return None
    best = min(usable, key=lambda m: _mean(list(m.latencies_ms.values())))
    groups = _shapes(problem)
    chosen = {key: _choice(uuids, usable, best, margin) for key, uuids in groups.items()}
    chosen = _limited(chosen, best, groups)
    if len({m.label for m in chosen.values()}) < 2:
        return None
    table = {uuid: chosen[key].label for key, uuids in groups.items() for uuid in uuids}
    by_label = {m.label: m for m in usable}
    return Composition(
        solution=_solution(problem, chosen, best),
        table=table,
        predicted_ms=_mean([by_label[label].latencies_ms[uuid] for uuid, label in table.items()]),
        best_single_ms=_mean(list(best.latencies_ms.values())),
    )


def _usable(problem: Problem, candidate: Measured) -> bool:
    spec = candidate.solution.spec
    return (
        len(candidate.solution.sources) == 1
        and all(language in PYTHON_LANGUAGES for language in spec.languages)
        and all(candidate.latencies_ms.get(w.uuid, 0.0) > 0.0 for w in problem.workloads)
    )


def _shapes(problem: Problem) -> dict[tuple[int, ...], list[str]]:
    """Workloads by the axes that vary, in definition order: what a candidate can tell apart from shapes."""
    axes = {w.uuid: resolve_axes(problem.definition, w) for w in problem.workloads}
    names = _varying(problem)
    groups: dict[tuple[int, ...], list[str]] = {}
    for uuid, values in axes.items():
        groups.setdefault(tuple(values[n] for n in names), []).append(uuid)
    return groups


def _varying(problem: Problem) -> list[str]:
    """Var axes that some input's shape shows and that differ between workloads."""
    shown = {token for spec in problem.definition.inputs.values() for token in spec.shape or []}
    values: dict[str, set[int]] = {}
    for workload in problem.workloads:
        for name, value in resolve_axes(problem.definition, workload).items():
            values.setdefault(name, set()).add(value)
    return [name for name in problem.definition.axes if name in shown and len(values[name]) > 1]


def _choice(uuids: Sequence[str], usable: Sequence[Measured], best: Measured, margin: float) -> Measured:
    def here(candidate: Measured) -> float:
        return _mean([candidate.latencies_ms[u] for u in uuids])

    fastest = min(usable, key=here)
    return fastest if here(fastest) * (1.0 + margin) < here(best) else best


def _limited(
    chosen: Mapping[tuple[int, ...], Measured],
    best: Measured,
    groups: Mapping[tuple[int, ...], list[str]],
) -> dict[tuple[int, ...], Measured]:
    """At most ``MOST_VARIANTS`` variants: those that save most stay, the others' shapes go back to the best."""
    gain: dict[str, float] = {}
    for key, candidate in chosen.items():
        for uuid in groups[key]:
            saved = math.log(best.latencies_ms[uuid] / candidate.latencies_ms[uuid])
            gain[candidate.label] = gain.get(candidate.label, 0.0) + saved
    ranked = sorted((label for label in gain if label != best.label), key=lambda n: -gain[n])
    kept = {best.label, *ranked[: MOST_VARIANTS - 1]}
    return {key: candidate if candidate.label in kept else best for key, candidate in chosen.items()}


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values))


def _solution(problem: Problem, chosen: Mapping[tuple[int, ...], Measured], best: Measured) -> Solution:
    definition = problem.definition
    variants = list({m.label: m for m in [best, *chosen.values()]}.values())
    modules = {m.label: _module(m) for m in variants}
    sources = [SourceFile(path=f"{modules[m.label]}.py", content=m.solution.entry_source) for m in variants]
    languages = sorted({language for m in variants for language in m.solution.spec.languages})
    text = _source(definition, _varying(problem), chosen, best, variants, modules)
    return Solution(
        name="dispatch-" + hashlib.sha256(text.encode()).hexdigest()[:8],
        definition=definition.name,
        author="kernelarc recipes",
        description="Picks per shape the fastest of: " + ", ".join(m.label for m in variants),
        spec=SolutionSpec(languages=languages, entry_point=f"{ENTRY}::run", destination_passing_style=True),
        sources=[SourceFile(path=ENTRY, content=text), *sources],
    )


def _module(candidate: Measured) -> str:
    return "variant_" + hashlib.sha256(candidate.solution.entry_source.encode()).hexdigest()[:12]


def _source(
    definition: Definition,
    names: Sequence[str],
    chosen: Mapping[tuple[int, ...], Measured],
    best: Measured,
    variants: Sequence[Measured],
    modules: Mapping[str, str],
) -> str:
    inputs, outputs = ", ".join(definition.inputs), ", ".join(definition.outputs)
    lines = ['"""The fastest measured variant for each shape; any other shape runs the best overall."""', ""]
    lines += [f"import {modules[m.label]}" for m in variants] + ["", ""]
    for place, m in enumerate(variants):
        entry = f"{modules[m.label]}.{m.solution.entry_function}"
        lines += [f"def _variant{place}({inputs}, {outputs}):", f"    # {' '.join(m.label.split())}"]
        if m.solution.spec.destination_passing_style:
            lines += [f"    {entry}({inputs}, {outputs})"]
        else:
            lines += [f"    found = {entry}({inputs})", *_copies(definition)]
        lines += ["", ""]
    place_of = {m.label: i for i, m in enumerate(variants)}
    lines += ["TABLE = {"]
    lines += [f"    {key!r}: _variant{place_of[m.label]}," for key, m in chosen.items() if m.label != best.label]
    lines += ["}", "", "", f"def run({inputs}, {outputs}):"]
    lines += [f"    {line}" for line in axis_lines(definition, names)]
    key = "(" + ", ".join(names) + ("," if len(names) == 1 else "") + ")"
    lines += [f"    TABLE.get({key}, _variant0)({inputs}, {outputs})", ""]
    return "\n".join(lines)


def _copies(definition: Definition) -> list[str]:
    names = list(definition.outputs)
    lines = [f"    found = [found[n] for n in {names!r}] if isinstance(found, dict) else found"]
    if len(names) == 1:
        lines += ["    found = found if isinstance(found, (tuple, list)) else (found,)"]
    return [*lines, *(f"    {name}.copy_(found[{i}])" for i, name in enumerate(names))]
