"""Where inputs and outputs lie in shared memory: one slot per call in flight, page-aligned, no torch."""

from __future__ import annotations

import math

from engine.bench.wire import InputSpec, OutputSpec, WorkloadSpec
from engine.problems.axes import shape_of
from engine.problems.dtypes import stored_shape, tensor_bytes
from engine.problems.model import Definition, Workload

PAGE = 4096
_ALIGN = 256


def _aligned(offset: int, unit: int = _ALIGN) -> int:
    return -(-offset // unit) * unit


def workload_spec(definition: Definition, workload: Workload, axes: dict[str, int]) -> WorkloadSpec:
    """Offsets of every tensor inside a slot. Declared shapes are stored shapes (packed fp4)."""
    inputs: list[InputSpec] = []
    offset = 0
    for name, spec in definition.inputs.items():
        shape = shape_of(spec, axes)
        if shape is None:
            inputs.append(InputSpec(name=name, dtype=spec.dtype, shape=None))
            continue
        size = tensor_bytes(spec.dtype, shape)
        stored = stored_shape(spec.dtype, shape)
        inputs.append(InputSpec(name=name, dtype=spec.dtype, shape=stored, offset=offset, nbytes=size))
        offset = _aligned(offset + size)
    input_stride = max(_aligned(offset, PAGE), PAGE)
    outputs: list[OutputSpec] = []
    offset = 0
    for name, spec in definition.outputs.items():
        shape = shape_of(spec, axes) or ()
        size = tensor_bytes(spec.dtype, shape)
        stored = stored_shape(spec.dtype, shape)
        outputs.append(OutputSpec(name=name, dtype=spec.dtype, shape=stored, offset=offset, nbytes=size))
        offset = _aligned(offset + size)
    output_stride = max(_aligned(offset, PAGE), PAGE)
    assert math.gcd(PAGE, _ALIGN) == _ALIGN
    return WorkloadSpec(
        uuid=workload.uuid,
        inputs=inputs,
        outputs=outputs,
        input_stride=input_stride,
        output_stride=output_stride,
    )
