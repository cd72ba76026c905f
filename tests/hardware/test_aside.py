"""A driver that never answers costs readings, and keeps no process from ending."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import NoReturn

import pytest

from engine.bench import clocks
from engine.bench.clocks import ClockReading, ClockWatch
from engine.hardware.aside import Aside
from engine.hardware.nvml import NvmlUnavailable

STUCK = """
import asyncio, time
from engine.bench import clocks

class Nvml:
    def clock(self, uuid): time.sleep(3600)

clocks.Nvml, clocks._OPEN_S = Nvml, 0.2
watch = clocks.ClockWatch("GPU-1")
print(asyncio.run(watch.read()), watch.state)
"""


def test_a_process_ends_although_the_driver_does_not_answer() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "None off: the driver has not answered for 0 s\n"


class Driver:
    def __init__(self, *answers: Exception | tuple[float, list[str]]) -> None:
        self._answers = iter(answers)

    def clock(self, uuid: str) -> tuple[float, list[str]]:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_watch_reads_until_the_driver_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver((1980.0, ["thermal"]), NvmlUnavailable("GPU is lost"), (1980.0, []))
    monkeypatch.setattr(clocks, "Nvml", lambda: driver)
    watch = ClockWatch("GPU-1")
    assert watch.state == "on"
    assert await watch.read() == ClockReading(sm_mhz=1980.0, throttle=("thermal",))
    assert await watch.read() is None and watch.state == "off: GPU is lost"
    assert await watch.read() is None, "it is not asked again"


async def test_a_watch_without_nvml_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> NoReturn:
        raise NvmlUnavailable("no library")

    monkeypatch.setattr(clocks, "Nvml", refuse)
    watch = ClockWatch("GPU-1")
    assert await watch.read() is None and watch.state == "off: no library"
    cpu = ClockWatch(None)
    assert await cpu.read() is None and cpu.state == "off: not a GPU"


async def test_a_late_answer_is_nobody_elses() -> None:
    aside, release = Aside("test"), threading.Event()
    with pytest.raises(TimeoutError, match="has not answered"):
        await aside.ask(release.wait, 0.05)
    assert aside.silent_s > 0
    release.set()
    assert await aside.ask(lambda: 7, 10.0) == 7
    assert aside.silent_s == 0
    aside.stop()
    assert await aside.ask(lambda: 8, 10.0) == 8, "who asks again has a new thread"
    aside.stop()


async def test_who_stops_waiting_disturbs_no_later_call() -> None:
    aside, release = Aside("test"), threading.Event()
    asking = asyncio.create_task(aside.ask(release.wait, 10.0))
    await asyncio.sleep(0.05)
    asking.cancel()
    later = asyncio.create_task(aside.ask(lambda: 7, 10.0))
    await asyncio.sleep(0.05)
    release.set()
    assert await later == 7
    aside.stop()
