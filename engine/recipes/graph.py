"""A traced reference as plain data: what ran, on what, and what flowed where. No torch.

An operator argument is a number, a string, ``None``, a list of arguments, ``Ref`` (a tensor) or ``Dtype``.
"""

from __future__ import annotations

from typing import Any

import msgspec

REDUCED = "reduced"  # label of a trace with fewer experts than the problem has
MAX_OPS = 6000  # of one trace
CONSTANT_ELEMENTS = 64


class Ref(msgspec.Struct, frozen=True, tag="v", tag_field="t"):
    """The tensor value number ``id``."""

    id: int


class Dtype(msgspec.Struct, frozen=True, tag="d", tag_field="t"):
    """A torch dtype by name, for instance ``bfloat16``."""

    name: str


class Value(msgspec.Struct, frozen=True):
    shape: tuple[int, ...]
    dtype: str


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """One ATen call, in order. ``name`` has no namespace: ``mul.Tensor``. ``outs``: its tensor results."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any] = {}
    outs: list[int] = []

    @property
    def base(self) -> str:
        return self.name.partition(".")[0]


class RawGraph(msgspec.Struct, frozen=True, kw_only=True):
    """One traced workload. ``inputs`` are tensor value numbers, ``scalars`` plain arguments, by input name."""

    inputs: dict[str, int]
    scalars: dict[str, Any]
    values: dict[int, Value]
    ops: list[Op]
    outputs: list[int]
    axes: dict[str, int]
    constants: dict[int, list[float]] = {}  # small tensors that the reference builds from numbers
    mutates: bool = False  # wrote into a tensor in place
    data_dependent: bool = False  # asked for data: what ran may differ on real inputs
    label: str = ""  # uuid of the workload, ``scalars`` or ``reduced``: see :mod:`engine.recipes.tracing`
    error: str = ""  # why the trace is incomplete, if it is

    @property
    def operators(self) -> list[Op]:
        return self.ops


def refs(argument: Any) -> list[int]:
    """Numbers of all tensors inside one argument."""
    if isinstance(argument, Ref):
        return [argument.id]
    if isinstance(argument, list | tuple):
        return [number for item in argument for number in refs(item)]
    return []
