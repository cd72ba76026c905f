"""SOL-ExecBench's dataset: problem folders, or the Parquet files as downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.decoding import decode_json
from engine.errors import BadInput, Fault
from engine.problems.check import problem_paths
from engine.problems.importing import Draft, guarded

# Columns that hold JSON documents as text.
_JSON_COLUMNS = ("axes", "inputs", "outputs", "workloads")
_PLAIN_COLUMNS = ("name", "hf_id", "description", "op_type", "reference", "custom_inputs_entrypoint")


def sol_drafts(source: Path) -> Iterator[Draft]:
    """Drafts of a Parquet file, a folder of them, a problem folder, or a folder of problem folders."""
    parquet = [source] if source.suffix == ".parquet" else sorted(source.rglob("*.parquet"))
    if parquet:
        for file in parquet:
            drafts = _from_parquet(file)
            yield from drafts if file == source else guarded(drafts, file.name)
        return
    folders = [folder for folder in problem_paths(source) if (folder / "definition.json").is_file()]
    if not folders:
        fix = "give a .parquet file, a problem folder or a folder of them"
        raise BadInput("no SOL-ExecBench problem here", where=str(source), fix=fix)
    for folder in folders:
        yield _from_folder(folder)


def _from_folder(folder: Path) -> Draft:
    try:
        definition = decode_json((folder / "definition.json").read_bytes(), where="definition.json")
        lines = enumerate((folder / "workload.jsonl").read_bytes().splitlines(), start=1)
        workloads = [decode_json(line, where=f"workload.jsonl:{n}") for n, line in lines if line.strip()]
    except (OSError, BadInput) as error:
        return Draft(name=folder.name, error=f"{folder}: cannot be read: {error}")
    if not isinstance(definition, dict) or not all(isinstance(workload, dict) for workload in workloads):
        return Draft(name=folder.name, error=f"{folder}: definition and workloads must be JSON objects")
    extra = {name: str(folder / name) for name in ("bounds.json",) if (folder / name).is_file()}
    return Draft(name=folder.name, definition=definition, workloads=workloads, extra_files=extra)


def _from_parquet(file: Path) -> Iterator[Draft]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        what = "Parquet files need pyarrow, which is not installed"
        fix = "pip install pyarrow (or kernelarc-tui[parquet]), or import the dataset's folders"
        raise Fault("needs.pyarrow", f"{file}: {what}; {fix}") from None
    try:
        rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    except (OSError, arrow.ArrowException) as error:
        raise BadInput(f"not a readable Parquet file: {error}", where=str(file)) from None
    for number, row in enumerate(rows):
        yield draft_of_row(row, f"{file}, row {number}")


def draft_of_row(row: dict[str, Any], where: str) -> Draft:
    """One dataset row, whose axes, inputs, outputs and workloads are JSON texts."""
    name = str(row.get("name") or where)
    decoded: dict[str, Any] = {}
    for column in _JSON_COLUMNS:
        value = row.get(column)
        try:
            what = f"column {column} is not JSON"
            decoded[column] = value
            if isinstance(value, str | bytes):
                decoded[column] = decode_json(value, where=where, what=what)
        except BadInput as error:
            return Draft(name=name, error=error.message)
        if decoded[column] is None:
            return Draft(name=name, error=f"{where}: column {column} is missing")
    workloads = decoded.pop("workloads")
    if not isinstance(workloads, list) or not all(isinstance(workload, dict) for workload in workloads):
        return Draft(name=name, error=f"{where}: column workloads is not a list of objects")
    plain = {column: row[column] for column in _PLAIN_COLUMNS if row.get(column) is not None}
    return Draft(name=name, definition={**plain, **decoded}, workloads=workloads)
