"""What every screen looks like at 80×24 and 160×45, character by character; the live one in colour too.

After a wanted change: ``KERNELARC_UPDATE_SCREENS=1 pytest tests/tui/test_snapshots.py`` and, for the pictures,
``--snapshot-update``; then look at what changed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine import skills
from engine.store import campaigns
from engine.store.lock import CampaignLock
from kernelarc_tui import clock
from kernelarc_tui.app import KernelArcApp
from kernelarc_tui.screens.candidate import CandidateScreen

GOLDEN = Path(__file__).parent / "screens"
SIZES = ((80, 24), (160, 45))
SKILL = """---
name: {name}
description: {about}
metadata: {{kernel-types: "{types}", devices: "cpu cuda"}}
---

# {name}

{about} Measure first.
"""


@pytest.fixture
def alive(campaign):
    lock = CampaignLock(campaign)
    lock.acquire()
    yield campaign
    lock.release()


@pytest.fixture
def two_skills(tmp_path, monkeypatch):
    for name, about, types in (
        ("operator-fusion", "One launch instead of three.", "any"),
        ("memory-layout", "Read it once.", "norm"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(SKILL.format(name=name, about=about, types=types))
    monkeypatch.setattr(skills, "skill_dirs", lambda: [tmp_path])


def _matches(name: str, size: tuple[int, int], text: str) -> None:
    path = GOLDEN / f"{name}-{size[0]}x{size[1]}.txt"
    shown = "\n".join(row.rstrip() for row in text.split("\n")) + "\n"
    if os.environ.get("KERNELARC_UPDATE_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)
    assert path.exists(), f"there is no {path.name}; make it with KERNELARC_UPDATE_SCREENS=1 and look at it"
    assert shown == path.read_text(), f"{path.name} differs; the screen shows\n{shown}"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    ("name", "keys", "sign"),
    [
        ("live", (), "q leave running"),
        ("agent", ("a",), "draft at"),
        ("memory", ("m",), "before → after"),
        ("leaders", ("l", "e"), "made from"),
        ("skills", ("i",), "One launch"),
        ("help", ("question_mark",), "drafts next"),
        ("stop", ("s",), "the whole campaign"),
        ("budgets", ("b",), "US dollars"),
    ],
)
async def test_a_screen_looks_as_it_did(alive, two_skills, show, size, name, keys, sign):
    async with show(alive, size) as screen:
        await screen.press(*keys)
        await screen.sees(sign)
        await screen.pilot.pause(0.2)
        _matches(name, size, screen.text())


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    ("tab", "sign"),
    [(0, "import triton"), (1, "against parent"), (2, "workload"), (3, "evidence"), (4, "You optimize")],
)
async def test_a_candidate_looks_as_it_did(alive, show, size, tab, sign):
    async with show(alive, size) as screen:
        screen.app.push_screen(CandidateScreen(60, tab=tab))
        await screen.sees(sign) if tab != 3 else await screen.sees("verdict")
        await screen.pilot.pause(0.2)
        _matches(f"candidate-{tab + 1}", size, screen.text())


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_replay_looks_as_it_did(ended, show, size):
    async with show(ended, size, replay=True) as screen:
        await screen.press("less_than_sign", "less_than_sign", "less_than_sign")
        await screen.pilot.pause(0.2)
        _matches("replay", size, screen.text())


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_list_looks_as_it_did(alive, ended, show, size, monkeypatch):
    monkeypatch.setattr(campaigns, "running_s", lambda folder, summary: summary.elapsed_s(clock.now()))
    async with show(None, size) as screen:
        await screen.sees("attn-20260528")
        rows = [row for row in screen.text().split("\n") if "/campaigns/" not in row]  # a path of this test's own
        _matches("home", size, "\n".join(rows))


async def test_ascii_looks_as_it_did(alive, show):
    async with show(alive, (80, 24), ascii=True) as screen:
        text = "\n".join(
            "".join(
                segment.text
                for segment in strip.apply_filter(screen.app._filters[-1], screen.app.screen.styles.background)
            )
            for strip in screen.app.screen._compositor.render_strips()
        )
        assert text.isascii()
        _matches("ascii", (80, 24), text)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_live_screen_in_colour(alive, snap_compare, size):
    assert snap_compare(KernelArcApp(alive), terminal_size=size)
