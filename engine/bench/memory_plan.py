"""What fits into a GPU's memory: calls in flight per process, and processes beside each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.bench.wire import WorkloadSpec

SLOTS = 8  # calls of one block, at most; more where a slot is small
MANY_SLOTS = 32
MANY_PLACES = 64  # processes, where memory says nothing
_DEVICE_SHARE = 0.8
_CONTEXT_BYTES = 1 << 30  # of a process on a GPU, without its tensors
_SMALL_ARENA = 32 << 20
_ARENA_BYTES = 512 << 20  # of a GPU, per side and direction; larger problems get fewer slots
_HOST_ARENA_BYTES = 128 << 20  # shared memory that every side has filled: two calls of a large problem take long
_LARGE_BYTES = 512 << 20  # of a call
KEPT_BYTES = 1 << 30
"""Of inputs that a process keeps over all workloads, where a single one's do not take more."""


def slots_of(spec: WorkloadSpec, device_bytes: int | None = None) -> int:
    """Calls that may be in flight: many for small problems, whose blocks would be too short otherwise.

    ``device_bytes`` of a GPU: judge and three sides must fit, each side with its sets, outputs and base sets.
    """
    stride = max(spec.input_stride, spec.output_stride)
    most = _HOST_ARENA_BYTES if device_bytes is None else _ARENA_BYTES
    slots = max(2, min(SLOTS, most // stride), min(MANY_SLOTS, _SMALL_ARENA // stride))
    if device_bytes is None:
        return slots
    inputs, outputs = spec.input_stride, spec.output_stride
    each = (_DEVICE_SHARE * device_bytes - 4 * (inputs + outputs)) / 3 - 2 * inputs
    least = 2 if fitting(spec, device_bytes, 2) else 1
    return max(least, min(slots, int(each // (inputs + 2 * outputs))))


def fitting(spec: WorkloadSpec, device_bytes: int, slots: int = 1) -> bool:
    """Whether the judge and two sides with so many calls in flight fit into a GPU's memory.

    A side holds the inputs of its calls and one more tensor that is being drawn (all of them, where the problem's
    own code draws), each call's outputs and copies of them, and what the next call returns; the judge its inputs,
    drawn and rotated, and two sets of outputs.
    """
    inputs, outputs = spec.input_stride, spec.output_stride
    drawn = inputs if spec.made else max((item.nbytes for item in spec.inputs), default=inputs)
    side = slots * (inputs + outputs) + drawn + 2 * outputs + _CONTEXT_BYTES
    return 2 * (inputs + outputs) + 2 * side + _CONTEXT_BYTES <= device_bytes


def sides_that_fit(specs: Sequence[WorkloadSpec], slots: Sequence[int], device_bytes: int) -> int:
    """How many processes may hold their calls in flight beside the judge; three are planned for.

    Each with the inputs of its calls and two sets while they are drawn, outputs and their copies.
    """
    pairs = list(zip(specs, slots, strict=True))
    kept = min(sum(count * spec.input_stride for spec, count in pairs), KEPT_BYTES)
    fits = [
        (_DEVICE_SHARE * device_bytes - 4 * (spec.input_stride + spec.output_stride))
        / ((count + 2) * spec.input_stride + 2 * count * spec.output_stride + kept + _CONTEXT_BYTES)
        for spec, count in pairs
    ]
    return max(3, min(MANY_PLACES, int(min(fits))))


def is_large(specs: Sequence[WorkloadSpec]) -> bool:
    return any(spec.input_stride + spec.output_stride > _LARGE_BYTES for spec in specs)
