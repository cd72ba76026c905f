"""Solutions in and out: ``solution.json`` with SOL-ExecBench's rules, or a bare source file with ``run``.

What a source does is the gate's business: a file that does not even parse still loads, so that it ends as a
REJECT and not as wrong usage.
"""

from __future__ import annotations

import ast
import re
import stat
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from engine.decoding import decode_json
from engine.errors import BadInput
from engine.problems.files import is_folder, read_file
from engine.problems.model import Problem
from engine.problems.reference import parse_source, signature
from engine.problems.solution import (
    C_BINDING,
    CPP_LANGUAGES,
    PYTHON_LANGUAGES,
    Solution,
    SolutionSpec,
    SourceFile,
    python_solution,
)
from engine.text import nearest, one_line

HARDWARE = ("B200", "LOCAL")
NAME_LIMIT = 200  # characters of a solution's and its author's name
CPP_SUFFIXES = (".cu", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".cuh")
_CPP_SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c")
MAX_SOURCE_BYTES = 8 * 1024 * 1024
# First import that names a language wins over plain torch.
_IMPORTS = (
    ("cuda.tile", "cutile"),
    ("cutlass", "cute_dsl"),
    ("cudnn", "cudnn_frontend"),
    ("triton", "triton"),
)


def load_solution(path: Path | str, problem: Problem | None = None, *, inside: Path | None = None) -> Solution:
    """A solution from ``.json``, ``.py`` or a C++/CUDA source, or from a folder with ``solution.json``.

    With ``problem``, a solution for another definition is refused and a bare source's calling style is found.
    ``inside``: the folder that the file must lie in, links followed. Raises :class:`BadInput`.
    """
    file = Path(path)
    if is_folder(file):
        file = file / "solution.json"
    suffix = file.suffix.lower()
    if suffix == ".json":
        return _from_json(file, problem, inside)
    if suffix == ".py":
        return _from_python(file, problem, inside)
    if suffix in _CPP_SOURCES:
        return _from_cpp(file, problem, inside)
    fix = "give a solution.json, a .py with run(), or a .cu/.cpp that binds run"
    raise BadInput(f"unknown kind of solution {suffix or file.name!r}", where=str(file), fix=fix)


def solution_json(solution: Solution) -> bytes:
    """``solution.json`` that SOL-ExecBench's and flashinfer-bench's own models both accept, indented.

    They differ in one field: ``spec.languages`` of the one is a single ``spec.language`` in the other, and each
    passes over what it does not know.
    """
    document = msgspec.to_builtins(solution)
    document["spec"]["language"] = flashinfer_language(solution)
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def flashinfer_language(solution: Solution) -> str:
    """flashinfer-bench's word for it: ``python``, ``triton``, ``cuda`` or ``cpp``."""
    languages = solution.spec.languages
    if any(language in CPP_LANGUAGES for language in languages):
        return "cuda" if any(s.path.endswith((".cu", ".cuh")) for s in solution.sources) else "cpp"
    return "triton" if "triton" in languages else "python"


def write_solution(solution: Solution, folder: Path) -> list[Path]:
    """Write ``solution.json`` and the sources beside it. Returns the files; the folder is created."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "solution.json"]
    written[0].write_bytes(solution_json(solution))
    for source in solution.sources:
        target = folder / source.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.content, encoding="utf-8")
        written.append(target)
    return written


def solution_from_json(data: bytes, where: str = "solution.json", folder: Path | None = None) -> Solution:
    """Decode and check a ``solution.json`` document. Raises :class:`BadInput`.

    An empty ``content`` is filled from the file of that name in ``folder``.
    """
    raw = decode_json(data, where=where, what="not valid JSON", fix="correct the syntax")
    if not isinstance(raw, dict):
        raise BadInput("a solution must be one JSON object", where=where)
    raw = _normalised(raw, folder)
    try:
        solution = msgspec.convert(raw, Solution)
    except msgspec.ValidationError as error:
        raise BadInput(str(error).replace("`", ""), where=where, fix="see docs/formats.md") from None
    # Whoever wrote the file chose these words; they go to screens, logs and file names.
    words = {"name": one_line(solution.name, NAME_LIMIT), "author": one_line(solution.author, NAME_LIMIT)}
    solution = msgspec.structs.replace(solution, **words)
    errors = solution_errors(solution, where)
    if errors:
        raise errors[0]
    return solution


def solution_errors(solution: Solution, where: str) -> list[BadInput]:
    """Every rule of SOL-ExecBench's solution model that a solution breaks."""
    errors = [
        BadInput(f"{name} is empty", where=where)
        for name in ("name", "definition", "author")
        if not getattr(solution, name).strip()
    ]
    return errors + _spec_errors(solution.spec, where) + _source_errors(solution, where)


def solution_from_source(
    source: str, problem: Problem | None, *, name: str, author: str = "kernelarc", path: str = "kernel.py"
) -> Solution:
    """A one-file Python solution with entry point ``run``; languages and calling style are read off the source."""
    return python_solution(
        source,
        definition=problem.name if problem else "",
        name=name,
        author=author,
        languages=guess_languages(source),
        path=path,
        destination_passing=problem is not None and calling_style(source, problem),
    )


def calling_style(source: str, problem: Problem, entry: str = "run") -> bool:
    """Whether ``entry`` is destination-passing: its parameters are the inputs followed by outputs' names."""
    try:
        found = signature(parse_source(source), entry)
    except SyntaxError:
        return False
    return found is not None and _names_outputs(found.positional, problem)


def guess_languages(source: str) -> tuple[str, ...]:
    """``triton`` and the like if the source imports it anywhere, else ``pytorch``."""
    try:
        tree = parse_source(source)
    except SyntaxError:
        return ("pytorch",)
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
    for module, language in _IMPORTS:
        if any(name == module or name.startswith(f"{module}.") for name in modules):
            return (language,)
    return ("pytorch",)


def _names_outputs(parameters: tuple[str, ...], problem: Problem) -> bool:
    inputs, outputs = list(problem.definition.inputs), list(problem.definition.outputs)
    rest = parameters[len(inputs) :]
    return len(rest) == len(outputs) and set(rest) == set(outputs)


def _read_text(file: Path, inside: Path | None = None) -> str:
    try:
        return read_file(file, MAX_SOURCE_BYTES, inside=inside).decode("utf-8-sig")
    except FileNotFoundError:
        raise BadInput("no such file", where=str(file), fix="give an existing solution") from None
    except UnicodeDecodeError:
        raise BadInput("not UTF-8 text", where=str(file), fix="save it as UTF-8") from None


def _from_json(file: Path, problem: Problem | None, inside: Path | None) -> Solution:
    solution = solution_from_json(_read_text(file, inside).encode(), str(file), file.parent)
    if problem is not None and solution.definition != problem.name:
        what = f"definition: the solution is for {solution.definition!r}, the problem is {problem.name!r}"
        raise BadInput(what, where=str(file), fix="correct one of them")
    return solution


def _bare_source(file: Path, inside: Path | None) -> str:
    source = _read_text(file, inside)
    if not source.strip():
        raise BadInput("the file is empty", where=str(file), fix="define run()")
    return source


def _bare_name(file: Path) -> str:
    return one_line(_plain_name(file), NAME_LIMIT)


def _plain_name(file: Path) -> str:
    """``solution.py`` says little: the folder's name is then the better one."""
    generic = file.stem in ("solution", "kernel", "run", "main")
    return file.resolve().parent.name if generic and file.resolve().parent.name else file.stem


def _from_python(file: Path, problem: Problem | None, inside: Path | None) -> Solution:
    source = _bare_source(file, inside)
    return solution_from_source(source, problem, name=_bare_name(file), author="user", path=file.name)


def _from_cpp(file: Path, problem: Problem | None, inside: Path | None) -> Solution:
    source = _bare_source(file, inside)
    return solution_from_cpp(source, problem, name=_bare_name(file), author="user", path=file.name)


def solution_from_cpp(
    source: str, problem: Problem | None, *, name: str, author: str = "kernelarc", path: str = "kernel.cu"
) -> Solution:
    """A one-file C++ or CUDA solution: the entry is the bound function (``run`` of several)."""
    plain = _c_entry(source, path)
    if plain:
        spec = SolutionSpec(languages=["cuda_cpp"], entry_point=f"{path}::{plain}", binding=C_BINDING)
        definition = problem.name if problem else ""
        return Solution(
            name=name, definition=definition, author=author, spec=spec, sources=[SourceFile(path, source)]
        )
    bound = re.findall(r"\bdef\s*\(\s*\"(\w+)\"", source)
    entry = "run" if "run" in bound or not bound else bound[0]
    count = _cpp_parameters(source, entry)
    returns = problem is not None and count == len(problem.definition.inputs)
    spec = SolutionSpec(
        languages=["cuda_cpp"],
        entry_point=f"{path}::{entry}",
        destination_passing_style=not returns,
        binding="torch",
    )
    return Solution(
        name=name,
        definition=problem.name if problem else "",
        author=author,
        spec=spec,
        sources=[SourceFile(path=path, content=source)],
    )


def _c_entry(source: str, path: str) -> str:
    """The function with C linkage that is to be called, of a source without a binding; empty if there is none."""
    linkage = re.search(r"\bextern\s+\"C\"", source)
    if re.search(r"\b(?:PYBIND11_MODULE|TORCH_LIBRARY)", source) or (linkage is None and not path.endswith(".c")):
        return ""
    names = re.findall(r"\bint\s+(\w+)\s*\(", source[linkage.start() if linkage else 0 :])
    return "run" if "run" in names or not names else str(names[0])


def _cpp_parameters(source: str, function: str) -> int | None:
    """Parameters of the C++ function bound under ``function``, or ``None`` if its definition is not plain."""
    bound = re.search(rf"\bdef\s*\(\s*\"{function}\"\s*,\s*&\s*([\w:]+)", source)
    name = re.escape(bound.group(1).split("::")[-1] if bound else function)
    found = re.search(rf"\b{name}\s*\(([^(){{}};]*)\)\s*\{{", source)
    if found is None:
        return None
    parameters = re.sub(r"<[^<>]*>", "", found.group(1)).strip()
    return len(parameters.split(",")) if parameters and parameters != "void" else 0


def _normalised(raw: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Spellings that both formats' documents use, brought to the model's: ``local``, one ``language``."""
    raw = dict(raw)
    spec = raw.get("spec")
    if isinstance(spec, dict):
        spec = dict(spec)
        hardware = spec.get("target_hardware")
        if isinstance(hardware, list):
            spec["target_hardware"] = [h.upper() if isinstance(h, str) else h for h in hardware]
        language = spec.pop("language", None)
        if isinstance(language, str) and "languages" not in spec:
            spec["languages"] = [
                {"python": "pytorch", "cuda": "cuda_cpp", "cpp": "cuda_cpp"}.get(language, language)
            ]
            # flashinfer-bench names cards freely; ours is always "this machine".
            spec["target_hardware"] = ["LOCAL"]
        raw["spec"] = spec
    sources = raw.get("sources")
    if isinstance(sources, list) and folder is not None:
        raw["sources"] = [_filled(source, folder) for source in sources]
    return raw


def _filled(source: Any, folder: Path) -> Any:
    if not isinstance(source, dict) or source.get("content") or not isinstance(source.get("path"), str):
        return source
    file = folder / source["path"]
    # What is not there, or cannot be, is told with the other rules of sources.
    if not _is_safe(source["path"]) or not _exists(file):
        return source
    return {**source, "content": _read_text(file, folder)}


def _exists(file: Path) -> bool:
    try:
        return not stat.S_ISDIR(file.lstat().st_mode)
    except OSError:
        return False


def _is_safe(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path and "\0" not in path


def _spec_errors(spec: SolutionSpec, where: str) -> list[BadInput]:
    errors = []
    known = (*PYTHON_LANGUAGES, *CPP_LANGUAGES)
    for language in spec.languages:
        if language not in known:
            what = f"spec.languages: unknown language {language!r}{nearest(language, known)}"
            errors.append(BadInput(what, where=where, fix=f"use one of {', '.join(known)}"))
    python = [language for language in spec.languages if language in PYTHON_LANGUAGES]
    cpp = [language for language in spec.languages if language in CPP_LANGUAGES]
    if python and cpp:
        what = f"spec.languages mixes {python[0]} and {cpp[0]}"
        errors.append(BadInput(what, where=where, fix="use languages of one group, Python or C++"))
    if not spec.target_hardware:
        errors.append(BadInput("spec.target_hardware is empty", where=where, fix='use ["LOCAL"]'))
    for hardware in spec.target_hardware:
        if hardware not in HARDWARE:
            what = f"spec.target_hardware: unknown {hardware!r}"
            errors.append(BadInput(what, where=where, fix="use LOCAL or B200"))
    if spec.binding not in (None, "torch", C_BINDING):
        errors.append(BadInput(f"spec.binding: unknown {spec.binding!r}", where=where, fix="use torch, c or null"))
    return errors + _entry_errors(spec, bool(cpp), where)


def _entry_errors(spec: SolutionSpec, cpp: bool, where: str) -> list[BadInput]:
    file, separator, function = spec.entry_point.partition("::")
    if not (file and separator and function) or "::" in function:
        what = f"spec.entry_point: {spec.entry_point!r} is not file::function"
        return [BadInput(what, where=where, fix="use for instance kernel.py::run")]
    suffixes = CPP_SUFFIXES if cpp else (".py",)
    if not file.endswith(suffixes):
        what = f"spec.entry_point: {file!r} does not fit the languages {', '.join(spec.languages) or '(none)'}"
        return [BadInput(what, where=where, fix=f"use a file that ends in {' '.join(suffixes)}")]
    return []


def _source_errors(solution: Solution, where: str) -> list[BadInput]:
    errors = []
    if not solution.sources:
        return [BadInput("sources is empty", where=where, fix="add the entry file")]
    seen: set[str] = set()
    for source in solution.sources:
        field = f"sources {source.path!r}"
        if not _is_safe(source.path):
            errors.append(BadInput(f"{field}: not a plain relative path", where=where, fix="no .., no leading /"))
        if source.path in seen:
            errors.append(BadInput(f"{field}: given twice", where=where, fix="keep one"))
        if not source.content:
            errors.append(BadInput(f"{field}: content is empty and no such file lies beside it", where=where))
        seen.add(source.path)
    if solution.entry_file not in seen:
        what = f"spec.entry_point: {solution.entry_file!r} is not among the sources"
        errors.append(BadInput(what, where=where, fix=f"add it, or use one of {', '.join(sorted(seen))}"))
    return errors
