"""CUDA sources on this GPU: first build and cached one, and what compute-sanitizer says of planted errors.

    python tests/benchmarks/gpu_native.py [--device cuda:0] [--only extension plain sanitizer]

``extension``: an RMSNorm bound through torch's headers, evaluated twice as a user does, in whole processes that
share a cache which begins empty. ``plain``: the same kernel with a plain C entry. ``sanitizer``: a kernel that
reads beyond its input and one whose threads race, beside the right one; each must be called what it is.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

from gpu_guard import evaluated, write_problem  # noqa: E402
from h200_first_run import TRITON, rms_problem  # noqa: E402
from scratch import run_parts  # noqa: E402

KERNEL = """
__global__ void rms(const float *x, const float *w, float *y, float eps, int n) {
    __shared__ float parts[32];
    const float *row = x + (size_t)blockIdx.x * n;
    float sum = 0.f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += row[i%(beyond)s] * row[i];
    for (int at = 16; at; at >>= 1) sum += __shfl_xor_sync(~0u, sum, at);
    if (threadIdx.x %% 32 == 0) parts[threadIdx.x / 32] = sum;
    %(wait)s
    float total = 0.f;
    for (int i = 0; i < blockDim.x / 32; i++) total += parts[i];
    float scale = rsqrtf(total / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[(size_t)blockIdx.x * n + i] = row[i] * scale * w[i];
}
"""
RIGHT = KERNEL % {"beyond": "", "wait": "__syncthreads();"}
BEYOND = KERNEL % {"beyond": " + (i == n - 1 ? (1 << 20) : 0)", "wait": "__syncthreads();"}
RACE = KERNEL % {"beyond": "", "wait": ""}
EXTENSION = (
    "#include <torch/extension.h>\n#include <ATen/cuda/CUDAContext.h>\n"
    + RIGHT
    + """
torch::Tensor run(torch::Tensor x, torch::Tensor w, double eps) {
    auto y = torch::empty_like(x);
    rms<<<x.size(0), 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(), (float)eps, (int)x.size(1));
    return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
)
ENTRY = """
extern "C" int run(void *const *t, const int64_t *const *shapes, void *stream) {
    rms<<<(int)shapes[0][0], 256, 0, (cudaStream_t)stream>>>(
        (const float *)t[0], (const float *)t[1], (float *)t[3], (float)*(const double *)t[2], (int)shapes[0][1]);
    return cudaGetLastError();
}
"""


def plain(kernel: str) -> str:
    return "#include <cuda_runtime.h>\n#include <stdint.h>\n" + kernel + ENTRY


def builds(scratch: Path, device: str, source: str, word: str) -> None:
    """Two whole processes: the first one builds."""
    problem = write_problem(scratch / word, rms_problem((64, 512, 4096)))
    file = scratch / f"{word}.cu"
    file.write_text(source)
    for which in ("first", "cached"):
        seconds, said = evaluated(problem, [file], device)
        print(f"{word}, {which}: whole process {seconds:.2f} s\n{said}", flush=True)


async def watched(device: str) -> None:
    """compute-sanitizer over right and wrong kernels."""
    from engine.hardware.facts import device_facts
    from engine.problems.solution import Solution, SolutionSpec, SourceFile, python_solution
    from engine.profile.sanitize import sanitize

    problem = rms_problem((64,))
    facts = await asyncio.to_thread(device_facts, device)

    def cuda(kernel: str) -> Solution:
        spec = SolutionSpec(
            languages=["cuda_cpp"], entry_point="kernel.cu::run", destination_passing_style=True, binding="c"
        )
        source = SourceFile("kernel.cu", plain(kernel))
        return Solution(name="k", definition=problem.name, author="benchmark", spec=spec, sources=[source])

    triton = TRITON.replace("row * n + at, mask=mask, other=0.0", "row * n + at + 1048576 * (at == n - 1)", 1)
    cases: tuple[tuple[str, Any, str], ...] = (
        ("right", cuda(RIGHT), ""),
        ("beyond", cuda(BEYOND), "wrong.memory-access"),
        ("race", cuda(RACE), "wrong.race"),
        ("triton right", python_solution(TRITON, definition=problem.name, name="t", languages=("triton",)), ""),
        (
            "triton beyond",
            python_solution(triton, definition=problem.name, name="t", languages=("triton",)),
            "wrong.memory-access",
        ),
    )
    for name, solution, expected in cases:
        begin = time.monotonic()
        found = await sanitize(problem, solution, facts, place=device)
        right = "right" if found.reason == expected else f"WRONG, expected {expected or 'nothing'}"
        print(
            f"sanitizer, {name}: {found.reason or 'nothing'} ({right}) {found.detail[:200]} {found.notes} "
            f"{time.monotonic() - begin:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    run_parts(
        __doc__,
        {
            "extension": lambda folder, device: builds(folder, device, EXTENSION, "extension"),
            "plain": lambda folder, device: builds(folder, device, plain(RIGHT), "plain"),
            "sanitizer": lambda folder, device: asyncio.run(watched(device)),
        },
    )
