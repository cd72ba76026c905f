"""On a GPU only: the compiled baseline, measured ceilings, profiles of KEEPs, or asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_bench import FakeBench
from stub_proposer import in_order

from engine import admission
from engine.errors import Fault
from engine.hardware.ceilings import Ceilings
from engine.problems.model import Problem
from engine.problems.solution import Solution
from engine.profile import campaign as profiles
from engine.profile.talk import Failed
from engine.records import Baselines, DeviceFacts, KernelFacts, Profile, WorkloadResult
from engine.reports.report import build_report, report_text
from engine.store import events as ev

MEASURED = Ceilings(
    device="NVIDIA H200", uuid="GPU-1", driver="", torch="", copy_gb_s=4250.0, matrix_tflop_s={"bfloat16": 780.0}
)


class GpuBench(FakeBench):
    def __init__(self, problem: Problem, device: str, scratch: Path, noise: float = 0.001) -> None:
        super().__init__(problem, device, scratch, delay_s=0.02)
        self.noise = noise  # the seed's
        self.asked_for_the_seeds = 0
        self.fails = 0  # times that it cannot be measured
        self.device = DeviceFacts(kind="cuda", name="NVIDIA H200", uuid="GPU-1")
        self.compile_s: list[float] = []

    async def measure_baselines(self, seed: Any, on_phase: Any = None, *, compile_s: float = 0.0) -> Baselines:
        self.compile_s.append(compile_s)
        found = await super().measure_baselines(seed, on_phase)
        row = WorkloadResult(uuid="w1", status="PASSED", latency_ms=1.0, reference_latency_ms=1.0)
        return msgspec.structs.replace(
            found, workloads=[row], compile_ms={"w1": 0.5}, compile_mode="default", noise=None
        )

    async def noise_of(self, solution: Solution) -> float | None:
        if "ms=" in solution.entry_source:
            return await super().noise_of(solution)
        self.asked_for_the_seeds += 1
        if self.asked_for_the_seeds <= self.fails:
            raise Fault("fault.spawn", "no memory for another process")
        await asyncio.sleep(0.05)
        return self.noise


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Workloads that were profiled; the third profile fails."""
    asked: list[str] = []

    async def profile(problem: Problem, solution: Any, device: DeviceFacts, *, workload: str = "") -> Profile:
        asked.append(workload)
        if len(asked) == 3:
            raise Failed("crash.exit", "it ended early")
        return Profile(source="ncu", shape="rows=8", kernels=[KernelFacts(name="k", duration_us=2.0)])

    async def measure(device: str) -> Ceilings:
        return MEASURED

    monkeypatch.setattr(profiles, "profile_solution", profile)
    monkeypatch.setattr(admission, "measure_ceilings", measure)
    return asked


def on_a_gpu(lab: Any, *replies: str, **settings: Any) -> Any:
    made = lab(in_order(replies), candidates=len(replies), **settings)
    made._open_bench = lambda *given: setattr(made, "bench", GpuBench(*given)) or made.bench
    return made


async def test_a_keep_is_profiled_and_its_agent_is_told(lab: Any, seen: list[str]) -> None:
    run = on_a_gpu(lab, "ms=0.8", "ms=0.9", "ms=0.9", "ms=0.9", "ms=0.9", profile=True)
    await run.run()
    profiled = run.events(ev.CandidateProfiled)
    assert [(event.number, event.agent, event.reason) for event in profiled] == [(1, "1", "")]
    assert seen == [""]
    assert run.contexts[0].profile == "" and "k: 2 µs" in run.contexts[-1].profile
    assert len(run.contexts[-1].profile.splitlines()) <= 5
    with run.reader() as reader:
        assert "profile: k: 2 µs" in report_text(build_report(reader, run.folder))


async def test_without_the_setting_nothing_is_profiled(lab: Any, seen: list[str]) -> None:
    run = on_a_gpu(lab, "ms=0.8", "ms=0.9")
    await run.run()
    assert run.events(ev.CandidateProfiled) == [] and seen == []


async def test_a_person_asks_the_engine(lab: Any, seen: list[str]) -> None:
    run = on_a_gpu(lab, "ms=0.8", *["ms=0.9"] * 60, stop_after=60, draft_after=50)
    run.start()
    await run.until(lambda summary: summary.candidates >= 1)
    for number, workload, ok, words in (
        (1, "", True, "#1 is profiled next"),
        (0, "1", True, "#0 is profiled next"),
        (1, "w1", True, "#1 is profiled next"),
        (1, "77", False, "no workload '77'"),
        (999, "", False, "candidate 999 is not there"),
    ):
        answer = await run.order("profile", number=number, text=workload)
        assert (answer.ok, words in answer.text) == (ok, True), answer
    async with asyncio.timeout(10):
        while len(run.events(ev.CandidateProfiled)) < 3:
            await asyncio.sleep(0.02)
    assert seen == ["", "w1", "w1"]
    assert [(e.number, e.reason) for e in run.events(ev.CandidateProfiled)] == [
        (1, ""),
        (0, ""),
        (1, "crash.exit"),
    ]
    await run.order("stop")


async def test_the_baselines_say_what_the_score_rests_on(lab: Any, seen: list[str]) -> None:
    run = on_a_gpu(lab, "ms=0.8")
    summary = await run.run()
    (measured,) = run.events(ev.BaselinesMeasured)
    assert (measured.sol_bound, measured.sol_baseline, measured.compile_ms) == ("roofline", "compile", 0.5)
    assert summary.ceiling_ms is not None and summary.roofline_ms is not None
    assert summary.ceiling_ms == pytest.approx(summary.roofline_ms * 4800 / 4250, rel=1e-6)
    assert run.bench.compile_s == [120.0]


@pytest.mark.parametrize(("minutes", "seconds"), [(1.25, 7.5), (30.0, 120.0)])
async def test_a_short_campaign_spends_little_on_the_compiler(
    lab: Any, seen: list[str], minutes: float, seconds: float
) -> None:
    run = on_a_gpu(lab, "ms=0.8", minutes=minutes)
    await run.run()
    assert run.bench.compile_s == [pytest.approx(seconds)]


async def test_ceilings_that_cannot_be_measured_cost_nothing(
    lab: Any, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(device: str) -> Ceilings:
        raise Fault("fault.ceilings", "no memory")

    monkeypatch.setattr(admission, "measure_ceilings", fails)
    run = on_a_gpu(lab, "ms=0.8")
    summary = await run.run()
    assert summary.ceiling_ms is None and summary.candidates == 1


async def test_a_cpu_campaign_says_that_a_profile_needs_a_gpu(lab: Any, seen: list[str]) -> None:
    run = lab(in_order(["ms=0.8", *["ms=0.9"] * 40]), candidates=41, delay_s=0.02, stop_after=41, profile=True)
    run.start()
    await run.until(lambda summary: summary.candidates >= 1)
    answer = await run.order("profile", number=1)
    assert not answer.ok and answer.text.startswith("needs.cuda: a profile is of GPU kernels")
    assert seen == [] and run.events(ev.CandidateProfiled) == []
    await run.order("stop")


async def test_a_gain_beyond_all_noise_is_not_held_up_and_its_noise_counts_once_it_is_challenged(
    lab: Any, seen: list[str]
) -> None:
    run = on_a_gpu(lab, "ms=0.3 noise=0.2", "ms=0.27 noise=0.01", "ms=0.26 noise=0.01", "ms=0.2 noise=0.01")
    summary = await run.run()
    told = [(e.outcome, e.reason) for e in run.events(ev.Verdict)]
    assert told == [("KEEP", ""), ("ACCEPT", "keep.unconfirmed"), ("ACCEPT", "keep.near-best"), ("KEEP", "")]
    assert summary.noise_of == {1: 0.2, 4: 0.01}


async def test_the_seeds_noise_is_measured_once_and_only_for_a_gain_that_it_could_explain(
    lab: Any, seen: list[str]
) -> None:
    run = on_a_gpu(lab, "ms=0.9 noise=0.01", "ms=0.8 noise=0.01", agents=2)
    summary = await run.run()
    assert run.bench.asked_for_the_seeds == 1
    assert summary.noise == summary.noise_of[0] == 0.001
    (measured,) = run.events(ev.BaselinesMeasured)
    assert measured.noise is None


async def test_what_may_be_noise_of_the_seed_teaches_no_trap(lab: Any, seen: list[str]) -> None:
    run = on_a_gpu(lab, "ms=1.06", "ms=1.45", "ms=1.55")
    await run.run()
    assert [(e.outcome, e.reason) for e in run.events(ev.Verdict)] == [("REVERT", "keep.slower")] * 3
    with run.reader() as reader:
        assert [row.candidate for row in reader.memory()] == [3]  # twice what kernels may scatter by, and more


async def test_a_seed_whose_noise_could_not_be_measured_is_asked_again(lab: Any, seen: list[str]) -> None:
    run = on_a_gpu(lab, "ms=0.9 noise=0.01", "ms=0.8 noise=0.01", agents=2)
    made = run._open_bench

    def broken(*given: Any) -> Any:
        bench = made(*given)
        bench.fails = 1
        return bench

    run._open_bench = broken
    summary = await run.run()
    assert run.bench.asked_for_the_seeds == 2 and summary.noise == 0.001


async def test_a_gain_that_was_measured_for_a_smaller_margin_is_measured_again(lab: Any, seen: list[str]) -> None:
    run = on_a_gpu(lab, "ms=0.7 wide=0.2 noise=0.25")
    await run.run()
    (verdict,) = run.events(ev.Verdict)
    assert verdict.outcome == "KEEP", verdict.detail
    assert run.bench.calls == 3


async def test_no_best_is_safe_by_being_erratic_or_by_failing_when_it_is_challenged(
    lab: Any, seen: list[str]
) -> None:
    erratic = on_a_gpu(lab, "ms=0.3 noise=9.0", "ms=0.2 noise=0.01", "ms=0.1 noise=0.01")
    assert (await erratic.run()).noise_of == {1: 1.0, 3: 0.01}
    assert [e.outcome for e in erratic.events(ev.Verdict)] == ["KEEP", "ACCEPT", "KEEP"]
    failing = on_a_gpu(lab, "ms=0.3 noise=broken", "ms=0.24 noise=0.01")
    assert (await failing.run()).noise_of == {1: 0.0, 2: 0.01}
    assert [e.outcome for e in failing.events(ev.Verdict)] == ["KEEP", "KEEP"]


async def test_equals_of_a_best_whose_noise_is_not_known_are_no_traps(lab: Any, seen: list[str]) -> None:
    run = on_a_gpu(lab, "ms=0.6", "ms=0.64")
    run._open_bench = lambda *given: setattr(run, "bench", GpuBench(*given, noise=0.1)) or run.bench
    await run.run()
    assert [(e.outcome, e.reason) for e in run.events(ev.Verdict)] == [("KEEP", ""), ("ACCEPT", "keep.near-best")]
    with run.reader() as reader:
        assert [row.kind for row in reader.memory()] == ["win"]
