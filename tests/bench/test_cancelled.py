"""Stopping an agent cancels its evaluation wherever it stands; the others go on with the same processes."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from pathlib import Path

import pytest

from engine.bench import wire
from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench, reference_solution
from engine.bench.contender import Contender, close_all
from engine.bench.judge_client import JudgeClient
from engine.bench.plan_calls import FRESH
from engine.bench.processes import Helper
from engine.errors import Fault
from engine.problems.model import Problem

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAN = EvaluationPlan(rounds=2, timing=False, unlisted_shape=False)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
async def test_a_cancelled_evaluation_disturbs_no_other(bench: ProcessBench, problem: Problem) -> None:
    reference, rng = reference_solution(problem), random.Random(1)
    first = await bench.evaluate(reference, PLAN)
    assert first.verdict == "PASS", first.detail
    open_before = descriptors()
    for _ in range(20):
        stopped = asyncio.create_task(bench.evaluate(reference, PLAN))
        beside = asyncio.create_task(bench.evaluate(reference, PLAN))
        await asyncio.sleep(rng.uniform(0.0, 0.3))
        stopped.cancel()
        await asyncio.wait({stopped})
        answer = await beside
        assert answer.verdict == "PASS", (answer.reason, answer.detail)
    assert descriptors() <= open_before + 8, "arenas are kept for reuse, nothing else"


async def test_a_process_that_owes_an_answer_is_not_asked_again(bench: ProcessBench, problem: Problem) -> None:
    session = (await bench.opened()).session
    side = Contender(session, reference_solution(problem), "candidate")
    await side.start()
    child = side.child
    assert child is not None
    asking = asyncio.create_task(child.ask(wire.Affinity(cores=session.cores.work, nice=0), 5.0))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    await side.run(0, session.draw(0, 1), FRESH)
    assert side.child is not child and not child.alive
    await side.close()


@pytest.mark.parametrize("times", [1, 3])
async def test_who_is_cancelled_while_a_process_ends_leaves_nothing(
    bench: ProcessBench, problem: Problem, times: int
) -> None:
    session = (await bench.opened()).session
    sides = [Contender(session, reference_solution(problem), "candidate") for _ in range(2)]
    for side in sides:
        await side.start()
    children, free = [side.child for side in sides], len(session._free)
    closing = asyncio.create_task(close_all(sides))
    for _ in range(times):
        await asyncio.sleep(0)
        closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    assert len(session._free) == free + 2
    assert all(child is not None and child.exited.is_set() for child in children)


@pytest.mark.parametrize("late", range(5), ids=lambda turns: f"{turns} turns of the loop after it")
async def test_a_cancellation_in_the_moment_of_the_answer_is_not_forgotten(
    bench: ProcessBench, problem: Problem, late: int
) -> None:
    session = (await bench.opened()).session
    side = Contender(session, reference_solution(problem), "candidate")
    await side.start()
    child = side.child
    assert child is not None
    child.reader = asyncio.StreamReader()
    asking = asyncio.create_task(child.ask(wire.Affinity(cores=session.cores.work, nice=0), 5.0))
    await asyncio.sleep(0.05)
    child.reader.feed_data(wire.frame(wire.Report(event="done")))
    for _ in range(late):
        await asyncio.sleep(0)
    told = asking.done()
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled() or told
    await side.close()


async def test_a_judge_that_does_not_answer_in_time_is_replaced(bench: ProcessBench, problem: Problem) -> None:
    session = (await bench.opened()).session
    with pytest.raises(Fault, match=r"fault\.reference|did not answer"):
        await session.judge.fill([], 0, session.draw(0, 1), 0.0)
    await asyncio.wait_for(session.judge.helper.process.wait(), 10)
    assert session.broken
    answer = await bench.evaluate(reference_solution(problem), PLAN)
    assert answer.verdict == "PASS", answer.detail


SILENT = "import socket, sys\ns = socket.socket(fileno=int(sys.argv[1]))\nwhile s.recv(4096): pass\n"


async def test_a_question_that_nobody_waits_for_ends_with_its_judge(tmp_path: Path) -> None:
    """Otherwise the end of the event loop finds it, and prints a traceback below a verdict."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SILENT, str(theirs.fileno()), pass_fds=[theirs.fileno()]
        )
    reader, writer = await asyncio.open_connection(sock=ours)
    judge = JudgeClient(Helper(process, ours, reader, writer, tmp_path / "judge.log"))
    asking = [asyncio.create_task(judge.forget(side)) for side in (0, 1)]
    await asyncio.sleep(0.05)
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    await judge.stop()
    assert not [task for task in asyncio.all_tasks() if "JudgeClient" in repr(task.get_coro())]
