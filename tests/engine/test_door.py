"""The door in front of the bench, and the device that is given back while it is shut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from stub_proposer import slowly_better

from engine.door import BenchDoor, DeviceParking, Parked
from engine.records import CampaignState
from engine.store import events as ev

LONG = {"candidates": 500, "draft_after": 300, "stop_after": 400}


class Device:
    """A door with somebody inside who leaves when told, and a suspension that ends when told."""

    def __init__(self) -> None:
        self.door = BenchDoor()
        self.leave, self.ended = asyncio.Event(), asyncio.Event()
        self.suspensions = 0
        self.error: BaseException | None = None
        self.parking = DeviceParking(self.door, self._suspend)
        self._inside = asyncio.create_task(self._measure())

    async def _measure(self) -> None:
        async with self.door.entered():
            await self.leave.wait()

    async def _suspend(self) -> None:
        assert not self.door.inside
        self.suspensions += 1
        await self.ended.wait()
        if self.error is not None:
            raise self.error

    async def do(self, word: str) -> None:
        does: dict[str, Callable[[], object]] = {
            "leave": self.leave.set,
            "suspended": self.ended.set,
            "fails": lambda: setattr(self, "error", OSError("the driver hangs")),
        }
        verb, _, why = word.partition(" ")
        if why:
            {"shut": self.parking.shut, "open": self.parking.open}[verb](why)
        else:
            does[verb]()
        for _ in range(5):  # whatever follows from it by itself
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("words", "state", "suspensions"),
    [
        ("shut a", Parked.EMPTYING, 0),
        ("shut a, open a", Parked.OPEN, 0),
        ("shut a, shut b, open a", Parked.EMPTYING, 0),
        ("shut a, open b", Parked.EMPTYING, 0),
        ("shut a, open a, leave", Parked.OPEN, 0),
        ("shut a, open a, shut a, leave", Parked.SUSPENDING, 1),
        ("shut a, leave", Parked.SUSPENDING, 1),
        ("shut a, leave, open a", Parked.SUSPENDING, 1),  # never cut short
        ("shut a, leave, open a, suspended", Parked.OPEN, 1),
        ("shut a, leave, open a, shut a, suspended", Parked.PARKED, 1),
        ("shut a, leave, open a, shut b, suspended", Parked.PARKED, 1),
        ("leave, shut a, suspended", Parked.PARKED, 1),
        ("leave, shut a, suspended, shut b", Parked.PARKED, 1),
        ("leave, shut a, shut b, suspended, open a", Parked.PARKED, 1),
        ("leave, shut a, shut b, suspended, open a, open b", Parked.OPEN, 1),
        ("leave, shut a, suspended, open a, shut a", Parked.PARKED, 2),
        ("leave, fails, shut a, suspended", Parked.PARKED, 1),
        ("leave, fails, shut a, suspended, open a", Parked.OPEN, 1),
    ],
)
async def test_the_door_is_shut_as_long_as_there_is_a_reason(words: str, state: Parked, suspensions: int) -> None:
    device = Device()
    await asyncio.sleep(0)
    for word in words.split(", "):
        await device.do(word)
    assert (device.parking.state, device.suspensions) == (state, suspensions)
    assert device.door.is_open is (state is Parked.OPEN)
    assert bool(device.parking.failure) is ("fails" in words and state is Parked.PARKED)
    device.leave.set()
    await device.parking.close()


async def test_nothing_is_left_running_when_the_campaign_ends() -> None:
    device = Device()
    for word in ("leave", "shut a"):
        await device.do(word)
    await device.parking.close()
    await device.do("open a")
    await device.do("shut b")
    assert device.parking.state is Parked.CLOSED and not device.door.is_open
    assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"park"})


async def test_nobody_slips_through_a_door_that_opened_for_a_moment() -> None:
    door = BenchDoor()
    door.shut()
    measured = []

    async def measure() -> None:
        async with door.entered():
            measured.append(door.is_open)

    waiting = asyncio.create_task(measure())
    await asyncio.sleep(0)
    door.reopen()
    door.shut()
    await asyncio.sleep(0.01)
    assert measured == []
    door.reopen()
    await waiting
    assert measured == [True]


async def test_a_pause_while_a_resume_waits_for_the_device_is_a_pause(lab) -> None:
    campaign = lab(slowly_better, delay_s=0.01, agents=2, bench={"suspend_s": 0.3}, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 2)
    parking = campaign.launcher._parking
    assert (await campaign.order("pause")).ok
    async with asyncio.timeout(5):
        while parking.state is not Parked.SUSPENDING:
            await asyncio.sleep(0.005)
    resumed = asyncio.create_task(campaign.order("resume"))
    await campaign.until(lambda s: s.state is CampaignState.RUNNING)
    assert (await campaign.order("pause")).ok
    assert (await resumed).ok
    await asyncio.sleep(0.5)
    calls = campaign.bench.calls
    await asyncio.sleep(0.1)
    assert not campaign.launcher.session.door.is_open and campaign.bench.calls == calls
    assert (await campaign.until(lambda s: True)).state is CampaignState.PAUSED
    before = (await campaign.until(lambda s: True)).candidates
    assert (await campaign.order("resume")).ok
    await campaign.until(lambda s: s.candidates > before)
    await campaign.order("stop")
    await task


async def test_a_device_that_cannot_be_given_back_is_told_and_loses_nothing(lab) -> None:
    broken: dict[str, BaseException] = {"suspend": RuntimeError("the driver hangs")}
    campaign = lab(slowly_better, delay_s=0.01, bench={"raises": broken}, **LONG)
    task = campaign.start()
    before = (await campaign.until(lambda s: s.candidates >= 1)).candidates
    assert (await campaign.order("pause")).ok
    told = await campaign.until(lambda s: any(note.code == "device.kept" for note in s.attention))
    assert "the driver hangs" in told.attention[0].text
    assert (await campaign.order("resume")).ok
    await campaign.until(lambda s: s.candidates > before + 1 and not s.attention)
    broken.clear()
    assert (await campaign.order("pause")).ok
    async with asyncio.timeout(5):
        while not campaign.bench.suspensions:
            await asyncio.sleep(0.01)
    await campaign.order("stop")
    await task
    assert len([e for e in campaign.events(ev.Attention) if e.code == "device.kept"]) == 2


# The bench's close, which is the last thing that an engine does


@pytest.mark.parametrize(
    ("bench", "said"),
    [
        ({"close_s": 30.0}, "not closed within 0.1 s"),
        ({"raises": {"close": OSError("the keeper is gone")}}, "not closed in order"),
        ({"raises": {"close": RuntimeError("a bug")}}, "not closed in order"),
        ({"raises": {"close": asyncio.CancelledError()}}, ""),
    ],
)
async def test_a_campaign_ends_as_it_ended_however_its_bench_closes(
    lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bench: dict[str, object], said: str
) -> None:
    monkeypatch.setattr("engine.host.CLOSE_LIMIT_S", 0.1)
    campaign = lab(slowly_better, candidates=2, bench=bench)
    summary = await asyncio.wait_for(campaign.run(), 10)
    assert (summary.state, summary.candidates) == (CampaignState.FINISHED, 2)
    assert said in caplog.text
