"""One evaluation: start → compile → correctness → wait for the device → timing → verdict."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from engine.bench.api import EvaluationPlan, PhaseSink
from engine.bench.build import library_of, needs_build
from engine.bench.claims import verify_claims
from engine.bench.contender import Contender, Failure, close_all
from engine.bench.correctness import Correctness, check_rounds, first_call, name_replay
from engine.bench.device_lock import DeviceLock, Turn
from engine.bench.idle import IdleCalls
from engine.bench.reasons import asks_for_cuda, fault_reason, missing_package, system_fault, verdict_of
from engine.bench.session import Session
from engine.bench.summary import summarize
from engine.bench.timing import Pairing, Timing, concurrent_rounds
from engine.errors import Fault
from engine.problems.solution import Solution
from engine.records import Evaluation
from engine.text import clean

_DETAIL_LIMIT = 2000
_OF_INPUTS = ("wrong.inputs", "wrong.input-mutation", "fault.inputs")
_SEEDS = 4
_SAME_FOR_ALL = ("crash.import", "resource.disk", "compile.failed", "compile.timeout")


def _is_installed(package: str) -> bool:
    """Whether Python finds it, without importing it."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


class Rival(msgspec.Struct, frozen=True):
    role: str  # incumbent | reference
    solution: Solution


class Trial:
    """The moving parts of one evaluation. Every process it started is gone when :meth:`run` returns."""

    def __init__(
        self,
        session: Session,
        lock: DeviceLock,
        solution: Solution,
        plan: EvaluationPlan,
        rivals: Sequence[Rival],
        on_phase: PhaseSink | None,
        idle: IdleCalls,
    ) -> None:
        self.idle = idle
        self.session, self.lock, self.plan = session, lock, plan
        self.candidate = Contender(session, solution, "candidate")
        self.rivals = [Contender(session, r.solution, r.role) for r in rivals]
        self.on_phase = on_phase or (lambda phase, detail: None)
        self.phases = dict.fromkeys(("start", "compile", "wait", "correctness", "timing"), 0.0)
        self.results: dict[int, Correctness] = {}
        self.unlisted = Correctness()
        self.unlisted_cause = ""
        self._turn: Turn | None = None
        self._deadline: asyncio.Timeout | None = None
        self._in_line = False  # for the device, which is no part of the deadline
        self.timing: Timing | None = None
        self.notes: list[str] = []
        self.evidence: dict[str, Any] = {}

    async def run(self) -> Evaluation:
        begin = time.monotonic()
        reason = detail = ""
        try:
            await self.session.open()
            self.phases["start"] = time.monotonic() - begin
            async with self._room(), self._closed(), asyncio.timeout(self.plan.deadline_s) as self._deadline:
                await self._stages()
        except TimeoutError:
            limit = f"{self.plan.deadline_s:.0f} s"
            reason, detail = "resource.timeout", f"the evaluation took longer than {limit}"
            if self._in_line:
                reason, detail = "fault.device-busy", f"others had the device for {limit}: {self.lock.path}"
        except Fault as fault:
            reason, detail = fault.reason, fault.detail
        except OSError as error:  # of our own files: the candidate's are in its process
            reason, detail = system_fault(error)
        failed = next((r for r in (*self.results.values(), self.unlisted) if r.reason), None)
        if not reason and failed is not None:
            reason, detail = failed.reason, failed.detail
        evaluation = summarize(self, reason)
        return msgspec.structs.replace(
            evaluation,
            verdict=verdict_of(reason),
            reason=reason,
            detail=clean(detail, _DETAIL_LIMIT),
            wall_s=time.monotonic() - begin,
            phases_s={name: round(seconds, 4) for name, seconds in self.phases.items()},
        )

    def doubted_inputs(self, reason: str) -> dict[int, list[int]]:
        """By workload the last seeds, where this failure may be due to the problem's own code making other inputs
        there than with the judge, or none; else nothing.
        """
        made = [w for w, spec in enumerate(self.session.specs) if spec.made and spec.told]
        if not made or not self.candidate.makes_inputs:
            return {}
        found = {w: result.seeds[-_SEEDS:] for w, result in self.results.items() if result.reason in _OF_INPUTS}
        if self.session.unlisted is not None and self.unlisted_cause in _OF_INPUTS:
            found[self.session.unlisted] = []
        if reason == "fault.inputs":
            found |= {w: [] for w in made[:1]}
        return {w: seeds for w, seeds in found.items() if w in made}

    def workloads(self) -> list[int]:
        wanted = self.plan.workloads
        listed = self.session.specs[: self.session.listed]
        return [i for i, spec in enumerate(listed) if not wanted or spec.uuid in wanted]

    async def _stages(self) -> None:
        """Compile without the device; on a GPU everything else, on the CPU only timing, with the device held."""
        session = self.session
        if session.cores.shared and session.device == "cpu":
            async with self._device():
                await self._compile()
                await self._rounds()
                await self._time()
            return
        await self._compile()
        if session.device == "cpu":
            await self._rounds()
        if session.device == "cpu" and (self._failed() or not self.plan.timing):
            return
        async with self._device():
            if session.device != "cpu":
                await self._rounds()
            await self._time()

    @contextlib.asynccontextmanager
    async def _room(self) -> AsyncIterator[None]:
        """Until this evaluation's processes fit into a GPU's memory beside others'; no part of its deadline."""
        begin, room, processes = time.monotonic(), self.session.room, 1 + len(self.rivals)
        if room.is_full(processes):
            self.on_phase("waiting device", "for memory")
        async with room.taken(processes, urgent=self.plan.urgent):
            self.phases["wait"] += time.monotonic() - begin
            yield

    @contextlib.asynccontextmanager
    async def _closed(self) -> AsyncIterator[None]:
        """Whatever ends it: only when its processes are gone has somebody else their memory."""
        try:
            yield
        finally:
            await close_all((self.candidate, *self.rivals))

    @contextlib.asynccontextmanager
    async def _device(self) -> AsyncIterator[None]:
        self.on_phase("waiting device", "")
        begin = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            with self._waiting():
                turn = await stack.enter_async_context(self.lock.held(urgent=self.plan.urgent))
            self.phases["wait"] += time.monotonic() - begin
            self._turn = turn
            try:
                yield
            finally:
                self._turn = None
        self.evidence["device_lock"] = msgspec.to_builtins(turn.uses)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """For the device: no part of the deadline. Where others keep it for as long as that, it is their doing."""
        assert self._deadline is not None
        clock = asyncio.get_running_loop().time
        left_s = (self._deadline.when() or clock()) - clock()
        self._deadline.reschedule(clock() + self.plan.deadline_s)
        self._in_line = True
        yield  # who is cancelled here was still in line
        self._in_line = False
        self._deadline.reschedule(clock() + left_s)

    def _failed(self) -> bool:
        return bool(self.unlisted.reason) or any(result.reason for result in self.results.values())

    async def _compile(self) -> None:
        """First calls of every side on every workload: the only ones that may take as long as a compiler."""
        self.on_phase("compiling", "")
        begin = time.monotonic()
        if not await self._build():
            self.phases["compile"] = time.monotonic() - begin
            return
        work = [self._first_calls(), *(self._prepare(rival) for rival in self.rivals if self.plan.timing)]
        if self.session.on_gpu and self.plan.timing and self.plan.check_claims:
            work.append(self._prepare_noop())
        tasks = [asyncio.create_task(step) for step in work]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.phases["start"] += self.candidate.start_s
        self.phases["compile"] = max(time.monotonic() - begin - self.candidate.start_s, 0.0)

    async def _build(self) -> bool:
        """C++ sources become libraries. False if the candidate's do not; a rival's failure is a fault."""
        for side in (self.candidate, *self.rivals):
            if not needs_build(side.solution):
                continue
            session = self.session
            try:
                side.library = await library_of(session, side.solution)
            except Failure as failure:
                if side is not self.candidate:
                    raise Fault(f"fault.{side.role}", f"{failure.reason}: {failure.detail}") from None
                for workload in self.workloads():
                    self.results[workload] = Correctness(reason=failure.reason, detail=failure.detail)
                return False
        return True

    async def _first_calls(self) -> None:
        for workload in self.workloads():
            result = self.results[workload] = Correctness()
            await first_call(self.candidate, workload, result)
            if result.reason == "crash.import":
                package = missing_package(self.candidate.solution.spec.languages, result.detail, _is_installed)
                if package:
                    name = package.replace(".", "-")
                    raise Fault(f"needs.{name}", f"the solution is written for {package}, which is not installed")
            if result.reason in _SAME_FOR_ALL:
                for other in self.workloads():
                    self.results.setdefault(other, result)
                return
        with contextlib.suppress(Failure):
            self.evidence["compile_cache"] = await self.candidate.save_compiled()
        if not self._failed() and self.plan.unlisted_shape and self.session.unlisted is not None:
            await self._try_unlisted(self.session.unlisted)

    async def _rounds(self) -> None:
        begin, waited = time.monotonic(), 0.0
        for workload, result in self.results.items():
            await check_rounds(self.candidate, workload, self.plan.rounds, result)
            await name_replay(self.candidate, workload, result)
            waited += await self.breathe()
        self.phases["correctness"] = time.monotonic() - begin - waited

    async def _try_unlisted(self, workload: int) -> None:
        """Wrong values on a shape that the problem allows but does not list are a failure; a refusal is not."""
        result = Correctness()
        try:
            await first_call(self.candidate, workload, result)
            await check_rounds(self.candidate, workload, 1, result)
        except Fault as fault:
            if not fault.reason.startswith(("fault.reference", "needs.")):
                raise
            self.session.unlisted = None  # the reference itself does not run there
            return
        shape = ", ".join(f"{k}={v}" for k, v in self.session.problem.workloads[workload].axes.items())
        if result.reason == "wrong.inputs":  # the problem's own code was never asked for such a shape
            self.notes.append(f"no inputs for a shape that the problem does not list ({shape})")
            return
        self.unlisted_cause = result.reason
        silently = result.reason != "wrong.exception" and result.reason.startswith(("wrong.", "hack."))
        if silently:
            self.unlisted.reason = "wrong.unlisted-shape"
            self.unlisted.detail = (
                f"right on the listed workloads, wrong on one that the definition allows as well ({shape}, other "
                f"scalar values): {result.detail}"
            )
        elif result.reason:
            self.notes.append(f"does not run on shapes that the problem does not list ({shape}): {result.reason}")

    async def _prepare(self, rival: Contender) -> None:
        """A rival's first calls: whatever it compiles is compiled before the device is taken."""
        try:
            for workload in self.workloads():
                await rival.run(workload, self.session.draw(workload, 1), 0)
        except Failure as failure:
            detail = f"the {rival.role} failed: {failure.reason} {failure.detail}"
            reason = fault_reason(rival.role, failure.reason)
            needs = self.session.device == "cpu" and reason == "fault.reference"
            needs = needs and asks_for_cuda(failure.detail, rival.solution.entry_source)
            raise Fault("needs.cuda" if needs else reason, detail) from None

    async def _prepare_noop(self) -> None:
        """Whose overhead the outside clock subtracts; it starts while others compile, if it does not live yet."""
        await self.idle.started(self.candidate.solution.spec.destination_passing_style)

    async def breathe(self) -> float:
        """Lets others have the device for a moment; for how many seconds."""
        begin = time.monotonic()
        if self._turn is not None:
            with self._waiting():
                await self._turn.breathe()
        waited = time.monotonic() - begin
        self.phases["wait"] += waited
        return waited

    async def _time(self) -> None:
        if self._failed() or not self.plan.timing:
            return
        self.on_phase("benching", "")
        begin, cores, waited = time.monotonic(), self.session.cores, self.phases["wait"]
        if not self.session.on_gpu:
            await concurrent_rounds(self.candidate, self.results, sorted({*cores.timing, *cores.work}))
        if self._failed():
            return
        try:
            for side in (self.candidate, *self.rivals):
                await side.pin(self.session.timing_cores)
        except Failure as failure:
            raise Fault("fault.affinity", f"{failure.reason} {failure.detail}") from None
        timers = {side.timer for side in (self.candidate, *self.rivals)}
        if len(timers) > 1:
            raise Fault("fault.timer", f"two clocks in one comparison: {', '.join(sorted(timers))}")
        self.timing = await Pairing(self.candidate, self.rivals, self.plan, self.results, self.breathe).run()
        blocks = self.timing.blocks
        if self.plan.against_reference and "reference" not in blocks:
            # Nobody was timed as the reference because somebody else is it, see ``ProcessBench.evaluate``.
            blocks["reference"] = blocks.get("incumbent", blocks["candidate"])
        if not self._failed():
            await verify_claims(self)
        for workload, result in self.results.items():
            await name_replay(self.candidate, workload, result)
        self.phases["timing"] = time.monotonic() - begin - (self.phases["wait"] - waited)
