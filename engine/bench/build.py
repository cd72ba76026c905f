"""The engine's side of building C++/CUDA solutions: once per source, flags, versions and architecture, outside the
device lock, by a process of its own."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from asyncio.subprocess import DEVNULL
from pathlib import Path

from engine.bench.builder import COMPILED
from engine.bench.contender import Failure
from engine.bench.library_cache import LibraryCache, compilers
from engine.bench.sandbox import Sandbox, command, environment
from engine.bench.session import LIBRARY, Session
from engine.bench.tool import run_tool
from engine.errors import Fault
from engine.problems.solution import C_BINDING, CPP_LANGUAGES, CompileOptions, Solution

BUILD_S = 300.0
MAX_LIBRARY = 48 << 20
_SAID = 1500  # characters of the compiler's words that a failure carries


def needs_build(solution: Solution) -> bool:
    return any(language in CPP_LANGUAGES for language in solution.spec.languages)


async def library_of(session: Session, solution: Solution) -> bytes:
    """What a process needs to load beside the sources: a C++ solution's library, else nothing.

    Raises as :func:`built_library` does.
    """
    if not needs_build(solution):
        return b""
    return await built_library(
        solution,
        session.cache_key(solution),
        session.scratch,
        session.sandbox,
        capability=session.capability,
        jobs=len(session.cores.work),
    )


async def built_library(
    solution: Solution,
    key: str,
    scratch: Path,
    sandbox: Sandbox,
    *,
    capability: tuple[int, int] | None,
    jobs: int,
) -> bytes:
    """The shared library of a C++ solution, from the cache or freshly built.

    Raises :class:`Failure` ``compile.failed`` or ``compile.timeout``, :class:`Fault` ``needs.*`` if a compiler or
    the GPU is missing.
    """
    cuda = any(source.path.endswith((".cu", ".cuh")) for source in solution.sources)
    if cuda and capability is None:
        raise Fault("needs.cuda", "CUDA sources need a GPU to be built for")
    if cuda and shutil.which("nvcc") is None:
        raise Fault("needs.nvcc", "CUDA sources need nvcc on PATH")
    if shutil.which("g++") is None:
        raise Fault("needs.compiler", "C++ sources need g++ on PATH")
    arch = architecture(capability)
    cache, name = LibraryCache(), f"{key}-{arch or 'host'}-{_compiler_key()}"
    if (kept := cache.read(name)) is not None:
        return kept
    folder = scratch / f"build-{secrets.token_hex(6)}"
    try:
        _lay_out(folder, solution, arch, cuda=cuda, jobs=jobs)
        await _build(folder, sandbox)
        library = (folder / f"{LIBRARY}.so").read_bytes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if len(library) > MAX_LIBRARY:
        raise Failure("compile.failed", f"the library is larger than {MAX_LIBRARY >> 20} MiB")
    cache.keep(name, library)
    return library


def _compiler_key() -> str:
    return hashlib.sha256(repr(compilers()).encode()).hexdigest()[:12]


def architecture(capability: tuple[int, int] | None) -> str:
    """``9.0a`` for a compute capability (9, 0): features of exactly this architecture from Hopper on."""
    if capability is None:
        return ""
    major, minor = capability
    return f"{major}.{minor}{'a' if major >= 9 else ''}"


def _lay_out(folder: Path, solution: Solution, arch: str, *, cuda: bool, jobs: int) -> None:
    for source in solution.sources:
        target = folder / "src" / source.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.content, encoding="utf-8", errors="surrogateescape")
    if not any(f.suffix in COMPILED for f in (folder / "src").iterdir()):
        raise Failure("compile.failed", "there is nothing to compile among the sources")
    options = solution.spec.compile_options
    plain = solution.spec.binding == C_BINDING
    given = options or CompileOptions(cflags=["-O3"] if plain else [], cuda_cflags=[], ld_flags=[])
    plan = {
        "name": LIBRARY,
        "plain": plain,
        "arch": arch,
        "cuda": cuda,
        "jobs": jobs,
        "cflags": given.cflags,
        "cuda_cflags": given.cuda_cflags,
        "ld_flags": given.ld_flags,
    }
    (folder / "plan.json").write_text(json.dumps(plan))


async def _build(folder: Path, sandbox: Sandbox) -> None:
    env = environment("cpu") | {"TMPDIR": "/tmp"}
    argv = command(sandbox, "engine.bench.builder", [str(folder)], env, writable=[str(folder)])
    try:
        code, _, said = await run_tool(argv, env, BUILD_S, stdout=DEVNULL)
    except TimeoutError:
        raise Failure("compile.timeout", f"the compiler did not end within {BUILD_S:.0f} s") from None
    if code != 0 or not (folder / f"{LIBRARY}.so").is_file():
        text = said.decode("utf-8", "replace").replace(f"{folder}/src/", "")
        raise Failure("compile.failed", text[-_SAID:])
