"""The engine's side of a profile: lay out, start behind all layers, hold the device for one call, read, clean.

Compiling and warming up happen outside the device's lock, as for every candidate. Nsight Compute is tried first
where it is installed; where it may not read counters, CUPTI's launch records and the compiler's figures stand.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from engine.bench import compile_cache, wire
from engine.bench.build import built_library, needs_build
from engine.bench.contender import Failure
from engine.bench.device_lock import DeviceLock
from engine.bench.herd import descendants
from engine.bench.machine import Cores, memory_limit
from engine.bench.sandbox import Sandbox, choose_sandbox, command, environment
from engine.bench.session import LIBRARY, compile_cache_dir
from engine.errors import BadInput, Fault
from engine.problems.axes import resolve_axes
from engine.problems.load import problem_to_json
from engine.problems.model import ConstAxis, Problem
from engine.problems.solution import Solution
from engine.profile import ncu
from engine.profile.resources import compiled_only, merged, with_compiled
from engine.profile.talk import OUTPUT, Failed, Talk
from engine.profile.wire import GO, REQUEST, Request, Said
from engine.records import DeviceFacts, KernelFacts, Profile
from engine.text import clean

_LOOK_S = 0.25
_PAGE = os.sysconf("SC_PAGE_SIZE")
_FIRST_UID, _UIDS = 61000, 4000


async def profile_solution(
    problem: Problem,
    solution: Solution,
    device: DeviceFacts,
    *,
    workload: str = "",
    tool: str | None = None,
) -> Profile:
    """One call of ``solution`` on one workload (by uuid; empty: the largest) as a profiler sees it.

    ``tool`` is Nsight Compute's path (``None``: looked for; empty: not used). Raises :class:`Fault` ``needs.*``
    where nothing can be profiled, :class:`BadInput` for an unknown workload, :class:`Failed` if the candidate
    crashes or takes too long.
    """
    if device.kind != "cuda":
        raise Fault(
            "needs.cuda", "a profile is of GPU kernels: Nsight Compute, CUPTI and Triton need a CUDA device"
        )
    return await profile_on(problem, solution, device, f"cuda:{device.index or 0}", workload=workload, tool=tool)


async def profile_on(
    problem: Problem,
    solution: Solution,
    device: DeviceFacts,
    place: str,
    *,
    workload: str = "",
    tool: str | None = None,
) -> Profile:
    """:func:`profile_solution` on a torch device by name, whatever its kind."""
    sandbox = choose_sandbox()
    if sandbox.kind == "none":
        raise Fault(
            "needs.sandbox", "profiling runs the candidate under another tool: that needs an outer sandbox"
        )
    index = _workload(problem, workload)
    chosen = problem.workloads[index]
    found = ncu.find_ncu() if tool is None else tool
    folder = Path(mkdtemp(prefix="kernelarc-profile-"))
    run = Run(problem, solution, device, place, sandbox, folder, index)
    notes: list[str] = []
    try:
        folder.chmod(0o755)
        await run.lay_out()
        kernels: list[KernelFacts] = []
        source = ""
        if found:
            kernels, source = await _counted(run, found, notes)
        if not source:
            kernels, source = await _recorded(run, notes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    kept, left_out = merged(kernels)
    return Profile(
        source=source,
        device=device.name,
        workload=chosen.uuid,
        shape=_shape(problem, index),
        kernels=kept,
        left_out=left_out,
        notes=[clean(note, 300) for note in notes[:8]],
    )


async def _counted(run: Run, tool: str, notes: list[str]) -> tuple[list[KernelFacts], str]:
    """By Nsight Compute, or nothing and a note why not."""
    try:
        said, text = await run.once([*ncu.words(tool)], counters=True)
        kernels = ncu.parse_csv(text)
    except (Failed, BadInput) as error:
        words = run.said
        why = ncu.refusal(words) or (error.message if isinstance(error, BadInput) else error.detail)
        notes.append(why if why.startswith("Nsight") else f"Nsight Compute: {why}")
        return [], ""
    if not kernels:
        notes.append(ncu.refusal(text) or "Nsight Compute saw no kernel")
        return [], ""
    notes += said.notes
    return with_compiled(kernels, said.triton, said.resources), "ncu"


async def _recorded(run: Run, notes: list[str]) -> tuple[list[KernelFacts], str]:
    said, _ = await run.once([], counters=False)
    notes += said.notes
    if said.timed:
        return with_compiled(said.kernels, said.triton, said.resources), "cupti"
    return compiled_only(said.triton, said.resources), "metadata"


class Run:
    """One solution on one workload, laid out in a folder that the process may read. One process at a time."""

    def __init__(
        self,
        problem: Problem,
        solution: Solution,
        device: DeviceFacts,
        place: str,
        sandbox: Sandbox,
        folder: Path,
        index: int,
    ) -> None:
        self.problem, self.solution, self.device, self.place = problem, solution, device, place
        self.sandbox, self.folder, self.index = sandbox, folder, index
        self._key = _cache_key(solution, device, place)
        self._talk: Talk | None = None

    @property
    def said(self) -> str:
        """All that the last process and the tool around it wrote."""
        return self._talk.said if self._talk is not None else ""

    async def lay_out(self) -> None:
        """Build what must be built. Raises :class:`Failed` if it does not compile."""
        if not needs_build(self.solution):
            return
        try:
            library = await built_library(
                self.solution,
                self._key,
                self.folder,
                self.sandbox,
                capability=self.device.compute_capability,
                jobs=len(Cores.of_this_process().work),
            )
        except Failure as failure:
            raise Failed(failure.reason, failure.detail) from None
        (self.folder / f"{LIBRARY}.so").write_bytes(library)

    async def once(self, tool: Sequence[str], *, counters: bool) -> tuple[Said, str]:
        """One process; the device is held for its call. Raises :class:`Failed`."""
        async with self.talk(tool, counters=counters) as talk:
            await talk.ready()
            async with self.lock().held():
                said = await talk.call()
            return said, await talk.rest()

    def lock(self) -> DeviceLock:
        return DeviceLock(self.device.uuid or self.place)

    @contextlib.asynccontextmanager
    async def talk(self, tool: Sequence[str], *, counters: bool, cold: bool = False) -> AsyncIterator[Talk]:
        """A process of its own, gone with everything that it started when the block ends."""
        (self.folder / GO).unlink(missing_ok=True)
        request = msgspec.structs.replace(self._request(counters=counters), cold=cold)
        (self.folder / REQUEST).write_bytes(msgspec.json.encode(request))
        process = await asyncio.create_subprocess_exec(
            *self._command(tool),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment(tool),
            cwd="/",
            start_new_session=True,
            limit=OUTPUT,
        )
        watch = asyncio.create_task(self._watch_memory(process))
        assert process.stdout is not None
        talk = self._talk = Talk(process.stdout, self.folder)
        try:
            yield talk
        finally:
            watch.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await asyncio.wait({watch})

    async def _watch_memory(self, process: asyncio.subprocess.Process) -> None:
        """More host memory than a candidate may have ends it."""
        limit = memory_limit(0, cuda=True)
        while True:
            await asyncio.sleep(_LOOK_S)
            if await asyncio.to_thread(_resident, process.pid) > limit:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                return

    def _request(self, *, counters: bool) -> Request:
        solution = self.solution
        built = needs_build(solution)
        return Request(
            problem=problem_to_json(self.problem).decode(),
            workload=self.index,
            seed=secrets.randbelow(1 << 31),
            device=self.place,
            entry_file=solution.entry_file,
            entry_function=solution.entry_function,
            destination_passing=solution.spec.destination_passing_style,
            sources=[(source.path, source.content) for source in solution.sources],
            library=LIBRARY if built else "",
            counters=counters,
            wait_s=600.0,
        )

    def _environment(self, tool: Sequence[str]) -> dict[str, str]:
        env = environment(self.place) | {"LC_ALL": "C", compile_cache.MOUNT: str(compile_cache_dir())}
        # A candidate's private /tmp hides all but these.
        kept = [str(path) for path in (self.folder, *_home_of(tool)) if str(path).startswith("/tmp/")]
        env["KERNELARC_KEEP"] = ":".join(part for part in (env["KERNELARC_KEEP"], *kept) if part)
        return env

    def _command(self, tool: Sequence[str]) -> list[str]:
        spawn = wire.Spawn(
            child=0,
            uid=_FIRST_UID + secrets.randbelow(_UIDS),
            limits=wire.Limits(memory=0, files=1024, processes=512, scratch=2 << 30),
            device=self.place,
            input_bytes=0,
            output_bytes=0,
            keeper_cores=[],
            child_cores=[],
            cache=self._key,
        )
        inner = [*tool, sys.executable, "-P", "-m", "engine.profile.subject", str(self.folder)]
        arguments = [msgspec.json.encode(spawn).decode(), str(self.folder), *inner]
        readable = [str(self.folder), str(compile_cache_dir())]
        readable += [self.problem.root] if self.problem.root else []
        readable += [str(path) for path in _home_of(tool)]
        env = self._environment(tool)
        return command(
            self.sandbox, "engine.profile.confined", arguments, env, readable=readable, cuda=self.place != "cpu"
        )


def _home_of(tool: Sequence[str]) -> list[Path]:
    """Where the tool's own files are."""
    return [Path(tool[0]).resolve().parent] if tool else []


def _resident(root: int) -> int:
    total = 0
    for pid in (root, *descendants(root)):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return total


def _workload(problem: Problem, uuid: str) -> int:
    """Its index; without one the workload that moves most bytes."""
    for index, workload in enumerate(problem.workloads):
        if workload.uuid == uuid:
            return index
    if uuid:
        raise BadInput(f"no workload {uuid!r}", where=problem.name, fix="`kernelarc problems show` lists them")
    return max(range(len(problem.workloads)), key=lambda index: workload_size(problem, index))


def workload_size(problem: Problem, index: int) -> int:
    from engine.bench.layout import workload_spec

    workload = problem.workloads[index]
    spec = workload_spec(problem.definition, workload, resolve_axes(problem.definition, workload))
    return spec.input_stride + spec.output_stride


def _shape(problem: Problem, index: int) -> str:
    fixed = {name for name, axis in problem.definition.axes.items() if isinstance(axis, ConstAxis)}
    axes = problem.workloads[index].axes.items()
    return " ".join(f"{name}={size}" for name, size in axes if name not in fixed)


def _cache_key(solution: Solution, device: DeviceFacts, place: str) -> str:
    """As the bench's sessions name what they compiled, so that a profile compiles nothing again."""
    versions = {name: device.versions[name] for name in ("python", "triton") if name in device.versions}
    return compile_cache.key_of(solution, versions | _torch_versions(), place)


def _torch_versions() -> dict[str, str]:
    """torch's own words for itself and its CUDA, which package metadata may shorten; torch is not imported."""
    spec = find_spec("torch")
    try:
        text = Path(spec.origin).with_name("version.py").read_text() if spec and spec.origin else ""
    except OSError:
        return {}
    found = re.findall(r"^(__version__|cuda)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return {"torch" if name == "__version__" else name: value for name, value in found}
