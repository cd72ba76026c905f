"""A dispatch mode that follows a reference without its data (imports torch; child process only).

Float inputs and large float tensors live on the ``meta`` device: shapes and types, no data. Integers, booleans and
small constants are real, so that indices, offsets, expert assignments and masks take their true course. An
operator runs for real iff all its operands are real and its result is small; else on ``meta``, and its result is
unknown from then on. Where the reference asks for an unknown number or index, a plausible one is assumed and
noted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.tracing import marks
from engine.tracing.calls import (
    call_site,
    factory_size,
    flat_tensors,
    gathered_elements,
    is_shaped,
    on_cpu,
    signature,
    storage_key,
)
from engine.tracing.fallbacks import CHOOSING, likely_true, with_indices, without_meta_kernel
from engine.tracing.rules import OpInfo, matrix_flops, op_info, vector_flops
from engine.tracing.values import Node, Read, Value, bits_of, view_key

REAL_FLOAT_ELEMENTS = 1 << 13  # a float tensor up to this size keeps its data
REAL_BYTES = 1 << 27  # so do integers and booleans up to this
_META = torch.device("meta")


COMPLEX_PRODUCTS = 3  # real ones that make a complex one, after Gauss
DISPATCHES_PER_NODE = 4  # views and reads of numbers count towards the budget too
_INFO: dict[Any, OpInfo] = {}
_MAX_KNOWN = 50_000
_KNOWN_SHAPES: dict[Any, tuple[tuple[int, ...], tuple[int, ...], torch.dtype]] = {}


class OutOfBudget(Exception):
    """The operator budget is used up: the reference loops over its data for too long."""


class Recorder(TorchDispatchMode):
    """Records nodes while active. ``values`` maps live storages to their current value."""

    def __init__(self, budget: int, *, assume_true: bool = False) -> None:
        super().__init__()
        self.budget, self.assume_true = budget, assume_true
        self.nodes: list[Node] = []
        self.inputs: dict[str, Value] = {}
        self.used: list[tuple[Value, torch.Tensor]] = []
        self.notes: dict[str, None] = {}
        self.assumed = False  # index data were made up: which elements they select says little
        self.real_only = False  # while inputs are made: random draws are not recorded
        self._values: dict[int, Value] = {}
        self._alive: list[Any] = []
        self._twins: dict[int, torch.Tensor] = {}
        self._unknown: set[int] = set()
        self._count = 0
        self.dispatched = 0

    # -- values ---------------------------------------------------------------------------------------------

    def value_of(self, tensor: torch.Tensor) -> Value:
        key = storage_key(tensor)
        value = self._values.get(key)
        if value is None:
            value = self._new_value(tensor, None)
            self._values[key] = value
        return value

    def _new_value(self, tensor: torch.Tensor, producer: Node | None) -> Value:
        self._count += 1
        self._alive.append(tensor.untyped_storage())
        return Value(self._count, tensor, producer)

    def register_input(self, name: str, tensor: torch.Tensor) -> None:
        """Make ``tensor`` the input ``name``: a fresh value with what is known of its content."""
        before = self.value_of(tensor)
        value = self._new_value(tensor, None)
        value.input = name
        value.structured, value.kept, value.nonzero = before.structured, before.kept, before.nonzero
        self.inputs[name] = value
        key = storage_key(tensor)
        self._values[key] = value
        twin = self._twins.get(key)
        if twin is not None:
            self._values[storage_key(twin)] = value

    def use(self, tensor: torch.Tensor) -> None:
        """Python reads ``tensor`` out: the outputs depend on it although no operator says so."""
        self.used.append((self.value_of(tensor), tensor))

    def note(self, text: str) -> None:
        self.notes.setdefault(text)

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "meta" or storage_key(tensor) in self._unknown

    def to_meta(self, tensor: torch.Tensor) -> torch.Tensor:
        """The data-less twin of a real tensor; all views of one storage share one twin storage."""
        if tensor.device.type == "meta":
            return tensor
        key = storage_key(tensor)
        twin = self._twins.get(key)
        if twin is None or twin.dtype is not tensor.dtype:
            elements = tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)
            twin = torch.empty(elements, dtype=tensor.dtype, device=_META)
            self._twins[key] = twin
        view = twin.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        self._values[storage_key(view)] = self.value_of(tensor)
        return view

    # -- dispatch -------------------------------------------------------------------------------------------

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard would cost as much as the operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        info = _INFO.get(func)
        if info is None:
            info = _INFO[func] = op_info(func)
        self.dispatched += 1
        if self.dispatched > self.budget * DISPATCHES_PER_NODE:
            raise OutOfBudget
        if info.reshapes:
            return func(*args, **(kwargs or {}))
        if info.returns_view and not kwargs:
            source = args[0]
            if isinstance(source, torch.Tensor):
                return func(self.to_meta(source) if self.is_unknown(source) else source, *args[1:])
        kwargs = kwargs or {}
        tensors = [*flat_tensors(args), *flat_tensors(kwargs.values())]
        if info.base == "_local_scalar_dense":
            self.use(tensors[0])
            if self.is_unknown(tensors[0]):
                return self._assumed_number(tensors[0])
        unknown = any(self.is_unknown(tensor) for tensor in tensors)
        if not unknown and self._stays_real(info, tensors, args, kwargs):
            out = func(*args, **on_cpu(kwargs))
        else:
            out = self._run_without_data(func, info, args, kwargs)
        if self.real_only and not unknown and (info.kind == "random" or info.base == "copy_"):
            if info.base == "copy_":
                self.value_of(args[0]).structured = False
            return out
        self._record(info, tensors, args, kwargs, out)
        return out

    def _stays_real(self, info: OpInfo, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> bool:
        if not tensors:
            elements, dtype = factory_size(info.base, args, kwargs)
            is_float = dtype.is_floating_point or dtype.is_complex
            if is_float and is_shaped(args) and torch.device(kwargs.get("device") or "cpu").type == "meta":
                return False  # it will meet tensors without data, and must be on their device
            return elements <= REAL_FLOAT_ELEMENTS if is_float else elements * dtype.itemsize <= REAL_BYTES
        if info.returns_view:
            return True
        try:
            elements = math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
        except RuntimeError:
            elements = max(tensor.numel() for tensor in tensors)
        if info.kind == "factory":  # *_like and new_*
            elements = max(elements, factory_size(info.base, args, kwargs)[0])
        if info.kind in ("matmul", "conv", "attention"):
            return elements <= REAL_FLOAT_ELEMENTS
        is_float = any(tensor.is_floating_point() for tensor in tensors)
        widest = max(tensor.element_size() for tensor in tensors)
        return elements <= REAL_FLOAT_ELEMENTS if is_float else elements * widest <= REAL_BYTES

    def _run_without_data(self, func: Any, info: OpInfo, args: Any, kwargs: Any) -> Any:
        meta_args, meta_kwargs = self._meta(args), {key: self._meta(value) for key, value in kwargs.items()}
        if "device" in meta_kwargs or not any(True for _ in flat_tensors(meta_args)):
            meta_kwargs["device"] = _META
        out = self._shapes(func, info, meta_args, meta_kwargs)
        if not info.mutates:
            return with_indices(self, info, meta_args, out) if info.base in CHOOSING else out
        # The caller's own object must come back, and everyone who holds its storage must see that it changed.
        targets = [args[i] if i < len(args) else kwargs.get(name) for i, name in info.mutates]
        for target in targets:
            if isinstance(target, torch.Tensor) and target.device.type != "meta":
                self._unknown.add(storage_key(target))
        returned = targets[0]
        return returned if isinstance(returned, torch.Tensor) and len(targets) == 1 else out

    def _shapes(self, func: Any, info: OpInfo, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operator on ``meta``; one result per signature is remembered, since loops repeat few shapes."""
        in_place = bool(info.mutates) and info.kind in ("pointwise", "copy", "factory", "scatter", "random")
        if in_place and isinstance(args[0], torch.Tensor):
            return args[0]
        key = None if info.returns_view or info.mutates else signature(func, args, kwargs)
        if key is not None and key in _KNOWN_SHAPES:
            shape, strides, dtype = _KNOWN_SHAPES[key]
            return torch.empty_strided(shape, strides, dtype=dtype, device=_META)
        try:
            out = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            return without_meta_kernel(self, info, args, kwargs, error)
        if key is not None and isinstance(out, torch.Tensor) and len(_KNOWN_SHAPES) < _MAX_KNOWN:
            fresh = all(storage_key(out) != storage_key(tensor) for tensor in flat_tensors(args))
            if fresh and out.untyped_storage().nbytes() == out.numel() * out.element_size():
                _KNOWN_SHAPES[key] = (tuple(out.shape), tuple(out.stride()), out.dtype)
        return out

    def _meta(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return self.to_meta(item)
        if isinstance(item, list | tuple):
            return type(item)(self._meta(part) for part in item)
        return item

    def _assumed_number(self, tensor: torch.Tensor) -> bool | int | float:
        if tensor.dtype is torch.bool:
            answer = self.assume_true or likely_true(self.value_of(tensor))
            self.note(f"branches on data: a condition was assumed {str(answer).lower()}")
            return answer
        self.note("reads a number from data: 1 was assumed")
        return 1.0 if tensor.is_floating_point() else 1

    def fused_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **_: Any,
    ) -> torch.Tensor | None:
        """``scaled_dot_product_attention`` as one operator; ``None`` if its operands are real (and small)."""
        tensors = [t for t in (query, key, value, attn_mask) if t is not None]
        if not any(self.is_unknown(tensor) for tensor in tensors):
            return None
        with torch._C._DisableTorchDispatch():
            out = torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=_META)
        node = Node("aten.scaled_dot_product_attention", "attention", call_site())
        node.reads = [Read(self.value_of(tensor), tensor, scales=False) for tensor in tensors]
        pairs = math.prod(query.shape[:-1]) * key.shape[-2]
        share = marks.attention_fraction(self, query, key, attn_mask, is_causal=is_causal)
        node.flops = 2.0 * pairs * (query.shape[-1] + value.shape[-1]) * share
        narrow = [marks.narrow_of(self.value_of(tensor), tensor) for tensor in (query, key, value)]
        node.unit, node.unit_dtype = "tensor", max(narrow, key=bits_of)
        self._finish(node, [out])
        self.nodes.append(node)
        return out

    # -- recording ------------------------------------------------------------------------------------------

    def _record(self, info: OpInfo, tensors: list[torch.Tensor], args: Any, kwargs: Any, out: Any) -> None:
        outs = [
            item for item in (out if isinstance(out, list | tuple) else (out,)) if isinstance(item, torch.Tensor)
        ]
        if not outs:
            return
        known = {storage_key(tensor) for tensor in tensors}
        if not info.mutates and all(storage_key(item) in known for item in outs):
            return  # a view
        if len(self.nodes) >= self.budget:
            raise OutOfBudget
        node = Node(info.name, info.kind, call_site())
        node.reads = [
            Read(
                self.value_of(tensor),
                tensor,
                scales=info.kind in ("pointwise", "copy", "softmax", "reduction", "norm", "gather"),
            )
            for tensor in tensors
        ]
        self._special_reads(info, node, tensors, args)
        self._work(info, node, args, tensors, outs)
        self._finish(node, outs)
        for item in outs:
            self._overwrite(info, node, item, tensors)
        marks.propagate(info, node, tensors, args, kwargs, outs)
        self.nodes.append(node)

    def _finish(self, node: Node, outs: list[torch.Tensor]) -> None:
        """Give the node's results values of their own; ``node.before`` keeps what their storages held."""
        for item in outs:
            key = storage_key(item)
            node.before.append(self._values.get(key))
            value = self._new_value(item, node)
            node.outputs.append(value)
            node.out_shape.append(tuple(item.shape))
            node.out_strides.append(tuple(item.stride()))
            node.dtype.append(str(item.dtype).removeprefix("torch."))
            self._values[key] = value
            twin = self._twins.get(key)
            if twin is not None:
                self._values[storage_key(twin)] = value

    def _overwrite(self, info: OpInfo, node: Node, item: torch.Tensor, tensors: list[torch.Tensor]) -> None:
        """For an in-place write: what it leaves over of the old content, and whether it reads it."""
        before = node.before[0]
        if before is None or not info.mutates:
            return
        if item.numel() < before.numel:
            node.old = before
        overwrites = info.base in ("copy_", "fill_", "zero_") or info.kind == "random"
        if overwrites or (info.kind == "scatter" and "add" not in info.base):
            # The written place itself is not read.
            node.reads = [
                read for read, tensor in zip(node.reads, tensors, strict=True) if tensor is not tensors[0]
            ]
            if info.kind == "scatter":
                node.old = before

    def _special_reads(self, info: OpInfo, node: Node, tensors: list[torch.Tensor], args: Any) -> None:
        if info.kind != "gather":
            return
        source, indices = tensors[0], tensors[1:]
        rows = gathered_elements(info, args, source, indices)
        if rows is not None:
            node.reads[0].elements = min(node.reads[0].elements, rows)
        named = [(self.value_of(index).id, view_key(index)) for index in indices]
        node.reads[0].view = ("gathered", info.base, node.reads[0].view, *named)
        if indices:
            node.reads[0].index_of = self.value_of(indices[0])
            node.reads[0].entries = indices[0].numel()

    def _work(
        self, info: OpInfo, node: Node, args: Any, tensors: list[torch.Tensor], outs: list[torch.Tensor]
    ) -> None:
        if info.kind not in ("matmul", "conv", "attention"):
            node.flops = vector_flops(info, tensors, args, outs[0])
            node.flops *= marks.vector_fraction(info, [read.value for read in node.reads])
            node.unit, node.unit_dtype = "vector", marks.vector_type(info, outs[0])
            if not node.flops:
                node.unit = node.unit_dtype = ""
            return
        node.flops, operands = matrix_flops(info, args, outs[0])
        narrow = [marks.narrow_of(self.value_of(operand), operand) for operand in operands]
        node.unit, node.unit_dtype = "tensor", max(narrow, key=bits_of)
        if any(operand.is_complex() for operand in operands):
            node.flops *= COMPLEX_PRODUCTS
            node.unit_dtype = "float64" if outs[0].dtype is torch.complex128 else "float32"
        for operand in operands:
            kept = self.value_of(operand).kept
            if kept is not None:
                node.flops *= kept
                break


@contextmanager
def paused(mode: Recorder) -> Iterator[None]:
    """Random inputs are drawn without a record of the draws."""
    before = mode.real_only
    mode.real_only = True
    try:
        yield
    finally:
        mode.real_only = before
