"""A skill edited while a campaign runs is used from then on; a broken one is reported and its old text stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.skill_watch import Reloaded, change, watch_skills
from engine.skills import load_skills


def write(folder: Path, name: str, body: str, *, broken: bool = False) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    head = "no frontmatter\n" if broken else f"---\nname: {name}\ndescription: what {name} is for\n---\n"
    (folder / name / "SKILL.md").write_text(f"{head}{body}\n", encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "mine", "first")
    return tmp_path


async def test_edits_additions_breakage_and_removal_are_seen(folder: Path) -> None:
    stop = asyncio.Event()
    seen: asyncio.Queue[Reloaded] = asyncio.Queue()

    async def follow() -> None:
        async for reloaded in watch_skills(load_skills([folder]), [folder, folder / "later"], stop):
            seen.put_nowait(reloaded)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.3)

    async def after(step: Any) -> Reloaded:
        step()
        return await asyncio.wait_for(seen.get(), 10)

    edited = await after(lambda: write(folder, "mine", "second"))
    assert [(e.name, e.ok, e.detail) for e in edited.events] == [("mine", True, "changed")]
    assert edited.skills.skills["mine"].body == "second"

    added = await after(lambda: write(folder, "other", "new"))
    assert [(e.name, e.detail) for e in added.events] == [("other", "added")]

    broken = await after(lambda: write(folder, "mine", "x", broken=True))
    assert [(e.name, e.ok) for e in broken.events] == [("mine", False)]
    assert "last readable version stays" in broken.events[0].detail
    assert broken.skills.skills["mine"].body == "second"

    mended = await after(lambda: write(folder, "mine", "third"))
    assert mended.skills.skills["mine"].body == "third" and mended.events[0].ok

    gone = await after(lambda: (folder / "other" / "SKILL.md").unlink() or (folder / "other").rmdir())
    assert [(e.name, e.detail) for e in gone.events if e.ok] == [("other", "removed")]
    stop.set()
    await asyncio.wait_for(task, 10)


async def test_a_document_that_cannot_be_does_not_end_the_watch(folder: Path) -> None:
    stop = asyncio.Event()
    seen: asyncio.Queue[Reloaded] = asyncio.Queue()

    async def follow() -> None:
        async for reloaded in watch_skills(load_skills([folder]), [folder], stop):
            seen.put_nowait(reloaded)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.3)
    for value in ("2026-13-45", "!!bool x", "[" * 5000):
        (folder / "mine" / "SKILL.md").write_text(f"---\nname: mine\ndescription: d\nsince: {value}\n---\nx\n")
        broken = await asyncio.wait_for(seen.get(), 10)
        assert [(e.name, e.ok) for e in broken.events] == [("mine", False)]
        assert broken.skills.skills["mine"].body == "first"
    write(folder, "mine", "mended")
    assert (await asyncio.wait_for(seen.get(), 10)).skills.skills["mine"].body == "mended"
    stop.set()
    await asyncio.wait_for(task, 10)


def test_a_breakage_is_reported_once(folder: Path) -> None:
    before = load_skills([folder])
    write(folder, "mine", "x", broken=True)
    first = change(before, load_skills([folder]))
    again = change(first.skills, load_skills([folder]))
    assert len(first.events) == 1 and again.events == ()
    assert again.skills.skills["mine"].body == "first"
