"""Trace a reference on fake tensors: the child process behind recipe matching. Imports torch.

``python -m engine.recipes.capture`` reads one JSON request on standard input and writes one JSON reply on standard
output. The reference is foreign code, so the caller starts this in a limited, scrubbed process.

Floating-point data is never there. Small whole-number tensors (page tables, masks, positions) are computed beside
the fake ones, so that a reference may loop over them; where it asks for data that does not exist, it gets a
plausible answer and the trace says so (``data_dependent``).
"""

from __future__ import annotations

import ast
import logging
import os
import resource
import sys
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from engine.recipes.graph import CONSTANT_ELEMENTS, MAX_OPS, REDUCED, Dtype, Op, RawGraph, Ref, Value, refs
from engine.recipes.reply import Call, Reply, Request

MEMORY_BYTES = 24 << 30  # of address space: fake tensors need none, the reference may not take more
SHADOW_ELEMENTS = 1 << 20
PLAUSIBLE_ROWS = 5


class Enough(Exception):
    """The trace is long enough: what follows repeats."""


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Numbers every tensor and writes down every ATen call below the Python layer."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.values: dict[int, Value] = {}
        self.constants: dict[int, list[float]] = {}
        self.mutates = self.data_dependent = False
        self.shadows: dict[int, torch.Tensor] = {}
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []
        self._asked = 0
        self._viewed: set[int] = set()
        self.inputs: set[int] = set()

    def number(self, tensor: torch.Tensor, *, new: bool = False) -> int:
        key = id(tensor)
        if new or key not in self._numbers:
            if key not in self._numbers and not new and not isinstance(tensor, FakeTensor):
                self._constant(tensor)
            self._numbers[key] = len(self.values)
            self.values[len(self.values)] = Value(tuple(int(s) for s in tensor.shape), _name(tensor.dtype))
            self._alive.append(tensor)  # ids stay unique while the object lives
        return self._numbers[key]

    def _constant(self, tensor: torch.Tensor) -> None:
        if tensor.numel() <= CONSTANT_ELEMENTS:
            with unset_fake_temporarily():
                self.constants[len(self.values)] = [float(v) for v in tensor.flatten().tolist()]
        if not tensor.is_floating_point():
            self.shadows[len(self.values)] = tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if len(self.ops) >= MAX_OPS:
            raise Enough
        before = [self.encode(a) for a in args]
        named = {k: self.encode(v) for k, v in kwargs.items()}
        real = self._real(func, args, kwargs)
        out = self._fake(func, args, kwargs, real)
        name = func.__name__ if "." in func.__name__ else f"{func.__name__}.default"
        written = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
        if written and self._replaceable(func, before):
            name = name.replace("_.", ".", 1)
        else:
            self.mutates = self.mutates or written
        results = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
        outs = [self.number(t, new=written) for t in results]
        known = [t for t in tree_flatten(real)[0] if isinstance(t, torch.Tensor)]
        if len(known) == len(outs):
            self.shadows.update(zip(outs, known, strict=True))
        if not written and any(r.alias_info is not None for r in func._schema.returns):
            self._viewed.update(outs, (n for a in before for n in refs(a)))
        if name == "_local_scalar_dense.default":
            named["answer"] = out
        self.ops.append(Op(name=name, args=before, kwargs=named, outs=outs))
        return out

    def _replaceable(self, func: Any, before: list[Any]) -> bool:
        """Whether an in-place step can be read as its plain form: on a fresh tensor that nothing else looks at."""
        plain = getattr(torch.ops.aten, func.__name__.partition(".")[0].removesuffix("_"), None)
        target = before[0] if before else None
        if plain is None or not func.__name__.partition(".")[0].endswith("_") or not isinstance(target, Ref):
            return False
        return target.id not in self._viewed and target.id not in self.inputs

    def _real(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The same call on real whole-number tensors, where all of its operands are known."""
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        if any(self.number(t) not in self.shadows for t in tensors):
            return None
        if not tensors and func.__name__.partition(".")[0] not in _FACTORIES:
            return None
        if not tensors and isinstance(args[0], list | tuple) and _elements(args[0]) > SHADOW_ELEMENTS:
            return None
        try:
            with unset_fake_temporarily():
                known = tree_map(
                    lambda t: self.shadows[self.number(t)] if isinstance(t, torch.Tensor) else t, args
                )
                out = func(*known, **kwargs)
        except (RuntimeError, TypeError, IndexError, KeyError):
            return None
        small = all(
            t.numel() <= SHADOW_ELEMENTS and not t.is_floating_point()
            for t in tree_flatten(out)[0]
            if isinstance(t, torch.Tensor)
        )
        return out if small else None

    def _fake(self, func: Any, args: Any, kwargs: Any, real: Any) -> Any:
        base = func.__name__.partition(".")[0]
        if base == "_local_scalar_dense":
            self.data_dependent = True
            return real if real is not None else self._plausible(args[0].dtype)
        try:
            return func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            self.data_dependent = True
            if real is not None:
                return tree_map(
                    lambda t: torch.empty(t.shape, dtype=t.dtype) if isinstance(t, torch.Tensor) else t, real
                )
            if base == "nonzero":
                return torch.empty((PLAUSIBLE_ROWS, args[0].dim()), dtype=torch.int64)
            if base == "index" and len(args[1]) == 1:
                return torch.empty((PLAUSIBLE_ROWS, *args[0].shape[1:]), dtype=args[0].dtype)
            raise

    def _plausible(self, dtype: torch.dtype) -> Any:
        """Whole numbers grow from one question to the next, so that a range between two of them is not empty."""
        self._asked += 1
        if dtype == torch.bool:
            return False
        return 0.5 if dtype.is_floating_point else 3 * self._asked - 2

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


_FACTORIES = {
    "arange",
    "zeros",
    "ones",
    "full",
    "randint",
    "randperm",
    "scalar_tensor",
    "empty",
    "eye",
    "linspace",
}


def _elements(shape: Any) -> int:
    total = 1
    for size in shape:
        total *= size if isinstance(size, int) else 1
    return total


def trace(reference: str, call: Call) -> RawGraph:
    """Run ``reference`` once on fake CPU tensors. Errors of the reference end up in ``error``."""
    recorder = Recorder()
    inputs: dict[str, int] = {}
    scalars: dict[str, Any] = dict(call.scalars)
    outputs: list[int] = []
    error = ""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        try:
            namespace: dict[str, Any] = {"__name__": "reference"}
            exec(compile(_without_asserts(reference), "reference.py", "exec"), namespace)
            custom = _custom(namespace, call, recorder)
            arguments: list[Any] = []
            for name in call.order:
                if name in call.tensors:
                    spec = call.tensors[name]
                    tensor = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
                    inputs[name] = recorder.number(tensor)
                    recorder.inputs.add(inputs[name])
                    if name in custom and isinstance(custom[name], torch.Tensor):
                        recorder.shadows[inputs[name]] = custom[name]
                    arguments.append(tensor)
                else:
                    scalars[name] = custom.get(name, scalars.get(name, 1.0))
                    arguments.append(scalars[name])
            with recorder:
                result = namespace["run"](*arguments)
            flat = list(result.values()) if isinstance(result, dict) else result
            for item in flat if isinstance(flat, tuple | list) else [flat]:
                outputs.append(recorder.number(item))
        except Enough:
            recorder.data_dependent = True
        except Exception as failure:  # noqa: BLE001  the reference is foreign code: its failure is the result
            error = (f"{type(failure).__name__}: {failure}".splitlines() or ["failed"])[0][:300]
    return RawGraph(
        inputs=inputs,
        scalars={n: v for n, v in scalars.items() if isinstance(v, bool | int | float)},
        values=recorder.values,
        constants=recorder.constants,
        ops=recorder.ops,
        outputs=outputs,
        axes=call.axes,
        mutates=recorder.mutates,
        data_dependent=recorder.data_dependent,
        label=call.key,
        error=error,
    )


def _custom(namespace: dict[str, Any], call: Call, recorder: Recorder) -> dict[str, Any]:
    """Whole-number tensors and scalars of the custom input function; its floating-point tensors stay fake."""
    if not call.entrypoint:
        return {}
    generator = Recorder()
    try:
        with generator:
            made = namespace[call.entrypoint]({**call.axes, **call.scalars}, torch.device("cpu"))
    except Exception:  # noqa: BLE001  the function is foreign code: without it the data is plausible instead
        return {}
    known: dict[str, Any] = {}
    for name, item in made.items():
        if not isinstance(item, torch.Tensor):
            known[name] = item
        elif generator.number(item) in generator.shadows:
            known[name] = generator.shadows[generator.number(item)]
    return known


def _without_asserts(source: str) -> ast.Module:
    """A trace runs on plausible data, which need not be consistent."""

    class Remove(ast.NodeTransformer):
        def visit_Assert(self, node: ast.Assert) -> ast.AST:
            return ast.copy_location(ast.Pass(), node)

    tree = ast.parse(source)
    Remove().visit(tree)
    return ast.fix_missing_locations(tree)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def trace_all(request: Request) -> dict[str, RawGraph]:
    """Loops over data give long traces that say no more each time: after some, only the reduced one is added."""
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # a reference's error is its trace's result
    graphs: dict[str, RawGraph] = {}
    for call in request.calls:
        if call.key == REDUCED or sum(len(g.ops) for g in graphs.values() if g.data_dependent) < MAX_OPS:
            graphs[call.key] = trace(request.reference, call)
    return graphs


def main() -> None:
    """Standard output carries the reply alone: what the reference prints goes to standard error."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    graphs = trace_all(request)
    reply.write(msgspec.msgpack.encode(Reply(graphs=graphs)))  # JSON has no infinity, and masks have
    reply.close()


if __name__ == "__main__":
    main()
