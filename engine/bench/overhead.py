"""What a block costs beside the calls themselves: the same harness around a no-op."""

from __future__ import annotations

from statistics import median

import msgspec

from engine.bench.wire import WorkloadSpec
from engine.problems.dtypes import DTYPES
from engine.problems.solution import Solution, python_solution

ByCalls = dict[int, list[float]]


class Overhead(msgspec.Struct, frozen=True):
    """What no-op blocks of one workload took, milliseconds, by number of calls."""

    wall: ByCalls
    cpu: ByCalls
    claimed: ByCalls
    cpu_known: bool

    def beyond_calls(self, *, use_cpu: bool) -> ByCalls:
        """By an outside clock, without the calls themselves: even a no-op call takes a little."""
        return _minus(self.cpu if use_cpu else self.wall, self.claimed)

    def waiting(self) -> ByCalls:
        """Wall time without processor time: what a no-op block waits for the device."""
        return _minus(self.wall, self.cpu)


def _minus(a: ByCalls, b: ByCalls) -> ByCalls:
    return {size: [x - y for x, y in zip(a[size], b[size], strict=True)] for size in a}


def typical_ms(by_calls: ByCalls, calls: int) -> float:
    return median(by_calls[calls])


def spread_ms(by_calls: ByCalls) -> float:
    """How much the outside clock itself varies, per call: the widest interquartile range of a block size."""
    return max((quartile(values, 3) - quartile(values, 1)) / calls for calls, values in by_calls.items())


def quartile(values: list[float], which: int) -> float:
    """The ``which``-th quarter of the ordered values, without interpolation."""
    ordered = sorted(values)
    return ordered[min(which * len(ordered) // 4, len(ordered) - 1)]


def per_call_ms(by_calls: ByCalls, k: int) -> float:
    return max((min(by_calls[2 * k]) - min(by_calls[k])) / k, 0.0)


def noop_solution(
    specs: list[WorkloadSpec], device: str, *, destination_passing: bool, spin_ns: dict[int, int] | None = None
) -> Solution:
    """Computes nothing, in either calling style; in return style it hands out new, unwritten tensors.

    On a GPU it still launches the smallest of kernels: waiting for a device that works includes being woken up
    afterwards, which waiting for an idle one does not. ``spin_ns``, by workload: each call lasts about as long as
    a real one, because on a busy machine waking up takes longer after a long window than after a short one.
    """
    on_gpu = device != "cpu"
    place = f', device="{device}"' if on_gpu else ""
    lines = [
        "import time",
        "import torch",
        "",
        "RESULTS, SPIN = {}, {}",
        "NEW, NOW = torch.empty_like, time.perf_counter_ns",
        f"TICK = torch.zeros(1{place})",
        f"TENSORS = {sum(item.shape is not None for item in specs[0].inputs)}",
    ]
    for index, spec in enumerate(specs):
        key = tuple(item.shape for item in spec.inputs if item.shape is not None)
        tensors = ", ".join(
            f"(torch.empty({item.nbytes}, dtype=torch.uint8{place}), torch.{DTYPES[item.dtype].torch_name}, "
            f"{item.shape!r})"
            for item in spec.outputs
        )
        lines.append(f"RESULTS[{key!r}] = ({'' if destination_passing else tensors + ','})")
        lines.append(f"SPIN[{key!r}] = {(spin_ns or {}).get(index, 0)}")
    lines += [
        "",
        "",
        "def run(*arguments):",
        "    begin = NOW()",
        f"    {'TICK.add_(1)' if on_gpu else 'pass'}",
        "    key = tuple([tuple(a.shape) for a in arguments if isinstance(a, torch.Tensor)][:TENSORS])",
        "    until = begin + SPIN[key]",
        "    while NOW() < until:",
        "        pass",
        "    return tuple(NEW(raw).view(dtype).view(shape) for raw, dtype, shape in RESULTS[key])",
    ]
    return python_solution(
        "\n".join(lines) + "\n",
        definition="",
        name="no-op",
        destination_passing=destination_passing,
        path="noop.py",
    )
