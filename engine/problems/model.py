"""A problem as SOL-ExecBench describes it: definition, workloads, tolerances. Plain data, no torch.

Field names and defaults are the format's own (``definition.json`` and ``workload.jsonl``), so that decoding is
validation. What the format leaves unchecked and KernelArc checks is in :mod:`engine.problems.load`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class ConstAxis(msgspec.Struct, frozen=True, tag_field="type", tag="const"):
    value: int
    description: str | None = None


class VarAxis(msgspec.Struct, frozen=True, tag_field="type", tag="var"):
    description: str | None = None


class ExprAxis(msgspec.Struct, frozen=True, tag_field="type", tag="expr"):
    expression: str
    description: str | None = None


Axis = ConstAxis | VarAxis | ExprAxis


class TensorSpec(msgspec.Struct, frozen=True):
    """``shape`` is a list of axis names or decimal literals, ``[]`` a 0-dim tensor, ``None`` a Python scalar."""

    dtype: str
    shape: list[str] | None = None
    description: str | None = None


class RandomInput(msgspec.Struct, frozen=True, tag_field="type", tag="random"):
    pass


class ScalarInput(msgspec.Struct, frozen=True, tag_field="type", tag="scalar"):
    value: bool | int | float


class SafetensorsInput(msgspec.Struct, frozen=True, tag_field="type", tag="safetensors"):
    path: str
    tensor_key: str


class CustomInput(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    pass


InputSource = RandomInput | ScalarInput | SafetensorsInput | CustomInput


class Tolerance(msgspec.Struct, frozen=True):
    """``|out − ref| ≤ max_atol + max_rtol·|ref|`` for at least ``required_matched_ratio`` of the elements."""

    max_atol: float = 1e-2
    max_rtol: float = 1e-2
    required_matched_ratio: float = 0.99
    max_error_cap: float | None = None
    allow_negative_inf: bool = False


class Workload(msgspec.Struct, frozen=True):
    """One concrete shape / input set. ``inputs`` without an entry for a name means random."""

    uuid: str
    axes: dict[str, int]
    inputs: dict[str, InputSource] = {}
    tolerance: Tolerance = Tolerance()


class Definition(msgspec.Struct, frozen=True):
    name: str
    axes: dict[str, Axis]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    reference: str
    op_type: str | None = None
    description: str | None = None
    hf_id: str | None = None
    custom_inputs_entrypoint: str | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A definition with its workloads. ``root`` is where relative blob paths start (``None``: frozen copy)."""

    definition: Definition
    workloads: list[Workload]
    root: str | None = None
    notes: list[str] = []

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def folder(self) -> Path | None:
        return Path(self.root) if self.root else None
