"""A solution in SOL-ExecBench's ``solution.json`` form, and its identity."""

from __future__ import annotations

import hashlib

import msgspec

PYTHON_LANGUAGES = ("pytorch", "triton", "cute_dsl", "cutile", "cudnn_frontend")
CPP_LANGUAGES = ("cutlass", "cudnn", "cublas", "cuda_cpp")
C_BINDING = "c"  # ``spec.binding`` of a plain C entry; see docs/formats.md


class CompileOptions(msgspec.Struct, frozen=True):
    """The defaults are SOL-ExecBench's and apply only when the object is present at all."""

    cflags: list[str] = []
    cuda_cflags: list[str] = msgspec.field(default_factory=lambda: ["-O3", "--use_fast_math"])
    ld_flags: list[str] = msgspec.field(default_factory=lambda: ["-lcuda"])


class SolutionSpec(msgspec.Struct, frozen=True):
    languages: list[str]
    entry_point: str  # ``file::function``
    target_hardware: list[str] = msgspec.field(default_factory=lambda: ["LOCAL"])
    dependencies: list[str] = []
    destination_passing_style: bool = True
    binding: str | None = None
    compile_options: CompileOptions | None = None


class SourceFile(msgspec.Struct, frozen=True):
    path: str
    content: str


class Solution(msgspec.Struct, frozen=True):
    """``entry_point`` names one of ``sources``; paths are relative, without ``..``, unique."""

    name: str
    definition: str
    author: str
    spec: SolutionSpec
    sources: list[SourceFile]
    description: str | None = None

    @property
    def entry_file(self) -> str:
        return self.spec.entry_point.partition("::")[0]

    @property
    def entry_function(self) -> str:
        return self.spec.entry_point.partition("::")[2]

    @property
    def entry_source(self) -> str:
        return next(source.content for source in self.sources if source.path == self.entry_file)


def solution_sha(solution: Solution) -> str:
    """SHA-256 over everything that can change what runs: sources, entry point, style, build options.

    SOL-ExecBench's own identity leaves out calling style and compile options, so two builds can share it.
    """
    identity = (solution.spec, sorted((s.path, s.content) for s in solution.sources))
    return hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()


def python_solution(
    source: str,
    *,
    definition: str,
    name: str,
    author: str = "kernelarc",
    languages: tuple[str, ...] = ("pytorch",),
    entry: str = "run",
    path: str = "kernel.py",
    destination_passing: bool = False,
) -> Solution:
    """A one-file Python solution."""
    return Solution(
        name=name,
        definition=definition,
        author=author,
        spec=SolutionSpec(
            languages=list(languages),
            entry_point=f"{path}::{entry}",
            destination_passing_style=destination_passing,
        ),
        sources=[SourceFile(path=path, content=source)],
    )
