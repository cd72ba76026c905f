"""The harness for devices whose memory nobody outside can read: inputs from a seed, outputs bound by a digest.

As in :mod:`engine.bench.harness` nothing here is trusted. Each block the parent reveals, per call, a seed and a
rotation; this side builds the inputs on the device (tampering with that only breaks the match). After every call
the device is synchronised and digests of the outputs and of the inputs are taken; all digests are part of the
report that ends the measured window, so outputs that are finished later no longer match. Named outputs are copied
to shared memory on request and compared, digest and values, by the judge.

A block with a ``prelude`` is not timed here at all. Before each call that many fills of twice the L2 cache are
queued, and nothing waits before the block's end: while the device works through them the host launches the call,
so that the keeper's clock over k and over 2k calls differs by device time alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch

from engine.bench import wire
from engine.bench.cuda_timer import L2Flush, open_clock, pin
from engine.bench.digest import digest_numbers, numbers_of, open_digest
from engine.bench.harness import (
    FRESH,
    REFILLED,
    Arena,
    Refused,
    describe,
    is_number,
    is_plain,
    items_reader,
    status_of,
    type_name,
    type_status,
)
from engine.bench.made_inputs import MadeInputs
from engine.bench.memory_plan import KEPT_BYTES
from engine.problems.axes import resolve_axes
from engine.problems.dtypes import torch_dtype
from engine.problems.inputs import random_input
from engine.problems.load import problem_from_json

_LARGE_BYTES = 4 << 30
Executed = tuple[list[wire.Row], list[list[wire.Place]], bytes]


class DeviceCaller:
    """Arguments, blocks and copies for one loaded candidate on one device."""

    def __init__(
        self,
        import_entry: Callable[[], Callable[..., Any]],
        load: wire.Load,
        inputs: Arena,
        outputs: Arena,
        device: torch.device,
    ) -> None:
        self.device = device
        self.workloads, self.destination_passing = load.workloads, load.destination_passing
        self.inputs, self.outputs = inputs, outputs
        self.problem = problem_from_json(load.inputs)
        self.made = MadeInputs(self.problem, device) if self.problem.definition.custom_inputs_entrypoint else None
        self.clock = open_clock(device)
        self.flush = L2Flush(device)
        self.digest = open_digest(device, load.digest_code)
        self._pinned = device.type != "cuda"
        self.held: list[list[torch.Tensor]] = []
        self._kept: dict[tuple[int, int], list[torch.Tensor]] = {}  # inputs by workload and slot
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.execute = _bind(self, import_entry)
        self.clock_name = self.clock.name

    def serve(self, channel: Any, send: Callable[[bytes], None], pack: Callable[..., bytes]) -> None:
        serve_requests(channel, self, send, pack)

    def _make(self, workload: int, seed: int) -> list[Any]:
        """Raises :class:`Refused`, with a status of its own: the problem's code fails, not the candidate's."""
        assert self.made is not None  # its name came with the problem
        try:
            return self.made(workload, seed)
        except torch.cuda.OutOfMemoryError as error:  # processes are planned for: this one holds too much
            raise Refused(wire.MEMORY, describe(error).decode("utf-8", "replace")) from None
        except (Exception, SystemExit) as error:  # noqa: BLE001  the problem's border
            raise Refused(wire.INPUTS, describe(error).decode("utf-8", "replace")) from None

    def _sources(self, workload: int, call: wire.Call, made: list[Any]) -> Iterator[tuple[torch.Tensor, int]]:
        """(values, rotation in elements) of every tensor input: ``made``, drawn here or sent through the arena."""
        spec = self.workloads[workload]
        definition = self.problem.definition
        axes = resolve_axes(definition, self.problem.workloads[workload]) if call.seed else {}
        for index, item in enumerate(spec.inputs):
            if item.shape is None:
                continue
            if not call.seed:
                start = call.slot * spec.input_stride + item.offset
                yield self.inputs.tensor(start, torch_dtype(item.dtype), item.shape), 0
                continue
            value = made[index] if made else random_input(definition, item.name, axes, self.device, call.seed)
            yield value, call.shift % value.numel() if item.rotates and value.numel() > 1 else 0

    def arguments(self, workload: int, call: wire.Call) -> list[Any]:
        """One input after the other: beside those that are kept, no more than one is in the device's memory.

        Unless the problem's own code makes them all at once.
        """
        spec = self.workloads[workload]
        key = (workload, call.slot)
        wanted = [item for item in spec.inputs if item.shape is not None]
        if call.style == FRESH and spec.input_stride > _LARGE_BYTES:
            self._kept.pop(key, None)  # there is no room for both
        made = self._make(workload, call.seed) if call.seed and spec.made else []
        tensors = self._kept.get(key)
        if tensors is None or call.style == FRESH:
            self._make_room(workload, spec.input_stride)
            tensors = self._kept[key] = [self._empty(torch_dtype(i.dtype), i.shape or ()) for i in wanted]
        for tensor, (value, shift) in zip(tensors, self._sources(workload, call, made), strict=True):
            # ``.data`` shares the memory but not the version counter: the refill stays hidden.
            target = tensor if call.style == REFILLED else tensor.data
            _copy_rotated(target.view(-1), value.reshape(-1), shift)
        pool, numbers = iter(tensors), iter(call.scalars)
        if made:
            numbers = iter(value for value, item in zip(made, spec.inputs, strict=True) if item.shape is None)
        return [next(numbers) if item.shape is None else next(pool) for item in spec.inputs]

    def _make_room(self, workload: int, nbytes: int) -> None:
        """Other workloads' inputs are let go where all would take too much: a session plans with those of one."""
        kept = sum(self.workloads[other].input_stride for other, _ in self._kept)
        if kept + nbytes > KEPT_BYTES:
            self._kept = {key: tensors for key, tensors in self._kept.items() if key[0] == workload}

    def _empty(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        if dtype.itemsize == 1:  # not every byte-wide type can be allocated as itself
            return torch.empty(shape, dtype=torch.uint8, device=self.device).view(dtype)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def output_buffers(self, workload: int) -> list[torch.Tensor]:
        made = []
        for item in self.workloads[workload].outputs:
            raw = torch.full((item.nbytes,), 0xFF, dtype=torch.uint8, device=self.device)
            made.append(raw.view(torch_dtype(item.dtype)).view(item.shape))
        return made

    def export(self, request: wire.Export) -> None:
        """Copies the outputs of the named calls of the last block into their slots of the output arena."""
        if not self._pinned:  # only of those whose outputs are looked at: it takes a second for gigabytes
            pin(self.outputs.address, self.outputs.bytes.numel())
            self._pinned = True
        spec = self.workloads[request.workload]
        for index, slot in request.calls:
            for value, item in zip(self.held[index], spec.outputs, strict=True):
                if item.nbytes:
                    start = slot * spec.output_stride + item.offset
                    target = self.outputs.bytes[start : start + item.nbytes]
                    target.copy_(value.reshape(-1).view(torch.uint8), non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _copy_rotated(target: torch.Tensor, value: torch.Tensor, shift: int) -> None:
    """``torch.roll`` into existing memory, byte-wide types included."""
    if value.dtype.itemsize == 1:
        target, value = target.view(torch.uint8), value.view(torch.uint8)
    count = value.numel()
    target[shift:].copy_(value[: count - shift])
    if shift:
        target[:shift].copy_(value[count - shift :])


def _output_taker(device: torch.device) -> Callable[[Any, wire.OutputSpec], torch.Tensor]:
    """What takes one output, if it is what the definition declares, in the order in which it is declared.

    Attributes are read through the C type's own descriptors, which a candidate cannot replace.
    """
    base = torch._C.TensorBase
    plain, number, kind, name_of, strided = is_plain, is_number, device.type, type_name, torch.strided
    shape_of, dtype_of, layout_of, device_of = (
        base.shape.__get__, base.dtype.__get__, base.layout.__get__, base.device.__get__
    )  # fmt: skip
    contiguous, is_conj, is_neg, resolve_conj, resolve_neg = (
        base.contiguous, base.is_conj, base.is_neg, base.resolve_conj, base.resolve_neg
    )  # fmt: skip

    def taken(value: Any, spec: wire.OutputSpec) -> torch.Tensor:
        dtype = torch_dtype(spec.dtype)
        if number(value):
            value = torch.tensor(value, dtype=dtype, device=device).reshape(spec.shape)
        if not plain(value):
            raise Refused(type_status(value), f"{spec.name} is a {name_of(value)}, not a plain torch.Tensor")
        if layout_of(value) is not strided or device_of(value).type != kind:
            raise Refused(wire.DEVICE, f"{spec.name} is on {device_of(value).type}, not a dense tensor on {kind}")
        if dtype_of(value) is not dtype:
            raise Refused(wire.DTYPE, f"{spec.name} is {dtype_of(value)}, the definition declares {spec.dtype}")
        if tuple(shape_of(value)) != spec.shape:
            raise Refused(
                wire.SHAPE, f"{spec.name} has shape {list(shape_of(value))}, declared {list(spec.shape)}"
            )
        if is_conj(value) or is_neg(value):
            value = resolve_neg(resolve_conj(value))
        found: torch.Tensor = contiguous(value)
        return found

    return taken


def _own_memory_taker() -> Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]:
    """What copies an output that is a view of an input: an input is no output, however it is looked at."""
    base = torch._C.TensorBase
    storage_of, clone, dense = base.untyped_storage, base.clone, torch.contiguous_format

    def own_memory(value: torch.Tensor, given: list[torch.Tensor]) -> torch.Tensor:
        where = storage_of(value).data_ptr()
        if where and any(storage_of(tensor).data_ptr() == where for tensor in given):
            return clone(value, memory_format=dense)
        return value

    return own_memory


def _bind(caller: DeviceCaller, import_entry: Callable[[], Callable[..., Any]]) -> Callable[[wire.Run], Executed]:
    """The block executor; what it needs is bound before the candidate is imported."""
    clock, flush, digest, as_numbers = caller.clock, caller.flush, caller.digest, numbers_of
    untouched, set_stream = torch._C.DisableTorchFunction, torch.cuda.set_stream
    items_of, taken_from = items_reader(), _output_taker(caller.device)
    detach, clone, dense = torch._C.TensorBase.detach, torch._C.TensorBase.clone, torch.contiguous_format
    own_memory, by_call, number_of, entry = _own_memory_taker(), _by_call, digest_numbers, import_entry()

    def execute(run: wire.Run) -> Executed:
        spec = caller.workloads[run.workload]
        caller.held.clear()
        flush.renew()
        timed = not run.prelude
        prepared: list[list[Any]] = []
        if timed:
            clock.start_block(len(run.calls))
        else:
            flush.fill(2 * run.prelude)  # drawing inputs hides behind it
            if len({call.slot for call in run.calls}) == len(run.calls):
                prepared = [caller.arguments(run.workload, call) for call in run.calls]
        taken: list[torch.Tensor] = []
        told: list[int] = []
        for index, call in enumerate(run.calls):
            try:
                arguments = prepared[index] if prepared else caller.arguments(run.workload, call)
                buffers = caller.output_buffers(run.workload) if caller.destination_passing else []
                given = [value for value in arguments if isinstance(value, torch.Tensor)]
                if timed:
                    flush()
                    clock.before(index)
                else:
                    flush.fill(run.prelude)
                result = entry(*arguments, *buffers)
                with untouched():
                    values = buffers or items_of(result, spec.outputs)
                    values = [taken_from(v, item) for v, item in zip(values, spec.outputs, strict=True)]
                    values = [own_memory(value, given) for value in values]
                # What a result's own code does (keys that compare, objects that end), and a layout that is left to
                # be put in order, belongs to the call: only plain tensors are left when the clock is read.
                result = None
                if timed:
                    clock.after(index)
                if caller.stream is not None:
                    set_stream(caller.stream)
                with untouched():
                    # Copies of their own: a kernel may hand out the same buffer in its next call.
                    kept = [clone(detach(value), memory_format=dense) for value in values]
                    taken += [digest(value) for value in (*kept, *given)]
                if spec.made:
                    told.append(number_of([value for value in arguments if not isinstance(value, torch.Tensor)]))
                caller.held.append(kept)
            except Refused as refusal:
                return [*_ok(index), (refusal.status, 0)], [], refusal.detail.encode("utf-8", "replace")
            except BaseException as error:  # noqa: BLE001  the candidate's border
                return [*_ok(index), (status_of(error), 0)], [], describe(error)
        with untouched():
            places = by_call(as_numbers(taken), told, len(run.calls))
        claims = clock.claims() if timed else [0] * len(run.calls)
        return [(wire.OK, max(claim, 0)) for claim in claims], places, b""

    return execute


def _by_call(numbers: list[int], last: list[int], calls: int) -> list[list[wire.Place]]:
    """Digests as they travel: where a place has an address and strides, they have a number.

    ``last``: one more of every call, after its others, or none at all.
    """
    each, padding = len(numbers) // max(calls, 1), (0,) * wire.MAX_DIMS
    return [
        [(value, *padding) for value in (*numbers[call * each : (call + 1) * each], *last[call : call + 1])]
        for call in range(calls)
    ]


def _ok(count: int) -> list[wire.Row]:
    return [(wire.OK, 0)] * count


def serve_requests(
    channel: Any, caller: DeviceCaller, send: Callable[[bytes], None], pack: Callable[..., bytes]
) -> None:
    """Blocks and exports until the channel closes (``EOFError``)."""
    decoder: msgspec.msgpack.Decoder[wire.Run | wire.Export] = msgspec.msgpack.Decoder(wire.Run | wire.Export)  # type: ignore[arg-type]
    while True:
        request = wire.receive(channel, decoder)
        if isinstance(request, wire.Export):
            try:
                caller.export(request)
                send(pack([(wire.OK, 0)], [], b""))
            except BaseException as error:  # noqa: BLE001  the candidate's border
                send(pack([(status_of(error), 0)], [], describe(error)))
        else:
            send(pack(*caller.execute(request)))
