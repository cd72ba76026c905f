"""The terminal may have any size and change it at any moment."""

from __future__ import annotations

import random

import pytest
from textual.events import Resize
from textual.geometry import Size

from kernelarc_tui.screens.candidate import CandidateScreen


@pytest.mark.parametrize("size", [(1, 1), (10, 3), (20, 5), (40, 10), (72, 17), (100, 30), (300, 80)])
async def test_the_live_screen_starts_at_any_size(engine, show, size):
    async with show(engine.folder, size) as screen:
        assert len(screen.text().split("\n")) == size[1]


async def test_a_storm_of_sizes_leaves_a_whole_screen(engine, show):
    choice = random.Random(11)
    async with show(engine.folder) as screen:
        for step in range(30):
            if step == 10:
                screen.app.push_screen(CandidateScreen(63, tab=1))
            if step == 20:
                await screen.press("q")
            await screen.pilot.resize_terminal(choice.randint(1, 200), choice.randint(1, 60))
        await screen.pilot.resize_terminal(80, 24)
        await screen.pilot.pause()
        await screen.until(lambda: "q leave running" in screen.text("#keys"))
        assert "best 0.0845 ms" in screen.text("#header") and "2  tiling" in screen.text("#agents")


async def test_crossing_a_breakpoint_changes_the_frames_and_back(engine, show):
    async with show(engine.folder) as screen:
        assert "─ agents  " in screen.text()
        await screen.pilot.resize_terminal(160, 45)
        await screen.until(lambda: "╭─ agents ─" in screen.text())
        await screen.pilot.resize_terminal(80, 24)
        await screen.until(lambda: "╭" not in screen.text() and "─ agents  " in screen.text())


async def test_two_sizes_under_way_at_once_do_not_chase_each_other(engine, show):
    """Textual's screens answer a resize with one to themselves; two of different sizes would go on for ever."""
    async with show(engine.folder) as screen:
        app = screen.app
        for opened in ((), ("question_mark",), ("escape", "ctrl+p"), ("escape", "s")):
            await screen.press(*opened)
            layouts = []
            app.screen.screen_layout_refresh_signal.subscribe(app.screen, layouts.append)
            for size in (Size(80, 25), Size(80, 24), Size(81, 24), Size(80, 24)):
                app.screen.post_message(Resize(size, size))
            for _ in range(40):
                await screen.pilot.pause()
            assert len(layouts) < 20
            assert app.screen.size == Size(80, 24)
