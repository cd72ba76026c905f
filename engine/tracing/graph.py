"""What is known of one workload's reference without its data: operators, dataflow, work and mandatory bytes."""

from __future__ import annotations

import msgspec

MAX_OPERATORS = 1000  # records per graph; counts and totals always cover everything


class Operand(msgspec.Struct, frozen=True):
    """A tensor as an operator sees it. ``value`` names the data it is a view of; strides are in elements."""

    value: int
    shape: list[int]
    dtype: str
    strides: list[int] = []


class Operator(msgspec.Struct, frozen=True):
    """One operator in aten terms that computes or moves data (views are not operators).

    ``kind``: matmul, conv, attention, pointwise, reduction, softmax, norm, gather, scatter, sort, fft, copy,
    factory, other. ``flops`` counts what the outputs need; ``unit`` is ``tensor``, ``vector`` or empty, and
    ``unit_dtype`` the narrowest type that the operands' values came in.
    """

    name: str
    kind: str
    inputs: list[Operand]
    outputs: list[Operand]
    flops: float = 0.0
    unit: str = ""
    unit_dtype: str = ""


class TraceGraph(msgspec.Struct, frozen=True, kw_only=True):
    """One traced workload.

    ``operators`` are in order; of equal ones in a loop only the first few are listed; ``operator_counts`` has all.
    ``inputs`` maps each tensor input to its value, ``outputs`` lists the returned values in definition order.
    ``flops`` is keyed by ``unit:dtype`` (``tensor:bfloat16``, ``vector:float32``). ``read_bytes`` counts every
    element of an input that some output needs once, ``write_bytes`` every output once. ``complete`` is false
    when the reference could not be followed to its end; ``notes`` say why and what was assumed.
    """

    uuid: str
    operators: list[Operator] = []
    operator_counts: dict[str, int] = {}
    inputs: dict[str, int] = {}
    outputs: list[int] = []
    flops: dict[str, float] = {}
    read_bytes: dict[str, float] = {}
    write_bytes: dict[str, float] = {}
    needs_cuda: bool = False
    complete: bool = True
    notes: list[str] = []

    @property
    def total_flops(self) -> float:
        return sum(self.flops.values())

    @property
    def total_bytes(self) -> float:
        """Mandatory bytes: needed inputs and outputs, each once."""
        return sum(self.read_bytes.values()) + sum(self.write_bytes.values())

    @property
    def untouched_inputs(self) -> list[str]:
        """Tensor inputs that no output needs."""
        return [name for name, size in self.read_bytes.items() if size == 0]
