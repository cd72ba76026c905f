"""What the tracing child is asked, and its answer checked: the reference runs there and can make it say anything.

Labels, axes and the names of inputs are those of the request, never the reply's. Everything else is checked to be
of the kinds that a trace is made of, so that what reads traces meets no other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.decoding import decode_msgpack
from engine.errors import BadInput
from engine.recipes.expressions import usable
from engine.recipes.graph import CONSTANT_ELEMENTS, MAX_OPS, Dtype, Op, RawGraph, Ref, Value
from engine.text import one_line

MAX_REPLY = 8 << 20  # bytes; the longest traces take half a megabyte each
_MAX_DEPTH = 4  # of lists in an argument
_MAX_RANK = 64
_MAX_TEXT = 1000  # characters
_WHOLE = 2**63
_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,40}", re.ASCII)
_OPERATOR = re.compile(r"[A-Za-z_]\w{0,120}(\.\w{1,120}){0,3}", re.ASCII)

Scalar = bool | int | float


class TensorArg(msgspec.Struct, frozen=True):
    shape: tuple[int, ...]
    dtype: str


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One traced call: arguments by input name in order, tensors by shape and dtype, scalars as they are."""

    key: str
    axes: dict[str, int]
    tensors: dict[str, TensorArg]
    scalars: dict[str, Scalar]
    order: list[str]
    entrypoint: str = ""  # custom input function


class Request(msgspec.Struct, frozen=True, kw_only=True):
    reference: str
    calls: list[Call]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    graphs: dict[str, RawGraph]


class NoTrace(ValueError):
    """The reply is not one that the tracer gives. The message says what is wrong with it."""


def read_reply(data: bytes, calls: Sequence[Call]) -> list[RawGraph]:
    """The traces of ``calls`` that the reply holds, in the calls' order. Raises :class:`NoTrace`."""
    try:
        graphs: dict[str, RawGraph] = decode_msgpack(data, where="the reply", kind=Reply).graphs
    except BadInput as error:
        raise NoTrace(one_line(error.what)) from None
    if not graphs.keys() <= {call.key for call in calls}:
        raise NoTrace("answers a call that was not made")
    return [_checked(graphs[call.key], call) for call in calls if call.key in graphs]


def _checked(graph: RawGraph, call: Call) -> RawGraph:
    if len(graph.ops) > MAX_OPS:
        raise NoTrace("more operators than are traced")
    for value in graph.values.values():
        _check_value(value)
    for name, number in graph.inputs.items():
        spec, found = call.tensors.get(name), graph.values.get(number)
        if spec is None or found is None or (found.shape, found.dtype) != (spec.shape, spec.dtype):
            raise NoTrace("an input that the problem does not have")
    for number, data in graph.constants.items():
        if number not in graph.values or len(data) > CONSTANT_ELEMENTS:
            raise NoTrace("a constant that is none")
    _known([*graph.outputs], graph)
    # An axis whose name no expression can spell is one that no number is found to follow.
    return msgspec.structs.replace(
        graph,
        ops=[_operator(op, graph) for op in graph.ops],
        axes={name: size for name, size in call.axes.items() if usable(name)},
        scalars=_scalars(graph.scalars, call),
        label=call.key,
        error=one_line(graph.error, 300),
    )


def _check_value(value: Value) -> None:
    if len(value.shape) > _MAX_RANK or not all(0 <= size < _WHOLE for size in value.shape):
        raise NoTrace("a tensor of an impossible shape")
    if not _DTYPE.fullmatch(value.dtype):
        raise NoTrace("a tensor of an impossible type")


def _scalars(said: Mapping[str, Any], call: Call) -> dict[str, Scalar]:
    """Only a custom input function, which runs there, can give scalars another value than the request."""
    found = {name: value for name, value in call.scalars.items() if usable(name)}
    if call.entrypoint:
        found |= {name: _number(said[name]) for name in found if name in said}
    return found


def _number(item: Any) -> Scalar:
    if type(item) is int and not -_WHOLE <= item < _WHOLE:
        raise NoTrace("a number that no tensor holds")
    if not isinstance(item, bool | int | float):
        raise NoTrace("something else than a number")
    return item


def _operator(op: Op, graph: RawGraph) -> Op:
    if not _OPERATOR.fullmatch(op.name):
        raise NoTrace("an operator without a name")
    _known(op.outs, graph)
    named = {name: _argument(item, graph) for name, item in op.kwargs.items()}
    return Op(name=op.name, args=[_argument(item, graph) for item in op.args], kwargs=named, outs=op.outs)


def _argument(item: Any, graph: RawGraph, depth: int = 0) -> Any:
    """An operator's argument, its tensors and dtypes as records again."""
    if item is None:
        return None
    if isinstance(item, list):
        if depth == _MAX_DEPTH:
            raise NoTrace("lists inside lists")
        return [_argument(inner, graph, depth + 1) for inner in item]
    if isinstance(item, str):
        if len(item) > _MAX_TEXT:
            raise NoTrace("a long text in place of an argument")
        return item
    if isinstance(item, dict):
        return _record(item, graph)
    return _number(item)


def _record(item: dict[Any, Any], graph: RawGraph) -> Ref | Dtype:
    try:
        found: Ref | Dtype = msgspec.convert(item, Ref | Dtype)  # type: ignore[arg-type]
    except msgspec.ValidationError:
        raise NoTrace("something else than a tensor or a type") from None
    if isinstance(found, Ref):
        _known([found.id], graph)
    elif not _DTYPE.fullmatch(found.name):
        raise NoTrace("an impossible type")
    return found


def _known(numbers: Sequence[int], graph: RawGraph) -> None:
    if not all(number in graph.values for number in numbers):
        raise NoTrace("a tensor that it does not describe")
