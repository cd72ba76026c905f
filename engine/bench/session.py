"""One problem on one device: a judge, a zygote, candidate processes made on demand. Plumbing, no verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.bench import compile_cache, wire
from engine.bench import judge_wire as jw
from engine.bench.clocks import ClockWatch
from engine.bench.judge_client import JudgeClient
from engine.bench.layout import PAGE
from engine.bench.machine import Cores, memory_limit, total_memory
from engine.bench.memory_plan import MANY_PLACES, MANY_SLOTS, fitting, is_large, sides_that_fit, slots_of
from engine.bench.overhead import Overhead
from engine.bench.plan_calls import looked_at, round_inputs
from engine.bench.processes import Child, Helper, Zygote
from engine.bench.room import Room
from engine.bench.sandbox import Sandbox, choose_sandbox
from engine.bench.unlisted import unlisted_workload
from engine.errors import Fault
from engine.paths import cache_dir
from engine.problems.load import problem_to_json
from engine.problems.model import Problem, Tolerance
from engine.problems.solution import Solution

COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")
_COMPILER_WORDS = ("torch.compile", "torch._dynamo", "torch._inductor")
_FIRST_UID = 61000
LIBRARY = "benchmark_kernel"  # SOL-ExecBench's name for a built extension
_UIDS = 4000
HOST_SETS = 3  # a candidate's two calls in flight, and what the judge compares with


def uses_compiler(solution: Solution) -> bool:
    """Whether a source speaks of torch's compiler. A wrong guess costs memory or seconds, nothing else."""
    return any(word in source.content for source in solution.sources for word in _COMPILER_WORDS)


class LowerBound(NamedTuple):
    """Milliseconds: by the precision that the tolerance admits, and by any that the device has."""

    roofline_ms: float
    least_ms: float


class Side:
    """Shared memory of one candidate process, kept for the next one of the same role."""

    def __init__(self, number: int, input_bytes: int, output_bytes: int) -> None:
        self.number, self.input_bytes, self.output_bytes = number, input_bytes, output_bytes
        self.attached = False  # the judge knows it
        self.fds = (_memory("inputs", input_bytes), _memory("outputs", output_bytes))

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def _memory(name: str, size: int) -> int:
    """Anonymous shared memory that its holders cannot resize (a shrunk mapping would kill the judge)."""
    fd = os.memfd_create(f"kernelarc-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


async def _both(*started: Helper | BaseException) -> tuple[Helper, ...]:
    """All of them, or the first failure; then those that did start are ended."""
    helpers = tuple(item for item in started if isinstance(item, Helper))
    failed = next((item for item in started if isinstance(item, BaseException)), None)
    if failed is not None:
        await asyncio.gather(*(helper.stop() for helper in helpers))
        raise failed
    return helpers


def compile_cache_dir() -> Path:
    folder = cache_dir() / "compile"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder.resolve()


class Session:
    """The live processes behind a bench. ``open`` raises :class:`engine.errors.Fault`."""

    def __init__(
        self,
        problem: Problem,
        device: str,
        scratch: Path,
        *,
        sandbox: Sandbox | None = None,
        own_inputs: bool | None = None,
        device_bytes: int | None = None,
        capability: tuple[int, int] | None = None,
        device_uuid: str | None = None,
        namespaces: bool = True,
        inputs_travel: bool = False,
    ) -> None:
        self.device_bytes, self.namespaces, self.capability = device_bytes, namespaces, capability
        extra = unlisted_workload(problem)
        self.listed = len(problem.workloads)
        self.unlisted = None if extra is None else self.listed
        workloads = [*problem.workloads, *([extra] if extra else [])]
        self.problem = msgspec.structs.replace(problem, workloads=workloads)
        self.device, self.scratch = device, scratch
        self.bounds: dict[str, LowerBound] = {}
        self.overheads: dict[tuple[bool, int, int], Overhead] = {}  # on the CPU; by calling style, workload, calls
        self.clocks = ClockWatch(device_uuid or None)
        self.cores = Cores.of_this_process(None if device == "cpu" else int(device.partition(":")[2] or 0))
        self.sandbox = sandbox or choose_sandbox()
        # Memory on a GPU cannot be written from outside: children build their inputs there, from seeds.
        self.own_inputs = device != "cpu" if own_inputs is None else own_inputs
        self.judge: JudgeClient
        self.zygote: Zygote
        self._compiling: asyncio.Task[Zygote] | None = None
        self.room = Room(MANY_PLACES)  # as many as fit, once that is known
        self.specs: list[wire.WorkloadSpec] = []
        self.slots: list[int] = []
        self.layers: dict[str, str] = dict(self.sandbox.layers)
        self.inputs_travel = inputs_travel  # even where the problem's own code could make them in the children
        self._sides: list[Side] = []
        self._free: list[Side] = []
        self._next_uid = secrets.randbelow(_UIDS)
        self._opened = False
        self._digest_code = b""
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Starts judge and zygote, once."""
        async with self._opening:
            if not self._opened:
                await self._open()
                self._opened = True

    async def _open(self) -> None:
        self.scratch.mkdir(parents=True, exist_ok=True)
        reads = [self.problem.root] if self.problem.root else []
        started = await asyncio.gather(
            self._start_zygote(),
            Helper.start(
                "judge",
                self.sandbox,
                self.scratch,
                device=self.device,
                threads=len(self.cores.work),
                readable=reads,
                cores=self.cores.work,
            ),
            return_exceptions=True,
        )
        zygote, judge = await _both(*started)
        self.judge = JudgeClient(judge)
        try:
            self.zygote = await Zygote.start(zygote)
            opened = await self.judge.open(
                jw.Open(
                    problem=problem_to_json(self.problem),
                    root=self.problem.root,
                    device=self.device,
                    threads=len(self.cores.work),
                    own_inputs=self.own_inputs,
                )
            )
            self.specs, self._digest_code = opened.specs, opened.digest_code
            self._must_fit()
        except BaseException:
            for helper in (zygote, judge):
                with contextlib.suppress(ConnectionError):
                    await helper.stop()
            raise
        self.slots = [slots_of(spec, self.device_bytes) for spec in self.specs]
        self.room = Room(self.sides_that_fit(MANY_PLACES))

    def _must_fit(self) -> None:
        """Raises :class:`Fault` ``needs.memory`` before processes run into it one by one."""
        host, device = total_memory() / 1e9, self.device_bytes
        for spec in self.specs:
            one = (spec.input_stride + spec.output_stride) / 1e9
            if HOST_SETS * one > host:
                raise Fault(
                    "needs.memory",
                    f"workload {spec.uuid}: inputs and outputs of a call take {one:.1f} GB; this machine "
                    f"({host:.0f} GB) must hold them {HOST_SETS} times, for the judge and a process",
                )
            if device is not None and not fitting(spec, device):
                raise Fault(
                    "needs.memory",
                    f"workload {spec.uuid}: inputs and outputs of a call take {one:.1f} GB, of which the GPU "
                    f"({device / 1e9:.0f} GB) must hold those of the judge and of two processes",
                )

    async def _start_zygote(self, *modules: str) -> Helper:
        caches = compile_cache_dir()
        return await Helper.start(
            "zygote",
            self.sandbox,
            self.scratch,
            device=self.device,
            cores=self.cores.work,
            writable=[str(caches)],
            arguments=modules,
            extra_env={compile_cache.MOUNT: str(caches)},
        )

    def _zygote_for(self, solution: Solution) -> Zygote:
        """Sources that compile with torch start where its compiler is loaded: seconds less for each process.

        That second zygote is started when the first such solution comes, which does not wait for it.
        """
        if not uses_compiler(solution):
            return self.zygote
        if self._compiling is None:
            self._compiling = asyncio.create_task(self._start_compiling())
        return self._zygotes()[-1]

    def _zygotes(self) -> list[Zygote]:
        """All that have been started: the one with the compiler last, where there is one."""
        task = self._compiling
        ready = task is not None and task.done() and not task.cancelled() and not task.exception()
        return [self.zygote, task.result()] if task is not None and ready else [self.zygote]

    async def _start_compiling(self) -> Zygote:
        helper = await self._start_zygote(*COMPILER)
        try:
            return await Zygote.start(helper)
        except asyncio.CancelledError:
            helper.process.kill()  # it imports for seconds and would not notice that its socket is closed
            await helper.stop()
            raise

    def take_side(self) -> Side:
        """Arenas for one more candidate process; given back with :meth:`return_side` and then reused."""
        if self._free:
            return self._free.pop()
        pairs = list(zip(self.specs, self.slots, strict=True))
        input_bytes = max(
            PAGE if spec.told and spec.seeded else spec.input_stride * slots for spec, slots in pairs
        )
        output_bytes = max(
            spec.output_stride * min(slots, looked_at(spec.output_stride) if self.own_inputs else MANY_SLOTS)
            for spec, slots in pairs
        )
        side = Side(len(self._sides), input_bytes, output_bytes)
        self._sides.append(side)
        return side

    async def renew(self, side: Side) -> None:
        """The judge maps a new side's arenas, or forgets what another process once returned through them."""
        if side.attached:
            await self.judge.forget(side.number)
        else:
            await self.judge.attach(side.number, side.fds, side.input_bytes, side.output_bytes)
            side.attached = True

    def draw(
        self, workload: int, count: int, slots: int | None = None, *, made_there: bool = True
    ) -> list[jw.Inputs]:
        """Inputs that nobody has seen for the calls of one block, see :func:`round_inputs`.

        ``made_there``: by the sides themselves, where the problem's own code makes them.
        """
        told = self.told(workload, made_there=made_there)
        return round_inputs(count, slots, anew=told, by_slot=self.specs[workload].made and not told)

    def told(self, workload: int, *, made_there: bool) -> bool:
        """Whether children build the inputs of a call from its seed; else their bytes travel."""
        spec = self.specs[workload]
        return spec.told and (made_there or not spec.made)

    def draw_s(self, workload: int, *, made_there: bool) -> float:
        """Seconds that making the inputs of one call takes, where each has its own and they travel."""
        spec = self.specs[workload]
        anew = spec.made or any(item.redrawn for item in spec.inputs)
        travel = anew and not self.told(workload, made_there=made_there)
        return self.judge.draw_s.get(workload, 0.0) if travel else 0.0

    def sides_that_fit(self, wanted: int) -> int:
        """How many processes may hold their calls in flight at once, of ``wanted``."""
        if self.device_bytes is None:
            return wanted
        return min(wanted, sides_that_fit(self.specs, self.slots, self.device_bytes))

    @property
    def large(self) -> bool:
        """Whether processes that are not needed for a while end, because of what they hold in a GPU's memory."""
        return self.on_gpu and is_large(self.specs)

    def return_side(self, side: Side) -> None:
        self._free.append(side)

    def cache_key(self, solution: Solution) -> str:
        return compile_cache.key_of(solution, self.zygote.ready.versions, self.device)

    async def spawn(self, side: Side, solution: Solution) -> Child:
        self._next_uid = (self._next_uid + 1) % _UIDS
        request = wire.Spawn(
            child=0,
            uid=_FIRST_UID + self._next_uid,
            limits=self._limits(side),
            device=self.device,
            input_bytes=side.input_bytes,
            output_bytes=side.output_bytes,
            keeper_cores=self.cores.work,
            child_cores=self.cores.work,
            cache=self.cache_key(solution),
            namespaces=self.namespaces,
            fallback_scratch=f"/tmp/kernelarc-{os.getpid()}" if self.sandbox.kind != "none" else str(self.scratch),
        )
        return await self._zygote_for(solution).spawn(request, side.fds)

    def _limits(self, side: Side) -> wire.Limits:
        memory = memory_limit(side.input_bytes + side.output_bytes, cuda=self.on_gpu)
        if self.on_gpu:  # the driver, the compiler and CUPTI need descriptors and threads of their own
            return wire.Limits(memory=memory, files=1024, processes=512, scratch=2 << 30)
        return wire.Limits(memory=memory)

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def timing_cores(self) -> list[int]:
        """Where a process is while it is timed."""
        return self.cores.timing

    def bound_of(self, workload: int) -> LowerBound | None:
        """The lower bound of a listed workload on this device, once it is known."""
        return self.bounds.get(self.specs[workload].uuid)

    def least_ms(self, workload: int) -> float | None:
        """A claim below it is not believed unless a clock agrees, whatever precision it was computed in."""
        bound = self.bound_of(workload)
        return None if bound is None else bound.least_ms

    def load_of(self, solution: Solution, timeout_s: float, library: bytes = b"") -> wire.Load:
        return wire.Load(
            sources=[(source.path, source.content) for source in solution.sources],
            entry_file=solution.entry_file,
            entry_function=solution.entry_function,
            destination_passing=solution.spec.destination_passing_style,
            library=LIBRARY if library else "",
            library_bytes=library,
            # Neither names nor order tell which workload is the unlisted one: children see shapes.
            workloads=[msgspec.structs.replace(spec, uuid="") for spec in self.specs],
            inputs=self._problem_for_children() if self.own_inputs else b"",
            device=self.device,
            timeout_s=timeout_s,
            digest_code=self._digest_code,
        )

    def _problem_for_children(self) -> bytes:
        """Shapes and kinds of inputs, no names or tolerances; the reference only where its module makes inputs."""
        definition = self.problem.definition
        if not any(spec.made for spec in self.specs):
            definition = msgspec.structs.replace(definition, reference="", custom_inputs_entrypoint=None)
        given = self.problem.workloads
        workloads = [
            msgspec.structs.replace(workload, uuid=str(index), tolerance=Tolerance())
            for index, workload in enumerate(given)
        ]
        problem = msgspec.structs.replace(self.problem, definition=definition, workloads=workloads, root=None)
        return problem_to_json(problem)

    @property
    def broken(self) -> bool:
        """Judge or a zygote has ended (out of memory, killed by a person): not all works in here any more."""
        if not self._opened:
            return False
        helpers = (self.judge.helper, *(zygote.helper for zygote in self._zygotes()))
        return any(helper.process.returncode is not None for helper in helpers)

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        await asyncio.gather(self.zygote.stop(), self.judge.stop(), self._stop_compiling())
        self.clocks.close()
        for side in self._sides:
            side.close()
        self._sides.clear()
        self._free.clear()

    async def _stop_compiling(self) -> None:
        if self._compiling is not None:
            self._compiling.cancel()
            # Whatever kept it from starting (a full disk) was not told then, because nobody waits for it.
            with contextlib.suppress(Fault, OSError, asyncio.CancelledError):
                await (await self._compiling).stop()
            self._compiling = None
