"""Helper processes: they end with the engine, give the device back, and devices are never shared."""

# ruff: noqa: E501  (sources of candidates)
from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import paths
from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.bench.device_lock import DeviceLock
from engine.errors import Fault
from engine.problems.model import Problem
from engine.problems.solution import Solution

from .conftest import helpers_of, make_problem, wait_until

Make = Callable[..., Solution]
TIMED = EvaluationPlan(rounds=1, min_pairs=3, max_pairs=4, calls=6, unlisted_shape=False)
ROOT = Path(__file__).resolve().parent.parent.parent


async def test_suspend_ends_every_process_and_the_next_call_rebuilds(
    problem: Problem, candidate: Make, tmp_path: Path, private_home: Path
) -> None:
    bench = ProcessBench(problem, "cpu", tmp_path / "scratch")
    quick = EvaluationPlan(rounds=1, timing=False, unlisted_shape=False)
    assert (await bench.evaluate(candidate(), quick)).verdict == "PASS"
    assert helpers_of(private_home)
    await bench.suspend()
    assert wait_until(lambda: not helpers_of(private_home))
    assert (await bench.evaluate(candidate(), quick)).verdict == "PASS"
    await bench.close()
    assert wait_until(lambda: not helpers_of(private_home))


ENGINE = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from engine.bench.bench import ProcessBench
from engine.bench.api import EvaluationPlan
from engine.problems.solution import python_solution
from tests.bench.conftest import make_problem

async def main():
    problem = make_problem()
    bench = ProcessBench(problem, "cpu", Path({scratch!r}))
    source = "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    time.sleep(300)\\ndef run(x, y, scale):\\n    time.sleep(300)\\n"
    task = asyncio.create_task(bench.evaluate(python_solution(source, definition=problem.name, name="hang"), EvaluationPlan()))
    await asyncio.sleep(0)
    print("started", flush=True)
    await task

asyncio.run(main())
"""


def test_nothing_survives_a_killed_engine(tmp_path: Path, private_home: Path) -> None:
    code = ENGINE.format(root=str(ROOT), scratch=str(tmp_path / "scratch"))
    engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert wait_until(lambda: len(helpers_of(private_home)) >= 4, 30.0)
    finally:
        os.kill(engine.pid, signal.SIGKILL)
        engine.wait()
        assert engine.stdout is not None
        engine.stdout.close()
    assert wait_until(lambda: not helpers_of(private_home), 10.0)


async def test_two_benches_never_time_at_once(candidate: Make, tmp_path: Path) -> None:
    benches = [ProcessBench(make_problem(), "cpu", tmp_path / name) for name in ("a", "b")]
    try:
        answers = await asyncio.gather(
            *(bench.evaluate(candidate(), TIMED) for bench in benches for _ in range(2))
        )
    finally:
        for bench in benches:
            await bench.close()
    assert [answer.verdict for answer in answers] == ["PASS"] * 4
    uses = sorted(
        (use["acquired"], use["released"]) for answer in answers for use in answer.evidence["device_lock"]
    )
    assert len(uses) >= 4
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(uses))


HOLDER = """
import asyncio, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from engine.bench.device_lock import DeviceLock

async def main():
    lock = DeviceLock("GPU-1", folder=Path({folder!r}))
    async with lock.held():
        print(time.monotonic(), flush=True)
        await asyncio.sleep(0.5)
        print(time.monotonic(), flush=True)

asyncio.run(main())
"""


async def test_the_lock_excludes_another_process(tmp_path: Path) -> None:
    code = HOLDER.format(root=str(ROOT), folder=str(tmp_path))
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert holder.stdout is not None
    taken = float(await holder.stdout.readline())
    lock = DeviceLock("GPU-1", folder=tmp_path)
    async with lock.held() as turn:
        rest = await holder.stdout.readline()
        assert rest, "the other process still held the device"
        assert turn.uses[0].acquired >= float(rest) > taken
    await holder.wait()


async def test_a_lock_dies_with_its_process_and_is_not_inherited(tmp_path: Path) -> None:
    lock = DeviceLock("cpu", folder=tmp_path)
    async with lock.held():
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import time; time.sleep(30)", close_fds=False
        )
    begin = time.monotonic()
    async with DeviceLock("cpu", folder=tmp_path).held():
        assert time.monotonic() - begin < 5
    child.kill()
    await child.wait()


async def test_lock_files_are_for_everybody_and_never_links(tmp_path: Path) -> None:
    lock = DeviceLock("MIG-a/b", folder=tmp_path)
    async with lock.held():
        mode = lock.path.stat().st_mode
        assert stat.S_IMODE(mode) == 0o666 and lock.path.parent == tmp_path
    target = tmp_path / "elsewhere"
    (tmp_path / "cpu.lock").symlink_to(target)
    with pytest.raises(Fault) as caught:
        async with DeviceLock("cpu", folder=tmp_path).held():
            pass
    assert caught.value.reason == "fault.device-lock" and not target.exists()


async def test_a_long_turn_lets_others_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bench.device_lock._OWN_TURN_S", 0.05)
    order: list[str] = []

    async def long() -> None:
        async with DeviceLock("cpu", folder=tmp_path).held() as turn:
            for _ in range(40):
                order.append("long")
                await asyncio.sleep(0.02)
                await turn.breathe()

    async def short() -> None:
        await asyncio.sleep(0.1)
        async with DeviceLock("cpu", folder=tmp_path).held():
            order.append("short")

    await asyncio.gather(long(), short())
    assert 0 < order.index("short") < len(order) - 1


async def test_a_reference_that_needs_a_gpu_is_not_the_candidates_fault(tmp_path: Path, candidate: Make) -> None:
    import msgspec

    plain = make_problem()
    reference = "import torch\n\ndef run(x, y, scale):\n    return torch.zeros(2, device='cuda')\n"
    problem = msgspec.structs.replace(
        plain, definition=msgspec.structs.replace(plain.definition, reference=reference)
    )
    bench = ProcessBench(problem, "cpu", tmp_path / "scratch")
    try:
        answer = await bench.evaluate(candidate(), TIMED)
    finally:
        await bench.close()
    assert (answer.verdict, answer.reason) == ("ERROR", "needs.cuda"), answer.detail


async def test_a_lock_file_that_was_removed_locks_nobody_out_and_lets_nobody_in(tmp_path: Path) -> None:
    first, second = DeviceLock("cpu", folder=tmp_path), DeviceLock("cpu", folder=tmp_path)
    async with first.held():
        waiting = asyncio.create_task(_hold(second))
        await asyncio.sleep(0.1)
        (tmp_path / "cpu.lock").unlink()
    earlier = await asyncio.wait_for(waiting, 10)
    async with first.held() as turn:
        assert (tmp_path / "cpu.lock").exists() and turn.uses[0].acquired >= earlier


async def _hold(lock: DeviceLock) -> float:
    """When it was had (monotonic seconds)."""
    async with lock.held() as turn:
        assert lock.path.exists(), "the lock is on the file that others will find"
    return turn.uses[0].acquired


async def test_a_lock_file_with_a_second_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (tmp_path / "precious").chmod(0o600)
    os.link(tmp_path / "precious", tmp_path / "cpu.lock")
    with pytest.raises(Fault, match="one name"):
        async with DeviceLock("cpu", folder=tmp_path).held():
            pass
    assert (tmp_path / "precious").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o700, 0o777, 0o1755])
def test_a_lock_folder_made_by_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """Root takes it over; anybody else uses it only if it is open to all, and sticky."""
    folder = tmp_path / "kernelarc"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root to make somebody else's folder")
    os.chown(folder, 12345, 12345)
    folder.chmod(mode)
    paths._require_shared(folder)
    info = folder.stat()
    assert info.st_uid == 0 and info.st_mode & 0o7777 == 0o1777
    os.chown(folder, 12345, 12345)
    folder.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(Fault, match="1777"):
        paths._require_shared(folder)
    folder.chmod(0o1777)
    paths._require_shared(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(Fault):
        paths._require_shared(link)


async def test_while_one_candidate_compiles_others_are_timed(candidate: Make, tmp_path: Path) -> None:
    """By the lock's trace: whoever is done compiling has the device, and gives it back, before the slow one asks."""
    bench = ProcessBench(make_problem(), "cpu", tmp_path / "scratch")
    slow = candidate("import time\ntime.sleep(12)")
    try:
        await bench.evaluate(candidate(), EvaluationPlan(rounds=1, timing=False, unlisted_shape=False))
        if (await bench.opened()).session.cores.shared:
            pytest.skip("one core: compiling and timing exclude each other")
        compiling = asyncio.create_task(bench.evaluate(slow, TIMED))
        await asyncio.sleep(0.5)
        quick = [await bench.evaluate(candidate(f"number = {n}"), TIMED) for n in range(2)]
        assert not compiling.done()
        late = await compiling
    finally:
        await bench.close()
    assert [answer.verdict for answer in (*quick, late)] == ["PASS"] * 3
    released = [use["released"] for answer in quick for use in answer.evidence["device_lock"]]
    assert max(released) < min(use["asked"] for use in late.evidence["device_lock"])


async def test_another_user_of_the_box_is_waited_for(tmp_path: Path) -> None:
    """Their lock file is theirs, in a sticky folder: it can be locked all the same."""
    if os.geteuid() != 0:
        pytest.skip("needs root to be somebody else")
    folder = tmp_path / "locks"
    folder.mkdir()
    for place in (folder, *folder.parents):
        if place.is_relative_to("/tmp") and place != Path("/tmp"):
            place.chmod(0o1777 if place == folder else 0o755)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(12345, 12345, 12345)
            lock = DeviceLock("GPU-2", folder=folder)
            fcntl.flock(lock._open(), fcntl.LOCK_EX)
            os.write(write, b"held")
            time.sleep(0.7)
            os.write(write, f" {time.monotonic()}".encode())
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 4) == b"held"
    async with DeviceLock("GPU-2", folder=folder).held() as turn:
        os.waitpid(pid, 0)
        assert turn.uses[0].acquired >= float(os.read(read, 64))
    os.close(read)
    assert (folder / "GPU-2.lock").stat().st_uid == 12345
