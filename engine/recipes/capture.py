"""Trace a reference on fake tensors: the child process behind recipe matching. Imports torch.

``python -m engine.recipes.capture`` reads one JSON request on standard input and writes one JSON reply on standard
output. The reference is foreign code, so the caller starts this in a limited, scrubbed process.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from engine.recipes.graph import Dtype, Op, RawGraph, Ref, Value
from engine.recipes.tracing import Call, Reply, Request

MEMORY_BYTES = 24 << 30  # of address space: fake tensors need none, the reference may not take more


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Numbers every tensor and writes down every ATen call below the Python layer."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.values: dict[int, Value] = {}
        self.mutates = False
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []

    def number(self, tensor: torch.Tensor, *, new: bool = False) -> int:
        key = id(tensor)
        if new or key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values[len(self.values)] = Value(tuple(int(s) for s in tensor.shape), _name(tensor.dtype))
            self._alive.append(tensor)  # ids stay unique while the object lives
        return self._numbers[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = [self.encode(a) for a in args]
        named = {k: self.encode(v) for k, v in kwargs.items()}
        out = func(*args, **kwargs)
        schema = func._schema
        written = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        self.mutates = self.mutates or written
        results = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
        outs = [self.number(t, new=written) for t in results]
        name = func.__name__ if "." in func.__name__ else f"{func.__name__}.default"
        self.ops.append(Op(name=name, args=before, kwargs=named, outs=outs))
        return out

    def encode(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return Ref(self.number(item))
        if isinstance(item, torch.dtype):
            return Dtype(_name(item))
        if isinstance(item, bool | int | float | str) or item is None:
            return item
        if isinstance(item, list | tuple):
            return [self.encode(i) for i in item]
        if isinstance(item, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise TypeError("depends on the data")
        return str(item)


def trace(reference: str, call: Call) -> RawGraph:
    """Run ``reference`` once on fake CPU tensors. Errors of the reference end up in ``error``."""
    namespace: dict[str, Any] = {"__name__": "reference"}
    exec(compile(reference, "reference.py", "exec"), namespace)
    recorder = Recorder()
    inputs: dict[str, int] = {}
    outputs: list[int] = []
    error = ""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        arguments: list[Any] = []
        for name in call.order:
            if name in call.tensors:
                spec = call.tensors[name]
                tensor = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
                inputs[name] = recorder.number(tensor)
                arguments.append(tensor)
            else:
                arguments.append(call.scalars[name])
        try:
            with recorder:
                result = namespace["run"](*arguments)
            flat = list(result.values()) if isinstance(result, dict) else result
            for item in flat if isinstance(flat, tuple | list) else [flat]:
                outputs.append(recorder.number(item))
        except Exception as failure:  # noqa: BLE001  the reference is foreign code: its failure is the result
            error = f"{type(failure).__name__}: {failure}".splitlines()[0][:300]
    return RawGraph(
        inputs=inputs,
        scalars=dict(call.scalars),
        values=recorder.values,
        ops=recorder.ops,
        outputs=outputs,
        axes=call.axes,
        mutates=recorder.mutates,
        error=error,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    """Standard output carries the reply alone: what the reference prints goes to standard error."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    graphs = {call.key: trace(request.reference, call) for call in request.calls}
    reply.write(msgspec.json.encode(Reply(graphs=graphs)))
    reply.close()


if __name__ == "__main__":
    main()
