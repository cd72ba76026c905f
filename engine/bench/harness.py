"""What runs inside a candidate's process: import it, call it on prepared inputs, say where its outputs lie.

Nothing here is trusted by anyone: expected outputs, tolerances, seeds and verdicts live elsewhere, the clock is
checked from outside, and the process is frozen whenever it is not inside a measured window. All names that a
timed call needs are locals, bound before the candidate's first line runs.

Call styles (the parent chooses, the candidate cannot tell why):

``FRESH``    new tensor objects;
``REFILLED`` the objects of an earlier call at this slot, new contents, version counters moved on;
``HIDDEN``   the same without moving the version counters (shared memory written from outside).
"""

from __future__ import annotations

import errno
import importlib.machinery
import importlib.util
import math
import mmap
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType, GeneratorType
from typing import Any, NoReturn

import msgspec
import torch

from engine.bench import c_entry, wire
from engine.problems.dtypes import torch_dtype

FRESH, REFILLED, HIDDEN = range(3)
_MADV_POPULATE_WRITE = 23  # since Linux 5.14; the mmap module has no name for it
_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter
_SLIPS = (type(None), str, bytes, complex, set, GeneratorType, FunctionType)
_NAME_OF: Callable[[type], str] = type.__dict__["__name__"].__get__
_TRACEBACK_OF: Callable[[BaseException], Any] = BaseException.__dict__["__traceback__"].__get__
_NO_ROOM = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
_ERRNO_OF: Callable[[OSError], Any] = OSError.__dict__["errno"].__get__


class Refused(Exception):
    """A result that is not what the definition declares; ``status`` is a row status of :mod:`wire`."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def type_name(value: object) -> str:
    """Read through ``type``'s own descriptor: a metaclass can make ``__name__`` a property of its own."""
    return _NAME_OF(type(value))


def describe(error: BaseException) -> bytes:
    """Type and text of a candidate's exception. Its ``__str__`` is candidate code: failures are swallowed here."""
    try:
        text = f"{type_name(error)}: {error}"
    except BaseException:  # noqa: BLE001  see above
        text = f"{type_name(error)} (its text could not be read)"
    where = ""
    step = _TRACEBACK_OF(error)
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if "/kernelarc" in file and "/src/" in file:
            where = f" ({file.rpartition('/src/')[2]}, line {step.tb_lineno})"
        step = step.tb_next
    return (text[: wire.MAX_TEXT // 2] + where).encode("utf-8", "replace")


def status_of(error: BaseException) -> int:
    """Which row status an exception stands for. By its type: ``isinstance`` would ask its ``__class__``, which
    may be candidate code."""
    kind = type(error)
    if issubclass(kind, SystemExit):
        return wire.EXITED
    if issubclass(kind, MemoryError):
        return wire.MEMORY
    if issubclass(kind, OSError) and _ERRNO_OF(error) in _NO_ROOM:  # type: ignore[arg-type]
        return wire.DISK
    if issubclass(kind, RuntimeError):
        try:
            text = str(error)
        except BaseException:  # noqa: BLE001  its ``__str__`` is candidate code
            return wire.RAISED
        if "allocate memory" in text or "out of memory" in text:
            return wire.MEMORY
    return wire.RAISED


def import_entry(load: wire.Load, folder: str) -> Callable[..., Any]:
    """The candidate's entry function. Its folder comes last on ``sys.path``, so sources shadow nothing."""
    sys.path.append(folder)
    if load.library:
        return _from_library(load, folder)
    path = f"{folder}/{load.entry_file}"
    name = "candidate_" + load.entry_file.rpartition("/")[2].rpartition(".")[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{load.entry_file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return getattr(module, load.entry_function)  # type: ignore[no-any-return]


def _from_library(load: wire.Load, folder: str) -> Callable[..., Any]:
    """The entry function of the library that the trusted side built: an extension module, or a plain C entry."""
    path = f"{folder}/{load.library}.so"
    if c_entry.is_plain(Path(path), load.library):
        return c_entry.load_entry(Path(path), load.entry_function)
    loader = importlib.machinery.ExtensionFileLoader(load.library, path)
    spec = importlib.util.spec_from_file_location(load.library, path, loader=loader)
    if spec is None:
        raise ImportError("the library cannot be imported")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return getattr(module, load.entry_function)  # type: ignore[no-any-return]


class Arena:
    """Shared memory mapped for good. It is as large as the largest workload; what is not used takes no memory."""

    def __init__(self, fd: int, size: int) -> None:
        self.memory = mmap.mmap(fd, size, mmap.MAP_SHARED)
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.address = self.bytes.data_ptr()

    def populate(self, offset: int, size: int) -> None:
        """Fills a slot's page tables before anything in it is timed. An old kernel fills them on first use."""
        with suppress(OSError):
            self.memory.madvise(_MADV_POPULATE_WRITE, offset, size)

    def tensor(self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """A plain tensor (no view of anything) over these bytes alone: beside them lie inputs of later calls."""
        stride = []
        step = 1
        for extent in reversed(shape):
            stride.append(step)
            step *= max(extent, 1)
        empty = torch.empty(0, dtype=dtype, device="cpu")  # a candidate may have set another default
        if not math.prod(shape):
            return empty.reshape(shape)
        size = math.prod(shape) * empty.itemsize
        own = torch.frombuffer(self.memory, dtype=torch.uint8, count=size, offset=offset).untyped_storage()
        return empty.set_(own, 0, shape, tuple(reversed(stride)))


class Caller:
    """Builds arguments and executes blocks for one loaded candidate on the CPU."""

    clock_name = "wall"

    def __init__(
        self, import_entry: Callable[[], Callable[..., Any]], load: wire.Load, inputs: Arena, outputs: Arena
    ) -> None:
        self.workloads = load.workloads
        self.destination_passing = load.destination_passing
        self.inputs, self.outputs = inputs, outputs
        self._kept: dict[tuple[int, int], list[torch.Tensor]] = {}
        self.execute = _bind(import_entry, self)

    def arguments(self, workload: int, call: wire.Call) -> list[Any]:
        spec = self.workloads[workload]
        key = (workload, call.slot)
        tensors = self._kept.get(key)
        if tensors is None:
            self.inputs.populate(call.slot * spec.input_stride, spec.input_stride)
            if self.destination_passing:
                self.outputs.populate(call.slot * spec.output_stride, spec.output_stride)
        if tensors is None or call.style == FRESH:
            start = call.slot * spec.input_stride
            tensors = [
                self.inputs.tensor(start + item.offset, torch_dtype(item.dtype), item.shape)
                for item in spec.inputs
                if item.shape is not None
            ]
            self._kept[key] = tensors
        elif call.style == REFILLED:
            for tensor in tensors:
                torch.autograd.graph.increment_version(tensor)
        pool, scalars = iter(tensors), iter(call.scalars)
        arguments: list[Any] = [next(scalars) if item.shape is None else next(pool) for item in spec.inputs]
        if self.destination_passing:
            start = call.slot * spec.output_stride
            arguments += [
                self.outputs.tensor(start + item.offset, torch_dtype(item.dtype), item.shape)
                for item in spec.outputs
            ]
        return arguments


Executor = Callable[[wire.Run], tuple[list[wire.Row], list[list[wire.Place]], bytes]]


def _bind(import_entry: Callable[[], Callable[..., Any]], caller: Caller) -> Executor:
    """The block executor, with everything that it touches bound as locals before the candidate can act.

    Outputs are not copied here: the report says where they lie, and the keeper reads them out of the frozen
    process, so that nothing can be finished between the end of a call and the reading.
    """
    clock, untouched, refused = time.perf_counter_ns, torch._C.DisableTorchFunction, Refused
    held: list[Any] = []
    items_of, place_of = items_reader(), _place_reader(caller.workloads, held, caller.inputs)
    entry = import_entry()

    def execute(run: wire.Run) -> tuple[list[wire.Row], list[list[wire.Place]], bytes]:
        spec = caller.workloads[run.workload]
        outputs, returned = spec.outputs, not caller.destination_passing
        held.clear()
        prepared = [caller.arguments(run.workload, call) for call in run.calls]
        rows: list[wire.Row] = []
        places: list[list[wire.Place]] = []
        items: Any = None
        for arguments in prepared:
            try:
                begin = clock()
                result = entry(*arguments)
                if returned:
                    with untouched():
                        items = items_of(result, outputs)
                        places.append([place_of(v, item) for v, item in zip(items, outputs, strict=True)])
                # What a result's own code does (keys that compare, objects that end), and what it leaves to be
                # copied, belongs to the call: only a plain tensor is left of it when the clock is read.
                result = items = None
                end = clock()
            except refused as refusal:
                rows.append((refusal.status, 0))
                return rows, [], refusal.detail.encode("utf-8", "replace")
            except BaseException as error:  # noqa: BLE001  the candidate's border: whatever it raises is its answer
                rows.append((status_of(error), 0))
                return rows, [], describe(error)
            rows.append((wire.OK, max(end - begin, 0)))
        return rows, places, b""

    return execute


def is_plain(value: Any) -> bool:
    """Exactly a tensor. By identity: a metaclass can make any two types equal."""
    kind = type(value)
    return kind is _TENSOR or kind is _PARAMETER


def is_number(value: Any) -> bool:
    kind = type(value)
    return kind is int or kind is float or kind is bool


def type_status(value: Any) -> int:
    """What returning this is: a slip, or something that only pretends to be a tensor."""
    kind = type(value)
    slip = any(kind is plain for plain in _SLIPS) or type_name(value) == "ndarray"
    return wire.STRUCTURE if slip else wire.TYPE


def items_reader() -> Callable[[Any, list[wire.OutputSpec]], list[Any]]:
    """What takes a result apart, through the builtin types' own methods, whatever a subclass overrides.

    Keys of a dictionary may still be asked whether they are equal: let it happen before the clock is read.
    """
    plain, number, tensor, name_of = is_plain, is_number, _TENSOR, type_name

    def items_of(result: Any, outputs: list[wire.OutputSpec]) -> list[Any]:
        if len(outputs) == 1 and (plain(result) or number(result)):
            return [result]
        kind = type(result)  # not what it says of itself
        if issubclass(kind, tuple):
            items = list(tuple.__iter__(result))
        elif issubclass(kind, list):
            items = list(list.__iter__(result))
        elif issubclass(kind, dict):
            items = [dict.get(result, item.name) for item in outputs]
        elif issubclass(kind, tensor):
            items = [result]
        else:
            raise Refused(
                type_status(result), f"run returned a {name_of(result)}, not a tensor, tuple, list or dict"
            )
        if len(items) != len(outputs):
            raise Refused(
                wire.STRUCTURE, f"run returned {len(items)} values, the definition declares {len(outputs)}"
            )
        return items

    return items_of


def _place_reader(
    workloads: list[wire.WorkloadSpec], held: list[Any], inputs: Arena
) -> Callable[[Any, wire.OutputSpec], wire.Place]:
    """What says where an output lies, in memory of its own if its bytes alone are not its values (a lazy view,
    one that repeats or reaches beyond its size) or an input's. Outputs stay alive in ``held``.

    Attributes are read through the C type's own descriptors: ``torch.Tensor`` is a Python class, whose attributes
    a candidate can replace by properties that compute when they are read.
    """
    base = torch._C.TensorBase
    data_ptr, contiguous, stride_of, is_conj, is_neg, resolve_conj, resolve_neg = (
        base.data_ptr, base.contiguous, base.stride, base.is_conj, base.is_neg, base.resolve_conj, base.resolve_neg
    )  # fmt: skip
    shape_of, dtype_of, layout_of, on_host, item_bytes = (
        base.shape.__get__, base.dtype.__get__, base.layout.__get__, base.is_cpu.__get__, base.itemsize.__get__
    )  # fmt: skip
    kinds = {item.dtype: torch_dtype(item.dtype) for spec in workloads for item in spec.outputs}
    plain, number, span, width, name_of = is_plain, is_number, wire.span, wire.MAX_DIMS, type_name
    strided, as_tensor, clone, dense = torch.strided, torch.tensor, base.clone, torch.contiguous_format
    first, last = inputs.address, inputs.address + inputs.bytes.numel()

    def place_of(value: Any, spec: wire.OutputSpec) -> wire.Place:
        if number(value):
            value = as_tensor(value, dtype=kinds[spec.dtype]).reshape(spec.shape)
        if not plain(value):
            raise Refused(type_status(value), f"{spec.name} is a {name_of(value)}, not a plain torch.Tensor")
        if layout_of(value) is not strided or not on_host(value):
            raise Refused(wire.DEVICE, f"{spec.name} is not a dense tensor on the CPU")
        if dtype_of(value) is not kinds[spec.dtype]:
            raise Refused(wire.DTYPE, f"{spec.name} is {dtype_of(value)}, the definition declares {spec.dtype}")
        shape = tuple(shape_of(value))
        if shape != spec.shape:
            raise Refused(wire.SHAPE, f"{spec.name} has shape {list(shape)}, declared {list(spec.shape)}")
        if is_conj(value) or is_neg(value):
            value = resolve_neg(resolve_conj(value))
        strides = stride_of(value)
        if first <= data_ptr(value) < last:  # an input is no output
            value = clone(value, memory_format=dense)
            strides = stride_of(value)
        elif span(shape, strides) * item_bytes(value) != spec.nbytes:
            value = contiguous(value)
            strides = stride_of(value)
        held.append(value)
        return (data_ptr(value), *strides, *(0,) * (width - len(strides)))

    return place_of


def serve(channel: socket.socket, inputs: Arena, outputs: Arena, folder: str) -> NoReturn:
    """The child's whole life: one Load, then blocks until the channel closes. Never returns."""
    loads = msgspec.msgpack.Decoder(wire.Load)
    runs = msgspec.msgpack.Decoder(wire.Run)
    send, pack, receive = channel.sendall, wire.pack_report, wire.receive
    load = receive(channel, loads)
    on_host = load.device == "cpu" and not load.inputs
    try:
        caller = _caller(load, folder, inputs, outputs, on_host=on_host)
    except BaseException as error:  # noqa: BLE001  the candidate's border
        status = status_of(error)
        send(pack([(wire.IMPORT if status == wire.RAISED else status, 0)], [], describe(error)))
        while channel.recv(4096):  # nothing more is asked of this process; it ends with its channel
            pass
        os._exit(0)
    send(pack([(wire.OK, 0)], [], caller.clock_name.encode()))
    try:
        if not on_host:
            caller.serve(channel, send, pack)
        execute = caller.execute
        while True:
            rows, places, text = execute(receive(channel, runs))
            send(pack(rows, places, text))
    except EOFError:
        os._exit(0)


def _caller(load: wire.Load, folder: str, inputs: Arena, outputs: Arena, *, on_host: bool) -> Any:
    """Clocks are opened and bound before the candidate's first line runs."""
    if on_host:
        return Caller(lambda: import_entry(load, folder), load, inputs, outputs)
    from engine.bench.device_harness import DeviceCaller

    device = torch.device(load.device)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
        torch.cuda.init()
    return DeviceCaller(lambda: import_entry(load, folder), load, inputs, outputs, device)
