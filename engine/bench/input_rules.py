"""How a workload's inputs come about: who may make them, and which stand for other draws too (imports torch)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import torch

from engine.bench import wire
from engine.problems.axes import shape_of
from engine.problems.distributions import Draw, role_of
from engine.problems.dtypes import stored_shape, torch_dtype
from engine.problems.model import CustomInput, Definition, RandomInput, ScalarInput, Workload

# Roles whose elements are drawn independently of each other: rotating them gives another valid draw.
_EXCHANGEABLE = {None, "weight matrix", "positive"}
_NORMAL = {None, "weight matrix"}  # of those, in float types that can be added: sums of them are normal again
_CONSTANT = {"norm weight", "norm bias", "causal mask", "given"}  # every draw is the same
_LEAST_BLENDED = 16  # elements


def with_rules(
    spec: wire.WorkloadSpec,
    definition: Definition,
    workload: Workload,
    axes: Mapping[str, int],
    device: torch.device,
    *,
    tells_seeds: bool,
) -> wire.WorkloadSpec:
    """Adds which inputs may be rotated, and who makes them: the seed alone, or the problem's own code."""
    kinds = [workload.inputs.get(item.name, RandomInput()) for item in spec.inputs]
    inputs: list[wire.InputSpec] = []
    for item, kind in zip(spec.inputs, kinds, strict=True):
        drawn = item.shape is not None and isinstance(kind, RandomInput)
        role = role_in(definition, item.name, axes, device) if drawn else "given"
        dtype = torch_dtype(item.dtype)
        blends = role in _NORMAL and dtype.is_floating_point and dtype.itemsize > 1
        # A rotation alone could be undone, or makes no difference to what is summed or sorted: not even where
        # the input is blended, if there is nothing to rotate.
        redrawn = drawn and role not in _CONSTANT and (not blends or math.prod(item.shape or ()) < _LEAST_BLENDED)
        rules = {"rotates": role in _EXCHANGEABLE, "blends": blends, "redrawn": redrawn}
        inputs.append(msgspec.structs.replace(item, **rules))
    seeded = all(isinstance(kind, RandomInput | ScalarInput) for kind in kinds)
    made = bool(definition.custom_inputs_entrypoint) and not seeded
    alone = all(isinstance(kind, RandomInput | ScalarInput | CustomInput) for kind in kinds)
    told = tells_seeds and (alone if made else seeded)
    return msgspec.structs.replace(spec, inputs=inputs, seeded=seeded, made=made, told=told)


def role_in(definition: Definition, name: str, axes: Mapping[str, int], device: torch.device) -> str | None:
    """How an input is drawn, as far as that allows other draws to be made from it."""
    spec = definition.inputs[name]
    if definition.op_type == "sampling" and name == "probs":
        return "probabilities"
    shape = stored_shape(spec.dtype, shape_of(spec, axes) or ())
    draw = Draw(name, spec.description or "", shape, torch_dtype(spec.dtype), device, torch.Generator())
    return role_of(draw)
