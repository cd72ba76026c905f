"""From a model's text to a solution, or to the named reason why it holds none. Pure; nothing is run by guess.

==========================  ==========================================================================
``reply.empty``             no text at all
``reply.too-large``         more than :data:`MAX_REPLY` characters; reading stopped there
``reply.truncated``         the model hit its token limit, or the text ends inside a code block
``reply.no-code``           text without a code block
``reply.wrong-entry-point`` code, but none of it defines ``run``
``reply.several-blocks``    several different blocks define ``run`` and nothing says which is meant
``reply.unsafe-path``       a file path that is not a plain relative one
``reply.invalid-solution``  the files do not make a solution (languages mixed, a file given twice)
``reply.unchanged``         the same program as the one it was asked to improve
``reply.duplicate``         the same program as an earlier candidate of this agent
==========================  ==========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import msgspec

from engine.problems.model import Problem
from engine.problems.program import program_sha
from engine.problems.solution import CompileOptions, Solution, SourceFile
from engine.problems.solution_io import solution_errors, solution_from_cpp, solution_from_source
from engine.proposers.llm.fences import SUFFIXES, Block, blocks
from engine.proposers.llm.metadata import Metadata, metadata_of
from engine.text import one_line

MAX_REPLY = 400_000
MAX_FILES = 16
RESERVED = frozenset({"definition.json", "workload.jsonl", "solution.json", "config.json", "reference.py"})
_SAFE_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,3}")
_THINK_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THINK_OPEN = re.compile(r"^\s*<think(?:ing)?>", re.IGNORECASE)
_LIBRARIES = (("cublas", "-lcublas"), ("cublasLt", "-lcublasLt"), ("cudnn", "-lcudnn"))
_FUNCTIONS = re.compile(r"^(?:async[ \t]+)?def[ \t]+(\w+)|\bdef\s*\(\s*\"(\w+)\"", re.MULTILINE)


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that holds one solution. ``note`` says what was passed over."""

    solution: Solution
    metadata: Metadata
    sha: str  # :func:`engine.problems.program.program_sha`
    note: str = ""


class Unusable(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that arrived but cannot be judged."""

    reason: str  # reply.*
    detail: str  # for a person and for the model's next turn
    metadata: Metadata = Metadata()


def read_reply(
    text: str,
    problem: Problem,
    *,
    name: str,
    finish_reason: str = "stop",
    parent: str = "",
    earlier: Mapping[str, int] | None = None,
) -> Parsed | Unusable:
    """Read one reply. ``parent`` and ``earlier`` are :func:`program_sha` of the base and of earlier candidates."""
    if len(text) > MAX_REPLY:
        return Unusable(reason="reply.too-large", detail=f"the reply is longer than {MAX_REPLY:,} characters")
    if not text.strip():
        return Unusable(reason="reply.empty", detail="the reply holds no text")
    if finish_reason == "length":
        return Unusable(
            reason="reply.truncated",
            detail="the reply was cut at its token limit; answer with the files and a short block only",
        )
    answer = without_thoughts(text)
    found = blocks(answer)
    metadata = metadata_of(found)
    picked = _pick(found)
    if isinstance(picked, Unusable):
        return msgspec.structs.replace(picked, metadata=metadata)
    files, entry, note = picked
    made = _solution(files, entry, problem, name)
    if isinstance(made, Unusable):
        return msgspec.structs.replace(made, metadata=metadata)
    sha = program_sha(made)
    if sha == parent:
        detail = "the program is the one it was asked to improve, comments and spacing aside"
        return Unusable(reason="reply.unchanged", detail=detail, metadata=metadata)
    if earlier and sha in earlier:
        detail = (
            f"the program is the same as your candidate at position {earlier[sha]}, comments and spacing aside"
        )
        return Unusable(reason="reply.duplicate", detail=detail, metadata=metadata)
    return Parsed(solution=made, metadata=metadata, sha=sha, note=note)


def without_thoughts(text: str) -> str:
    """The text after a model's visible ``<think>`` section, whose drafts are no answer."""
    ends = list(_THINK_END.finditer(text))
    if ends:
        return text[ends[-1].end() :]
    return "" if _THINK_OPEN.match(text) else text


def unsafe(path: str) -> str:
    """Why ``path`` may not be a solution's file; empty if it may."""
    parts = PurePosixPath(path).parts
    if path.startswith(("/", "~")) or ".." in parts or "\\" in path or not _SAFE_PATH.fullmatch(path):
        return "is not a plain relative path"
    if parts[-1] in RESERVED:
        return "is a name of the problem's own files"
    return "" if path.endswith(SUFFIXES) else "is not a source file of a known language"


Picked = tuple[list[SourceFile], str, str]


def _pick(found: Sequence[Block]) -> Picked | Unusable:
    """The blocks that are the solution's files, the entry file, and a note."""
    for block in found:
        if not block.closed and block.language != "metadata":
            detail = "the text ends inside a code block; close every fence"
            return Unusable(reason="reply.truncated", detail=detail)
    code = [block for block in found if block.language in ("python", "cpp") and block.text.strip()]
    for block in found:
        if block.path and (why := unsafe(block.path)) and (block.language != "metadata"):
            return Unusable(reason="reply.unsafe-path", detail=f"{one_line(block.path, 80)!r} {why}")
    if not code:
        detail = "no code block; put the whole file in a fence"
        return Unusable(reason="reply.no-code", detail=detail)
    entries = _distinct([block for block in code if block.defines_entry])
    named = [block for block in entries if block.path]
    chosen = named or entries
    if not chosen:
        return Unusable(reason="reply.wrong-entry-point", detail=_no_entry(code))
    if len(chosen) > 1:
        what = ", ".join(one_line(block.path, 40) or "a block without a file name" for block in chosen[:4])
        detail = f"{len(chosen)} different blocks define run ({what}); give one, or name the helper files apart"
        return Unusable(reason="reply.several-blocks", detail=detail)
    return _files(chosen[0], code)


def _files(entry: Block, code: Sequence[Block]) -> Picked | Unusable:
    """The entry block and every other block that names a file; unnamed ones are examples and left out."""
    path = entry.path or ("kernel.py" if entry.language == "python" else "kernel.cu")
    files = {path: entry.text}
    passed_over = 0
    for block in code:
        if block is entry or block.text == entry.text:
            continue
        if not block.path:
            passed_over += 1
        elif files.setdefault(block.path, block.text) != block.text:
            detail = f"{block.path} is given twice with different text"
            return Unusable(reason="reply.invalid-solution", detail=detail)
    if len(files) > MAX_FILES:
        return Unusable(reason="reply.invalid-solution", detail=f"{len(files)} files; at most {MAX_FILES}")
    note = f"{passed_over} other blocks passed over" if passed_over else ""
    return [SourceFile(path=p, content=content) for p, content in files.items()], path, note


def _solution(files: list[SourceFile], entry: str, problem: Problem, name: str) -> Solution | Unusable:
    """``files`` as a solution; languages and calling style are read off the entry file."""
    source = next(file.content for file in files if file.path == entry)
    build = solution_from_source if entry.endswith(".py") else solution_from_cpp
    solution = msgspec.structs.replace(build(source, problem, name=name, author="llm", path=entry), sources=files)
    if not entry.endswith(".py"):
        spec = msgspec.structs.replace(solution.spec, compile_options=build_options(files))
        solution = msgspec.structs.replace(solution, spec=spec)
    if entry.endswith(".py") and any(not file.path.endswith(".py") for file in files):
        detail = (
            "a Python solution cannot carry C++ files; embed the source in a string, or write the entry in C++"
        )
        return Unusable(reason="reply.invalid-solution", detail=detail)
    errors = solution_errors(solution, "reply")
    return Unusable(reason="reply.invalid-solution", detail=errors[0].what) if errors else solution


def build_options(files: Sequence[SourceFile]) -> CompileOptions:
    """How C++ sources are built: optimised, with the libraries of the headers and calls that they name."""
    text = "\n".join(file.content for file in files)
    libraries = [flag for mark, flag in _LIBRARIES if mark in text]
    if any(file.path.endswith((".cu", ".cuh")) for file in files):
        libraries.insert(0, "-lcuda")
    return CompileOptions(cflags=["-O3"], cuda_cflags=["-O3"], ld_flags=libraries)


def _distinct(found: Sequence[Block]) -> list[Block]:
    """Without blocks whose text another one repeats; the one that names its file stays."""
    by_text: dict[str, Block] = {}
    for block in found:
        if block.text not in by_text or (block.path and not by_text[block.text].path):
            by_text[block.text] = block
    return list(by_text.values())


def _no_entry(code: Sequence[Block]) -> str:
    names = [a or b for block in code for a, b in _FUNCTIONS.findall(block.text[:200_000])]
    found = f"; it defines {', '.join(one_line(n, 40) for n in names[:6])}" if names else ""
    return f"no block defines a top-level run(…){found}"
