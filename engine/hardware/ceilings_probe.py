"""Measures what a device reaches, printed as JSON: run as a short process of its own.

``python -m engine.hardware.ceilings_probe cpu|cuda:INDEX CORE…``: CORE is the core that timed candidates get.
Trusted code only; whoever starts it holds the device's lock.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

_WINDOWS = 7  # of a measurement; the fastest counts, since nothing but the device can make one fast
_CPU_WINDOW_S = 0.06
_CPU_COPY_BYTES = 256 << 20  # beyond any cache that one core could use alone
_CPU_SIZE = 1024
_GPU_COPY_BYTES = 1 << 30
_GPU_SIZES = (4096, 8192)
_GPU_WINDOW_CALLS = 8
_FLOAT8_FROM = (8, 9)  # compute capability


def main() -> int:
    device, cores = sys.argv[1], [int(core) for core in sys.argv[2:]]
    found = _on_gpu(torch.device(device)) if device != "cpu" else _on_cpu(cores)
    print(json.dumps(found))
    return 0


def _on_cpu(cores: list[int]) -> dict[str, Any]:
    """One core as a timed candidate has it, then all cores of this process."""
    everywhere = os.sched_getaffinity(0)
    whole = _cpu_rates(len(everywhere)) if len(everywhere) > 1 else {}
    if cores:
        os.sched_setaffinity(0, cores)
    one = _cpu_rates(1)
    return {"copy_gb_s": one.pop("copy"), "matrix_tflop_s": one, "all_cores": whole, "notes": []}


def _cpu_rates(threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    source = torch.ones(_CPU_COPY_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    seconds = _fastest(lambda: target.copy_(source))
    a, b = torch.randn(_CPU_SIZE, _CPU_SIZE), torch.randn(_CPU_SIZE, _CPU_SIZE)
    out = torch.empty(_CPU_SIZE, _CPU_SIZE)
    product = _fastest(lambda: torch.mm(a, b, out=out))
    return {"copy": 2 * _CPU_COPY_BYTES / seconds / 1e9, "float32": 2 * _CPU_SIZE**3 / product / 1e12}


def _fastest(call: Callable[[], object]) -> float:
    """Seconds of one call in the fastest window."""
    call()
    begin = time.perf_counter()
    call()
    calls = max(1, int(_CPU_WINDOW_S / max(time.perf_counter() - begin, 1e-6)))
    windows = []
    for _ in range(_WINDOWS):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        windows.append((time.perf_counter() - begin) / calls)
    return min(windows)


def _on_gpu(device: torch.device) -> dict[str, Any]:
    torch.cuda.set_device(device)
    copied = _copy_gb_s(device)
    rates: dict[str, float] = {}
    notes: list[str] = []
    for dtype, prepare in _products(device).items():
        try:
            rates[dtype] = max(_matrix_rate(prepare, size) for size in _GPU_SIZES)
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            notes.append(f"{dtype} products: {' '.join(str(error).split())[:200]}")
    return {"copy_gb_s": copied, "matrix_tflop_s": rates, "all_cores": {}, "notes": notes}


def _copy_gb_s(device: torch.device) -> float:
    """Both directions counted."""
    size = min(_GPU_COPY_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied: float = 2 * size / _fastest_on_gpu(lambda: target.copy_(source)) / 1e9
    return copied


def _products(device: torch.device) -> dict[str, Callable[[int], Callable[[], object]]]:
    """By type of operand: what makes a call that multiplies two n × n matrices."""

    def plain(dtype: torch.dtype, tf32: bool) -> Callable[[int], Callable[[], object]]:
        def prepare(n: int) -> Callable[[], object]:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            a = torch.randn(n, n, device=device).to(dtype)
            b = torch.randn(n, n, device=device).to(dtype)
            out = torch.empty(n, n, dtype=dtype, device=device)
            return lambda: torch.mm(a, b, out=out)

        return prepare

    def float8(n: int) -> Callable[[], object]:
        a = torch.randn(n, n, device=device).to(torch.float8_e4m3fn)
        b = torch.randn(n, n, device=device).to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    found = {
        "bfloat16": plain(torch.bfloat16, False),
        "float16": plain(torch.float16, False),
        "tf32": plain(torch.float32, True),
        "float32": plain(torch.float32, False),
    }
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        del found["bfloat16"], found["tf32"]
    return {**found, "float8": float8} if capability >= _FLOAT8_FROM else found


def _matrix_rate(prepare: Callable[[int], Callable[[], object]], n: int) -> float:
    """TFLOP/s."""
    return 2 * n**3 / _fastest_on_gpu(prepare(n)) / 1e12


def _fastest_on_gpu(call: Callable[[], object]) -> float:
    """Seconds of one call in the fastest window, by CUDA events around a full queue."""
    for _ in range(3):
        call()
    windows: list[float] = []
    for _ in range(_WINDOWS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(_GPU_WINDOW_CALLS):
            call()
        end.record()
        end.synchronize()
        windows.append(begin.elapsed_time(end) / 1e3 / _GPU_WINDOW_CALLS)
    return min(windows)


if __name__ == "__main__":
    sys.exit(main())
