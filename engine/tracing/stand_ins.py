"""Inputs for tracing: integers and booleans are real, floats have shapes only (imports torch; child only)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from engine.errors import BadInput, Fault
from engine.problems.axes import shape_of
from engine.problems.distributions import Draw, plain_tensor, role_of
from engine.problems.dtypes import stored_shape, torch_dtype
from engine.problems.inputs import make_inputs
from engine.problems.model import (
    CustomInput,
    Definition,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    TensorSpec,
    Workload,
)
from engine.tracing.marks import causal_fraction
from engine.tracing.recorder import REAL_BYTES, Recorder, paused

_CPU, _META = torch.device("cpu"), torch.device("meta")
_SEED = 20


def traced_inputs(
    recorder: Recorder,
    definition: Definition,
    workload: Workload,
    axes: Mapping[str, int],
    root: str | None,
    module: Any,
) -> list[Any]:
    """The arguments of ``run`` in order; every tensor is registered with the recorder as an input."""
    if any(isinstance(source, CustomInput) for source in workload.inputs.values()):
        with recorder, paused(recorder):
            values = _custom(definition, workload, axes, module)
        recorder.nodes.clear()
    else:
        values = [
            _input(recorder, definition, workload, name, spec, axes, root)
            for name, spec in definition.inputs.items()
        ]
    for index, name in enumerate(definition.inputs):
        value = values[index]
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() and value.dim():
                values[index] = value = recorder.to_meta(value)
            recorder.register_input(name, value)
    return values


def _custom(definition: Definition, workload: Workload, axes: Mapping[str, int], module: Any) -> list[Any]:
    """The entry point under the recorder: its index logic runs for real, its large floats have no data."""
    entrypoint = getattr(module, definition.custom_inputs_entrypoint or "")
    scalars = {n: s.value for n, s in workload.inputs.items() if isinstance(s, ScalarInput)}
    torch.manual_seed(_SEED)
    made = entrypoint({**axes, **scalars}, _CPU)
    return [made[name] for name in definition.inputs]


def _input(
    recorder: Recorder,
    definition: Definition,
    workload: Workload,
    name: str,
    spec: TensorSpec,
    axes: Mapping[str, int],
    root: str | None,
) -> Any:
    source = workload.inputs.get(name, RandomInput())
    if isinstance(source, ScalarInput):
        return source.value
    shape = shape_of(spec, axes)
    if shape is None:
        return 1.0 if torch_dtype(spec.dtype).is_floating_point else 1
    stored, dtype = stored_shape(spec.dtype, shape), torch_dtype(spec.dtype)
    generator = torch.Generator().manual_seed(_SEED)
    draw = Draw(name, spec.description or "", stored, dtype, _CPU, generator)
    if isinstance(source, SafetensorsInput):
        return _from_file(recorder, definition, workload, name, draw, axes, root)
    return _drawn(recorder, draw)


def _drawn(recorder: Recorder, draw: Draw) -> torch.Tensor:
    elements = math.prod(draw.shape)
    real = not draw.dtype.is_floating_point and elements * draw.dtype.itemsize <= REAL_BYTES
    tensor = plain_tensor(draw) if real else torch.empty(draw.shape, dtype=draw.dtype, device=_META)
    if role_of(draw) == "causal mask":
        value = recorder.value_of(tensor)
        value.structured = True
        value.kept = causal_fraction(draw.shape[-2], draw.shape[-1])
    return tensor


def _from_file(
    recorder: Recorder,
    definition: Definition,
    workload: Workload,
    name: str,
    draw: Draw,
    axes: Mapping[str, int],
    root: str | None,
) -> torch.Tensor:
    one = Definition(
        name=definition.name,
        axes=definition.axes,
        inputs={name: definition.inputs[name]},
        outputs={},
        reference="",
    )
    try:
        only = Workload(uuid=workload.uuid, axes=workload.axes, inputs={name: workload.inputs[name]})
        value = make_inputs(one, only, axes, _CPU, _SEED, root=root)[0]
        return value
    except (Fault, BadInput):
        if draw.dtype.is_floating_point:
            return _drawn(recorder, draw)
    recorder.assumed = True
    recorder.note(f"{name}: the file is not here; {_plausible_words(name)} assumed")
    return _plausible(name, draw, axes)


def _plausible_words(name: str) -> str:
    return "sequences of equal length" if _is_offsets(name) else "distinct indices in range"


def _is_offsets(name: str) -> bool:
    return any(word in name for word in ("indptr", "cu_seqlens", "offsets", "seqlens", "seq_offsets"))


def _plausible(name: str, draw: Draw, axes: Mapping[str, int]) -> torch.Tensor:
    """Offsets: equal steps up to the axis they cut. Others: 0, 1, 2 … within the axis they point into."""
    count = 1
    for size in draw.shape:
        count *= size
    if _is_offsets(name):
        total = _offsets_total(name, axes)
        steps = [total * i // max(count - 1, 1) for i in range(count)]
        return torch.tensor(steps, dtype=draw.dtype).reshape(draw.shape)
    limit = max(
        [size for axis, size in axes.items() if "page" in axis and axis != "page_size"] + [count], default=1
    )
    if "last" in name:
        return torch.full(draw.shape, axes.get("page_size", 1), dtype=draw.dtype)
    return (torch.arange(count, dtype=draw.dtype) % max(limit, 1)).reshape(draw.shape)


def _offsets_total(name: str, axes: Mapping[str, int]) -> int:
    """What the last offset must be: the axis that shares the name's prefix (``kv_indptr`` → ``total_kv``)."""
    prefix = name.split("_")[0]
    short = prefix[0]
    ranked = [
        (
            axis.startswith(("total", "num", "nnz")),
            prefix in axis.split("_"),
            short in axis.split("_"),
            "head" not in axis,
            axis,
        )
        for axis in axes
        if not axis.startswith("len") and "head" not in axis and not axis.endswith(("dim", "size"))
    ]
    fitting = [entry for entry in ranked if entry[0] and (entry[1] or entry[2])]
    if fitting:
        return axes[
            max(fitting, key=lambda entry: (entry[1], entry[4].startswith("total"), "indices" in entry[4]))[4]
        ]
    candidates = [size for axis, size in axes.items() if axis.startswith("total")]
    return max(candidates or list(axes.values()) or [0])
