"""A tiny problem, a bench that stays warm for one module, and a way to see what is left running."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.bench import device_lock
from engine.bench.bench import ProcessBench
from engine.problems.model import (
    ConstAxis,
    Definition,
    Problem,
    ScalarInput,
    TensorSpec,
    Tolerance,
    VarAxis,
    Workload,
)
from engine.problems.solution import Solution, python_solution

SECRET = "sk-canary-0123456789abcdef"

REFERENCE = """
import torch


def run(x, y, scale):
    return torch.softmax(x, dim=-1) * scale + y
"""


def make_problem(rows: tuple[int, ...] = (16, 48), name: str = "bench_fixture") -> Problem:
    definition = Definition(
        name=name,
        axes={"rows": VarAxis(), "cols": ConstAxis(value=64)},
        inputs={
            "x": TensorSpec("float32", ["rows", "cols"]),
            "y": TensorSpec("float32", ["rows", "cols"]),
            "scale": TensorSpec("float32", None),
        },
        outputs={"out": TensorSpec("float32", ["rows", "cols"])},
        reference=REFERENCE,
    )
    tolerance = Tolerance(max_atol=1e-5, max_rtol=1e-4, required_matched_ratio=1.0)
    workloads = [
        Workload(uuid=f"w{n}", axes={"rows": n}, inputs={"scale": ScalarInput(0.5)}, tolerance=tolerance)
        for n in rows
    ]
    return Problem(definition=definition, workloads=workloads)


@pytest.fixture(scope="session", autouse=True)
def own_device_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A campaign that runs on this box meanwhile must not hold up the tests."""
    folder = tmp_path_factory.mktemp("locks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_lock, "lock_dir", lambda: folder)
        yield folder


@pytest.fixture(scope="session")
def problem() -> Problem:
    return make_problem()


@pytest.fixture(scope="session")
def candidate(problem: Problem) -> Callable[..., Solution]:
    """``candidate(before, body)``: module code, then the body of ``run(x, y, scale)``."""

    def make(before: str = "", body: str = "return torch.softmax(x, dim=-1) * scale + y") -> Solution:
        lines = ["import torch", before, "def run(x, y, scale):", *(f"    {line}" for line in body.splitlines())]
        return python_solution("\n".join(lines) + "\n", definition=problem.name, name="candidate")

    return make


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProcessBench]:
    home = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELARC_HOME", str(home))
        patch.setenv("KERNELARC_CANARY_API_KEY", SECRET)
        made = ProcessBench(problem, "cpu", home / "scratch")
        await made.opened()
    yield made
    await made.close()


def helpers_of(home: Path) -> list[int]:
    """Processes that a bench with this state folder started, however they were forked or renamed since."""
    marker = f"KERNELARC_COMPILE_CACHE={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker in (entry / "environ").read_bytes() and "\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.05)
    return true()
