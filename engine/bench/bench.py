"""The bench behind :class:`engine.bench.api.Bench`: sessions are rebuilt on demand, devices are given back."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from engine.bench.api import EvaluationPlan, PhaseSink
from engine.bench.compiled import Compiled, measure_compiled
from engine.bench.device_lock import DeviceLock
from engine.bench.evaluation import Rival, Trial
from engine.bench.evidence import fingerprint, write_evidence
from engine.bench.idle import IdleCalls
from engine.bench.inputs_probe import made_alike
from engine.bench.noise import measure_noise
from engine.bench.processes import to_its_end
from engine.bench.reasons import system_fault
from engine.bench.session import LowerBound, Session
from engine.errors import BadInput, Fault
from engine.guard.gate import check
from engine.hardware.facts import device_facts
from engine.hardware.peaks import find_peaks
from engine.hardware.roofline import least_ms, workload_bound
from engine.problems.model import Problem
from engine.problems.reference import is_reference
from engine.problems.solution import Solution, python_solution
from engine.records import Baselines, DeviceFacts, Evaluation
from engine.tracing.trace import trace_problem

_LEAST_DEADLINE_S = 30.0  # of a second attempt


def reference_solution(problem: Problem) -> Solution:
    """The problem's own reference as a solution: it is timed in the same kind of process as a candidate."""
    return python_solution(problem.definition.reference, definition=problem.name, name="reference")


def lower_bounds(problem: Problem, gpu: str) -> dict[str, LowerBound]:
    """By workload; empty where the GPU or the reference is not understood."""
    peaks = find_peaks(gpu)
    if peaks is None:
        return {}
    try:
        graphs = trace_problem(problem)
    except (BadInput, Fault):
        return {}
    return {
        w.uuid: LowerBound(
            roofline_ms=workload_bound(w, graphs[w.uuid], peaks).bound_ms,
            least_ms=least_ms(w, graphs[w.uuid], peaks),
        )
        for w in problem.workloads
        if w.uuid in graphs
    }


class _Live:
    """Processes that evaluations share, until one of them ends unasked: then newcomers get others."""

    def __init__(self, session: Session) -> None:
        self.session, self.idle = session, IdleCalls(session)
        self.users = 0

    async def close(self) -> None:
        """They have ended, also for whoever is cancelled meanwhile: nobody else would end them."""
        await to_its_end(self._ended())

    async def _ended(self) -> None:
        await self.idle.close()
        await self.session.close()


class ProcessBench:
    """One problem on one device. Nothing is started before the first call."""

    def __init__(self, problem: Problem, device: str, scratch: Path, *, owner: str = "") -> None:
        self.problem, self.scratch, self.owner = problem, scratch, owner
        self._name = device
        self.device: DeviceFacts = device_facts(device)
        self.lock = DeviceLock(self.device.uuid or device)
        self._now: _Live | None = None
        self._renewing = asyncio.Lock()
        self._bounds: asyncio.Task[dict[str, LowerBound]] | None = None
        self._gate = asyncio.Lock()
        self._idle = asyncio.Event()
        self._users = 0
        self._inputs_travel = False  # learnt once, see :mod:`engine.bench.inputs_probe`

    async def opened(self) -> _Live:
        """The processes of now. Raises :class:`Fault` and ``OSError`` where they cannot be started."""
        async with self._renewing:
            broken = self._now if self._now is not None and self._now.session.broken else None
            if broken is not None:
                self._now = None
                if not broken.users:  # else whoever leaves it last ends it
                    await broken.close()
            if self._now is None:
                self._now = _Live(self._session())
            if self._name != "cpu" and self._bounds is None:
                self._bounds = asyncio.create_task(asyncio.to_thread(lower_bounds, self.problem, self.device.name))
            session = self._now.session
            await session.open()
            if self._bounds is not None and self._bounds.done():
                session.bounds = self._bounds.result()
            return self._now

    def _session(self) -> Session:
        on_gpu = self._name != "cpu"
        return Session(
            self.problem,
            self._name,
            self.scratch,
            device_bytes=self.device.memory_bytes if on_gpu else None,
            capability=self.device.compute_capability,
            device_uuid=self.device.uuid if on_gpu else None,
            inputs_travel=self._inputs_travel,
        )

    async def evaluate(
        self,
        solution: Solution,
        plan: EvaluationPlan,
        incumbent: Solution | None = None,
        on_phase: PhaseSink | None = None,
        *,
        alone: bool = False,
    ) -> Evaluation:
        """``alone``: the reference itself, as a candidate; on a GPU it need not be timed against its double."""
        rivals = []
        if incumbent is not None:
            rivals.append(Rival("incumbent", incumbent))
        # A campaign starts from the reference, which need not be timed as incumbent and as reference.
        wanted = plan.against_reference and incumbent is not None and not is_reference(incumbent, self.problem)
        if wanted or (incumbent is None and not alone):
            rivals.append(Rival("reference", reference_solution(self.problem)))
        try:
            async with self._used() as live:
                return await self._judged(live, solution, plan, rivals, on_phase)
        except Fault as fault:
            return Evaluation(verdict="ERROR", reason=fault.reason, detail=fault.detail)
        except OSError as error:
            reason, detail = system_fault(error)
            return Evaluation(verdict="ERROR", reason=reason, detail=detail)

    async def _judged(
        self,
        live: _Live,
        solution: Solution,
        plan: EvaluationPlan,
        rivals: Sequence[Rival],
        on_phase: PhaseSink | None,
    ) -> Evaluation:
        async def tried(plan: EvaluationPlan) -> tuple[Evaluation, Trial]:
            trial = Trial(live.session, self.lock, solution, plan, rivals, on_phase, live.idle)
            trial.evidence["environment"] = fingerprint(self.device)
            return await trial.run(), trial

        answer, trial = await tried(plan)
        if await self._is_its_own(live.session, trial, answer):
            return answer
        # Nobody is blamed for what the problem's own code does in another process than the judge's.
        self._inputs_travel = live.session.inputs_travel = True
        left_s = max(plan.deadline_s - answer.wall_s, _LEAST_DEADLINE_S)
        again, _ = await tried(msgspec.structs.replace(plan, deadline_s=left_s))
        note = f"the problem's code makes other inputs in another process: they travel (was {answer.reason})"
        return msgspec.structs.replace(again, notes=[*again.notes, note], wall_s=answer.wall_s + again.wall_s)

    async def _is_its_own(self, session: Session, trial: Trial, answer: Evaluation) -> bool:
        """Whether an answer stands: it is not due to what the problem's own code makes in other processes."""
        doubted = trial.doubted_inputs(answer.reason)
        try:
            if not doubted:
                return True
            async with session.room.taken(1):
                return await made_alike(session, doubted)
        except Fault:
            return True

    async def measure_baselines(
        self, seed: Solution, on_phase: PhaseSink | None = None, *, compile_s: float = 0.0
    ) -> Baselines:
        """Raises :class:`Fault` if the seed is wrong or cannot run. ``compile_s``: for torch.compile as well.

        On a GPU noise is the kernel's, and :meth:`noise_of` is asked when a decision depends on it.
        """
        alone = self._name != "cpu" and is_reference(seed, self.problem)
        rounds = 0 if alone else EvaluationPlan().rounds  # the reference's first calls are compared: that will do
        plan = EvaluationPlan(against_reference=True, rounds=rounds, check_claims=True)
        evaluation = await self.evaluate(seed, plan, None, on_phase, alone=alone)
        if evaluation.verdict != "PASS" or evaluation.latency_ms is None or evaluation.geomean_speedup is None:
            raise Fault(
                evaluation.reason if evaluation.verdict == "ERROR" else "fault.seed",
                f"the starting solution does not pass: {evaluation.reason} {evaluation.detail}",
            )
        noise, notes = None, list(evaluation.notes)
        if self._name == "cpu":
            async with self._used() as live:
                noise, pairs = await measure_noise(live.session, self.lock, seed)
            notes.append(f"A/A noise {noise:.2%} from {len(pairs)} pairs of processes")
        compiled = Compiled()
        if compile_s > 0:
            compiled = await measure_compiled(
                self.problem, lambda s, p: self.evaluate(s, p, None, _renamed(on_phase)), compile_s
            )
        return Baselines(
            reference_ms=evaluation.latency_ms * evaluation.geomean_speedup,
            seed_ms=evaluation.latency_ms,
            seed_speedup=evaluation.geomean_speedup,
            noise=noise,
            workloads=evaluation.workloads,
            timer=evaluation.timer,
            notes=[*notes, *compiled.notes],
            compile_ms=compiled.latency_ms,
            compile_mode=compiled.mode,
        )

    async def noise_of(self, solution: Solution) -> float | None:
        """The A/A noise of this kernel as a fraction, where it is the kernel's and not the machine's: on a GPU.

        Raises :class:`Fault` if the kernel fails.
        """
        if self._name == "cpu":
            return None
        async with self._used() as live:
            return (await measure_noise(live.session, self.lock, solution))[0]

    async def bounds_known(self) -> None:
        """The tracer that was started beside the first evaluation has ended: nobody needs to trace again."""
        if self._bounds is not None:
            await asyncio.wait([self._bounds])

    @contextlib.asynccontextmanager
    async def _used(self) -> AsyncIterator[_Live]:
        """Evaluations run side by side (one compiles while another is timed); suspending waits for them."""
        async with self._gate:
            self._users += 1
        try:
            live = await self.opened()
            live.users += 1
            try:
                yield live
            finally:
                live.users -= 1
                if live is not self._now and not live.users:
                    await live.close()
        finally:
            self._users -= 1
            if not self._users:
                self._idle.set()

    async def suspend(self) -> None:
        """No new evaluation starts; those that run finish; then every process of ours ends."""
        async with self._gate:
            while self._users:
                self._idle.clear()
                await self._idle.wait()
            if self._now is not None:
                await self._now.close()
            self._now = None

    async def close(self) -> None:
        await self.suspend()
        await self.bounds_known()


def _renamed(on_phase: PhaseSink | None) -> PhaseSink | None:
    if on_phase is None:
        return None
    return lambda phase, detail: on_phase(f"torch.compile, {phase}", detail)


async def evaluate_many(
    problem: Problem,
    solutions: Sequence[Solution],
    device: str,
    plan: EvaluationPlan,
    evidence_dir: Path | None = None,
    against: Solution | None = None,
) -> AsyncIterator[Evaluation]:
    """Each solution against the reference, and against another solution if one is given; one warm session."""
    scratch = Path(mkdtemp(prefix="kernelarc-"))
    bench = ProcessBench(problem, device, scratch)
    plan = msgspec.structs.replace(plan, against_reference=True, check_claims=True)
    try:
        for index, solution in enumerate(solutions):
            gate = check(solution, problem)
            if gate.ok:
                evaluation = await bench.evaluate(solution, plan, against)
                if evaluation.verdict == "PASS":
                    await bench.bounds_known()
                    evaluation = await asyncio.to_thread(with_basis, evaluation, problem, bench.device)
            else:
                evaluation = Evaluation(verdict="REJECT", reason=gate.reason, detail=gate.detail)
            if evidence_dir is not None:
                write_evidence(evidence_dir, index, problem, solution, evaluation)
            yield evaluation
    finally:
        await bench.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(scratch)


def with_basis(evaluation: Evaluation, problem: Problem, device: DeviceFacts) -> Evaluation:
    """Bound, measured ceiling and score of every workload, with a note that says what the score rests on.

    Nothing is traced for a device of which neither peaks nor ceilings are known.
    """
    from engine.grading import graded, scale_for
    from engine.hardware.ceilings import kept_ceilings

    ceilings = kept_ceilings(device)
    if ceilings is None and find_peaks(device.name) is None:
        return evaluation
    try:
        graphs = trace_problem(problem)
    except Fault:
        graphs = {}
    scale = scale_for(problem, device.name, graphs, evaluation.workloads, ceilings=ceilings)
    evaluation = graded(evaluation, scale)
    if evaluation.sol_score is None:
        return evaluation
    basis = f"SOL score {evaluation.sol_score:.3f}: bound {scale.bound}, baseline {scale.baseline}"
    return msgspec.structs.replace(evaluation, notes=[*evaluation.notes, basis])
