"""Kernels without counters: CUPTI's launch records, Triton's metadata, the compiler's figures. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.decoding import decode_json
from engine.errors import BadInput
from engine.records import KernelFacts
from engine.text import one_line

KERNELS = 16  # that a profile keeps
NAME = 120  # characters of a kernel's name


class Resources(msgspec.Struct, frozen=True):
    """``cuobjdump --dump-resource-usage`` of one function: per thread, ``shared`` per block."""

    registers: int
    stack_bytes: int
    shared_bytes: int


class TritonKernel(msgspec.Struct, frozen=True):
    """From the metadata that Triton keeps beside a compiled kernel."""

    name: str
    num_warps: int
    num_stages: int | None = None
    shared: int | None = None


def parse_resources(text: str) -> dict[str, Resources]:
    """By (mangled) function name; lines that are something else are passed over."""
    found: dict[str, Resources] = {}
    name = ""
    for line in text.splitlines():
        head = re.match(r"\s*Function ([^\s:]+):", line)
        if head:
            name = head[1]
        values = dict(re.findall(r"\b(REG|STACK|SHARED):(\d{1,9})", line))
        if name and "REG" in values:
            found[name] = Resources(int(values["REG"]), int(values.get("STACK", 0)), int(values.get("SHARED", 0)))
            name = ""
    return found


def parse_triton(data: bytes) -> TritonKernel | None:
    """A ``.json`` of Triton's cache, or ``None`` if it describes no kernel."""
    try:
        return decode_json(data, where="a file of Triton's cache", kind=TritonKernel)  # type: ignore[no-any-return]
    except BadInput:
        return None


class _Event(msgspec.Struct, frozen=True):
    """One event of a Chrome trace, as the profiler of torch writes it; ``dur`` in µs."""

    name: str = ""
    cat: str = ""
    dur: float = 0.0
    args: dict[str, Any] = {}


class _Trace(msgspec.Struct, frozen=True):
    traceEvents: list[_Event] = []  # the format's own name


def parse_trace(data: bytes) -> list[KernelFacts]:
    """Kernels, copies and fills of a Chrome trace, in its order. Raises :class:`BadInput`."""
    events = decode_json(data, where="the profiler's trace", kind=_Trace).traceEvents
    wanted = [event for event in events if event.cat in ("kernel", "gpu_memcpy", "gpu_memset")]
    return [
        KernelFacts(
            name=event.name,
            duration_us=event.dur,
            grid=_extent(event.args.get("grid")),
            block=_extent(event.args.get("block")),
            registers=_whole(event.args.get("registers per thread")),
            shared_bytes=_whole(event.args.get("shared memory")),
            occupancy=_percent(event.args.get("est. achieved occupancy %")),
        )
        for event in wanted
    ]


def with_compiled(
    kernels: Sequence[KernelFacts], triton: Sequence[TritonKernel], resources: Mapping[str, Resources]
) -> list[KernelFacts]:
    """What the compilers said, added to the kernels that ran under the same name.

    A name that was compiled several times (autotuning) with different figures stays without them.
    """
    found = []
    for kernel in kernels:
        warps = _the_one([t for t in triton if t.name == kernel.name])
        used = _the_one([r for name, r in resources.items() if _same(name, kernel.name)])
        if warps is not None:
            kernel = msgspec.structs.replace(kernel, warps=warps.num_warps, stages=warps.num_stages)
        if used is not None and kernel.registers in (None, used.registers):
            kernel = msgspec.structs.replace(kernel, registers=used.registers, stack_bytes=used.stack_bytes)
        found.append(kernel)
    return found


def compiled_only(triton: Sequence[TritonKernel], resources: Mapping[str, Resources]) -> list[KernelFacts]:
    """Where nothing could be timed: the kernels as they were compiled."""
    names = list(dict.fromkeys([*(t.name for t in triton), *resources]))
    bare = [KernelFacts(name=name, calls=0) for name in names]
    kernels = with_compiled(bare, triton, resources)
    return [
        msgspec.structs.replace(k, shared_bytes=resources[k.name].shared_bytes) if k.name in resources else k
        for k in kernels
    ]


def merged(kernels: Sequence[KernelFacts]) -> tuple[list[KernelFacts], int]:
    """Launches of one kernel with one shape taken together, longest first, and how many kinds were left out.

    Everything in them was said by a candidate's process: names are cleaned, figures that cannot be are dropped.
    """
    kinds: dict[tuple[Any, ...], list[KernelFacts]] = {}
    for kernel in map(_plausible, kernels):
        kinds.setdefault((kernel.name, tuple(kernel.grid), tuple(kernel.block)), []).append(kernel)
    found = [_sum(group) for group in kinds.values()]
    found.sort(key=lambda kernel: -(kernel.duration_us or 0.0))
    return found[:KERNELS], max(0, len(found) - KERNELS)


def _sum(group: Sequence[KernelFacts]) -> KernelFacts:
    first = group[0]
    added = {
        name: sum(known) if (known := [v for k in group if (v := getattr(k, name)) is not None]) else None
        for name in ("duration_us", "dram_bytes", "l2_bytes", "local_bytes")
    }
    return msgspec.structs.replace(first, calls=sum(kernel.calls for kernel in group), **added)


def _plausible(kernel: KernelFacts) -> KernelFacts:
    changes: dict[str, Any] = {"name": one_line(kernel.name, NAME) or "unnamed"}
    for name in kernel.__struct_fields__:
        value = getattr(kernel, name)
        if isinstance(value, int | float) and not (math.isfinite(value) and 0 <= value < 1e15):
            changes[name] = 0 if name == "calls" else None
    for name in ("grid", "block"):
        changes[name] = [size for size in getattr(kernel, name)[:3] if 0 <= size < 2**31]
    return msgspec.structs.replace(kernel, **changes)


def _same(compiled: str, ran: str) -> bool:
    """Whether a mangled name is that of a demangled one: ``_Z4axpyPf`` and ``axpy(float*)``."""
    if compiled == ran:
        return True
    base = re.split(r"[<(]", ran, maxsplit=1)[0].split("::")[-1].split(" ")[-1]
    return bool(base) and re.search(rf"(?<!\d){len(base)}{re.escape(base)}", compiled) is not None


def _the_one(found: Sequence[Any]) -> Any:
    distinct = list(dict.fromkeys(found))
    return distinct[0] if len(distinct) == 1 else None


def _extent(value: Any) -> list[int]:
    return [int(v) for v in value[:3] if isinstance(v, int | float)] if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    return round(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _percent(value: Any) -> float | None:
    return value / 100 if isinstance(value, int | float) and math.isfinite(value) else None
