"""Problem files → :class:`Problem`, with every check of SOL-ExecBench and the ones it leaves out.

A problem is a folder with ``definition.json`` and ``workload.jsonl``. Each defect is one :class:`BadInput` that
names file (and line), field and fix. Unknown keys, missing blobs and loose tolerances are notes.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine.decoding import decode_json
from engine.errors import BadInput
from engine.problems.files import is_folder, read_file
from engine.problems.model import (
    Axis,
    ConstAxis,
    CustomInput,
    Definition,
    ExprAxis,
    InputSource,
    Problem,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    TensorSpec,
    Tolerance,
    VarAxis,
    Workload,
)
from engine.problems.validate import (
    blob_findings,
    definition_errors,
    is_loose,
    override_notes,
    workload_errors,
)
from engine.text import nearest

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_WORKLOADS = 2000  # every evaluation runs them all
_AXIS_KINDS: dict[str, type[Any]] = {"const": ConstAxis, "var": VarAxis, "expr": ExprAxis}
_INPUT_KINDS: dict[str, type[Any]] = {
    "random": RandomInput,
    "scalar": ScalarInput,
    "safetensors": SafetensorsInput,
    "custom": CustomInput,
}


class Reading(NamedTuple):
    """All that was found: ``problem`` is ``None`` as soon as there is an error."""

    problem: Problem | None
    errors: list[BadInput]
    notes: list[str]


def load_problem(path: Path | str) -> Problem:
    """The problem in a folder. Raises :class:`BadInput` with the first defect."""
    reading = read_problem(path)
    if reading.errors or reading.problem is None:
        raise reading.errors[0]
    return reading.problem


def read_problem(path: Path | str) -> Reading:
    """Read a folder (or its ``definition.json``) and collect every defect and note."""
    folder = Path(path)
    if folder.name == "definition.json" and not is_folder(folder):
        folder = folder.parent
    unknown: Counter[str] = Counter()
    try:
        definition = _definition(folder, unknown)
        numbered, errors = _workloads(folder, unknown)
    except BadInput as error:
        return Reading(None, [error], [])
    errors = definition_errors(definition, str(folder / "definition.json")) + errors
    notes = _unknown_notes(unknown)
    root = str(folder.resolve())
    if not errors:
        errors, more = _check_workloads(definition, numbered, folder, root)
        notes += more
    if errors:
        return Reading(None, errors, notes)
    workloads = [workload for _, workload in numbered]
    return Reading(Problem(definition=definition, workloads=workloads, root=root, notes=notes), [], notes)


def problem_to_json(problem: Problem) -> bytes:
    """The frozen copy a campaign keeps: definition, workloads, root and notes in one document."""
    return msgspec.json.encode(problem)


def problem_from_json(data: bytes) -> Problem:
    """Decode :func:`problem_to_json`'s document. Raises :class:`BadInput` if it is something else."""
    return decode_json(data, where="problem.json", kind=Problem, what="not a stored problem")  # type: ignore[no-any-return]


def parse_definition(raw: Any, where: str, unknown: Counter[str] | None = None) -> Definition:
    """A definition from decoded JSON: types only, see ``validate.definition_errors`` for its meaning."""
    unknown = Counter() if unknown is None else unknown
    fields = _object(raw, where, "definition.json must hold one JSON object")
    _count_unknown(fields, Definition, "", unknown)
    for name in ("name", "axes", "inputs", "outputs", "reference"):
        if name not in fields:
            raise BadInput(f"missing field {name}", where=where, fix=f'add "{name}"')
    axes = {
        name: _axis(value, f"axes.{name}", where, unknown)
        for name, value in _object(fields["axes"], where, "axes must be an object").items()
    }
    specs: dict[str, dict[str, TensorSpec]] = {}
    for group in ("inputs", "outputs"):
        entries = _object(fields[group], where, f"{group} must be an object of name → tensor spec")
        specs[group] = {n: _spec(value, f"{group}.{n}", where, unknown) for n, value in entries.items()}
    plain = {
        name: _text(fields, name, where, optional=name not in ("name", "reference"))
        for name in ("name", "reference", "op_type", "description", "hf_id", "custom_inputs_entrypoint")
    }
    return Definition(
        name=plain["name"] or "",
        reference=plain["reference"] or "",
        op_type=plain["op_type"],
        description=plain["description"],
        hf_id=plain["hf_id"],
        custom_inputs_entrypoint=plain["custom_inputs_entrypoint"],
        axes=axes,
        inputs=specs["inputs"],
        outputs=specs["outputs"],
    )


def parse_workload(raw: Any, where: str, unknown: Counter[str] | None = None) -> Workload:
    """A workload from decoded JSON: types only."""
    unknown = Counter() if unknown is None else unknown
    fields = _object(raw, where, "a workload must be one JSON object")
    _count_unknown(fields, Workload, "workload ", unknown)
    for name in ("uuid", "axes", "inputs"):
        if name not in fields:
            raise BadInput(f"missing field {name}", where=where, fix=f'add "{name}"')
    axes = {}
    for name, value in _object(fields["axes"], where, "axes must be an object of name → number").items():
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        axes[name] = _convert(whole, int, f"axes.{name}", where, "use a whole number")
    inputs = {
        name: _source(value, f"inputs.{name}", where, unknown)
        for name, value in _object(fields["inputs"], where, "inputs must be an object of name → source").items()
    }
    tolerance = Tolerance()
    if "tolerance" in fields:
        limits = _object(
            fields["tolerance"], where, "tolerance must be an object", fix="leave it out for defaults"
        )
        _count_unknown(limits, Tolerance, "tolerance.", unknown)
        tolerance = _convert(limits, Tolerance, "tolerance", where, "see docs/formats.md")
    uuid = _text(fields, "uuid", where, optional=False) or ""
    return Workload(uuid=uuid, axes=axes, inputs=inputs, tolerance=tolerance)


def _read(path: Path) -> bytes:
    folder = path.parent
    if not is_folder(folder):
        if os.path.lexists(folder):
            fix = "give a folder with definition.json and workload.jsonl"
            raise BadInput("not a problem", where=str(folder), fix=fix)
        raise BadInput("no such file or folder", where=str(folder), fix="give the folder of a problem")
    try:
        return read_file(path, MAX_FILE_BYTES, fix="split the problem")
    except FileNotFoundError:
        fix = "a problem is a folder with definition.json and workload.jsonl"
        raise BadInput("missing file", where=str(path), fix=fix) from None


def _decode(data: bytes, where: str) -> Any:
    return decode_json(data, where=where, what="not valid JSON", fix="correct the syntax")


def _definition(folder: Path, unknown: Counter[str]) -> Definition:
    path = folder / "definition.json"
    return parse_definition(_decode(_read(path), str(path)), str(path), unknown)


def _workloads(folder: Path, unknown: Counter[str]) -> tuple[list[tuple[int, Workload]], list[BadInput]]:
    """Workloads with their line numbers, and what could not be decoded."""
    path = folder / "workload.jsonl"
    workloads: list[tuple[int, Workload]] = []
    errors: list[BadInput] = []
    for number, line in enumerate(_read(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            workloads.append((number, parse_workload(_decode(line, where), where, unknown)))
        except BadInput as error:
            errors.append(error)
        if number > MAX_WORKLOADS and len(workloads) > MAX_WORKLOADS:
            what = f"more than {MAX_WORKLOADS} workloads"
            raise BadInput(what, where=str(path), fix="keep those that matter, or split the problem")
    if not workloads and not errors:
        errors.append(BadInput("no workload", where=str(path), fix="add one JSON object per line"))
    return workloads, errors


def _check_workloads(
    definition: Definition, numbered: list[tuple[int, Workload]], folder: Path, root: str
) -> tuple[list[BadInput], list[str]]:
    errors: list[BadInput] = []
    first_line: dict[str, int] = {}
    missing: list[str] = []
    without_blobs = loose = 0
    overrides: Counter[str] = Counter()
    for number, workload in numbered:
        where = f"{folder / 'workload.jsonl'}:{number}"
        if workload.uuid in first_line:
            what = f"uuid {workload.uuid!r} is already on line {first_line[workload.uuid]}"
            errors.append(BadInput(what, where=where, fix="give each workload its own uuid"))
        first_line.setdefault(workload.uuid, number)
        found = workload_errors(definition, workload, where)
        errors += found
        if found:
            continue
        bad_blobs, lost = blob_findings(definition, workload, root, where)
        errors += bad_blobs
        missing += lost
        without_blobs += bool(lost)
        loose += is_loose(workload.tolerance)
        overrides.update(override_notes(definition, workload))
    notes = [f"{text} ({count} workloads)" for text, count in sorted(overrides.items())]
    if missing:
        notes.append(
            f"{without_blobs} of {len(numbered)} workloads need safetensors files that are not here "
            f"({len(set(missing))} files, first {missing[0]!r}): set FLASHINFER_TRACE_DIR to the trace dataset"
        )
    if loose:
        notes.append(f"{loose} of {len(numbered)} workloads have a loose tolerance: wrong results may pass")
    return errors, notes


def _unknown_notes(unknown: Counter[str]) -> list[str]:
    return [
        f"unknown key {key} is ignored" + (f" ({n} times)" if n > 1 else "") for key, n in sorted(unknown.items())
    ]


def _object(raw: Any, where: str, what: str, fix: str = "") -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise BadInput(f"{what}, not {_kind(raw)}", where=where, fix=fix)
    return raw


def _kind(raw: Any) -> str:
    if raw is None:
        return "null"
    return {dict: "an object", list: "a list", str: "a string", bool: "true/false"}.get(type(raw), "a number")


def _text(fields: dict[str, Any], name: str, where: str, *, optional: bool) -> str | None:
    value = fields.get(name)
    if isinstance(value, str) or (value is None and optional):
        return value
    raise BadInput(f"{name} must be a string, not {_kind(value)}", where=where)


def _count_unknown(
    fields: dict[str, Any], record: type[msgspec.Struct], prefix: str, unknown: Counter[str]
) -> None:
    known = record.__struct_fields__
    for key in fields:
        if key not in known and key != "type":
            unknown[f"{(prefix + key)!r}{nearest(key, known)}"] += 1


def _convert(raw: Any, kind: Any, field: str, where: str, fix: str) -> Any:
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise BadInput(f"{field}{path.rstrip('`')}: {message}", where=where, fix=fix) from None


def _axis(raw: Any, field: str, where: str, unknown: Counter[str]) -> Axis:
    fields = _object(raw, where, f"{field} must be an object")
    kind = fields.get("type")
    record = _AXIS_KINDS.get(kind) if isinstance(kind, str) else None
    if record is None:
        raise BadInput(f"{field}.type: {kind!r} is not const, var or expr", where=where, fix="set the axis's type")
    _count_unknown(fields, record, f"{field}.", unknown)
    if record is ConstAxis and isinstance(fields.get("value"), float) and fields["value"].is_integer():
        fields = {**fields, "value": int(fields["value"])}
    return _convert(fields, record, field, where, "see docs/formats.md")  # type: ignore[no-any-return]


def _spec(raw: Any, field: str, where: str, unknown: Counter[str]) -> TensorSpec:
    fields = _object(raw, where, f"{field} must be an object with shape and dtype")
    _count_unknown(fields, TensorSpec, f"{field}.", unknown)
    for name in ("shape", "dtype"):
        if name not in fields:
            raise BadInput(f"{field}: missing {name}", where=where, fix=f'add "{name}"')
    fix = "a shape is a list of axis names or numbers in quotes, [] for 0-dim, null for a Python scalar"
    return _convert(fields, TensorSpec, field, where, fix)  # type: ignore[no-any-return]


def _source(raw: Any, field: str, where: str, unknown: Counter[str]) -> InputSource:
    fields = _object(raw, where, f"{field} must be an object")
    kind = fields.get("type", "random")
    record = _INPUT_KINDS.get(kind) if isinstance(kind, str) else None
    if record is None:
        what = f"{field}.type: {kind!r} is not random, scalar, safetensors or custom"
        raise BadInput(what, where=where, fix="set the input's type")
    _count_unknown(fields, record, f"{field}.", unknown)
    return _convert({**fields, "type": kind}, record, field, where, "see docs/formats.md")  # type: ignore[no-any-return]
