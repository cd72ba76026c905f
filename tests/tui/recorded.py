"""A recorded campaign for the screens: the same bytes every time, with a story that a person can follow.

Written through the store's own transactions. ``events`` pads the log with strategy choices up to a size, so
that a long campaign costs no more to make than its rows.
"""

from __future__ import annotations

import math
import random
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from engine.config import CampaignConfig
from engine.problems.load import problem_to_json
from engine.problems.model import ConstAxis, Definition, Problem, TensorSpec, VarAxis, Workload
from engine.problems.solution import Solution, python_solution
from engine.records import DeviceFacts, Evaluation, Mode, Outcome, Sample, StopReason, WorkloadResult
from engine.store import events as ev
from engine.store import samples, verdicts
from engine.store.create import create_database, open_database
from engine.store.rows import CampaignRow, LiveRow, MemoryWrite, VerdictRecord
from engine.store.tx import Tx, transaction
from tests.fixtures.store_records import learning

START = 1_780_000_000.0
REFERENCE_MS, BOUND_MS = 0.1190, 0.0520

REFERENCE = '''import torch


def run(x, residual, weight, bias):
    """Output projection of an attention block, plus the residual."""
    out = torch.nn.functional.linear(x, weight, bias)
    return out + residual
'''

KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def _linear_residual(x_ptr, w_ptr, b_ptr, r_ptr, o_ptr, M, N, K,
                     BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    # One program per output tile; the residual is added in the epilogue, in float32.
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        ks = k + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + rows[:, None] * K + ks[None, :], mask=rows[:, None] < M)
        w = tl.load(w_ptr + cols[:, None] * K + ks[None, :], mask=cols[:, None] < N)
        acc += tl.dot(x, tl.trans(w))
    acc += tl.load(b_ptr + cols)[None, :]
    acc += tl.load(r_ptr + rows[:, None] * N + cols[None, :])
    tl.store(o_ptr + rows[:, None] * N + cols[None, :], acc.to(tl.bfloat16))


def run(x, residual, weight, bias):
    M, K = x.shape
    N = weight.shape[0]
    out = torch.empty((M, N), device=x.device, dtype=x.dtype)
    grid = (triton.cdiv(M, %(block)d), triton.cdiv(N, 128))
    _linear_residual[grid](x, weight, bias, residual, out, M, N, K,
                           BLOCK_M=%(block)d, BLOCK_N=128, BLOCK_K=64, num_warps=%(warps)d)
    return out
"""

STRATEGIES = ("vendor-library", "operator-fusion", "precision-formats", "tiling-pipelining")
HYPOTHESES = (
    "fold the residual into the GEMM epilogue",
    "128×256 tiles with three stages keep the tensor cores fed",
    "cuBLASLt with a bias epilogue, one launch instead of three",
    "swizzle the program order for L2 reuse",
    "prefetch the residual tile while the last K step runs",
    "bf16 accumulate in the epilogue only",
    "persistent kernel, one wave",
    "split K by two for the small-M shapes",
)
FAILURES = (
    (Outcome.REJECT, "gate.no-entry", "kernel.py has no function run(x, residual, weight, bias)"),
    (Outcome.REVERT, "wrong.numerical", "3 of 16 workloads: max relative error 4.1e-02 above 1.0e-02"),
    (Outcome.REVERT, "compile.failed", "triton: tl.dot needs both operands of one type, got bf16 and fp8e4nv"),
    (Outcome.REJECT, "gate.forbidden-import", "imports ctypes in line 4; remove it"),
    (Outcome.REVERT, "resource.timeout", "no result after 60 s in correctness round 1"),
)
TRAPS = (
    ("split-K below 512 rows", "atomics dominate: 22 % slower at M = 256"),
    ("fp8 weights", "fails 3 of 16 shapes: relative error above tolerance"),
    ("num_stages = 5", "shared memory 236 KiB is above the limit of 227 KiB"),
    ("torch.compile max-autotune", "no faster than cuBLAS and 40 s of compile time"),
)


@dataclass(frozen=True)
class Story:
    """``agents`` ≤ 8. ``state``: running, paused, finished, stopped. ``events`` pads the log to a size."""

    candidates: int = 63
    budget: int | None = 100
    agents: int = 3
    state: str = "running"
    events: int = 0
    gpu: bool = True
    cost: float = 4.12
    seed: int = 5
    name: str = "attn-20260528"
    gap_s: float = 39.0


def record(root: Path, story: Story = Story()) -> Path:
    """Write the campaign to ``root / story.name`` and return that folder."""
    folder = root / story.name
    folder.mkdir(parents=True)
    path = folder / "campaign.db"
    clock = [START]
    seed = python_solution(REFERENCE, definition=problem().name, name="reference")
    create_database(path, _row(story), seed, _started(story), lambda: clock[0])
    connection, summary = open_database(path, lambda: clock[0])
    with closing(connection):
        teller = _Teller(story, random.Random(story.seed))
        clock[0] += 2
        with transaction(connection, summary, clock[0]) as tx:
            teller.open(tx)
        summary = tx.summary
        pad = max(0, story.events - 4 * story.candidates) // max(1, story.candidates)
        for number in range(1, story.candidates + 1):
            clock[0] += story.gap_s
            with transaction(connection, summary, clock[0]) as tx:
                for index in range(pad):
                    agent = teller.names[index % len(teller.names)]
                    tx.append(ev.StrategyChosen(agent=agent, strategy=STRATEGIES[index % 4], why="in turn"))
                teller.candidate(tx, number)
            summary = tx.summary
        clock[0] += 7
        with transaction(connection, summary, clock[0]) as tx:
            teller.close(tx)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder


def end_of(story: Story) -> float:
    """The moment after the last commit: what a frozen clock should show."""
    return START + 2 + story.candidates * story.gap_s + 7 + 3


def problem() -> Problem:
    return Problem(
        definition=Definition(
            name="attn_out_proj_residual",
            axes={"M": VarAxis(), "N": ConstAxis(4096), "K": ConstAxis(4096)},
            inputs={
                "x": TensorSpec("bfloat16", ["M", "K"]),
                "residual": TensorSpec("bfloat16", ["M", "N"]),
                "weight": TensorSpec("bfloat16", ["N", "K"]),
                "bias": TensorSpec("bfloat16", ["N"]),
            },
            outputs={"out": TensorSpec("bfloat16", ["M", "N"])},
            reference=REFERENCE,
            op_type="gemm",
        ),
        workloads=[Workload(uuid=f"w{index:02}", axes={"M": 128 << index}) for index in range(6)],
    )


def _row(story: Story) -> CampaignRow:
    facts = DeviceFacts(kind="cuda", name="NVIDIA H200", uuid="GPU-0", index=0, memory_bytes=139 << 30)
    return CampaignRow(
        name=story.name,
        problem_name=problem().name,
        problem=problem_to_json(problem()).decode(),
        kernel_type="gemm",
        config=CampaignConfig(
            agents=story.agents,
            candidates=story.budget,
            device="cuda:0" if story.gpu else "cpu",
            proposer=["llm"] if story.cost else ["recipes"],
            model=["openai/gpt-5"] if story.cost else [],
            max_cost=20.0 if story.cost else None,
        ),
        device="cuda:0" if story.gpu else "cpu",
        created_at=START,
        device_facts=facts if story.gpu else None,
    )


def _started(story: Story) -> ev.CampaignStarted:
    share = story.budget // story.agents if story.budget else None
    return ev.CampaignStarted(
        name=story.name,
        problem=problem().name,
        device="cuda:0" if story.gpu else "cpu",
        device_name="H200" if story.gpu else "AMD EPYC",
        kernel_type="gemm",
        config="multi-bounded",
        agents=[
            ev.AgentSpec(
                name=str(index + 1),
                ordinal=index,
                proposer="llm" if story.cost else "recipes",
                model="openai/gpt-5" if story.cost else None,
                strategy=STRATEGIES[index % 4],
                budget=share,
            )
            for index in range(story.agents)
        ],
        budget=story.budget,
        max_cost_usd=20.0 if story.cost else None,
        margin=0.01 if story.gpu else 0.02,
    )


class _Teller:
    """Tells the story, candidate by candidate."""

    def __init__(self, story: Story, random_: random.Random) -> None:
        self.story, self.random = story, random_
        self.names = [str(index + 1) for index in range(story.agents)]
        self.best = dict.fromkeys(self.names, REFERENCE_MS * 0.985)
        self.best_number = dict.fromkeys(self.names, 0)
        self.r = dict.fromkeys(self.names, 0)
        self.position = dict.fromkeys(self.names, 0)
        self.failures = self.traps = 0

    def open(self, tx: Tx) -> None:
        tx.append(ev.EngineAttached(pid=4242))
        tx.append(
            ev.BaselinesMeasured(
                reference_ms=REFERENCE_MS,
                seed_ms=REFERENCE_MS * 0.985,
                seed_speedup=1 / 0.985,
                noise=0.004,
                timer="cupti",
                roofline_ms=BOUND_MS,
                sol_score=0.51,
                sol_bound="roofline",
                sol_baseline="eager",
            )
        )

    def candidate(self, tx: Tx, number: int) -> None:
        agent = self.names[(number * 7 + number // 5) % len(self.names)]
        self.position[agent] += 1
        outcome, reason, detail, latency, ratio = self._judge(agent, number)
        hypothesis = HYPOTHESES[number % len(HYPOTHESES)]
        if outcome is Outcome.KEEP:
            self.r[agent] = 0
        elif outcome is not Outcome.REJECT:
            self.r[agent] += 1
        before = self.best[agent]
        speedup = REFERENCE_MS / latency if latency else None
        verdict = ev.Verdict(
            number=number,
            agent=agent,
            position=self.position[agent],
            mode=Mode.DRAFT if self.r[agent] > 5 else Mode.REFINE,
            strategy=STRATEGIES[(self.names.index(agent) + self.position[agent] // 9) % 4],
            family="triton-gemm",
            outcome=outcome,
            reason=reason,
            detail=detail,
            latency_ms=latency,
            speedup=speedup,
            log_ratio=ratio,
            log_ratio_ci=(ratio - 0.004, ratio + 0.004) if ratio is not None else None,
            sol_score=None if latency is None else 0.5 + 0.3 * (1 - latency / REFERENCE_MS),
            parent=self.best_number[agent],
            r=self.r[agent],
            draft_due=self.r[agent] == 5,
            model="openai/gpt-5" if self.story.cost else None,
            tokens=5200 if self.story.cost else 0,
            cost_usd=self.story.cost / max(1, self.story.candidates) if self.story.cost else None,
            seconds=31.5,
            hypothesis=hypothesis,
        )
        record_ = VerdictRecord(
            verdict=verdict,
            evaluation=_evaluation(outcome, reason, detail, latency, self.random),
            solution=_solution(number),
            parameters={"BLOCK_M": 64 << (number % 3), "num_warps": 4 if number % 2 else 8},
            predicted_change="−6 %",
            prompt=f"You optimize one GPU kernel.\nProposal {self.position[agent]} of {agent}.\n\n{REFERENCE}",
            reply=f"Hypothesis: {hypothesis}\n\n```python\n{_source(number)}```\n",
            tokens_in=4100 if self.story.cost else 0,
            tokens_out=1100 if self.story.cost else 0,
            then=learning(*self._memory(agent, outcome, before, latency)),
        )
        verdicts.commit(tx, record_)
        if outcome is Outcome.KEEP and latency is not None:
            self.best[agent], self.best_number[agent] = latency, number
        if number % 29 == 0:
            tx.append(ev.CandidateError(agent=agent, reason="model.rate-limit", detail="429, retry after 20 s"))

    def close(self, tx: Tx) -> None:
        if self.story.candidates >= 20:
            tx.append(ev.HintGiven(agent=self.names[0], text="try a persistent kernel"))
            tx.append(
                ev.CommandAnswered(
                    id="c1", verb="hint", args={"agent": self.names[0]}, text="agent 1 reads it next"
                )
            )
        if self.story.state == "running" and self.story.agents > 2:
            tx.append(ev.Attention(code="model.failing", text="the model answers 429", agent=self.names[2]))
        if self.story.state == "paused":
            tx.append(ev.CampaignPaused())
        if self.story.state in ("finished", "stopped"):
            reason = StopReason.USER if self.story.state == "stopped" else StopReason.CANDIDATES
            for name in self.names:
                tx.append(ev.AgentStopped(agent=name, reason=reason))
            tx.append(ev.CampaignEnded(state=self.story.state, reason=reason))
        self._live(tx)
        self._samples(tx)

    def _judge(self, agent: str, number: int) -> tuple[Outcome, str, str, float | None, float | None]:
        """Improvements get rarer as the best nears the bound."""
        best = self.best[agent]
        luck = self.random.random()
        room = (best - BOUND_MS * 1.45) / (REFERENCE_MS - BOUND_MS * 1.45)
        if luck < 0.24:
            self.failures += 1
            outcome, reason, detail = FAILURES[self.failures % len(FAILURES)]
            return outcome, reason, detail, None, None
        if luck < 0.24 + max(0.03, 0.42 * room):
            ratio = 0.011 + 0.16 * room * self.random.random()
            return Outcome.KEEP, "", "", best * math.exp(-ratio), ratio
        if luck < 0.62:
            ratio = self.random.uniform(-0.018, 0.006)
            return Outcome.ACCEPT, "keep.near-best", "+0.4% against the best", best * math.exp(-ratio), ratio
        ratio = -self.random.uniform(0.03, 0.2)
        return (
            Outcome.REVERT,
            "keep.slower",
            "-9.8% against the best (95 % interval -10.3% to -9.4%, margin 1.0%)",
            best * math.exp(-ratio),
            ratio,
        )

    def _memory(
        self, agent: str, outcome: Outcome, before: float, latency: float | None
    ) -> tuple[MemoryWrite, ...]:
        if outcome is Outcome.KEEP and latency is not None:
            number = self.position[agent]
            return (
                MemoryWrite(
                    kind="win",
                    kernel_type="gemm",
                    strategy=HYPOTHESES[number % len(HYPOTHESES)],
                    reflection=f"One launch less and the residual is read once: {before:.4f} → {latency:.4f} ms.",
                    agent=agent,
                    device="H200",
                    speedup=REFERENCE_MS / latency,
                    gain=before / latency - 1,
                    before_ms=before,
                    after_ms=latency,
                ),
            )
        if latency is None and self.failures % 3 == 1:
            strategy, error = TRAPS[self.traps % len(TRAPS)]
            self.traps += 1
            return (
                MemoryWrite(
                    kind="trap",
                    kernel_type="gemm",
                    strategy=strategy,
                    reflection=error,
                    error="wrong.numerical",
                    agent=agent,
                    device="H200",
                ),
            )
        return ()

    def _live(self, tx: Tx) -> None:
        states = ("benching", "proposing", "waiting model", "compiling", "waiting device", "recalling")
        for index, name in enumerate(self.names):
            state = "stopped" if self.story.state in ("finished", "stopped") else states[index % len(states)]
            tx.live(
                LiveRow(
                    agent=name,
                    state=state,
                    since=tx.now - 9 - index,
                    strategy=STRATEGIES[index % 4],
                    hypothesis=HYPOTHESES[index],
                    reply="Hypothesis: the epilogue can add the residual\n\n```python\nimport torch\n" * 2,
                    tokens=412 + index,
                    updated_at=tx.now,
                )
            )

    def _samples(self, tx: Tx) -> None:
        rows = []
        for index in range(120):
            at = tx.now - 120 + index
            wave = 0.62 + 0.36 * math.sin(index / 7) * math.cos(index / 3)
            if self.story.gpu:
                rows.append(
                    Sample(
                        at=at,
                        device="GPU-0",
                        name="NVIDIA H200",
                        index=0,
                        utilization=wave,
                        memory_used_bytes=int(7.2 * 2**30),
                        memory_total_bytes=139 << 30,
                        power_w=380 + 150 * wave,
                        power_limit_w=700,
                        temperature_c=58 + 6 * wave,
                        sm_clock_mhz=1980,
                        memory_clock_mhz=3201,
                    )
                )
            else:
                rows.append(
                    Sample(
                        at=at,
                        device="cpu",
                        name="AMD EPYC",
                        utilization=wave,
                        memory_used_bytes=6 << 30,
                        memory_total_bytes=24 << 30,
                        cores=[wave, 1 - wave],
                        load=1.7,
                    )
                )
        samples.write(tx, rows)


def _source(number: int) -> str:
    return KERNEL % {"block": 64 << (number % 3), "warps": 4 if number % 2 else 8}


def _solution(number: int) -> Solution:
    return python_solution(
        _source(number), definition=problem().name, name=f"candidate-{number}", languages=("triton",)
    )


def _evaluation(
    outcome: Outcome, reason: str, detail: str, latency: float | None, random_: random.Random
) -> Evaluation | None:
    if outcome is Outcome.REJECT:
        return None
    results = []
    for index, workload in enumerate(problem().workloads):
        if latency is None:
            failed = index < 3
            results.append(
                WorkloadResult(
                    uuid=workload.uuid,
                    status="INCORRECT_NUMERICAL" if failed else "PASSED",
                    reason=reason if failed else "",
                    detail=detail if failed else "",
                    max_abs_error=0.31 if failed else 1.2e-3,
                    max_rel_error=4.1e-2 if failed else 2.0e-3,
                    roofline_ms=BOUND_MS * (0.5 + 0.2 * index),
                )
            )
            continue
        value = latency * (0.5 + 0.2 * index) * (1 + random_.uniform(-0.01, 0.01))
        results.append(
            WorkloadResult(
                uuid=workload.uuid,
                status="PASSED",
                latency_ms=value,
                latency_ci=(value * 0.996, value * 1.004),
                reference_latency_ms=REFERENCE_MS * (0.5 + 0.2 * index),
                speedup=REFERENCE_MS / latency,
                max_abs_error=1.2e-3,
                max_rel_error=2.0e-3,
                roofline_ms=BOUND_MS * (0.5 + 0.2 * index),
                sol_score=0.61,
            )
        )
    return Evaluation(
        verdict="FAIL" if latency is None else "PASS",
        reason=reason if latency is None else "",
        detail=detail,
        workloads=results,
        latency_ms=latency,
        timer="cupti",
        wall_s=6.4,
        phases_s={"start": 0.2, "compile": 3.1, "wait": 0.4, "correctness": 1.2, "timing": 1.5},
        evidence={"seeds": [11, 12, 13], "layers": ["bubblewrap", "seccomp"]},
    )
