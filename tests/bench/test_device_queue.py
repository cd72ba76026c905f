"""Tasks of one engine have the device in the order in which they asked; other processes get in between."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.bench.device_lock import DeviceLock


async def _use(lock: DeviceLock, name: str, order: list[str], seconds: float = 0.01) -> None:
    async with lock.held():
        order.append(name)
        await asyncio.sleep(seconds)


async def test_first_come_first_served(tmp_path: Path) -> None:
    order: list[str] = []
    tasks = []
    async with DeviceLock("cpu", folder=tmp_path).held():
        for name in "abcdef":
            tasks.append(asyncio.create_task(_use(DeviceLock("cpu", folder=tmp_path), name, order)))
            await asyncio.sleep(0.01)
    await asyncio.gather(*tasks)
    assert order == list("abcdef")


async def test_what_is_urgent_comes_first(tmp_path: Path) -> None:
    """A win that waits to be confirmed is worth more to everybody than a search that is done sooner."""
    order: list[str] = []

    async def use(name: str) -> None:
        async with DeviceLock("cpu", folder=tmp_path).held(urgent=name.isupper()):
            order.append(name)

    async with DeviceLock("cpu", folder=tmp_path).held():
        tasks = []
        for name in "abCdE":
            tasks.append(asyncio.create_task(use(name)))
            await asyncio.sleep(0.01)
    await asyncio.gather(*tasks)
    assert order == list("CEabd")


@pytest.mark.parametrize(
    ("turn", "expected"),
    [("_OWN_TURN_S", ["a", "b", "back"]), ("_TURN_S", ["back", "a", "b"])],
    ids=["a long turn goes to the next task", "a short one only to other processes"],
)
async def test_who_breathes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: str, expected: list[str]
) -> None:
    monkeypatch.setattr(f"engine.bench.device_lock.{turn}", 0.0)
    order: list[str] = []
    lock = DeviceLock("cpu", folder=tmp_path)
    async with lock.held() as held:
        waiting = [asyncio.create_task(_use(lock, name, order)) for name in "ab"]
        await asyncio.sleep(0.05)
        await held.breathe()
        order.append("back")
    await asyncio.gather(*waiting)
    assert order == expected
    first, again = held.uses
    assert first.released is not None
    if turn == "_TURN_S":
        assert again.acquired - first.released >= 0.05  # time in which others could have had it


async def test_who_is_cancelled_while_others_may_have_the_device_leaves_the_queue_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.bench.device_lock._TURN_S", 0.0)
    monkeypatch.setattr("engine.bench.device_lock._PAUSE_S", 1.0)
    lock, order = DeviceLock("cpu", folder=tmp_path), list[str]()

    async def breathing() -> None:
        async with lock.held() as turn:
            await turn.breathe()

    first = asyncio.create_task(breathing())
    await asyncio.sleep(0.05)
    second = asyncio.create_task(_use(lock, "second", order))
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 4)
    assert order == ["second"] and first.cancelled()


@pytest.mark.parametrize("holding", [False, True])
async def test_a_cancelled_task_leaves_the_queue_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holding: bool
) -> None:
    """Cancelled while it waits for the first time, or while it waits to have the device back."""
    monkeypatch.setattr("engine.bench.device_lock._OWN_TURN_S", 0.0)
    lock, order = DeviceLock("cpu", folder=tmp_path), list[str]()

    async def breathing() -> None:
        async with lock.held() as turn:
            while True:
                await asyncio.sleep(0.01)
                await turn.breathe()

    first = asyncio.create_task(breathing() if holding else asyncio.sleep(0))
    await asyncio.sleep(0.03)
    second = asyncio.create_task(_use(lock, "long", order, 0.2))
    await asyncio.sleep(0.1)
    third = asyncio.create_task(_use(lock, "third", order))
    await asyncio.sleep(0.02)
    (first if holding else third).cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    await asyncio.wait_for(_use(lock, "last", order), 5)
    assert order == (["long", "third", "last"] if holding else ["long", "last"])


async def _breathe(lock: DeviceLock, name: str, order: list[str], seconds: float) -> None:
    """A longer use that breathes: an eighth as many of them take as long."""
    if int(name) % 8:
        order.append(name)
        return
    async with lock.held() as turn:
        for _ in range(8):
            await asyncio.sleep(seconds)
            await turn.breathe()
        order.append(name)


@pytest.mark.parametrize("kind", ["many", "long"])
async def test_a_chain_of_tasks_lets_another_process_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("engine.bench.device_lock._TURN_S", 0.1)
    monkeypatch.setattr("engine.bench.device_lock._OWN_TURN_S", 0.4)
    code = (
        "import asyncio, time\nfrom pathlib import Path\nfrom engine.bench.device_lock import DeviceLock\n"
        "async def main():\n"
        f"    async with DeviceLock('cpu', folder=Path({str(tmp_path)!r})).held():\n"
        "        print(time.monotonic(), flush=True)\n"
        "asyncio.run(main())\n"
    )
    lock, order = DeviceLock("cpu", folder=tmp_path), list[str]()
    process = None
    async with lock.held():
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
        await asyncio.sleep(1.5)  # it is waiting by now
        uses = _use if kind == "many" else _breathe
        chain = [asyncio.create_task(uses(lock, str(i), order, 0.05)) for i in range(60)]
    out, _ = await asyncio.wait_for(process.communicate(), 20)
    done = len(order)
    await asyncio.gather(*chain)
    assert float(out) <= time.monotonic() and done < len(order), "it did not wait for the whole chain"
