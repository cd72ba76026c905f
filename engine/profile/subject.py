"""Runs a candidate once for a profiler: ``python -m engine.profile.subject FOLDER``, behind all layers.

Nothing that it says is trusted. It compiles and warms up, says that it is ready, waits until the engine holds the
device, makes one call between profiler start and stop, and says what it knows of the kernels. A ``cold`` one is
ready when it is imported and makes a single call, its first: for tools under which every kernel is slow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.bench import seccomp, wire
from engine.bench.confine import SCRATCH
from engine.bench.cuda_timer import L2Flush
from engine.bench.harness import describe, import_entry
from engine.errors import BadInput
from engine.problems.axes import resolve_axes
from engine.problems.inputs import allocate_outputs, make_inputs
from engine.problems.load import problem_from_json
from engine.profile.resources import KERNELS, Resources, TritonKernel, parse_resources, parse_trace, parse_triton
from engine.profile.wire import GO, MARK, READY, REQUEST, Request, Said
from engine.records import KernelFacts

_POLL_S = 0.01
_WARM_CALLS = 2
_FILES = 64  # compiled kernels that are looked at
_TOOL_S = 20.0


def main() -> int:
    folder = Path(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    request = msgspec.json.decode((folder / REQUEST).read_bytes(), type=Request)

    def say(text: str) -> None:
        out.write(f"{MARK}{text}\n")
        out.flush()

    try:
        said = _profiled(request, folder, say)
    except BaseException as error:  # noqa: BLE001  the candidate's border: whatever it raises is its answer
        said = Said(error=describe(error).decode("utf-8", "replace"))
    say(msgspec.json.encode(said).decode())
    return 0


def _profiled(request: Request, folder: Path, say: Callable[[str], None]) -> Said:
    device = torch.device(request.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.init()
    with suppress(OSError):
        seccomp.install()
    problem = problem_from_json(request.problem.encode())
    workload = problem.workloads[request.workload]
    axes = resolve_axes(problem.definition, workload)
    entry = import_entry(_load(request), f"{SCRATCH}/src")
    # Drawn on the host for a cold one: kernels that draw would be instrumented as well.
    drawn = make_inputs(
        problem.definition,
        workload,
        axes,
        torch.device("cpu") if request.cold else device,
        request.seed,
        root=problem.root,
    )
    inputs = [value.to(device) if isinstance(value, torch.Tensor) else value for value in drawn]
    outputs = allocate_outputs(problem.definition, axes, device) if request.destination_passing else []

    def call() -> None:
        entry(*inputs, *outputs)
        _synchronize(device)

    if request.cold:
        say(READY)
        _await(folder / GO, request.wait_s)
        call()
        return Said()
    flush = L2Flush(device)
    flush.renew()
    for _ in range(_WARM_CALLS):
        call()
    say(READY)
    _await(folder / GO, request.wait_s)
    flush()
    _synchronize(device)
    notes: list[str] = []
    kernels = _under_ncu(call, device) if request.counters else _recorded(call, device, notes)
    triton, resources = _compiled(request)
    return Said(
        timed=bool(kernels), kernels=kernels[: 64 * KERNELS], triton=triton, resources=resources, notes=notes
    )


def _load(request: Request) -> wire.Load:
    return wire.Load(
        sources=[],
        entry_file=request.entry_file,
        entry_function=request.entry_function,
        destination_passing=request.destination_passing,
        workloads=[],
        library=request.library,
    )


def _await(file: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the device did not become free")
        time.sleep(_POLL_S)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _under_ncu(call: Callable[[], None], device: torch.device) -> list[KernelFacts]:
    if device.type == "cuda":
        runtime: Any = torch.cuda.cudart()
        runtime.cudaProfilerStart()
        call()
        runtime.cudaProfilerStop()
    return []


def _recorded(call: Callable[[], None], device: torch.device, notes: list[str]) -> list[KernelFacts]:
    """Launch records of one call, from torch's own profiler."""
    if device.type != "cuda":
        call()
        return []
    from torch.profiler import ProfilerActivity, profile

    file = f"{SCRATCH}/tmp/trace.json"
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as recorder:
            call()
        recorder.export_chrome_trace(file)
        return parse_trace(Path(file).read_bytes())
    except (RuntimeError, OSError, BadInput) as error:
        notes.append(f"CUPTI recorded nothing: {error}"[:300])
        return []


def _compiled(request: Request) -> tuple[list[TritonKernel], dict[str, Resources]]:
    """What Triton keeps of the kernels that it compiled, and what the assembler says of them and of a library."""
    root = Path(os.environ.get("TRITON_CACHE_DIR", f"{SCRATCH}/cache/triton"))
    inductor = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{SCRATCH}/cache/inductor"))
    triton: list[TritonKernel] = []
    binaries: list[Path] = []
    for folder in (root, inductor):
        for file in sorted(folder.rglob("*.json"))[: 4 * _FILES]:
            found = parse_triton(file.read_bytes()) if file.stat().st_size < 1 << 16 else None
            binary = file.with_suffix(".cubin")
            if found is not None and binary.is_file() and len(binaries) < _FILES:
                triton.append(found)
                binaries.append(binary)
    if request.library:
        binaries.append(Path(SCRATCH) / "src" / f"{request.library}.so")
    tool = _cuobjdump()
    resources: dict[str, Resources] = {}
    for binary in binaries if tool else []:
        resources |= _usage(tool, binary)
    return triton, resources


def _usage(tool: str, binary: Path) -> dict[str, Resources]:
    argv = [tool, "--dump-resource-usage", str(binary)]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TOOL_S, check=False, text=True, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_resources(done.stdout)


def _cuobjdump() -> str:
    """The toolkit's, or the one that comes with Triton."""
    spec = find_spec("triton")
    if spec is not None and spec.origin is not None:
        ours = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        if ours.is_file():
            return str(ours)
    return shutil.which("cuobjdump") or shutil.which("/usr/local/cuda/bin/cuobjdump") or ""


if __name__ == "__main__":
    sys.exit(main())
