"""KernelBench ``.py`` problems (``Model``, ``get_inputs``, ``get_init_inputs``) → problems without hidden state.

Every parameter and buffer of the model becomes an explicit input after the forward's own arguments. Inputs come
from a custom entry point that draws them as KernelBench does: ``get_inputs()`` and a freshly constructed model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from engine.decoding import decode_json
from engine.errors import BadInput, Fault
from engine.problems.files import read_file
from engine.problems.importing import Draft
from engine.problems.reference import parse_source
from engine.problems.sandboxed import run_once
from engine.text import one_line

MAX_SOURCE_BYTES = 8 * 1024 * 1024
TIMEOUT_S = 120.0
# KernelBench's own allclose limits for float32.
_TOLERANCE = {"max_atol": 1e-4, "max_rtol": 1e-4, "required_matched_ratio": 1.0}
_WANTED = ("Model", "get_inputs", "get_init_inputs")


class Argument(msgspec.Struct, frozen=True):
    """One value of ``run``. ``state`` is the model's own name (``net.0.weight``) of a parameter or buffer."""

    name: str
    dtype: str
    shape: list[int] | None
    state: str | None = None


class Description(msgspec.Struct, frozen=True):
    """What running the file told: arguments, outputs, and how the model must be built."""

    arguments: list[Argument] = []
    outputs: list[Argument] = []
    evaluate: bool = False  # dropout would make every call differ
    notes: list[str] = []
    error: str = ""


def kernelbench_drafts(source: Path) -> Iterator[Draft]:
    """Drafts of one file, or of every problem file below a folder. One that cannot be read is an error."""
    found = False
    for file in _files(source):
        try:
            text = _source_text(file, None if file == source else source)
        except BadInput as error:
            found = True
            yield Draft(name=file.stem, error=error.message)
            continue
        if text is None:
            continue
        found = True
        yield _draft(file, text)
    if not found:
        fix = "a problem file defines Model, get_inputs and get_init_inputs; links to folders are not followed"
        raise BadInput("no KernelBench problem here", where=str(source), fix=fix)


def holds_problem(folder: Path) -> bool:
    """Whether a file that can be read below ``folder`` is a KernelBench problem."""
    for file in _files(folder):
        with suppress(BadInput):
            if _source_text(file, folder) is not None:
                return True
    return False


def _files(source: Path) -> list[Path]:
    return [source] if source.is_file() else sorted(file for file in source.rglob("*.py") if not file.is_dir())


def _source_text(file: Path, inside: Path | None) -> str | None:
    """The source if it defines what a problem needs. Raises :class:`BadInput` if that cannot be told."""
    try:
        data = read_file(file, MAX_SOURCE_BYTES, inside=inside)
    except FileNotFoundError:
        fix = "fetch what it names (`git annex get`, the download again) or take the link away"
        raise BadInput("a link to nothing", where=str(file), fix=fix) from None
    if not all(word.encode() in data for word in _WANTED):
        return None
    try:
        text = data.decode("utf-8-sig")
        names = {getattr(node, "name", "") for node in parse_source(text).body}
    except UnicodeDecodeError:
        raise BadInput("not UTF-8", where=str(file), fix="save it as UTF-8") from None
    except SyntaxError as error:
        raise BadInput(f"not Python: {error.msg}, line {error.lineno or 1}", where=str(file)) from None
    return text if names.issuperset(_WANTED) else None


def _draft(file: Path, text: str) -> Draft:
    try:
        answer = run_once("engine.problems.kernelbench_child", text.encode(), TIMEOUT_S)
        description: Description = decode_json(answer, where=str(file), kind=Description)
    except Fault as error:
        return Draft(name=file.stem, error=f"{file}: {error.detail}")
    except BadInput:
        return Draft(name=file.stem, error=f"{file}: the conversion gave no readable answer")
    if description.error:
        return Draft(name=file.stem, error=f"{file}: {one_line(description.error)}")
    return Draft(
        name=file.stem.strip("_"),
        definition=definition_of(file.stem.strip("_"), text, description),
        workloads=[
            {
                "uuid": "kernelbench",
                "axes": {},
                "inputs": {argument.name: {"type": "custom"} for argument in description.arguments},
                "tolerance": _TOLERANCE,
            }
        ],
        notes=list(description.notes),
    )


def definition_of(name: str, text: str, description: Description) -> dict[str, Any]:
    """The definition document: the file's own source followed by ``run`` and the entry point."""
    return {
        "name": name,
        "description": f"KernelBench {name}; parameters of the model are explicit inputs.",
        "axes": {},
        "inputs": {argument.name: _spec(argument) for argument in description.arguments},
        "outputs": {output.name: _spec(output) for output in description.outputs},
        "custom_inputs_entrypoint": "kernelarc_inputs",
        "reference": f"{text.rstrip()}\n\n\n{_adapter(description)}",
    }


def _spec(argument: Argument) -> dict[str, Any]:
    shape = None if argument.shape is None else [str(size) for size in argument.shape]
    return {"shape": shape, "dtype": argument.dtype}


def _adapter(description: Description) -> str:
    template = Path(__file__).with_name("kernelbench_adapter.txt").read_text(encoding="utf-8")
    names = [argument.name for argument in description.arguments]
    data = [argument.name for argument in description.arguments if argument.state is None]
    state = {argument.state: argument.name for argument in description.arguments if argument.state is not None}
    return (
        template.replace("@PARAMETERS@", ", ".join(names))
        .replace("@DATA_NAMES@", repr(data))
        .replace("@DATA@", ", ".join(data) + ("," if data else ""))
        .replace("@STATE_NAMES@", repr(state))
        .replace("@STATE@", "{" + ", ".join(f"{key!r}: {value}" for key, value in state.items()) + "}")
        .replace("@MODE@", "eval" if description.evaluate else "train")
    )
