"""How many kernels Triton compiles for a recipe over a problem's workloads, and how wide they read. No GPU needed.

    python tests/benchmarks/recipe_kernels.py PROBLEM [PROBLEM …] [--recipes PATTERN] [--workloads N]
        [--capability 90] [--processors 132]

Each recipe's first starting point is called on CPU tensors with Triton's launcher replaced by one that compiles,
as it would for a GPU of that capability, and launches nothing. What is counted are compilations of one process:
Triton compiles anew for another constant, and for a number that is one or a multiple of sixteen where it was not
before.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import fnmatch
import importlib.util
import inspect
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource, make_backend  # noqa: E402
from triton.runtime import jit  # noqa: E402

from engine.problems.axes import resolve_axes  # noqa: E402
from engine.problems.inputs import make_inputs  # noqa: E402
from engine.problems.library import find_problem  # noqa: E402
from engine.problems.model import Problem  # noqa: E402
from engine.problems.outputs import allocate_outputs  # noqa: E402
from engine.problems.solution import Solution  # noqa: E402
from engine.recipes.match import match_all  # noqa: E402
from engine.recipes.model import load_recipes  # noqa: E402
from engine.recipes.render import render  # noqa: E402
from engine.recipes.space import starting_points  # noqa: E402
from engine.recipes.tracing import prepare  # noqa: E402
from engine.records import DeviceFacts  # noqa: E402
from engine.skills import load_skills  # noqa: E402

_ACCESS = re.compile(r"\b(?:ld|st)\.global[\w:.]*")
_ASKS_FOR_PROCESSORS = ("_sms", "_processors", "_programs")  # the templates' helpers, which look at the device


class Compiling:
    """Takes the place of :meth:`JITFunction.run`."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)
        self.backend = make_backend(self.target)
        self.known: dict[str, set[str]] = {}

    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        options["debug"] = False
        binder = jit.create_function_from_signature(kernel.signature, kernel.params, self.backend)
        bound, special, rest = binder(*args, **options)
        name, key = kernel.fn.__name__, f"{special} {rest}"
        if key in self.known.setdefault(name, set()):
            return
        self.known[name].add(key)
        begin = time.monotonic()
        chosen, signature, constants, attributes = kernel._pack_args(self.backend, options, bound, special, rest)
        source = ASTSource(kernel, signature, constants, attributes)
        made = triton.compile(source, target=self.target, options=chosen.__dict__)
        accesses = collections.Counter(_ACCESS.findall(made.asm["ptx"]))
        print(f"    {name}: {time.monotonic() - begin:.1f} s, {dict(accesses)}", flush=True)


def imported(solution: Solution, processors: int) -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(solution.entry_source)
    spec = importlib.util.spec_from_file_location(f"kernel_{Path(file.name).stem}", file.name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # Triton reads the file again when it compiles
    for name in _ASKS_FOR_PROCESSORS:
        if hasattr(module, name):
            setattr(module, name, lambda device: processors)
    return module


def call_all(problem: Problem, solution: Solution, options: argparse.Namespace) -> dict[str, int]:
    """Compilations by kernel."""
    module = imported(solution, options.processors)
    compiling = Compiling(options.capability)
    jit.JITFunction.run = lambda kernel, *args, **given: compiling.run(kernel, *args, **given)
    try:
        for workload in problem.workloads[: options.workloads]:
            axes = resolve_axes(problem.definition, workload)
            given = make_inputs(problem.definition, workload, axes, torch.device("cpu"), seed=1, root=problem.root)
            outputs = allocate_outputs(problem.definition, axes, torch.device("cpu"))
            into = len(inspect.signature(module.run).parameters) > len(given)
            module.run(*given, *(outputs if into else ()))
    finally:
        Path(module.__file__).unlink()
    return {name: len(keys) for name, keys in compiling.known.items()}


async def measure(options: argparse.Namespace) -> None:
    recipes, _ = load_recipes(load_skills())
    capability = divmod(options.capability, 10)
    device = DeviceFacts(
        kind="cuda", name="NVIDIA H200", compute_capability=capability, sm_count=options.processors
    )
    for name in options.problems:
        problem = find_problem(name)
        subject = await prepare(problem, device, problem.definition.op_type or "other")
        fits, _ = match_all(recipes, subject)
        for fit in fits:
            if not fnmatch.fnmatch(fit.recipe.name, options.recipes) or "triton" not in fit.recipe.file.languages:
                continue
            solution = render(fit, starting_points(fit.recipe.file, fit.facts)[0])
            print(f"{problem.name}, {fit.recipe.name}", flush=True)
            try:
                found: Any = call_all(problem, solution, options)
            except RuntimeError as error:  # what else it calls may need a GPU
                found = f"stopped: {str(error)[:200]}"
            print(f"  {min(len(problem.workloads), options.workloads)} workloads: {found}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+")
    parser.add_argument("--recipes", default="triton-*")
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--processors", type=int, default=132)
    asyncio.run(measure(parser.parse_args()))
