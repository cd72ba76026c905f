"""Campaigns on the real store and socket, with a bench whose verdicts the candidates write themselves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.campaign import Launcher
from engine.control.client import asend, command
from engine.control.protocol import Answer
from engine.host import serve
from engine.launch import create_campaign
from engine.presets import resolve
from engine.problems.model import Definition, Problem, TensorSpec, VarAxis, Workload
from engine.proposers.base import Context
from engine.store import events as ev
from engine.store.reader import StoreReader
from engine.store.rows import LiveRow
from engine.store.summary import Summary
from engine.tracing.trace import trace_problem

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fixtures"))

from fake_bench import FakeBench
from stub_proposer import Reply, StubProposer

REFERENCE = "import torch\n\n\ndef run(x, weight):\n    return x * weight\n"


def scale_rows() -> Problem:
    shape = TensorSpec(dtype="float32", shape=["rows", "cols"])
    definition = Definition(
        name="scale_rows",
        op_type="elementwise",
        axes={"rows": VarAxis(), "cols": VarAxis()},
        inputs={"x": shape, "weight": TensorSpec(dtype="float32", shape=["cols"])},
        outputs={"y": shape},
        reference=REFERENCE,
    )
    return Problem(definition=definition, workloads=[Workload(uuid="w1", axes={"rows": 8, "cols": 16})])


@pytest.fixture
def problem() -> Problem:
    return scale_rows()


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference's trace, made once by the real tracer: every campaign finds it in the cache by its content."""
    home = tmp_path_factory.mktemp("traced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELARC_HOME", str(home))
        trace_problem(scale_rows())
    return home / "cache"


@pytest.fixture(autouse=True)
def traced(private_home: Path, traces: Path) -> None:
    (private_home / "cache").symlink_to(traces)


@dataclass
class Lab:
    """One campaign with everything that a test wants to look at afterwards."""

    problem: Problem
    script: Callable[[Context], Reply]
    settings: dict[str, Any]
    delay_s: float = 0.0
    bench_is: dict[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    bench: FakeBench | None = None
    contexts: list[Context] = field(default_factory=list)
    proposers: list[StubProposer] = field(default_factory=list)
    launcher: Launcher | None = None
    tasks: list[asyncio.Task[Summary]] = field(default_factory=list)

    def create(self, name: str | None = None) -> Path:
        config = resolve({"candidates": 10, "agents": 1, **self.settings})
        self.folder = create_campaign(config, self.problem, None, name)
        return self.folder

    def _open_bench(self, problem: Problem, device: str, scratch: Path) -> FakeBench:
        self.bench = FakeBench(problem, device, scratch, delay_s=self.delay_s, **self.bench_is)
        return self.bench

    def _build(self, session: Any, control: Any) -> StubProposer:
        stub = StubProposer(self.script, self.contexts, pause_s=self.delay_s / 2)
        self.proposers.append(stub)
        return stub

    async def run(self, **options: Any) -> Summary:
        if not self.folder.name:
            self.create()
        return await serve(
            self.folder,
            bench=self._open_bench,
            proposers=self._build,
            started=lambda launcher: setattr(self, "launcher", launcher),
            **options,
        )

    def start(self, **options: Any) -> asyncio.Task[Summary]:
        if not self.folder.name:
            self.create()
        task = asyncio.create_task(self.run(**options))
        self.tasks.append(task)
        return task

    async def order(self, verb: str, **fields: Any) -> Answer:
        return await asend(self.folder, command(verb, **fields))

    async def until(self, condition: Callable[[Summary], bool], timeout_s: float = 10.0) -> Summary:
        """Wait for a state of the stored campaign, read as any viewer reads it."""
        async with asyncio.timeout(timeout_s):
            while True:
                with StoreReader(self.folder) as reader:
                    summary = reader.summary()
                if condition(summary):
                    return summary
                await asyncio.sleep(0.01)

    def reader(self) -> StoreReader:
        return StoreReader(self.folder)

    def live(self, agent: str) -> LiveRow:
        with self.reader() as reader:
            return next(row for row in reader.live() if row.agent == agent)

    def events(self, *kinds: type) -> list[Any]:
        with self.reader() as reader:
            stored = reader.events(0, 100_000)
        return [item.event for item in stored if not kinds or isinstance(item.event, kinds)]

    def outcomes(self, agent: str = "1") -> list[str]:
        return [e.outcome.value for e in self.events(ev.Verdict) if e.agent == agent]


@pytest.fixture
async def lab(problem: Problem) -> AsyncIterator[Callable[..., Lab]]:
    labs: list[Lab] = []

    def make(
        script: Callable[[Context], Reply],
        *,
        delay_s: float = 0.0,
        bench: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Lab:
        labs.append(Lab(problem=problem, script=script, settings=settings, delay_s=delay_s, bench_is=bench or {}))
        return labs[-1]

    yield make
    left = [task for one in labs for task in one.tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        _, hanging = await asyncio.wait(left, timeout=5)
        assert not hanging, "a cancelled engine must end"
