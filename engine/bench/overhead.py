"""What a block costs beside the calls themselves: the same harness around a no-op."""

from __future__ import annotations

from statistics import median

import msgspec

from engine.bench.wire import WorkloadSpec
from engine.problems.dtypes import DTYPES
from engine.problems.solution import Solution, python_solution


class Overhead(msgspec.Struct, frozen=True):
    """What no-op blocks of one workload took by an outside clock beyond their calls, milliseconds, by number of
    calls."""

    wall: dict[int, list[float]]
    cpu: dict[int, list[float]]

    @staticmethod
    def typical_ms(by_calls: dict[int, list[float]], calls: int) -> float:
        return median(by_calls[calls])

    @staticmethod
    def per_call_ms(by_calls: dict[int, list[float]], k: int) -> float:
        return max((min(by_calls[2 * k]) - min(by_calls[k])) / k, 0.0)


def noop_solution(specs: list[WorkloadSpec], device: str, *, destination_passing: bool) -> Solution:
    """Computes nothing, in either calling style; in return style it hands out new, unwritten tensors."""
    lines = ["import torch", "", "RESULTS = {}", "NEW = torch.empty_like"]
    place = "" if device == "cpu" else f', device="{device}"'
    for spec in specs:
        key = tuple(item.shape for item in spec.inputs if item.shape is not None)
        tensors = ", ".join(
            f"torch.zeros({item.nbytes}, dtype=torch.uint8{place}).view(torch.{DTYPES[item.dtype].torch_name})"
            f".view({item.shape!r})"
            for item in spec.outputs
        )
        lines.append(f"RESULTS[{key!r}] = ({tensors},)")
    lines += [
        "",
        "",
        "def run(*arguments):",
        "    wanted = RESULTS[tuple(tuple(a.shape) for a in arguments if isinstance(a, torch.Tensor))]",
        "    return tuple(NEW(t) if t.element_size() > 1 else NEW(t.view(torch.uint8)).view(t.dtype) for t in wanted)",
    ]
    if destination_passing:
        lines = ["def run(*arguments):", "    return None"]
    return python_solution(
        "\n".join(lines) + "\n",
        definition="",
        name="no-op",
        destination_passing=destination_passing,
        path="noop.py",
    )
