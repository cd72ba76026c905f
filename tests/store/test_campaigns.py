"""Finding campaigns, their locks, and editing one that has no engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine import paths
from engine.errors import BadInput, StoreError
from engine.records import CampaignState, StopReason
from engine.store import events as ev
from engine.store.campaigns import campaign_state, list_campaigns, resolve_campaign
from engine.store.create import create_database
from engine.store.lock import CampaignLock, engine_alive, lock_holder
from engine.store.offline import carry_out, delete_campaign
from engine.store.reader import StoreReader
from engine.store.writer import StoreWriter
from tests.fixtures.store_records import BASELINES, SEED, keep, row, started


def campaign(name: str, at: float) -> Path:
    folder = paths.campaign_dir(name)
    folder.mkdir(parents=True)
    create_database(folder / "campaign.db", row(name), SEED, started(), lambda: at)
    return folder


def test_no_state_folder_is_no_campaign() -> None:
    assert list_campaigns() == []
    with pytest.raises(BadInput, match="no campaign yet"):
        resolve_campaign()


def test_the_newest_campaign_comes_first_and_is_the_default() -> None:
    campaign("b-old", 1000.0)
    campaign("a-new", 2000.0)
    assert [entry.name for entry in list_campaigns()] == ["a-new", "b-old"]
    assert resolve_campaign().name == "a-new"
    assert resolve_campaign("b-old").name == "b-old"
    assert resolve_campaign(str(paths.campaign_dir("b-old"))).name == "b-old"
    with pytest.raises(BadInput, match=r"'nope'.*a-new, b-old"):
        resolve_campaign("nope")
    with pytest.raises(BadInput):
        resolve_campaign("../campaigns/b-old/../..")


def test_strays_and_damaged_campaigns_are_listed_with_their_problem() -> None:
    campaign("good", 2000.0)
    root = paths.campaigns_dir()
    (root / "not-a-campaign").mkdir()
    (root / "a-file").write_text("x")
    (root / "dangling").symlink_to(root / "nowhere")
    for name, content in (("garbage", b"\x00garbage" * 900), ("empty", b"")):
        (root / name).mkdir()
        (root / name / "campaign.db").write_bytes(content)
    (root / "folder").mkdir()
    (root / "folder" / "campaign.db").mkdir()
    entries = {entry.name: entry for entry in list_campaigns()}
    assert set(entries) == {"good", "garbage", "empty", "folder"}
    assert entries["good"].problem_note == "" and entries["good"].state == "interrupted"
    assert "not a KernelArc campaign" in entries["garbage"].problem_note
    assert "cut short" in entries["empty"].problem_note
    assert entries["folder"].problem_note
    assert resolve_campaign().name == "good"


async def test_a_campaign_is_interrupted_when_its_engine_is_gone(database: Path) -> None:
    folder = database.parent
    with CampaignLock(folder):
        async with await StoreWriter.open(database) as writer:
            await writer.append(ev.EngineAttached(pid=1), BASELINES)
            assert campaign_state(folder, writer.summary) is CampaignState.RUNNING
    with StoreReader(database) as reader:
        assert campaign_state(folder, reader.summary()) is CampaignState.INTERRUPTED
    async with await StoreWriter.open(database) as writer:
        await writer.append(ev.CampaignEnded(state="stopped", reason=StopReason.USER))
        assert campaign_state(folder, writer.summary) is CampaignState.STOPPED


def test_one_engine_a_campaign(folder: Path) -> None:
    assert not engine_alive(folder)
    with CampaignLock(folder):
        assert engine_alive(folder) and lock_holder(folder) == os.getpid()
        with pytest.raises(BadInput, match=f"process {os.getpid()} already runs this campaign"):
            CampaignLock(folder).acquire()
    assert not engine_alive(folder)
    with CampaignLock(folder):
        pass


HOLDS = """
import subprocess, sys, time
from pathlib import Path
from typing import Any
from engine.store.lock import CampaignLock
CampaignLock(Path(sys.argv[1])).acquire()
child = subprocess.Popen(["sleep", "30"], start_new_session=True, close_fds=False)
print(child.pid, flush=True)
time.sleep(30)
"""


def test_the_lock_dies_with_its_process_and_not_with_its_children(folder: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        assert engine_alive(folder) and lock_holder(folder) == holder.pid
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.kill(child, 0)
        assert not engine_alive(folder)
        with CampaignLock(folder):
            assert engine_alive(folder)
    finally:
        os.kill(child, signal.SIGKILL)
        holder.stdout.close()


def test_looking_for_an_engine_never_keeps_one_from_starting(folder: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom engine.store.lock import engine_alive\n"
        "print(flush=True)\nend = time.monotonic() + 1.0\n"
        "while time.monotonic() < end: engine_alive(Path(sys.argv[1])), time.sleep(0.001)\n"
    )
    with CampaignLock(folder):
        pass
    argv = [sys.executable, "-c", code, str(folder)]
    lookers = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(2)]
    for looker in lookers:
        assert looker.stdout is not None
        looker.stdout.readline()
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        with CampaignLock(folder):
            assert engine_alive(folder)
    for looker in lookers:
        looker.communicate()
        assert looker.returncode == 0


async def test_memory_can_be_edited_without_an_engine(database: Path) -> None:
    folder = database.parent
    async with await StoreWriter.open(database) as writer:
        await writer.commit_verdict(keep())
    assert carry_out(folder, "memory.pin", 1).text == "memory entry 1 is pinned"
    assert "has a note" in carry_out(folder, "memory.note", 1, "by \x1b[31mhand").text
    assert "is expired" in carry_out(folder, "memory.expire", 1, "wrong on small rows").text
    with StoreReader(folder) as reader:
        entry = reader.expired_memory()[0]
        assert (entry.pinned, entry.note, entry.expired_why) == (True, "by hand", "wrong on small rows")
        events = [stored.event for stored in reader.events(3)]
    kinds = ["MemoryPinned", "MemoryNoted", "MemoryExpired"]
    assert [type(event).__name__ for event in events[::2]] == kinds
    answers = [event for event in events[1::2] if isinstance(event, ev.CommandAnswered)]
    assert [(a.verb, a.args.get("text", "")) for a in answers] == [
        ("memory.pin", ""),
        ("memory.note", "by hand"),
        ("memory.expire", "wrong on small rows"),
    ]
    with pytest.raises(BadInput, match="no memory entry 5"):
        carry_out(folder, "memory.pin", 5)
    assert carry_out(folder, "veto", 1).text == "#1 is vetoed; the best of agent a1 is the seed again"


async def test_edits_at_once_wait_for_each_other(database: Path) -> None:
    """Scripts that pin in a loop, several of them: every one succeeds, through the one function that all use."""
    folder = database.parent
    async with await StoreWriter.open(database) as writer:
        await writer.commit_verdict(keep())
    code = (
        "import sys\nfrom pathlib import Path\nfrom engine.control.client import edit\n"
        "print(flush=True)\nsys.stdin.readline()\n"
        "for turn in range(10): edit(Path(sys.argv[1]), ('memory.pin', 'memory.unpin')[turn % 2], 1)\n"
    )
    argv = [sys.executable, "-c", code, str(folder)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    editors = [subprocess.Popen(argv, **pipes) for _ in range(3)]
    for editor in editors:
        assert editor.stdout is not None
        editor.stdout.readline()
    for editor in editors:
        assert editor.stdin is not None
        editor.stdin.write(b"\n")
        editor.stdin.flush()
    for editor in editors:
        _, said = editor.communicate(timeout=60)
        assert editor.returncode == 0, said.decode()
    with StoreReader(folder) as reader:
        pins = [s.event for s in reader.events(0, 1000) if isinstance(s.event, ev.MemoryPinned)]
    assert len(pins) == 30


def test_an_edit_waits_for_no_engine_and_goes_around_none(database: Path) -> None:
    with CampaignLock(database.parent), pytest.raises(BadInput, match="already runs"):
        carry_out(database.parent, "memory.pin", 1)


def test_deleting_takes_the_lock_and_the_folder(database: Path) -> None:
    folder = database.parent
    with CampaignLock(folder), pytest.raises(BadInput, match="already runs"):
        delete_campaign(folder)
    delete_campaign(folder)
    assert not folder.exists()
    with pytest.raises(BadInput, match="holds no campaign"):
        delete_campaign(folder.parent)
    with pytest.raises(StoreError, match="no campaign database"):
        carry_out(folder, "memory.pin", 1)
