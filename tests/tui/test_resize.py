"""The terminal may have any size and change it at any moment."""

from __future__ import annotations

import random

import pytest

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
