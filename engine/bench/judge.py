"""The judge: a process of its own that holds reference, seeds and tolerances and never sees the candidate's code.

``python -m engine.bench.judge FD``. It writes inputs into shared memory, reads raw outputs back from it and
compares. References and input generators come with problems, so they are foreign too: the judge itself runs in
the sandbox, without network or secrets, and the engine validates what it answers.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import resource
import secrets
import socket
import sys
import time
from collections import OrderedDict
from typing import Any, NoReturn

import msgspec
import torch

from engine.bench import judge_wire as jw
from engine.bench import namespaces as ns
from engine.bench import wire
from engine.bench.admission import Probe
from engine.bench.compare import CHUNK
from engine.bench.cuda_timer import pin
from engine.bench.digest import digest_code, digest_numbers, numbers_of, open_digest
from engine.bench.input_rules import role_in, with_rules
from engine.bench.judge_compare import judge_call, probe
from engine.bench.judge_faults import JudgeFault, foreign_fault
from engine.bench.judge_memory import Side, bytes_of, on_host, poison_of, strided
from engine.bench.layout import workload_spec
from engine.bench.refill import Pool, off_default, refilled
from engine.bench.unlisted import UUID
from engine.errors import BadInput, Fault
from engine.problems.axes import resolve_axes
from engine.problems.dtypes import torch_dtype
from engine.problems.inputs import derive_seed, make_inputs, random_input, scalar_inputs
from engine.problems.load import problem_from_json
from engine.problems.model import Problem, Workload
from engine.problems.outputs import normalize_outputs, why_not_dense
from engine.problems.reference import load_reference

_CACHE_BYTES = 256 << 20  # of base sets, beyond the last two
_DEVICE_CHUNK = 1 << 26  # elements compared at a time where memory is plenty and every step waits for the device

_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Judge:
    def __init__(self, problem: Problem, device: str, *, own_inputs: bool = False) -> None:
        self.problem, self.definition = problem, problem.definition
        self.device = torch.device(device)
        self.axes = [resolve_axes(self.definition, workload) for workload in problem.workloads]
        # Where a candidate's memory can be read and written from outside, it is told no seeds at all.
        self.tells_seeds = self.device.type != "cpu" or own_inputs
        self.specs = [
            self._spec(workload, axes) for workload, axes in zip(problem.workloads, self.axes, strict=True)
        ]
        self.digest_code = digest_code(self.device)
        self.digest = open_digest(self.device, self.digest_code)
        self.sides: dict[int, Side] = {}
        self._module: Any = None
        self._sets: OrderedDict[tuple[int, int], list[Any]] = OrderedDict()
        self._set_bytes = 0
        self._pool = Pool()

    def _spec(self, workload: Workload, axes: dict[str, int]) -> wire.WorkloadSpec:
        spec = workload_spec(self.definition, workload, axes)
        return with_rules(spec, self.definition, workload, axes, self.device, tells_seeds=self.tells_seeds)

    def attach(self, input_fd: int, output_fd: int, request: jw.Attach) -> None:
        try:
            self.sides[request.side] = Side(input_fd, output_fd, request)
        except OSError as error:
            size = (request.input_bytes + request.output_bytes) / 1e9
            detail = f"{size:.1f} GB of inputs and outputs cannot be shared: {error.strerror}"
            raise JudgeFault("needs.memory", detail) from None

    # -- inputs ---------------------------------------------------------------------------------------------

    @property
    def module(self) -> Any:
        if self._module is None:
            try:
                self._module = load_reference(self.definition)
            except BaseException as error:  # noqa: BLE001  foreign code: whatever it raises is a finding
                raise foreign_fault("the reference cannot be imported", error, self.definition.reference) from None
        return self._module

    def base_set(self, workload: int, seed: int, *, fresh: bool = False) -> list[Any]:
        """``fresh``: nothing of it is used again or was used before (for calls that take it as it is)."""
        key = (workload, seed)
        if key in self._sets:
            self._sets.move_to_end(key)
            return self._sets[key]
        entrypoint = None
        if self.definition.custom_inputs_entrypoint:
            entrypoint = getattr(self.module, self.definition.custom_inputs_entrypoint, None)
        # What the problem's own code makes must come out of its seed again, whenever it is asked for.
        pooled = not self.specs[workload].made
        given = self._pool.take(workload) if pooled and not (fresh or self.tells_seeds) else {}
        try:
            values = make_inputs(
                self.definition,
                self.problem.workloads[workload],
                self.axes[workload],
                self.device,
                seed,
                root=self.problem.root,
                entrypoint=entrypoint,
                given=given,
            )
        except Fault as fault:
            raise JudgeFault(fault.reason, fault.detail) from None
        except BadInput as error:
            raise JudgeFault("fault.reference", error.message) from None
        except BaseException as error:  # noqa: BLE001  foreign input generator
            raise foreign_fault("the input generator failed", error, self.definition.reference) from None
        self._check_shapes(workload, values)
        if self.problem.workloads[workload].uuid == UUID and not self.tells_seeds:
            values = self._unpublished(workload, values, seed)
        if pooled and not given and not fresh:
            named = zip(values, self.specs[workload].inputs, strict=True)
            self._pool.keep(workload, {item.name: value for value, item in named if item.blends})
        self._remember(key, values)
        return values

    def _unpublished(self, workload: int, values: list[Any], seed: int) -> list[Any]:
        """The unlisted workload's norms have weights and biases: listed ones are all ones and zeros, so a kernel
        that leaves them out would be right by chance."""
        axes, definition = self.axes[workload], self.definition
        return [
            off_default(value, role_in(definition, item.name, axes, self.device), seed + index)
            for index, (value, item) in enumerate(zip(values, self.specs[workload].inputs, strict=True))
        ]

    def _check_shapes(self, workload: int, values: list[Any]) -> None:
        for value, item in zip(values, self.specs[workload].inputs, strict=True):
            if item.shape is None:
                if type(value) not in (bool, int, float):
                    raise JudgeFault("fault.reference", f"input {item.name} is not a number")
            elif not isinstance(value, torch.Tensor) or tuple(value.shape) != item.shape:
                raise JudgeFault("fault.reference", f"input {item.name} does not have shape {list(item.shape)}")
            elif odd := why_not_dense(value):
                raise JudgeFault("fault.reference", f"input {item.name} is {odd}")
            elif value.dtype != torch_dtype(item.dtype):
                raise JudgeFault("fault.reference", f"input {item.name} is {value.dtype}, declared {item.dtype}")

    def _remember(self, key: tuple[int, int], values: list[Any]) -> None:
        self._sets[key] = values
        self._set_bytes += bytes_of(values)
        while self._set_bytes > _CACHE_BYTES and len(self._sets) > 2:
            _, dropped = self._sets.popitem(last=False)
            self._set_bytes -= bytes_of(dropped)

    @staticmethod
    def shift_of(item: wire.InputSpec, call: jw.Inputs) -> int:
        """By how many elements this input is rotated; 0 where its elements are not exchangeable."""
        elements = math.prod(item.shape or ())
        return call.shift % elements if item.rotates and elements > 1 else 0

    def inputs_of(self, workload: int, call: jw.Inputs) -> list[Any]:
        """The call's inputs as tensors of their own, so that a reference may write into them."""
        values = self.base_set(workload, call.seed, fresh=not call.shift)
        return [self._input_of(workload, index, value, call) for index, value in enumerate(values)]

    def _input_of(self, workload: int, index: int, value: Any, call: jw.Inputs) -> Any:
        spec = self.specs[workload]
        item = spec.inputs[index]
        if not isinstance(value, torch.Tensor):
            return value
        if call.shift and item.redrawn and not spec.told:
            seed = derive_seed(call.seed, f"call {call.shift}")
            return random_input(self.definition, item.name, self.axes[workload], self.device, seed)
        if not item.rotates or not call.shift:
            return value.clone()
        if spec.told:
            shift = self.shift_of(item, call)
            return torch.roll(value.reshape(-1), shift).view(value.shape) if shift else value.clone()
        return refilled(value, call.shift, index, blends=item.blends)

    # -- requests -------------------------------------------------------------------------------------------

    def fill(self, request: jw.Fill) -> jw.Filled:
        spec = self.specs[request.workload]
        if request.told:
            numbers = [self._scalars(request.workload, call.seed) for call in request.calls]
            return jw.Filled(scalars=numbers, told=True)
        scalars: list[list[bool | int | float]] = []
        draws: list[float] = []
        for call in request.calls:
            begin, known = time.monotonic(), (request.workload, call.seed) in self._sets
            values = self.base_set(request.workload, call.seed, fresh=not call.shift)
            for index, (value, item) in enumerate(zip(values, spec.inputs, strict=True)):
                if not item.nbytes:
                    continue
                made = self._input_of(request.workload, index, value, call)
                start = call.slot * spec.input_stride + item.offset
                for side in request.sides:
                    made = self.sides[side].write(start, made)  # off the device once
            if not known or any(item.redrawn for item in spec.inputs):
                draws.append(time.monotonic() - begin)
            scalars.append([v for v, item in zip(values, spec.inputs, strict=True) if item.shape is None])
            for side in request.sides if not self.tells_seeds else ():
                out = self.sides[side].output_bytes.data_ptr() + call.slot * spec.output_stride
                for output in spec.outputs:
                    ctypes.memset(out + output.offset, poison_of(output.dtype), output.nbytes)
        return jw.Filled(scalars=scalars, draw_s=min(draws, default=0.0))

    def _scalars(self, workload: int, seed: int) -> list[bool | int | float]:
        """The numbers among the inputs. No tensor is drawn: on a GPU that would disturb the block to come.

        Nothing where the problem's own code makes the inputs, numbers included, in the candidate's process.
        """
        if self.specs[workload].made:
            return []
        return scalar_inputs(self.definition, self.problem.workloads[workload], seed)

    def check(self, request: jw.Check) -> jw.Checked:
        found = self.admission(request.workload)
        begin = time.monotonic()
        digests = request.digests or [[]] * len(request.calls)
        findings: list[jw.Finding] = []
        for call, strides, told in zip(request.calls, request.strides, digests, strict=True):
            try:
                findings.append(self._check(request, call, strides, told, found))
            except wire.ProtocolError as error:  # of the candidate, with which we do not speak
                findings.append(jw.Finding(reason="hack.forged-report", detail=str(error)))
        return jw.Checked(findings=findings, notes=found.notes, seconds=time.monotonic() - begin)

    def _check(
        self, request: jw.Check, call: jw.Inputs, strides: list[list[int]], digests: list[int], found: Probe
    ) -> jw.Finding:
        side, spec = self.sides[request.side], self.specs[request.workload]
        if self.device.type == "cuda" and not side.pinned:
            pin(side.output_bytes.data_ptr(), side.output_bytes.numel())
            side.pinned = True
        values = self.inputs_of(request.workload, call)
        base = call.slot * spec.output_stride
        outputs = [
            strided(side.output_bytes, base + item.offset, item, tuple(steps)).to(self.device)
            for item, steps in zip(spec.outputs, strides, strict=True)
        ]
        if self.tells_seeds:
            early = self._compare_digests(spec, outputs, values, digests)
        else:
            early = self._compare_inputs(side, spec, call, values)
        if early is not None:
            return early
        first = spec.outputs[0]
        raw = memoryview(side.outputs)[base + first.offset : base + first.offset + first.nbytes]
        if self.tells_seeds:
            raw = memoryview(digests[0].to_bytes(8, "little"))  # of the same bytes, as has just been found
        return judge_call(
            spec,
            outputs,
            self.expected(values),
            self.problem.workloads[request.workload].tolerance,
            found.extra,
            replayed=side.replays.seen_before(request.workload, raw),
            chunk=CHUNK if self.device.type == "cpu" else _DEVICE_CHUNK,
        )

    @staticmethod
    def _compare_inputs(
        side: Side, spec: wire.WorkloadSpec, call: jw.Inputs, values: list[Any]
    ) -> jw.Finding | None:
        start = side.input_bytes.data_ptr() + call.slot * spec.input_stride
        for value, item in zip(values, spec.inputs, strict=True):
            if item.nbytes and _libc.memcmp(start + item.offset, on_host(value).data_ptr(), item.nbytes):
                return jw.Finding(reason="wrong.input-mutation", detail=f"run changed its input {item.name}")
        return None

    def _compare_digests(
        self, spec: wire.WorkloadSpec, outputs: list[torch.Tensor], values: list[Any], digests: list[int]
    ) -> jw.Finding | None:
        tensors = [value.to(self.device) for value in values if isinstance(value, torch.Tensor)]
        if len(digests) != len(outputs) + len(tensors) + spec.made:
            raise wire.ProtocolError("not as many digests as tensors")
        numbers = [value for value in values if not isinstance(value, torch.Tensor)]
        if spec.made and digests[-1] != digest_numbers(numbers):
            return jw.Finding(reason="wrong.input-mutation", detail="its numbers are not the problem's")
        found = numbers_of(self.digest(value.contiguous()) for value in (*outputs, *tensors))
        for item, now, told in zip(spec.outputs, found, digests, strict=False):
            if now != told:
                detail = f"{item.name} is not what it was when its call had ended: it was finished later"
                return jw.Finding(reason="hack.late-output", detail=detail)
        names = [item.name for item in spec.inputs if item.shape is not None]
        for name, now, told in zip(names, found[len(outputs) :], digests[len(outputs) : len(found)], strict=True):
            if now != told:
                return jw.Finding(reason="wrong.input-mutation", detail=f"run changed its input {name}")
        return None

    @functools.cache  # noqa: B019  one judge lives as long as its process
    def admission(self, workload: int) -> Probe:
        """The admission probe of one workload, on two sets of inputs that no candidate gets."""
        sets = [self.inputs_of(workload, jw.Inputs(slot=0, seed=secrets.randbits(62))) for _ in range(2)]
        outputs = [self.expected(values) for values in sets]
        tolerance = self.problem.workloads[workload].tolerance
        return probe(self.specs[workload], outputs[0], outputs[1], tolerance)

    def expected(self, values: list[Any]) -> list[torch.Tensor]:
        """The reference's outputs. ``values`` are the caller's own: a reference may write into them."""
        try:
            result = normalize_outputs(self.definition, self.module.run(*values), self.device)
            for name, value in zip(self.definition.outputs, result, strict=True):
                if odd := why_not_dense(value):
                    raise JudgeFault("fault.reference", f"the reference failed: output {name} is {odd}")
            return [value.detach().to(self.device) for value in result]
        except JudgeFault:
            raise
        except BaseException as error:  # noqa: BLE001  foreign reference
            raise foreign_fault("the reference failed", error, self.definition.reference) from None


def serve(control: socket.socket) -> NoReturn:
    requests: msgspec.msgpack.Decoder[jw.ToJudge] = msgspec.msgpack.Decoder(jw.ToJudge)  # type: ignore[arg-type]
    judge: Judge | None = None
    while True:
        request, fds = wire.receive_with_fds(control, requests, 2)
        begin = time.monotonic()
        answer: msgspec.Struct
        try:
            if isinstance(request, jw.Open):
                torch.set_num_threads(max(request.threads, 1))
                problem = msgspec.structs.replace(problem_from_json(request.problem), root=request.root)
                judge = Judge(problem, request.device, own_inputs=request.own_inputs)
                seconds = time.monotonic() - begin
                answer = jw.Opened(
                    specs=judge.specs,
                    versions={"torch": str(torch.__version__)},
                    seconds=seconds,
                    digest_code=judge.digest_code,
                )
            elif judge is None:
                os._exit(3)
            elif isinstance(request, jw.Attach):
                judge.attach(fds[0], fds[1], request)
                answer = jw.Filled()
            elif isinstance(request, jw.Forget):
                judge.sides[request.side].replays.forget()
                answer = jw.Filled()
            elif isinstance(request, jw.Fill):
                answer = judge.fill(request)
            else:
                answer = judge.check(request)
        except JudgeFault as fault:
            answer = _failure(request, fault.reason, fault.detail)
        except BadInput as error:
            answer = _failure(request, "fault.problem", error.message)
        finally:
            for fd in fds:
                os.close(fd)
        control.sendall(wire.frame(answer))
        if isinstance(request, jw.Open) and judge is not None and judge.device.type == "cuda":
            torch.zeros(1, device=judge.device)  # the context is made while the candidate's process starts


def _failure(request: jw.ToJudge, reason: str, detail: str) -> msgspec.Struct:
    if isinstance(request, jw.Open):
        return jw.Opened(specs=[], versions={}, seconds=0.0, reason=reason, detail=detail)
    if isinstance(request, jw.Check):
        return jw.Checked(reason=reason, detail=detail)
    return jw.Filled(reason=reason, detail=detail)


def main() -> NoReturn:
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ns.prctl(ns.PR_SET_NO_NEW_PRIVS, 1)
    ns.prctl(ns.PR_SET_DUMPABLE, 0)
    try:
        serve(control)
    except (EOFError, ConnectionError):  # the engine is gone; anything else is ours and leaves its traceback
        os._exit(0)


if __name__ == "__main__":
    main()
