"""Profiles of a running campaign: one after the other, and what goes wrong with one ends only that one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine import paths
from engine.config import CampaignConfig
from engine.problems.model import Definition, Problem, TensorSpec
from engine.profile import campaign as profiles
from engine.profile.campaign import ProfileDesk
from engine.records import DeviceFacts, Profile
from engine.session import Session
from engine.skills import SkillSet
from engine.store import events as ev
from engine.store.create import create_database
from engine.store.reader import StoreReader
from engine.store.writer import StoreWriter
from tests.fixtures.store_records import SEED, keep, row, started

TENSOR = TensorSpec("float32", ["4"])
PROBLEM = Problem(
    definition=Definition(name="scale", axes={}, inputs={"x": TENSOR}, outputs={"y": TENSOR}, reference=""),
    workloads=[],
)


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    """A campaign on a GPU with four KEEPs."""
    folder = paths.campaign_dir("c1")
    folder.mkdir(parents=True)
    create_database(folder / "campaign.db", row(), SEED, started())
    async with await StoreWriter.open(folder / "campaign.db") as writer:
        for position in range(1, 5):
            await writer.commit_verdict(keep(position=position, ms=1.0 / position))
        with StoreReader(folder) as reader:
            bench: Any = SimpleNamespace(device=DeviceFacts(kind="cuda", name="a GPU"))
            yield Session(
                folder=folder,
                config=CampaignConfig(),
                problem=PROBLEM,
                kernel_type="elementwise",
                writer=writer,
                reader=reader,
                bench=bench,
                skills=SkillSet(skills={}),
            )


async def test_what_goes_wrong_with_one_profile_is_noted_and_the_next_has_its_turn(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def profiled(problem: Problem, solution: Any, device: DeviceFacts, *, workload: str) -> Profile:
        if solution.name == "a1-1":
            raise OSError(28, "No space left on device")
        if solution.name == "a1-3":
            raise KeyError("a defect")
        return Profile(source="ncu", device=device.name)

    monkeypatch.setattr(profiles, "profile_solution", profiled)
    desk = ProfileDesk(session)
    for number in (1, 2, 3, 4):
        desk.ask(number)
    sql = "DELETE FROM blobs WHERE sha = (SELECT solution FROM candidates WHERE number = 2)"
    await session.writer.transact(lambda tx: tx.connection.execute(sql) and None)
    assert desk._task is not None
    await desk._task
    found = [session.reader.profile(number) is not None for number in (1, 2, 3, 4)]
    assert found == [False, False, False, True]
    events = [item.event for item in session.reader.events(0) if isinstance(item.event, ev.Attention)]
    notes = [event.text for event in events if event.code == profiles.NOT_PROFILED]
    says = ("candidate 1 .*No space", "candidate 2 .*missing", "candidate 3 .*fault.profile: KeyError", "^$")
    for text, pattern in zip(notes, says, strict=True):
        assert re.search(pattern, text), text
    assert session.summary.attention == [], "the next profile that succeeds takes the note back"
