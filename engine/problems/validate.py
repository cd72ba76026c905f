"""Checks of decoded definitions and workloads: pure functions that return every error as one clear line each."""

from __future__ import annotations

import math
from collections.abc import Mapping

from engine.errors import BadInput
from engine.problems.axes import MAX_VALUE, ExpressionError, names_in, resolve_axes, shape_of, spec_bytes
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
from engine.text import nearest

# Past these a tolerance says little about correctness; it is reported, not refused.
LOOSE_ATOL = 0.1
LOOSE_RTOL = 0.1
LOOSE_RATIO = 0.95
MAX_DIMS = 64  # of a tensor: PyTorch's own limit for elementwise operations
MAX_OUTPUT_DIMS = 8  # whose strides travel with every call
MAX_TENSOR_BYTES = 1 << 47  # what a process can address
LARGEST_TOLERANCE = 3.4e38  # of float32, in which outputs are compared


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
            most = MAX_OUTPUT_DIMS if group == "outputs" else MAX_DIMS
            if len(spec.shape or []) > most:
                what = f"{group}.{name}.shape: {len(spec.shape or [])} dimensions, at most {most}"
                errors.append(BadInput(what, where=where, fix="merge neighbouring dimensions"))
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
        if isinstance(axis, ConstAxis):
            errors += _value_errors(f"{field}.value", axis.value, where)
        if isinstance(axis, ExprAxis):
            errors += _expression_errors(axis, before, set(definition.axes), field, where)
        before.add(name)
    return errors


def _value_errors(field: str, value: int, where: str) -> list[BadInput]:
    if value < 0:
        return [BadInput(f"{field}: {value} is negative", where=where, fix="use 0 or more")]
    if value > MAX_VALUE:
        return [BadInput(f"{field}: more than {MAX_VALUE:.3g}", where=where, fix="correct the axis")]
    return []


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
        if token not in definition.axes and not _is_number(token):
            hint = nearest(token, definition.axes)
            fix = "use an axis name or a decimal number in quotes; give an expression an axis of its own"
            errors.append(BadInput(f"{field}.shape: unknown axis {token!r}{hint}", where=where, fix=fix))
    return errors


def _is_number(token: str) -> bool:
    return token.isascii() and token.isdigit() and len(token) <= len(str(MAX_VALUE))


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
    errors: list[BadInput] = []
    for name, value in workload.axes.items():
        errors += _value_errors(f"axes.{name}", value, where)
    missing = [n for n, axis in definition.axes.items() if isinstance(axis, VarAxis) and n not in workload.axes]
    errors += [
        BadInput(f"axes: no value for the var axis {name!r}", where=where, fix=f'add "{name}" to axes')
        for name in missing
    ]
    if errors:
        return errors
    try:
        axes = resolve_axes(definition, workload)
    except BadInput as error:
        return [BadInput(error.what, where=where, fix=error.fix)]
    return _size_errors(definition, axes, where)


def _size_errors(definition: Definition, axes: Mapping[str, int], where: str) -> list[BadInput]:
    errors = []
    for group, specs in (("inputs", definition.inputs), ("outputs", definition.outputs)):
        for name, spec in specs.items():
            if spec_bytes(spec, axes) > MAX_TENSOR_BYTES:
                what = f"{group}.{name} takes more than {MAX_TENSOR_BYTES >> 40} TiB, which no process can address"
                errors.append(BadInput(what, where=where, fix="correct the axes"))
    return errors


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
    if isinstance(source.value, int) and not -(2**63) <= source.value < 2**63:
        return [BadInput(f"{field}.value: more than 64 bits", where=where, fix="use a smaller number")]
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
        elif value is not None and value > LARGEST_TOLERANCE:
            what = f"tolerance.{name}: {value} is more than float32 holds, in which outputs are compared"
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
        try:
            file = resolve_blob(source.path, root)
            header = blob_header(file) if file is not None else {}
        except BadInput as error:
            own = BadInput(f"inputs.{name}: {error.what}", where=where, fix=error.fix)
            errors.append(error if error.where else own)
            continue
        if file is None:
            missing.append(source.path)
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
