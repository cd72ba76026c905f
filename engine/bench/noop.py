"""The no-op that overhead is measured with: a solution that computes nothing, in the same kind of process."""

from __future__ import annotations

from engine.bench.contender import Block, Contender, Failure
from engine.bench.overhead import Overhead
from engine.bench.reasons import fault_reason
from engine.bench.session import Session
from engine.bench.wire import WorkloadSpec
from engine.errors import Fault
from engine.problems.dtypes import DTYPES
from engine.problems.solution import Solution, python_solution


def noop_contender(
    session: Session, destination_passing: bool, spin_ns: dict[int, int] | None = None, *, waits: bool = False
) -> Contender:
    solution = noop_solution(
        session.specs, session.device, destination_passing=destination_passing, spin_ns=spin_ns, waits=waits
    )
    return Contender(session, solution, "noop")


def noop_fault(failure: Failure) -> Fault:
    """A no-op is our own code: that it fails is never the candidate's fault."""
    reason = fault_reason("overhead", failure.reason)
    return Fault(reason, f"the no-op failed: {failure.reason} {failure.detail}")


def overhead_of(blocks: list[Block]) -> Overhead:
    sizes = sorted({len(block.claimed_ns) for block in blocks})
    groups = {size: [block for block in blocks if len(block.claimed_ns) == size] for size in sizes}
    return Overhead(
        wall={size: [block.wall_ns / 1e6 for block in group] for size, group in groups.items()},
        cpu={size: [block.cpu_ns / 1e6 for block in group] for size, group in groups.items()},
        claimed={size: [sum(block.claimed_ns) / 1e6 for block in group] for size, group in groups.items()},
        cpu_known=all(block.cpu_ns for block in blocks),
    )


def noop_solution(
    specs: list[WorkloadSpec],
    device: str,
    *,
    destination_passing: bool,
    spin_ns: dict[int, int] | None = None,
    waits: bool = False,
) -> Solution:
    """Computes nothing, in either calling style; in return style it hands out new, unwritten tensors.

    On a GPU it still launches the smallest of kernels: waiting for a device that works includes being woken up
    afterwards, which waiting for an idle one does not. ``spin_ns``, by workload: each call lasts about as long as
    a real one, because on a busy machine waking up takes longer after a long window than after a short one.
    ``waits``: each call ends when the GPU has nothing left to do, and a number has been read from it: being woken
    up from such a copy takes another way than from waiting for the device, and at times milliseconds.
    """
    on_gpu = device != "cpu"
    place = f', device="{device}"' if on_gpu else ""
    lines = [
        "import time",
        "import torch",
        "",
        "RESULTS, SPIN = {}, {}",
        "NEW, NOW = torch.empty, time.perf_counter_ns",
        f"TICK = torch.zeros(1{place})",
        f"TENSORS = {sum(item.shape is not None for item in specs[0].inputs)}",
    ]
    for index, spec in enumerate(specs):
        key = tuple(item.shape for item in spec.inputs if item.shape is not None)
        tensors = ", ".join(
            f"({item.nbytes}, torch.{DTYPES[item.dtype].torch_name}, {item.shape!r})" for item in spec.outputs
        )
        lines.append(f"RESULTS[{key!r}] = ({'' if destination_passing else tensors + ','})")
        lines.append(f"SPIN[{key!r}] = {(spin_ns or {}).get(index, 0)}")
    lines += [
        "",
        "",
        "def run(*arguments):",
        "    begin = NOW()",
        f"    {'TICK.add_(1)' if on_gpu else 'pass'}",
        f"    {'TICK.tolist(), torch.cuda.synchronize()' if on_gpu and waits else 'pass'}",
        "    key = tuple([tuple(a.shape) for a in arguments if isinstance(a, torch.Tensor)][:TENSORS])",
        "    until = begin + SPIN[key]",
        "    while NOW() < until:",
        "        pass",
        f"    raw = [(NEW(n, dtype=torch.uint8{place}), kind, shape) for n, kind, shape in RESULTS[key]]",
        "    return tuple(bytes.view(kind).view(shape) for bytes, kind, shape in raw)",
    ]
    return python_solution(
        "\n".join(lines) + "\n",
        definition="",
        name="no-op",
        destination_passing=destination_passing,
        path="noop.py",
    )
