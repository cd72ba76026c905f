"""flashinfer-trace layout: ``definitions/<op>/<name>.json`` and ``workloads/<op>/<name>.jsonl``.

SOL-ExecBench's format descends from it. What it lacks or leaves unchecked is bridged here and noted: constraints
and tags are dropped, ``run`` may name its parameters differently, tolerances come from the run configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.decoding import decode_json
from engine.errors import BadInput
from engine.problems.importing import Draft
from engine.problems.reference import parse_source, signature

_KEPT = ("name", "op_type", "description", "axes", "inputs", "outputs", "reference")
# flashinfer-bench's bundled run configuration relaxes the matched share for these.
_RATIO = {"moe": 0.95}


def flashinfer_drafts(source: Path) -> Iterator[Draft]:
    """Drafts of a dataset root, or of one definition file inside one."""
    if source.is_file():
        root, files = _root_of(source), [source]
    else:
        root = source
        files = sorted((source / "definitions").rglob("*.json"))
    if not files:
        fix = "give the dataset's root, with definitions/ and workloads/ in it"
        raise BadInput("no flashinfer-trace dataset here", where=str(source), fix=fix)
    for file in files:
        yield _draft(root, file)


def is_dataset(folder: Path) -> bool:
    """``definitions/`` alone is any folder's name: ``workloads/`` beside it makes the dataset."""
    return (folder / "definitions").is_dir() and (folder / "workloads").is_dir()


def dataset_root(path: Path) -> Path | None:
    """The dataset in whose ``definitions/`` the path lies, or which ends in it."""
    place = path.resolve()
    return next(
        (up.parent for up in (place, *place.parents) if up.name == "definitions" and is_dataset(up.parent)), None
    )


def _root_of(file: Path) -> Path:
    root = dataset_root(file)
    if root is None:
        fix = "give the dataset's root, with definitions/ and workloads/ in it"
        raise BadInput("not inside definitions/ with workloads/ beside it", where=str(file), fix=fix)
    return root


def _draft(root: Path, file: Path) -> Draft:
    notes: list[str] = []
    try:
        raw: dict[str, Any] = decode_json(
            file.read_bytes(), where=str(file), kind=dict[str, Any], what="cannot be read"
        )
        definition = _definition(raw, notes)
        workloads = _workloads(root, str(definition.get("op_type") or ""), file.stem, notes)
    except OSError as error:
        return Draft(name=file.stem, error=f"{file}: cannot be read: {error}")
    except BadInput as error:
        return Draft(name=file.stem, error=error.message)
    return Draft(
        name=str(definition.get("name") or file.stem), definition=definition, workloads=workloads, notes=notes
    )


def _definition(raw: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    definition = {key: raw[key] for key in _KEPT if raw.get(key) is not None}
    constraints = [str(item) for item in raw.get("constraints") or []]
    if constraints:
        notes.append(f"constraints are not checked: {'; '.join(constraints)}")
        text = str(definition.get("description") or "")
        definition["description"] = f"{text} Constraints: {'; '.join(constraints)}.".strip()
    inputs = definition.get("inputs")
    if isinstance(inputs, dict) and isinstance(definition.get("reference"), str):
        definition["reference"] = _with_named_parameters(definition["reference"], list(inputs), notes)
    return definition


def _with_named_parameters(reference: str, inputs: list[str], notes: list[str]) -> str:
    """Wraps a ``run`` whose parameters have other names than the inputs; other mismatches stay as found."""
    try:
        found = signature(parse_source(reference), "run")
    except SyntaxError:
        return reference
    if found is None or found.positional == tuple(inputs) or len(found.positional) != len(inputs):
        return reference
    notes.append("run's parameters were named differently: wrapped, in the inputs' order")
    names = ", ".join(inputs)
    wrapper = f"_original_run = run\n\n\ndef run({names}):\n    return _original_run({names})\n"
    return f"{reference.rstrip()}\n\n\n{wrapper}"


def _workloads(root: Path, op_type: str, name: str, notes: list[str]) -> list[dict[str, Any]]:
    found = sorted((root / "workloads").rglob(f"{name}.jsonl"))
    if not found:
        raise BadInput(f"no workloads/…/{name}.jsonl", where=str(root), fix="download the workloads too")
    file = next((path for path in found if path.parent.name == op_type), found[0])
    workloads = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        entry = decode_json(line, where=where, kind=dict[str, Any], what="cannot be read")
        workload = entry.get("workload", entry)
        if not isinstance(workload, dict):
            raise BadInput("workload is missing", where=where)
        workloads.append(_workload(workload, op_type, root))
    notes.append("tolerances are SOL-ExecBench's defaults: the dataset has none")
    return workloads


def _workload(workload: dict[str, Any], op_type: str, root: Path) -> dict[str, Any]:
    inputs = workload.get("inputs")
    record: dict[str, Any] = {key: workload[key] for key in ("uuid", "axes", "inputs") if key in workload}
    if isinstance(inputs, dict):
        record["inputs"] = {name: _source(source, root) for name, source in inputs.items()}
    if op_type in _RATIO:
        record["tolerance"] = {"required_matched_ratio": _RATIO[op_type]}
    return record


def _source(source: Any, root: Path) -> Any:
    """Blob paths are relative to the dataset; made absolute where the file is there."""
    if (
        not isinstance(source, dict)
        or source.get("type") != "safetensors"
        or not isinstance(source.get("path"), str)
    ):
        return source
    path = source["path"]
    file = (root / path).resolve()
    return {**source, "path": str(file) if file.is_file() else path.removeprefix("./")}
