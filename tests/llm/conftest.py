"""A small problem, a context, a real store for the money, and a real server for the model."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from engine.config import CampaignConfig
from engine.problems.model import ConstAxis, Definition, Problem, TensorSpec, VarAxis, Workload
from engine.problems.solution import python_solution
from engine.proposers.base import Context, Incumbent
from engine.proposers.llm import Caps, LlmProposer, ModelPool, access
from engine.records import DeviceFacts, Evaluation, Mode, WorkloadResult
from engine.skills import Skill, SkillSet
from engine.store.create import create_database
from engine.store.events import AgentSpec, CampaignStarted
from engine.store.rows import CampaignRow
from engine.store.writer import StoreWriter

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"

GOOD = """```yaml
family: one-pass torch
hypothesis: two passes over the rows are one too many
predicted_change: long rows gain most
reflection: the mean of squares and the scaling read the row twice, before → after one read
```

```python kernel.py
import torch


def run(x, eps):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), eps=eps)
```
"""
SEED = "import torch\n\n\ndef run(x, eps):\n    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)\n"


def _fixture(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


openai_server = _fixture("openai_server")


@pytest.fixture(scope="session")
def api() -> ModuleType:
    """The server's module: ``api.Reply``, ``api.Status`` …"""
    return openai_server


@pytest.fixture
async def server() -> AsyncIterator[Any]:
    await access.load()  # seconds, many on a busy machine, that no test's deadline is about
    async with openai_server.Server(default=openai_server.Reply(GOOD)) as running:
        yield running


@pytest.fixture(scope="session")
def problem() -> Problem:
    definition = Definition(
        name="rmsnorm_small",
        axes={"rows": VarAxis(), "cols": ConstAxis(256)},
        inputs={"x": TensorSpec("float32", ["rows", "cols"]), "eps": TensorSpec("float32", None)},
        outputs={"y": TensorSpec("float32", ["rows", "cols"])},
        reference=SEED,
        description="Root-mean-square norm of every row.",
    )
    workloads = [Workload("w-small", {"rows": 64}), Workload("w-large", {"rows": 4096})]
    return Problem(definition=definition, workloads=workloads)


@pytest.fixture(scope="session")
def skills() -> SkillSet:
    def skill(name: str, body: str, *, meta: bool = False) -> Skill:
        return Skill(name=name, description=name, folder="", body=body, languages=("pytorch",), meta=meta)

    made = [
        skill("operator-fusion", "# Fusion\n\nMerge what is read once.\n\n## Failure modes\n\nRounding order."),
        skill("memory-protocol", "# Memory\n\nConclusions, not logs.", meta=True),
        skill("benchmark-protocol", "# Benchmark\n\nEvery workload counts.", meta=True),
    ]
    return SkillSet(skills={one.name: one for one in made})


@pytest.fixture(scope="session")
def context(problem: Problem) -> Context:
    """A first proposal: everything that is not there yet is empty."""
    seed = python_solution(SEED, definition=problem.name, name="seed")
    results = [
        WorkloadResult(uuid="w-small", status="PASSED", latency_ms=0.0123456, reference_latency_ms=0.0201),
        WorkloadResult(uuid="w-large", status="PASSED", latency_ms=1.23456, reference_latency_ms=2.5),
    ]
    base = Incumbent(
        agent="1",
        number=0,
        solution=seed,
        latency_ms=0.12345,
        speedup=1.0,
        evaluation=Evaluation(verdict="PASS", workloads=results),
    )
    return Context(
        problem=problem,
        kernel_type="norm",
        device=DeviceFacts(kind="cpu", name="Test CPU", cores=2, versions={"torch": "2.13"}),
        agent="1",
        ordinal=0,
        position=1,
        seed=0,
        mode=Mode.REFINE,
        strategy="operator-fusion",
        base=base,
        best=base,
        reference_ms=0.2222,
        roofline_ms={"w-small": 0.004, "w-large": 0.6},
    )


class Live:
    """What the proposer showed."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.replies: list[tuple[str, int]] = []

    def state(self, state: str, detail: str = "") -> None:
        self.states.append((str(state), detail))

    def reply(self, tail: str, tokens: int) -> None:
        self.replies.append((tail, tokens))


@pytest.fixture
def live() -> Live:
    return Live()


@pytest.fixture
async def ledger(tmp_path: Path, problem: Problem) -> AsyncIterator[StoreWriter]:
    """A real campaign database."""
    seed = python_solution(SEED, definition=problem.name, name="seed")
    agents = [AgentSpec(name=str(i + 1), ordinal=i, proposer="llm", model="openai/test") for i in range(8)]
    row = CampaignRow(
        name="c",
        problem_name=problem.name,
        problem="{}",
        kernel_type="norm",
        config=CampaignConfig(),
        device="cpu",
    )
    started = CampaignStarted(
        name="c",
        problem=problem.name,
        device="cpu",
        device_name="Test CPU",
        kernel_type="norm",
        config="custom",
        agents=agents,
        budget=100,
    )
    create_database(tmp_path / "campaign.db", row, seed, started)
    writer = await StoreWriter.open(tmp_path / "campaign.db")
    yield writer
    await writer.close()


@pytest.fixture
def make(
    server: Any, ledger: StoreWriter, skills: SkillSet, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., LlmProposer]:
    """A proposer against the server. Pauses between tries are short; the rest is as in a campaign."""
    monkeypatch.setattr("engine.proposers.llm.failures.FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr("engine.proposers.llm.failures.SHORTEST_CALL_S", 0.1)

    def build(
        *,
        agent: str = "1",
        model: str = "openai/test",
        base: str | None = None,
        deadline_s: float = 20.0,
        caps: Caps | None = None,
        notify: Any = None,
        pool: ModelPool | None = None,
        reply_tokens: int = 1000,
        context_tokens: int | None = None,
        **more: Any,
    ) -> LlmProposer:
        config = CampaignConfig(
            model=[model],
            proposal_deadline_s=deadline_s,
            reply_tokens=reply_tokens,
            context_tokens=context_tokens,
        )
        pool = pool or ModelPool([model], api_base=base or server.base_url, notify=notify)
        return LlmProposer(
            config=config,
            agent=agent,
            model=model,
            pool=pool,
            ledger=ledger,
            skills=lambda: skills,
            caps=lambda: caps or Caps(),
            **more,
        )

    return build


def changed(context: Context, **fields: Any) -> Context:
    return msgspec.structs.replace(context, **fields)
