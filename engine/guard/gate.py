"""The gate: what a candidate's sources show without running them. No torch, a few milliseconds, no exceptions.

It refuses what it can read and is never the only defence: what it cannot see, the process boundary must hold. It
has no opinion about style: whatever Python would run as a kernel passes.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from functools import lru_cache
from pathlib import Path, PurePosixPath

import msgspec

from engine.errors import BadInput
from engine.guard.gate_async import AsyncWork
from engine.guard.gate_entry import check_entry
from engine.guard.gate_native import mentions, refuse_flags, refuse_native
from engine.guard.gate_scan import Scan
from engine.problems.model import Problem
from engine.problems.solution import C_BINDING, CPP_LANGUAGES, PYTHON_LANGUAGES, Solution, SourceFile
from engine.text import clean, one_line

MAX_FILES = 64
MAX_PYTHON = 400_000  # characters per file
MAX_TOTAL = 4_000_000
_CPP_SUFFIXES = (".cu", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".cuh")

_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_UTF8 = frozenset({"utf-8", "utf8", "utf-8-sig", "u8", "utf", "utf8-sig", "utf_8", "utf_8_sig", "cp65001"})
_TRANSPARENT = re.compile(  # encodings in which ASCII text is itself
    r"(?:us-?)?ascii|latin-?\d*|l1|iso-?8859-\d+|cp\d{3,4}|windows-\d+|koi8-?[rut]|mac-?\w*|gbk|gb2312|gb18030|"
    r"big5\w*|euc-\w+|shift-?jis\w*|sjis"
)
_TYPE_COMMENT = re.compile(r"#[ \t]*type:(?![ \t]*ignore)[^\n]{0,400}[\w\]][ \t]*\(")

_TYPE_MARK = re.compile(r"#[ \t]*type:")

_TRUSTED_FILES = frozenset(
    {"definition.json", "workload.jsonl", "workloads.jsonl", "config.json", "solution.json", "bounds.json"}
)
_RESERVED = frozenset(
    {"torch", "triton", "numpy", "engine", "kernelarc_tui", "kernelarc", "sitecustomize", "conftest",
     "usercustomize", "setup", "build_ext", "eval_driver", "cutlass", "cupti", "pynvml", "msgspec"}
)  # fmt: skip
_COMMON = frozenset(
    {"kernel", "kernels", "solution", "main", "run", "submission", "utils", "util", "helpers", "helper", "ops",
     "model", "config", "common", "test", "this", "impl", "lib"}
)  # fmt: skip
_BINARY_SUFFIXES = (".pth", ".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib", ".o", ".a", ".egg-link")
_PATH = re.compile(r"[\w.+\- ]{1,100}(?:/[\w.+\- ]{1,100}){0,7}")


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """``reason`` is a stable ``gate.*`` code, empty if ``ok``; ``detail`` names file, line and fix."""

    ok: bool
    reason: str = ""
    detail: str = ""


class Refused(Exception):
    """Internal: ends the check with a reason."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def check(solution: Solution, problem: Problem) -> GateResult:
    """Whether ``solution`` may be benchmarked on ``problem``."""
    try:
        _check(solution, problem)
    except Refused as refused:
        return GateResult(ok=False, reason=refused.reason, detail=clean(refused.detail, 1000))
    return GateResult(ok=True)


def must_pass(solution: Solution, problem: Problem, what: str, *, where: str) -> None:
    """Raises :class:`BadInput` (``what`` it cannot be, and why) if a solution that a person gave is refused."""
    result = check(solution, problem)
    if not result.ok:
        raise BadInput(f"{what}: {result.reason}: {result.detail}", where=where)


def _check(solution: Solution, problem: Problem) -> None:
    _check_files(solution)
    _check_languages(solution)
    own = frozenset(_top_level(s.path) for s in solution.sources if s.path.endswith(".py"))
    alone = sum(s.path.endswith(".py") for s in solution.sources) == 1
    trees: dict[str, ast.Module] = {}
    work: list[tuple[str, AsyncWork]] = []
    for source in solution.sources:
        if source.path.endswith(".py"):
            trees[source.path], begun = _check_python(source, own, alone=alone)
            work += [(source.path, found) for found in begun]
        elif source.path.endswith(_CPP_SUFFIXES):
            refused = refuse_native(source.path, source.content)
            if refused:
                raise Refused(*refused)
    _check_work(work)
    entry = solution.entry_file
    if entry in trees:
        refused = check_entry(trees[entry], solution, problem)
        if refused:
            raise Refused(*refused)
    elif entry.endswith(_CPP_SUFFIXES):
        natives = (s.content for s in solution.sources if s.path.endswith(_CPP_SUFFIXES))
        if not any(mentions(content, solution.entry_function) for content in natives):
            raise Refused(
                "gate.entry-point", f"{entry}: no function {solution.entry_function}; define it or fix entry_point"
            )


# -- files and languages


def _check_files(solution: Solution) -> None:
    if not solution.sources:
        raise Refused("gate.entry-point", "the solution has no source files")
    if len(solution.sources) > MAX_FILES:
        raise Refused("gate.too-large", f"{len(solution.sources)} files, at most {MAX_FILES}")
    total = sum(len(s.content) for s in solution.sources)
    if total > MAX_TOTAL:
        raise Refused("gate.too-large", f"{total} characters of source, at most {MAX_TOTAL}")
    seen: set[str] = set()
    for source in solution.sources:
        _check_path(source.path)
        if source.path in seen:
            raise Refused("gate.path", f"{one_line(source.path, 80)} is there twice")
        seen.add(source.path)
        if source.path.endswith(".py") and len(source.content) > MAX_PYTHON:
            raise Refused(
                "gate.too-large", f"{source.path} has {len(source.content)} characters, at most {MAX_PYTHON}"
            )
    for path in sorted(seen):
        folder = next((str(p) for p in PurePosixPath(path).parents if str(p) in seen), None)
        if folder is not None:
            shown = f"{one_line(path, 80)} lies in {one_line(folder, 80)}"
            raise Refused("gate.path", f"{shown}, which is a file; rename one of the two")
    if solution.entry_file not in seen:
        raise Refused(
            "gate.entry-point", f"the entry file {one_line(solution.entry_file, 80)} is not among the sources"
        )


def _check_path(path: str) -> None:
    name = one_line(path, 80)
    parts = path.split("/")
    if not _PATH.fullmatch(path) or any(p in ("", ".", "..", "__pycache__") or p.startswith(".") for p in parts):
        raise Refused("gate.path", f"the source path {name!r} is not a plain relative path")
    if parts[-1].lower() in _TRUSTED_FILES:
        raise Refused("gate.shadowed-module", f"{name} has the name of a file of the harness; rename it")
    if path.lower().endswith(_BINARY_SUFFIXES):
        raise Refused("gate.path", f"{name}: binary and path files are not sources")
    if path.endswith(".py") and _shadows(_top_level(path)):
        raise Refused("gate.shadowed-module", f"{name} would shadow the module {_top_level(path)}; rename it")


def _top_level(path: str) -> str:
    return PurePosixPath(path).parts[0].removesuffix(".py") if path else ""


def _shadows(name: str) -> bool:
    if name in _RESERVED:
        return True
    return name not in _COMMON and (name in sys.stdlib_module_names or name in _installed())


@lru_cache(maxsize=1)
def _installed() -> frozenset[str]:
    """Names of installed top-level modules, from the folders that Python searches."""
    found: set[str] = set()
    for folder in sys.path:
        if not folder.endswith(("site-packages", "dist-packages")):
            continue
        try:
            entries = [p.name for p in Path(folder).iterdir()]
        except OSError:
            continue
        found.update(e.partition(".")[0] for e in entries if e.endswith((".py", ".so")) or "." not in e)
    return frozenset(found)


def _check_languages(solution: Solution) -> None:
    spec = solution.spec
    unknown = [x for x in spec.languages if x not in PYTHON_LANGUAGES and x not in CPP_LANGUAGES]
    if unknown:
        known = ", ".join((*PYTHON_LANGUAGES, *CPP_LANGUAGES))
        raise Refused("gate.language", f"unknown language {one_line(str(unknown[0]), 40)!r}; known are {known}")
    python = [x for x in spec.languages if x in PYTHON_LANGUAGES]
    native = [x for x in spec.languages if x in CPP_LANGUAGES]
    if python and native:
        raise Refused("gate.language", f"{python[0]} and {native[0]} cannot be mixed in one solution")
    entry, parts = solution.entry_file, spec.entry_point.split("::")
    if len(parts) != 2 or not all(parts):
        raise Refused("gate.entry-point", f"entry_point {one_line(spec.entry_point, 80)!r} is not file::function")
    if not parts[1].isidentifier():
        raise Refused("gate.entry-point", f"{one_line(parts[1], 80)!r} is not a function name")
    if python and not entry.endswith(".py"):
        raise Refused("gate.language", f"{entry} is not a Python file, but the language is {python[0]}")
    if native and not entry.endswith(_CPP_SUFFIXES):
        raise Refused("gate.language", f"{entry} is not a C++ or CUDA file, but the language is {native[0]}")
    if not entry.endswith((".py", *_CPP_SUFFIXES)):
        raise Refused("gate.language", f"{entry}: unknown kind of source file")
    if spec.binding == C_BINDING and not (native and spec.destination_passing_style):
        raise Refused("gate.language", "a C entry (binding c) is C++ or CUDA in destination-passing style")
    refused = refuse_flags(spec.compile_options)
    if refused:
        raise Refused(*refused)


# -- Python sources


def _check_python(source: SourceFile, own: frozenset[str], *, alone: bool) -> tuple[ast.Module, list[AsyncWork]]:
    """Parse as Python would read the file and scan; its tree, and the work that each reading of it starts."""
    trees = _readings(source)
    comment = _TYPE_COMMENT.search(source.content) if _has_read_types(source.content) else None
    if comment:
        line = source.content.count("\n", 0, comment.start()) + 1
        why = "a type comment contains a call; write remarks in a comment without 'type:'"
        raise Refused("gate.obfuscation", f"{source.path} line {line}: {why}")
    work = []
    for tree in trees:
        scan = Scan(tree, source.content, own, alone=alone)
        findings = scan.run()
        work.append(scan.work)
        if findings:
            first = findings[0]
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            raise Refused(first.code, f"{source.path} line {first.line}: {first.what}{more}")
    return trees[0], work


def _has_read_types(text: str) -> bool:
    """Whether torch.jit reads types from comments: it does where one of their lines has an arrow."""
    return "jit" in text and any("->" in line and _TYPE_MARK.search(line) for line in text.split("\n"))


def _check_work(work: list[tuple[str, AsyncWork]]) -> None:
    """Unjoined work, where any file can make what works: one file may start what another made."""
    if not any(found.possible for _, found in work):
        return
    for path, found in work:
        for line, code, what in found.unjoined():
            raise Refused(code, f"{path} line {line}: {what}")


def _readings(source: SourceFile) -> list[ast.Module]:
    """The tree of the file's bytes, and that of its text where an encoding cookie could make them differ."""
    path, text = source.path, source.content
    if _BIDI.search(text):
        line = text.count("\n", 0, _BIDI.search(text).start()) + 1  # type: ignore[union-attr]
        raise Refused("gate.encoding", f"{path} line {line}: bidirectional control character; remove it")
    try:
        raw = text.encode("utf-8")
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise Refused("gate.encoding", f"{path} line {line}: bytes that are not UTF-8; save it as UTF-8") from None
    encoding = _cookie(text)
    if encoding is None or encoding in _UTF8:
        return [_parse(path, raw)]
    if not _TRANSPARENT.fullmatch(encoding):
        raise Refused("gate.encoding", f"{path}: source encoding {encoding[:40]!r}; save it as UTF-8")
    trees = [_parse(path, raw)]
    if not text.isascii():
        trees.append(_parse(path, text.encode("utf-8", "replace"), ignore_cookie=True))
    return trees


def _cookie(text: str) -> str | None:
    """The encoding that a comment in the first two lines declares (PEP 263), with every newline Python knows."""
    head = text[:4096].removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = head.split("\n", 2)
    for at, line in enumerate(lines[:2]):
        match = _COOKIE.match(line)
        if match:
            return match[1].lower().replace("_", "-") if match[1] else None
        if at == 0 and line.strip(" \t\f") and not line.lstrip(" \t\f").startswith("#"):
            return None
    return None


def _parse(path: str, raw: bytes, *, ignore_cookie: bool = False) -> ast.Module:
    text: str | bytes = raw.decode("utf-8") if ignore_cookie else raw
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        message = one_line(error.msg or "invalid syntax", 200)
        code = "gate.encoding" if "codec" in message or "encoding" in message else "gate.syntax"
        raise Refused(code, f"{path} line {error.lineno or 0}: {message}") from None
    except (RecursionError, MemoryError):
        raise Refused("gate.syntax", f"{path}: nested too deeply for Python to compile") from None
    except (ValueError, OverflowError) as error:  # null bytes, absurd integer literals
        raise Refused("gate.syntax", f"{path}: {one_line(str(error), 200)}") from None
