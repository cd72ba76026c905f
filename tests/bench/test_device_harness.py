"""The GPU's protocol (inputs from seeds, outputs bound by digests), run here on the CPU device."""

# ruff: noqa: E501  (sources of candidates)
from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
import torch

from engine.bench import bench as bench_module
from engine.bench import timing
from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench, reference_solution
from engine.bench.contender import Contender
from engine.bench.correctness import Correctness
from engine.bench.device_claims import device_checks, too_busy
from engine.bench.device_harness import _copy_rotated
from engine.bench.digest import KernelDigest, LinearDigest, digest_code, host_digest, open_digest
from engine.bench.evaluation import Trial
from engine.bench.room import Room
from engine.bench.session import Session
from engine.problems.model import Problem
from engine.problems.solution import Solution, python_solution

from .test_hostile_windows import STOPS, STOPS_BODY, TIMED

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = EvaluationPlan(rounds=3, timing=False)
RIGHT = "return torch.softmax(x, dim=-1) * scale + y"
Make = Callable[..., Solution]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def device_bench(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProcessBench]:
    home = tmp_path_factory.mktemp("device")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELARC_HOME", str(home))
        patch.setattr(bench_module, "Session", lambda *a, **k: Session(*a, **k, own_inputs=True))
        made = ProcessBench(problem, "cpu", home / "scratch")
        await made.opened()
    yield made
    await made.close()


CASES = {
    "right": ("", RIGHT, ""),
    "one buffer for ever": (
        "_out = {}",
        "out = _out.setdefault(x.shape, torch.empty_like(x))\ntorch.add(torch.softmax(x, dim=-1) * scale, y, out=out)\nreturn out",
        "",
    ),
    "not contiguous": ("", "return (torch.softmax(x, dim=-1) * scale + y).t().contiguous().t()", ""),
    "wrong": ("", "return y", "wrong.numerical"),
    "replay": (
        "seen = {}",
        "if x.data_ptr() not in seen: seen[x.data_ptr()] = torch.softmax(x, dim=-1) * scale + y\nreturn seen[x.data_ptr()]",
        "wrong.stale-output",
    ),
    "replay by shape": (
        "seen = {}",
        "if x.shape not in seen: seen[x.shape] = torch.softmax(x, dim=-1) * scale + y\nreturn seen[x.shape]",
        "wrong.stale-output",
    ),
    "replay by version": (
        "seen = {}",
        "key = (x.data_ptr(), x._version, y._version)\nif key not in seen: seen[key] = torch.softmax(x, dim=-1) * scale + y\nreturn seen[key]",
        "hack.cached-output",
    ),
    "writes into an input": ("", "out = torch.softmax(x, dim=-1) * scale + y\nx.mul_(2)\nreturn out", "wrong.input-mutation"),
    "tampered generator": ("torch.randn = lambda *a, **k: torch.zeros(*a)", RIGHT, ""),
    "exception": ("", "raise ValueError('no')", "wrong.exception"),
    "fewer digests than tensors": (
        "import sys",
        "out = torch.softmax(x, dim=-1) * scale + y\nsys._getframe(1).f_locals['given'].clear()\nreturn out",
        "hack.forged-report",
    ),
    "crash": ("import ctypes", "ctypes.string_at(8)", "crash.signal"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_verdicts(device_bench: ProcessBench, candidate: Make, name: str) -> None:
    before, body, reason = CASES[name]
    answer = await device_bench.evaluate(candidate(before, body), QUICK)
    if name == "tampered generator":
        assert answer.verdict == "FAIL"  # its own inputs no longer match: it only fooled itself
    else:
        assert answer.reason == reason, (answer.reason, answer.detail)


async def test_a_replay_is_wrong_in_the_open_round_whichever_of_its_calls_is_compared(
    device_bench: ProcessBench, candidate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a slow reference one call a round is compared; found only in a hidden round it would be called a hack."""
    session = (await device_bench.opened()).session
    monkeypatch.setattr(session.judge, "compare_s", dict.fromkeys(range(len(session.specs)), 1.0))
    before, body, _ = CASES["replay"]
    for _ in range(4):
        answer = await device_bench.evaluate(candidate(before, body), QUICK)
        assert answer.reason in ("wrong.numerical", "wrong.stale-output"), (answer.reason, answer.detail)
        assert "round 1" in answer.detail
        session.judge.compare_s.update(dict.fromkeys(range(len(session.specs)), 1.0))


async def test_nobody_is_let_into_a_gpus_memory_before_whose_place_it_was_is_gone(
    device_bench: ProcessBench, candidate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await device_bench.opened()).session
    monkeypatch.setattr(session, "room", Room(1, succession_s=0.0))
    alive, most = set[int](), 0

    async def start(side: Contender) -> None:
        nonlocal most
        alive.add(id(side))
        most = max(most, len(alive))
        await starts(side)

    async def close(side: Contender) -> None:
        await asyncio.sleep(0.05)  # a process with gigabytes on a GPU takes its time to end
        await closes(side)
        alive.discard(id(side))

    starts, closes = Contender.start, Contender.close
    monkeypatch.setattr(Contender, "start", start)
    monkeypatch.setattr(Contender, "close", close)
    solutions = [candidate("", RIGHT), candidate("", "return y"), candidate("", "raise ValueError('no')")]
    answers = await asyncio.gather(*(device_bench.evaluate(each, QUICK) for each in solutions))
    assert [answer.verdict for answer in answers] == ["PASS", "FAIL", "FAIL"]
    assert most == 1


async def test_outputs_finished_after_the_report_do_not_match_their_digest(
    device_bench: ProcessBench, candidate: Make
) -> None:
    before = (
        "import gc, threading, time\n"
        "def _later(x, y, scale, shape):\n"
        "    time.sleep(0.01)\n"
        "    for box in gc.get_objects():\n"
        "        if isinstance(box, torch.Tensor) and box.shape == shape and box.dtype == torch.float32 and bool((box == 7.0).all()):\n"
        "            box.copy_(torch.softmax(x, dim=-1) * scale + y)\n"
    )
    body = (
        "threading.Thread(target=_later, args=(x.clone(), y.clone(), scale, x.shape), daemon=True).start()\n"
        "return torch.full_like(x, 7.0)"
    )
    answer = await device_bench.evaluate(candidate(before, body), QUICK)
    assert answer.reason in ("hack.late-output", "wrong.numerical"), (answer.reason, answer.detail)


WAIT = """
import time
import torch


def run(x, y, scale):
    time.sleep(0.002)
    return torch.softmax(x, dim=-1) * scale + y
"""


@asynccontextmanager
async def waiting(bench: ProcessBench, problem: Problem, text: str) -> AsyncIterator[Trial]:
    """A trial of a candidate whose calls wait on the host, with its claims still to be looked at."""
    live = await bench.opened()
    solution = python_solution(text, definition=problem.name, name="wait")
    trial = Trial(live.session, bench.lock, solution, QUICK, [], None, live.idle)
    trial.results = {0: Correctness(), 1: Correctness()}
    try:
        yield trial
    finally:
        await trial.candidate.close()


@pytest.mark.parametrize(("claimed_ms", "suspect"), [(0.2, True), (20.0, False)])
async def test_the_outside_clock_sees_time_that_is_not_claimed(
    device_bench: ProcessBench, problem: Problem, claimed_ms: float, suspect: bool
) -> None:
    async with waiting(device_bench, problem, WAIT) as trial:
        check = (await device_checks(trial, trial.candidate, {0: claimed_ms}))[0]
    assert check is not None and check.suspect is suspect
    assert trial.results[0].checked and not trial.results[0].reason


@pytest.mark.parametrize(("fresh", "asked"), [(False, {0}), (True, {0, 1})])
async def test_a_call_too_busy_to_be_timed_is_asked_again_before_others_are(
    device_bench: ProcessBench, problem: Problem, fresh: bool, asked: set[int]
) -> None:
    async with waiting(device_bench, problem, WAIT.replace("0.002", "0.03")) as trial:
        trial.candidate.call_s = {0: 1.0, 1: 1.0}  # few calls a block
        checks = await device_checks(trial, trial.candidate, {0: 0.2, 1: 0.2}, fresh=fresh)
    assert set(checks) == asked
    assert all(check is not None and too_busy(check) for check in checks.values())


async def test_a_comparison_has_an_interval_however_little_time_there_is(
    device_bench: ProcessBench, candidate: Make
) -> None:
    plan = EvaluationPlan(rounds=1, timing_s=0.0, unlisted_shape=False)
    answer = await device_bench.evaluate(candidate("", RIGHT), plan, candidate("", RIGHT))
    assert answer.comparison is not None and answer.comparison.pairs == 3
    assert math.isfinite(answer.comparison.lo) and math.isfinite(answer.comparison.hi)


async def test_a_reference_that_is_the_incumbent_is_timed_once(
    device_bench: ProcessBench, problem: Problem
) -> None:
    reference = reference_solution(problem)
    plan = EvaluationPlan(rounds=1, timing_s=0.0, unlisted_shape=False, against_reference=True)
    answer = await device_bench.evaluate(reference, plan, reference)
    assert answer.comparison is not None and answer.comparison.against == "incumbent"
    assert answer.geomean_speedup is not None and math.isfinite(answer.geomean_speedup)
    samples = answer.evidence["samples_ns"]
    assert all(row["reference"] == row["incumbent"] for row in samples.values())  # type: ignore[attr-defined]
    lone = await device_bench.evaluate(reference, plan, None, alone=True)
    assert (lone.verdict, lone.geomean_speedup, lone.comparison) == ("PASS", 1.0, None)


@pytest.mark.parametrize("then", ["return torch.zeros_like(y)", "raise RuntimeError('late')"])
async def test_a_round_that_is_compared_while_the_next_one_runs_decides_first(
    device_bench: ProcessBench, candidate: Make, then: str
) -> None:
    before = "_calls = {}\n"
    body = (
        "count = _calls[x.shape] = _calls.get(x.shape, 0) + 1\n"
        "if count in (7, 8):\n    return torch.softmax(x, dim=-1) * scale - y\n"
        f"if count > 8:\n    {then}\n{RIGHT}"
    )
    plan = EvaluationPlan(rounds=6, timing=False, unlisted_shape=False)
    answer = await device_bench.evaluate(candidate(before, body), plan)
    assert answer.reason == "wrong.numerical" and "round 3" in answer.detail, (answer.reason, answer.detail)
    assert answer.workloads[0].reason == "wrong.numerical"


async def test_a_workload_that_failed_in_its_first_call_is_not_called_again(
    device_bench: ProcessBench, candidate: Make
) -> None:
    body = f"_calls.append(1)\nif len(_calls) == 1:\n    raise ValueError('first')\nraise SystemExit(len(_calls))\n{RIGHT}"
    plan = EvaluationPlan(workloads=(device_bench.problem.workloads[0].uuid,), rounds=2, timing=False)
    answer = await device_bench.evaluate(candidate("_calls = []", body), plan)
    assert answer.reason == "wrong.exception" and "first" in answer.detail, (answer.reason, answer.detail)


async def test_one_call_in_flight_is_enough_where_there_is_no_room_for_two(
    device_bench: ProcessBench, candidate: Make
) -> None:
    session = (await device_bench.opened()).session
    session.slots = [1] * len(session.slots)
    plan = EvaluationPlan(rounds=4, timing_s=0.0, unlisted_shape=False)
    right = await device_bench.evaluate(candidate("", RIGHT), plan)
    assert right.verdict == "PASS" and right.latency_ms, (right.reason, right.detail)
    wrong = await device_bench.evaluate(candidate("", RIGHT.replace("+ y", "- y")), plan)
    assert wrong.reason == "wrong.numerical", (wrong.reason, wrong.detail)


async def test_destination_passing(device_bench: ProcessBench, problem: Problem) -> None:
    source = (
        "import torch\n\ndef run(x, y, scale, out):\n    torch.add(torch.softmax(x, dim=-1) * scale, y, out=out)\n"
    )
    solution = python_solution(source, definition=problem.name, name="dps", destination_passing=True)
    answer = await device_bench.evaluate(solution, QUICK)
    assert answer.verdict == "PASS" and answer.timer == "wall", (answer.reason, answer.detail)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 4099])
@pytest.mark.parametrize("digest", [LinearDigest(), host_digest])
async def test_a_digest_depends_on_every_byte_and_its_place(
    digest: Callable[[torch.Tensor], torch.Tensor], size: int
) -> None:
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8)
    whole = int(digest(raw))
    assert whole == int(digest(raw.clone()))
    for index in {0, size // 2, size - 1} if size else set():
        other = raw.clone()
        other[index] ^= 1
        assert int(digest(other)) != whole
    if size > 16:
        assert int(digest(raw.roll(8))) != whole


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [0, 1, 7, 8, 4099, 1 << 20, (1 << 24) + 5])
def test_the_kernel_of_the_digest_agrees_with_itself_alone(size: int) -> None:
    device = torch.device("cuda:0")
    digest, other = (open_digest(device, digest_code(device)) for _ in range(2))
    assert isinstance(digest, KernelDigest)
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
    whole = int(digest(raw))
    assert whole == int(other(raw.clone())) and len({int(digest(raw)) for _ in range(20)}) == 1
    found = {whole, int(digest(torch.cat([raw, raw.new_zeros(1)])))}
    for index in {0, size // 2, size - 1} if size else set():
        changed = raw.clone()
        changed[index] ^= 1
        found.add(int(digest(changed)))
    assert len(found) == 2 + len({0, size // 2, size - 1} if size else set())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.float8_e4m3fn, torch.int64])
async def test_rotation_is_torch_roll(dtype: torch.dtype) -> None:
    source = torch.randint(0, 2, (5, 7)).to(dtype)
    target = torch.zeros(5, 7).to(dtype)
    _copy_rotated(target.view(-1), source.reshape(-1), 9)
    wanted = torch.roll(source.reshape(-1).view(torch.uint8).view(35, -1), 9, dims=0)
    assert torch.equal(target.reshape(-1).view(torch.uint8).view(35, -1), wanted)


async def test_who_stops_computing_once_the_checks_are_spent_is_found_where_outputs_are_copied(
    device_bench: ProcessBench, candidate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "_CHECKS_S", 0.0)
    monkeypatch.setattr(timing, "_CHECK_SHARE", 0.0)
    monkeypatch.setattr(timing.secrets, "randbelow", lambda limit: 0)
    source = candidate(STOPS, STOPS_BODY.strip().replace("RETURNED", ".clone()"))
    answer = await device_bench.evaluate(source, TIMED)
    assert answer.verdict != "PASS" or (answer.geomean_speedup or 9.0) < 1.3, answer.geomean_speedup
