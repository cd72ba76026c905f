"""Judge and zygote may be killed, and others may keep the device: no candidate is blamed, no process is left."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.bench.session import Session
from engine.errors import Fault
from engine.problems.model import Problem
from engine.problems.solution import Solution
from engine.tracing.trace import trace_problem

from .conftest import helpers_of, make_problem, wait_until

Make = Callable[..., Solution]
PLAN = EvaluationPlan(rounds=1, timing=False, unlisted_shape=False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELARC_HOME", str(tmp_path))
    return tmp_path


async def test_a_zygote_that_is_killed_is_nobodys_crash(home: Path, candidate: Make) -> None:
    bench = ProcessBench(make_problem(rows=(16,)), "cpu", home / "scratch")
    try:
        zygote = (await bench.opened()).session.zygote.helper.process
        before = len(helpers_of(home))
        busy = asyncio.create_task(bench.evaluate(candidate("import time", "time.sleep(60)\nreturn x"), PLAN))
        while len(helpers_of(home)) < before + 2:  # its keeper and itself
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        zygote.kill()
        answer = await busy
        assert (answer.verdict, answer.reason) == ("ERROR", "fault.zygote"), answer.detail
        honest = await bench.evaluate(candidate(), PLAN)
        assert honest.verdict == "PASS", honest.detail
        crash = await bench.evaluate(candidate("import os", "os._exit(3)"), PLAN)
        assert (crash.verdict, crash.reason) == ("FAIL", "crash.exit"), "who ends by itself is still blamed"
    finally:
        await bench.close()


async def test_a_zygote_with_the_compiler_that_is_killed_is_replaced_as_well(home: Path, candidate: Make) -> None:
    """Only programs that speak of torch's compiler come from it, and all of them ended in a fault from then on."""
    bench = ProcessBench(make_problem(rows=(16,)), "cpu", home / "scratch")
    speaks = candidate("# as torch.compile would")
    try:
        assert (await bench.evaluate(speaks, PLAN)).verdict == "PASS"
        starting = (await bench.opened()).session._compiling
        assert starting is not None
        process = (await starting).helper.process
        process.kill()
        await process.wait()
        answer = await bench.evaluate(speaks, PLAN)
        assert answer.verdict == "PASS", answer.detail
    finally:
        await bench.close()
    assert wait_until(lambda: not helpers_of(home))


@pytest.mark.parametrize("beside", [0, 1], ids=["nobody else", "one that is on its way out"])
async def test_processes_that_broke_are_replaced_once_and_all_end(
    home: Path, problem: Problem, candidate: Make, beside: int
) -> None:
    bench = ProcessBench(problem, "cpu", home / "scratch")
    try:
        session = (await bench.opened()).session
        slow = candidate("import time", "time.sleep(2.0)\nreturn torch.softmax(x, dim=-1) * scale + y")
        late = [asyncio.create_task(bench.evaluate(slow, PLAN)) for _ in range(beside)]
        await asyncio.sleep(1.0)
        session.judge.helper.process.kill()
        await session.judge.helper.process.wait()
        answers = await asyncio.gather(*(bench.evaluate(candidate(), PLAN) for _ in range(3)))
        assert [answer.verdict for answer in answers] == ["PASS"] * 3, [answer.detail for answer in answers]
        for answer in await asyncio.gather(*late):
            assert answer.verdict == "ERROR", "it had the judge that was killed"
    finally:
        await bench.close()
    assert wait_until(lambda: not helpers_of(home)), "nothing of either generation is left"


async def test_who_is_cancelled_while_helpers_end_leaves_none_that_hangs(home: Path, problem: Problem) -> None:
    """As a judge does in a driver: it does not notice that nobody talks to it any more."""
    bench = ProcessBench(problem, "cpu", home / "scratch")
    judge = (await bench.opened()).session.judge.helper.process
    judge.send_signal(signal.SIGSTOP)
    closing = asyncio.create_task(bench.close())
    await asyncio.sleep(0.1)
    closing.cancel()
    await asyncio.wait({closing})
    await bench.close()
    ended = judge.returncode is not None
    with contextlib.suppress(ProcessLookupError):
        judge.kill()
    assert ended and not helpers_of(home)


@pytest.mark.slow
async def test_waiting_for_the_device_is_no_part_of_a_candidates_time(
    home: Path, problem: Problem, candidate: Make
) -> None:
    bench = ProcessBench(problem, "cpu", home / "scratch")
    plan = EvaluationPlan(rounds=1, min_pairs=3, max_pairs=3, unlisted_shape=False, deadline_s=15.0)
    held = os.open(bench.lock.path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        first = asyncio.create_task(bench.evaluate(candidate(), plan))
        late = candidate("import time\ntime.sleep(6)")
        second = asyncio.create_task(bench.evaluate(late, plan))  # and does not wait as long for the device
        answer = await first
        assert (answer.verdict, answer.reason) == ("ERROR", "fault.device-busy"), answer.detail
        fcntl.flock(held, fcntl.LOCK_UN)
        answer = await second
        assert answer.verdict == "PASS" and answer.wall_s > plan.deadline_s, answer.detail
        hasty = EvaluationPlan(unlisted_shape=False, deadline_s=1.0)
        answer = await bench.evaluate(candidate("import time", "time.sleep(9)\nreturn x"), hasty)
        assert (answer.verdict, answer.reason) == ("FAIL", "resource.timeout"), "its own time is still counted"
    finally:
        os.close(held)
        await bench.close()


async def test_a_helper_that_cannot_be_started_leaves_no_other(home: Path, problem: Problem) -> None:
    scratch = home / "scratch"
    (scratch / "judge.log").mkdir(parents=True)  # where its output would go
    session = Session(problem, "cpu", scratch)
    with pytest.raises(OSError, match=r"judge\.log"):
        await session.open()
    assert wait_until(lambda: not helpers_of(home))
    (scratch / "judge.log").rmdir()
    await session.open()
    await session.close()


def test_a_tracer_that_cannot_be_started_is_a_fault(home: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest: tests before this one may have left gaps below what is open
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, hard))
        with pytest.raises(Fault, match=r"fault\.trace"):
            trace_problem(make_problem(name="no-descriptors"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
