"""A workload that the problem does not list, to catch solutions that only work on the published ones. Pure."""

from __future__ import annotations

import math

import msgspec

from engine.errors import BadInput
from engine.problems.axes import input_bytes, output_bytes, resolve_axes
from engine.problems.model import CustomInput, Problem, SafetensorsInput, ScalarInput, VarAxis, Workload

UUID = "unlisted"
_SCALE = 1.37  # for float scalars: off the published value, of the same size
_GROWTH = 2  # the unlisted workload may be this much larger than the smallest listed one,
_ALWAYS_BYTES = 4 << 20  # plus this


def _unpublished(values: list[int]) -> int | None:
    """Between the smallest and largest, sharing their common divisor (a kernel may rely on that), and new.

    Where the listed values leave no such number, half of the divisor, or a quarter of it, must do.
    """
    distinct = sorted(set(values))
    if len(distinct) < 2:
        return None
    common = math.gcd(*distinct)
    steps = [common // part for part in (1, 2, 4) if common % part == 0]
    return next((value for step in steps if (value := _between(distinct, step)) is not None), None)


def _between(distinct: list[int], step: int) -> int | None:
    low, high = distinct[0] // step, distinct[-1] // step
    middle = math.isqrt(low * high) if low else high // 2
    for distance in range(high - low + 1):
        for value in (middle + distance, middle - distance):
            if low <= value <= high and value * step not in distinct and value > 0:
                return value * step
    return None


def unlisted_workload(problem: Problem) -> Workload | None:
    """The smallest listed workload with its variable axes and float scalars moved; ``None`` if nothing can move.

    Stored inputs fit one shape only. What the problem's own code makes may depend on how axes fit together, so
    that there a single variable axis moves, and nothing else.
    """
    workloads = problem.workloads
    sources = [source for workload in workloads for source in workload.inputs.values()]
    names = [name for name, axis in problem.definition.axes.items() if isinstance(axis, VarAxis)]
    custom = any(isinstance(source, CustomInput) for source in sources)
    if any(isinstance(source, SafetensorsInput) for source in sources) or (custom and len(names) != 1):
        return None
    base = min(workloads, key=lambda w: math.prod(w.axes.get(name, 1) for name in names))
    axes = dict(base.axes)
    moved = False
    most = _GROWTH * (_bytes(problem, base, axes) or 0) + _ALWAYS_BYTES
    for name in names:
        value = _unpublished([w.axes[name] for w in workloads if name in w.axes])
        # Axes that are each in range may multiply to a problem that no listed workload comes near.
        size = None if value is None else _bytes(problem, base, {**axes, name: value})
        if value is not None and size is not None and size <= most:
            axes[name], moved = value, True
    inputs = dict(base.inputs)
    for name, source in () if custom else base.inputs.items():
        if isinstance(source, ScalarInput) and isinstance(source.value, float) and source.value:
            inputs[name], moved = ScalarInput(value=source.value * _SCALE), True
    if not moved or _bytes(problem, base, axes) is None:
        return None
    return msgspec.structs.replace(base, uuid=UUID, axes=axes, inputs=inputs)


def _bytes(problem: Problem, base: Workload, axes: dict[str, int]) -> int | None:
    """Inputs and outputs of the workload with other axes; ``None`` if they do not resolve."""
    try:
        resolved = resolve_axes(problem.definition, msgspec.structs.replace(base, axes=axes))
    except BadInput:
        return None
    return input_bytes(problem.definition, resolved) + output_bytes(problem.definition, resolved)
