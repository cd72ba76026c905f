"""Run one recipe on one shrunk problem in Triton's interpreter, on the CPU. Started as a process of its own.

``python interpret.py PROBLEM RECIPE POINTS CONSTANTS WORKLOADS``: the last two are JSON. BF16 is replaced by FP16,
which the interpreter multiplies correctly. Prints one line per point; exits 1 if a result is wrong.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
import torch

from engine.problems.axes import resolve_axes
from engine.problems.inputs import make_inputs
from engine.problems.load import load_problem
from engine.problems.model import Problem
from engine.problems.outputs import allocate_outputs
from engine.recipes.match import Misfit, match
from engine.recipes.model import load_recipes
from engine.recipes.render import render
from engine.recipes.space import every_point, starting_points
from engine.skills import load_skills
from tests.content.helpers import H200, folder_of, reference_of, shrunk, traced


def with_fp16(problem: Problem) -> Problem:
    text = msgspec.json.encode(problem.definition).decode().replace("bfloat16", "float16")
    definition = msgspec.json.decode(text.encode(), type=type(problem.definition))
    return msgspec.structs.replace(problem, definition=definition)


def entry(source: str, folder: Path) -> Any:
    path = folder / f"kernel{len(list(folder.iterdir()))}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run


def main() -> int:
    name, recipe_name, points = sys.argv[1], sys.argv[2], int(sys.argv[3])
    problem = shrunk(load_problem(folder_of(name)), json.loads(sys.argv[4]), json.loads(sys.argv[5]))
    problem = with_fp16(problem)
    recipes, _ = load_recipes(load_skills())
    found = match(next(r for r in recipes if r.name == recipe_name), traced(problem, H200))
    if isinstance(found, Misfit):
        print(found.why)
        return 1
    file = found.recipe.file
    others = every_point(file, found.facts, 20000)
    random.Random(1).shuffle(others)
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        for point in (starting_points(file, found.facts)[:points] + others[:points])[: 2 * points]:
            run = entry(render(found, point).entry_source, Path(scratch))
            for workload in problem.workloads:
                axes = resolve_axes(problem.definition, workload)
                inputs = make_inputs(problem.definition, workload, axes, "cpu", 2)
                outputs = allocate_outputs(problem.definition, axes, "cpu")
                run(*inputs, *outputs)
                expected = reference_of(problem)(*inputs)
                expected = expected if isinstance(expected, tuple) else (expected,)
                close = all(
                    torch.allclose(a.float(), b.float(), rtol=2e-2, atol=2e-2, equal_nan=True)
                    for a, b in zip(outputs, expected, strict=True)
                )
                wrong += not close
                print("ok" if close else "WRONG", recipe_name, point, workload.axes)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
