"""Fixtures of the screens' tests: recorded campaigns at their own time, an app in a pilot, a stub engine."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from recorded import Story, end_of, record
from stub import StubEngine
from textual.pilot import Pilot
from textual.widget import Widget

from kernelarc_tui import clock
from kernelarc_tui.app import KernelArcApp

STORY = Story()
ENDED = Story(name="cpu-20260528", state="finished", gpu=False, agents=2, cost=0.0, candidates=40)


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both campaigns, written once."""
    root = tmp_path_factory.mktemp("recorded")
    for story in (STORY, ENDED):
        record(root, story)
    return root


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clock stands at the end of the recording, in UTC."""
    monkeypatch.setattr(clock, "now", lambda: end_of(STORY))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("TMUX", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def campaign(recordings: Path, private_home: Path) -> Path:
    """A running campaign's folder, this test's own copy."""
    return _copy(recordings, private_home, STORY.name)


@pytest.fixture
def ended(recordings: Path, private_home: Path) -> Path:
    return _copy(recordings, private_home, ENDED.name)


def _copy(recordings: Path, home: Path, name: str) -> Path:
    folder = home / "campaigns" / name
    shutil.copytree(recordings / name, folder)
    return folder


@pytest.fixture
async def engine(campaign: Path) -> AsyncIterator[StubEngine]:
    """An engine on the campaign: its real lock, store writer and control server, answers from the test."""
    stub = StubEngine(campaign)
    await stub.start()
    yield stub
    await stub.close()


class Screen:
    """What a person sees and does."""

    def __init__(self, app: KernelArcApp, pilot: Pilot[str]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        names = {" ": "space", "-": "minus", ".": "full_stop", "/": "slash", ":": "colon"}
        await self.press(*(names.get(char, char) for char in text))

    def text(self, selector: str = "") -> str:
        """The characters on the screen, or of one widget."""
        screen = self.app.screen
        rows = [strip.text for strip in screen._compositor.render_strips()]
        if not selector:
            return "\n".join(rows)
        region = self.app.screen.query_one(selector, Widget).region
        return "\n".join(row[region.x : region.right] for row in rows[region.y : region.bottom])

    async def until(self, condition: Callable[[], object], timeout_s: float = 5.0) -> None:
        """Wait for something to be on screen. Fails with what is there instead."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout_s} s; the screen shows\n{self.text()}")
            await self.pilot.pause(0.02)

    async def sees(self, *texts: str, timeout_s: float = 5.0) -> None:
        for text in texts:
            await self.until(lambda text=text: text in self.text(), timeout_s)


@asynccontextmanager
async def opened(app: KernelArcApp, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Screen]:
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        screen = Screen(app, pilot)
        await asyncio.sleep(0)
        yield screen


@pytest.fixture
def show() -> Callable[..., object]:
    """``async with show(folder, size=(80, 24)) as screen``."""

    def start(folder: Path | None, size: tuple[int, int] = (80, 24), **options: bool) -> object:
        return opened(KernelArcApp(folder, **options), size)

    return start
