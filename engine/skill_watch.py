"""Edited skills in a running campaign: watch the folders, load what changed, say what happened. Never fatal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from engine.skills import SkillSet, load_skills, skill_dirs
from engine.store.events import SkillReloaded
from engine.text import one_line

SETTLE_MS = 200
"""Changes within this time are one: editors write a file in several steps."""
NEW_FOLDER_S = 5.0
"""How often a folder that does not exist yet is looked for."""


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """The skills as they are now, and what to tell a person about the change."""

    skills: SkillSet
    events: tuple[SkillReloaded, ...]


async def watch_skills(
    before: SkillSet, dirs: Sequence[Path] | None = None, stop: asyncio.Event | None = None
) -> AsyncIterator[Reloaded]:
    """Yields whenever a skill changed, appeared, went or broke. Ends when ``stop`` is set; else cancel it.

    A skill that becomes unreadable is reported and its last readable version stays in use. Does nothing but wait
    where the operating system cannot watch.
    """
    from watchfiles import awatch

    folders = list(skill_dirs() if dirs is None else dirs)
    current = before
    while not (stop and stop.is_set()):
        present = [folder for folder in folders if folder.is_dir()]
        if not present:
            await asyncio.sleep(NEW_FOLDER_S)
            continue
        wake_ms = int(NEW_FOLDER_S * 1000)
        async for _ in awatch(
            *present, stop_event=stop, debounce=SETTLE_MS, step=50, rust_timeout=wake_ms, yield_on_timeout=True
        ):
            try:
                loaded = await asyncio.to_thread(load_skills, folders)
            except OSError:  # a folder vanished while it was read; the next change tells
                continue
            reloaded = change(current, loaded)
            current = reloaded.skills
            if reloaded.events:
                yield reloaded
            if any(folder.is_dir() for folder in folders if folder not in present):
                break


def change(before: SkillSet, after: SkillSet) -> Reloaded:
    """What became of ``before``. Pure: the last readable version of a broken skill stays."""
    broken = {skill.name: skill.why for skill in after.broken}
    kept = {name: skill for name, skill in before.skills.items() if name in broken and name not in after.skills}
    events = []
    for name in sorted({*before.skills, *after.skills, *broken}):
        old, new = before.skills.get(name), after.skills.get(name)
        if name in broken:
            if broken[name] not in {skill.why for skill in before.broken if skill.name == name}:
                stays = "; its last readable version stays in use" if name in kept or new else ""
                events.append(SkillReloaded(name=name, ok=False, detail=one_line(broken[name]) + stays))
        elif new is None:
            events.append(SkillReloaded(name=name, ok=True, detail="removed"))
        elif old is None:
            events.append(SkillReloaded(name=name, ok=True, detail="added"))
        elif old != new or any(skill.name == name for skill in before.broken):
            events.append(SkillReloaded(name=name, ok=True, detail="changed"))
    skills = msgspec.structs.replace(after, skills={**after.skills, **kept})
    return Reloaded(skills=skills, events=tuple(events))
