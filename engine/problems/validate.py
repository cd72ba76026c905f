"""Checks of decoded definitions and workloads: pure functions that return every error as one clear line each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

from engine.errors import BadInput
from engine.problems.axes import ExpressionError, names_in, resolve_axes, shape_of
from engine.problems.blobs import TensorHeader, blob_header, resolve_blob
from engine.problems.dtypes import DTYPES, is_known, safetensors_name, same_storage, stored_shape
from engine.problems.model import (
    ConstAxis,
    CustomInput,
    Definition,
    ExprAxis,
    SafetensorsInput,
    ScalarInput,
    TensorSpec,
    Tolerance,
    VarAxis,
    Workload,
)
from engine.problems.reference import reference_errors

# Past these a tolerance says little about correctness; it is reported, not refused.
LOOSE_ATOL = 0.1
LOOSE_RTOL = 0.1
LOOSE_RATIO = 0.95


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def definition_errors(definition: Definition, where: str) -> list[BadInput]:
    """Everything wrong with a definition; ``where`` is its file."""
    errors: list[BadInput] = []
    if not definition.name.strip():
        errors.append(BadInput("name is empty", where=where, fix="name the operator"))
    errors += _axis_errors(definition, where)
    if not definition.outputs:
        errors.append(BadInput("outputs is empty", where=where, fix="declare at least one output to compare"))
    for group, specs in (("inputs", definition.inputs), ("outputs", definition.outputs)):
        for name, spec in specs.items():
            errors += _spec_errors(definition, spec, f"{group}.{name}", where)
    errors += _name_errors(definition, where)
    errors += reference_errors(definition, where)
    return errors


def _axis_errors(definition: Definition, where: str) -> list[BadInput]:
    errors: list[BadInput] = []
    before: set[str] = set()
    for name, axis in definition.axes.items():
        field = f"axes.{name}"
        if not name or name.isdigit():
            errors.append(BadInput(f"{field}: not a name for an axis", where=where, fix="use an identifier"))
        if isinstance(axis, ConstAxis) and axis.value < 0:
            errors.append(BadInput(f"{field}.value: {axis.value} is negative", where=where, fix="use 0 or more"))
        if isinstance(axis, ExprAxis):
            errors += _expression_errors(axis, before, set(definition.axes), field, where)
        before.add(name)
    return errors


def _expression_errors(
    axis: ExprAxis, before: set[str], known: set[str], field: str, where: str
) -> list[BadInput]:
    label = f"{field}.expression {axis.expression!r}"
    try:
        names = names_in(axis.expression)
    except ExpressionError as error:
        fix = "use numbers, axis names, + - * / // % ** and parentheses"
        return [BadInput(f"{label}: {error}", where=where, fix=fix)]
    errors = []
    for name in sorted(names - before):
        if name in known:
            what, fix = f"refers to {name!r}, which is defined later", f"move {name!r} before it"
        else:
            what, fix = f"unknown axis {name!r}{nearest(name, known)}", "name an axis of this definition"
        errors.append(BadInput(f"{label}: {what}", where=where, fix=fix))
    return errors


def _spec_errors(definition: Definition, spec: TensorSpec, field: str, where: str) -> list[BadInput]:
    errors = []
    if not is_known(spec.dtype):
        hint = nearest(spec.dtype, DTYPES)
        fix = f"use one of {', '.join(DTYPES)}"
        errors.append(BadInput(f"{field}.dtype: unknown dtype {spec.dtype!r}{hint}", where=where, fix=fix))
    for token in spec.shape or []:
        if token not in definition.axes and not (token.isascii() and token.isdigit()):
            hint = nearest(token, definition.axes)
            fix = "use an axis name or a decimal number in quotes; give an expression an axis of its own"
            errors.append(BadInput(f"{field}.shape: unknown axis {token!r}{hint}", where=where, fix=fix))
    return errors


def _name_errors(definition: Definition, where: str) -> list[BadInput]:
    errors = []
    for name in definition.inputs:
        if not name.isidentifier():
            errors.append(BadInput(f"inputs.{name}: not a parameter name", where=where, fix="use an identifier"))
        if name in definition.axes:
            errors.append(BadInput(f"inputs.{name}: also the name of an axis", where=where, fix="rename one"))
        if name in definition.outputs:
            errors.append(BadInput(f"outputs.{name}: also the name of an input", where=where, fix="rename one"))
    return errors


def workload_errors(definition: Definition, workload: Workload, where: str) -> list[BadInput]:
    """Everything wrong with one workload; ``where`` is its file and line."""
    errors: list[BadInput] = []
    if not workload.uuid.strip():
        errors.append(BadInput("uuid is empty", where=where, fix="give each workload a unique uuid"))
    axis_errors = _workload_axis_errors(definition, workload, where)
    errors += axis_errors + _custom_errors(definition, workload, where)
    for name, source in workload.inputs.items():
        spec = definition.inputs.get(name)
        if spec is not None and isinstance(source, ScalarInput):
            errors += _scalar_errors(spec, source, f"inputs.{name}", where)
        if spec is not None and isinstance(source, SafetensorsInput) and spec.shape is None:
            fix = "use type scalar"
            errors.append(BadInput(f"inputs.{name}: a scalar cannot come from safetensors", where=where, fix=fix))
    return errors + tolerance_errors(workload.tolerance, where)


def _workload_axis_errors(definition: Definition, workload: Workload, where: str) -> list[BadInput]:
    errors = [
        BadInput(f"axes.{name}: {value} is negative", where=where, fix="use 0 or more")
        for name, value in workload.axes.items()
        if value < 0
    ]
    missing = [n for n, axis in definition.axes.items() if isinstance(axis, VarAxis) and n not in workload.axes]
    errors += [
        BadInput(f"axes: no value for the var axis {name!r}", where=where, fix=f'add "{name}" to axes')
        for name in missing
    ]
    if errors:
        return errors
    try:
        resolve_axes(definition, workload)
    except BadInput as error:
        return [BadInput(error.what, where=where, fix=error.fix)]
    return []


def _custom_errors(definition: Definition, workload: Workload, where: str) -> list[BadInput]:
    custom = [name for name in definition.inputs if isinstance(workload.inputs.get(name), CustomInput)]
    if not custom:
        return []
    if definition.custom_inputs_entrypoint is None:
        what = f"inputs.{custom[0]}: custom, but the definition has no custom_inputs_entrypoint"
        return [BadInput(what, where=where, fix="name a function of the reference in definition.json")]
    others = [name for name in definition.inputs if name not in custom]
    if others:
        what = f"inputs.{others[0]}: not custom although {custom[0]!r} is; custom is all or nothing"
        return [BadInput(what, where=where, fix="make every input custom: the entry point may return scalars too")]
    return []


def _scalar_errors(spec: TensorSpec, source: ScalarInput, field: str, where: str) -> list[BadInput]:
    if spec.shape is not None:
        what = f"{field}: a scalar for an input that is declared as a tensor of shape {spec.shape}"
        return [BadInput(what, where=where, fix='use type random, or declare "shape": null')]
    if isinstance(source.value, float) and not math.isfinite(source.value):
        return [BadInput(f"{field}.value: not a finite number", where=where, fix="use a finite number")]
    return []


def tolerance_errors(tolerance: Tolerance, where: str) -> list[BadInput]:
    """Ranges that SOL-ExecBench leaves open and nobody can mean."""
    errors = []
    for name in ("max_atol", "max_rtol", "max_error_cap"):
        value = getattr(tolerance, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            what = f"tolerance.{name}: {value} is not a finite number of 0 or more"
            errors.append(BadInput(what, where=where, fix="use for instance 0.01"))
    ratio = tolerance.required_matched_ratio
    if not 0 < ratio <= 1:
        what = f"tolerance.required_matched_ratio: {ratio} is not in (0, 1]"
        errors.append(BadInput(what, where=where, fix="use for instance 0.99"))
    return errors


def blob_findings(
    definition: Definition, workload: Workload, root: str | None, where: str
) -> tuple[list[BadInput], list[str]]:
    """Errors of safetensors files that are there, and the paths of those that are not."""
    errors: list[BadInput] = []
    missing: list[str] = []
    axes = resolve_axes(definition, workload)
    for name, source in workload.inputs.items():
        spec = definition.inputs.get(name)
        if spec is None or not isinstance(source, SafetensorsInput):
            continue
        file = resolve_blob(source.path, root)
        if file is None:
            missing.append(source.path)
            continue
        try:
            header = blob_header(file)
        except BadInput as error:
            errors.append(error)
            continue
        errors += _tensor_errors(spec, shape_of(spec, axes) or (), source, header, f"inputs.{name}", where)
    return errors, missing


def _tensor_errors(
    spec: TensorSpec,
    shape: tuple[int, ...],
    source: SafetensorsInput,
    header: dict[str, TensorHeader],
    field: str,
    where: str,
) -> list[BadInput]:
    found = header.get(source.tensor_key)
    if found is None:
        hint = nearest(source.tensor_key, header)
        fix = f"use one of {', '.join(list(header)[:8])}"
        return [BadInput(f"{field}.tensor_key: no tensor {source.tensor_key!r}{hint}", where=where, fix=fix)]
    dtype = safetensors_name(found.dtype) or found.dtype
    if not same_storage(dtype, spec.dtype):
        return [BadInput(f"{field}: the file holds {dtype}, the definition says {spec.dtype}", where=where)]
    if tuple(found.shape) != stored_shape(spec.dtype, shape):
        needed = list(stored_shape(spec.dtype, shape))
        what = f"{field}: the file holds shape {found.shape}, the workload needs {needed}"
        return [BadInput(what, where=where, fix="correct the axes of the workload")]
    return []


def is_loose(tolerance: Tolerance) -> bool:
    return (
        tolerance.max_atol > LOOSE_ATOL
        or tolerance.max_rtol > LOOSE_RTOL
        or tolerance.required_matched_ratio < LOOSE_RATIO
    )


def override_notes(definition: Definition, workload: Workload) -> set[str]:
    """Things in a workload that have no effect, or an effect a reader would not expect."""
    notes = set()
    for name, value in workload.axes.items():
        axis = definition.axes.get(name)
        if axis is None:
            notes.add(f"axes.{name} is not an axis of the definition and has no effect")
        elif isinstance(axis, ExprAxis):
            notes.add(f"axes.{name} is an expression; the value in the workload has no effect")
        elif isinstance(axis, ConstAxis) and axis.value != value:
            notes.add(f"axes.{name} replaces the const value {axis.value}")
    for name in workload.inputs:
        if name not in definition.inputs:
            notes.add(f"inputs.{name} is not an input of the definition and has no effect")
    return notes
