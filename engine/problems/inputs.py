"""The inputs of a workload, the same for everyone who holds its seed (imports torch).

Used by the judge, by a candidate's child and by the tracer. Nothing depends on the process's own random state,
default dtype or default device: each input has its own generator on the device, seeded from (seed, name), so
that two processes on the same kind of device build equal tensors in any order.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from engine.errors import BadInput, Fault
from engine.problems.axes import shape_of
from engine.problems.blobs import resolve_blob
from engine.problems.distributions import Draw, plain_tensor, random_tensor
from engine.problems.dtypes import stored_shape, torch_dtype
from engine.problems.model import (
    CustomInput,
    Definition,
    SafetensorsInput,
    ScalarInput,
    TensorSpec,
    Workload,
)
from engine.problems.outputs import allocate_outputs as allocate_outputs
from engine.problems.reference import load_reference

CustomInputs = Callable[[dict[str, Any], torch.device], dict[str, Any]]


def make_inputs(
    definition: Definition,
    workload: Workload,
    axes: Mapping[str, int],
    device: torch.device | str,
    seed: int,
    *,
    root: str | Path | None = None,
    entrypoint: CustomInputs | None = None,
    given: Mapping[str, Any] | None = None,
) -> list[Any]:
    """One set of inputs in definition order: tensors on ``device``, Python numbers for scalars.

    ``given``: random inputs that need not be drawn, by name.

    ``axes`` is ``resolve_axes``'s answer, ``root`` the problem's folder (for safetensors), ``entrypoint`` the
    custom input function if the caller has loaded the reference already. Without it a custom workload executes
    the reference here. Raises :class:`Fault` ``needs.blobs`` for a missing safetensors file, :class:`BadInput`
    if a file or entry point gives something else than declared; whatever a custom function raises is passed on.
    """
    place = torch.device(device)
    custom: dict[str, Any] = {}
    if any(isinstance(source, CustomInput) for source in workload.inputs.values()):
        custom = _custom_inputs(definition, workload, axes, place, seed, entrypoint)
    values: list[Any] = []
    for name, spec in definition.inputs.items():
        source = workload.inputs.get(name)
        if isinstance(source, ScalarInput):
            values.append(source.value)
        elif isinstance(source, SafetensorsInput):
            values.append(_from_blob(name, spec, source, axes, place, root))
        elif isinstance(source, CustomInput):
            value = custom[name]
            values.append(value.to(place) if isinstance(value, torch.Tensor) else value)
        elif given and name in given:
            values.append(given[name])
        else:
            values.append(random_input(definition, name, axes, place, seed))
    return values


def scalar_inputs(definition: Definition, workload: Workload, seed: int) -> list[bool | int | float]:
    """The Python numbers among :func:`make_inputs`'s values, for a workload without custom or stored inputs."""
    numbers: list[bool | int | float] = []
    for name, spec in definition.inputs.items():
        source = workload.inputs.get(name)
        if isinstance(source, ScalarInput):
            numbers.append(source.value)
        elif spec.shape is None:
            numbers.append(_random_number(name, torch_dtype(spec.dtype), seed))
    return numbers


def derive_seed(seed: int, name: str) -> int:
    """A 63-bit seed for one purpose, from the round's seed and the purpose's name."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{name}".encode()).digest()[:8], "big") >> 1


@contextmanager
def seeded_global_rng(seed: int, device: torch.device) -> Iterator[None]:
    """Python's, numpy's (if loaded) and torch's global generators seeded, and restored afterwards."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    torch_state = torch.get_rng_state()
    device_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if device_state is not None:
            torch.cuda.set_rng_state(device_state, device)


def random_input(
    definition: Definition, name: str, axes: Mapping[str, int], device: torch.device, seed: int
) -> Any:
    """One input as :func:`make_inputs` draws it: none depends on the others."""
    spec = definition.inputs[name]
    shape = shape_of(spec, axes)
    dtype = torch_dtype(spec.dtype)
    if shape is None:
        return _random_number(name, dtype, seed)
    generator = torch.Generator(device=device)
    generator.manual_seed(derive_seed(seed, name))
    draw = Draw(name, spec.description or "", stored_shape(spec.dtype, shape), dtype, device, generator)
    value = random_tensor(draw)
    if definition.op_type == "sampling" and name == "probs":
        value = torch.softmax(value, dim=-1)
    return value


def _random_number(name: str, dtype: torch.dtype, seed: int) -> bool | int | float:
    cpu = torch.device("cpu")
    generator = torch.Generator(device=cpu)
    generator.manual_seed(derive_seed(seed, name))
    drawn = torch.float32 if dtype is torch.float4_e2m1fn_x2 else dtype
    number: bool | int | float = plain_tensor(Draw(name, "", (), drawn, cpu, generator)).item()
    return number


def _custom_inputs(
    definition: Definition,
    workload: Workload,
    axes: Mapping[str, int],
    device: torch.device,
    seed: int,
    entrypoint: CustomInputs | None,
) -> dict[str, Any]:
    function = definition.custom_inputs_entrypoint or ""
    where = f"{definition.name}, {function}()"
    if entrypoint is None:
        entrypoint = getattr(load_reference(definition), function)
    scalars = {n: s.value for n, s in workload.inputs.items() if isinstance(s, ScalarInput)}
    with seeded_global_rng(derive_seed(seed, "custom inputs"), device):
        values = entrypoint({**axes, **scalars}, device)
    if not isinstance(values, dict):
        raise BadInput(f"returned {type(values).__name__}", where=where, fix="return a dict of input name → value")
    missing = [n for n, s in workload.inputs.items() if isinstance(s, CustomInput) and n not in values]
    if missing:
        raise BadInput(f"returned no {', '.join(missing)}", where=where, fix="return every input by name")
    return values


def _from_blob(
    name: str,
    spec: TensorSpec,
    source: SafetensorsInput,
    axes: Mapping[str, int],
    device: torch.device,
    root: str | Path | None,
) -> torch.Tensor:
    from safetensors import SafetensorError, safe_open

    file = resolve_blob(source.path, root)
    if file is None:
        raise Fault(
            "needs.blobs",
            f"input {name} needs {source.path}; set FLASHINFER_TRACE_DIR to the trace dataset's folder",
        )
    try:
        with safe_open(str(file), framework="pt", device=str(device)) as tensors:
            value: torch.Tensor = tensors.get_tensor(source.tensor_key)
    except SafetensorError as error:
        raise BadInput(f"tensor {source.tensor_key!r}: {error}", where=str(file)) from None
    expected = stored_shape(spec.dtype, shape_of(spec, axes) or ())
    if tuple(value.shape) != expected or value.dtype != torch_dtype(spec.dtype):
        found = f"{value.dtype} {list(value.shape)}"
        raise BadInput(f"{name} is {found}, the workload needs {spec.dtype} {list(expected)}", where=str(file))
    return value.contiguous()
