"""What the device is, without importing torch or touching the CUDA driver in this process."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import msgspec

from engine.errors import BadInput, Fault
from engine.hardware.nvml import driver_version
from engine.records import DeviceFacts

PROBE_S = 20.0
_PACKAGES = ("torch", "triton", "numpy", "nvidia-cutlass-dsl", "kernelarc-tui")
_CUDA_PACKAGES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU or MIG instance that CUDA shows, ``index`` as in ``cuda:index``; ``uuid`` without a prefix."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    sm_count: int | None = None
    l2_bytes: int | None = None
    compute_capability: list[int | None] = []


class CudaProbe(msgspec.Struct, frozen=True, kw_only=True):
    devices: list[Gpu] = []
    error: str = ""


def parse_device(device: str) -> tuple[str, int | None]:
    """``cpu``, ``cuda`` or ``cuda:i`` → (kind, index). Raises :class:`BadInput`."""
    match = re.fullmatch(r"(cpu)|cuda(?::(\d{1,3}))?", device)
    if match is None:
        raise BadInput(f"unknown device {device!r}", where="device", fix="use cpu, cuda or cuda:0")
    return ("cpu", None) if match[1] else ("cuda", int(match[2] or 0))


def default_device() -> str:
    """``cuda:0`` where CUDA shows a GPU and the installed torch can use it, else ``cpu``."""
    return "cuda:0" if torch_has_cuda() and probe_cuda().devices else "cpu"


def device_facts(device: str) -> DeviceFacts:
    """Everything known of ``device``; what is not known stays ``None``.

    Raises:
        BadInput: not a device's name, or an index that CUDA does not show.
        Fault: ``needs.cuda`` when there is no usable GPU.
    """
    kind, index = parse_device(device)
    if kind == "cpu":
        return cpu_facts()
    probe = probe_cuda()
    if not probe.devices:
        raise Fault("needs.cuda", f"{device} is not usable here: {probe.error or 'CUDA shows no device'}")
    found = next((gpu for gpu in probe.devices if gpu.index == index), None)
    if found is None:
        raise BadInput(f"there is no {device}", where="device", fix=f"CUDA shows {len(probe.devices)} device(s)")
    capability = [part for part in found.compute_capability if part is not None]
    return DeviceFacts(
        kind="cuda",
        name=found.name,
        uuid=f"{'MIG' if ' MIG ' in found.name else 'GPU'}-{found.uuid}",
        index=found.index,
        compute_capability=(capability[0], capability[1]) if len(capability) == 2 else None,
        memory_bytes=found.memory_bytes,
        l2_bytes=found.l2_bytes,
        sm_count=found.sm_count,
        driver=driver_version() or "",
        versions=versions(),
    )


def cpu_facts() -> DeviceFacts:
    return DeviceFacts(
        kind="cpu",
        name=cpu_name(),
        uuid="cpu",
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        cores=len(os.sched_getaffinity(0)),
        versions=versions(),
    )


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's own name, or the architecture where the kernel does not say it."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


@functools.cache
def versions() -> dict[str, str]:
    """Versions from package metadata: nothing is imported for it."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        version = package_version(package)
        if version:
            found[package] = version
    cuda = _cuda_version(found.get("torch", ""))
    return found | ({"cuda": cuda} if cuda else {})


def package_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_has_cuda() -> bool:
    """Whether the installed torch was built with CUDA: its library is there. torch is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    return (Path(spec.origin).parent / "lib" / "libtorch_cuda.so").exists()


def probe_cuda(timeout_s: float = PROBE_S) -> CudaProbe:
    """Ask the driver through a short process; its answer is kept while CUDA_VISIBLE_DEVICES stays the same."""
    return _probe(os.environ.get("CUDA_VISIBLE_DEVICES"), timeout_s)


@functools.cache
def _probe(visible: str | None, timeout_s: float) -> CudaProbe:
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return CudaProbe(error="no NVIDIA device file in /dev")
    argv = [sys.executable, "-m", "engine.hardware.cuda_probe"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return CudaProbe(error=f"the CUDA driver has not answered within {timeout_s:g} s")
    except OSError as error:
        return CudaProbe(error=f"cannot start a process ({error.strerror})")
    try:
        return msgspec.json.decode(done.stdout, type=CudaProbe)
    except msgspec.MsgspecError:
        why = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return CudaProbe(error=f"the CUDA driver cannot be asked ({why[0]})")


def _cuda_version(torch_version: str) -> str | None:
    match = re.search(r"\+cu(\d+)(\d)$", torch_version)
    if match:
        return f"{match[1]}.{match[2]}"
    return next((v for v in map(package_version, _CUDA_PACKAGES) if v), None) if torch_has_cuda() else None
