"""Executes a KernelBench file to learn its shapes (foreign code: started by ``sandboxed.run_once`` only)."""

from __future__ import annotations

import inspect
import os
import resource
import sys
from types import ModuleType
from typing import Any

import msgspec
import torch

from engine.problems.dtypes import is_known, name_of
from engine.problems.kernelbench import Argument, Description

_MEMORY = 16 << 30
_REAL_BYTES = 1 << 30  # up to this a model that cannot run without data is run on the CPU


def main() -> int:
    out = os.fdopen(os.dup(1), "wb")
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    text = sys.stdin.buffer.read().decode("utf-8")
    try:
        description = describe(text)
    except Exception as error:  # noqa: BLE001 - whatever a foreign file raises is its refusal
        description = Description(error=f"{type(error).__name__}: {error}")
    out.write(msgspec.json.encode(description))
    out.flush()
    return 0


def describe(text: str) -> Description:
    """Run the file without data where that works, with data where it must."""
    module = ModuleType("kernelbench_problem")
    exec(compile(text, "<kernelbench>", "exec"), module.__dict__)
    notes: list[str] = []
    try:
        return _described(module, torch.device("meta"), notes)
    except (RuntimeError, NotImplementedError) as error:
        size = _input_bytes(module)
        if size > _REAL_BYTES:
            raise RuntimeError(f"needs data to run, and its inputs take {size >> 20} MiB: {error}") from None
        return _described(module, torch.device("cpu"), notes)


def _input_bytes(module: ModuleType) -> int:
    with torch.device("meta"):
        return sum(value.nbytes for value in module.get_inputs() if isinstance(value, torch.Tensor))


def build(module: ModuleType) -> torch.nn.Module:
    given = module.get_init_inputs()
    if isinstance(given, dict):
        model = module.Model(**given)
    elif len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], dict):
        model = module.Model(*given[0], **given[1])
    else:
        model = module.Model(*given)
    if not isinstance(model, torch.nn.Module):
        raise TypeError("Model is not a torch.nn.Module")
    return model


def _described(module: ModuleType, device: torch.device, notes: list[str]) -> Description:
    with torch.device(device), torch.no_grad():
        data = list(module.get_inputs())
        model = build(module)
        evaluate = any(isinstance(part, torch.nn.Dropout) and part.p > 0 for part in model.modules())
        model.train(not evaluate)
        result = model(*data)
    if evaluate:
        notes.append("has dropout: run in evaluation mode, so that equal inputs give equal outputs")
    taken: set[str] = set()
    parameters = [
        p for p in inspect.signature(model.forward).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    names = [p.name for p in parameters] + [f"input_{i}" for i in range(len(parameters), len(data))]
    arguments = [_argument(_unique(name, taken), value) for name, value in zip(names, data, strict=False)]
    for state, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.dtype is torch.int64 and state.endswith("num_batches_tracked"):
            continue
        arguments.append(_argument(_unique(state.replace(".", "_"), taken), tensor, state))
    if not arguments:
        raise TypeError("the model has neither inputs nor parameters")
    results = list(result) if isinstance(result, tuple | list) else [result]
    outputs = [
        _argument(_unique(f"output_{i}" if i else "output", taken), value) for i, value in enumerate(results)
    ]
    return Description(arguments=arguments, outputs=outputs, evaluate=evaluate, notes=notes)


def _unique(name: str, taken: set[str]) -> str:
    clean = name if name.isidentifier() else f"_{name}"
    while clean in taken:
        clean += "_"
    taken.add(clean)
    return clean


def _argument(name: str, value: Any, state: str | None = None) -> Argument:
    if isinstance(value, torch.Tensor):
        dtype = name_of(value.dtype)
        if not is_known(dtype):
            raise TypeError(f"{name} has dtype {dtype}, which the format does not have")
        return Argument(name, dtype, list(value.shape), state)
    if isinstance(value, bool):
        return Argument(name, "bool", None, state)
    if isinstance(value, int):
        return Argument(name, "int64", None, state)
    if isinstance(value, float):
        return Argument(name, "float32", None, state)
    raise TypeError(f"{name} is a {type(value).__name__}; only tensors and numbers can be inputs")


if __name__ == "__main__":
    sys.exit(main())
