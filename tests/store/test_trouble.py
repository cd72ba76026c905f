"""A newer, damaged, foreign or read-only database and a full disk: one clear line, nothing lost."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import BadInput, StoreError
from engine.store import events as ev
from engine.store import migrations
from engine.store.database import APPLICATION_ID, connect_writable
from engine.store.reader import StoreReader
from engine.store.tx import Tx
from engine.store.writer import StoreWriter
from tests.fixtures.store_records import keep, other


async def refused(path: Path, match: str) -> None:
    """Neither a reader nor a writer opens it, both say why in one line, and the file stays as it was."""
    before = path.read_bytes()
    for attempt in (lambda: StoreReader(path), None):
        with pytest.raises(StoreError, match=match) as caught:
            if attempt is not None:
                attempt()
            else:
                await StoreWriter.open(path)
        assert "\n" not in caught.value.message and str(path) in caught.value.message
    assert path.read_bytes() == before


async def test_a_newer_database_is_left_alone(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version = 99")
    await refused(database, "newer KernelArc .schema 99")


async def test_another_programs_database_is_left_alone(folder: Path) -> None:
    path = folder / "campaign.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")
        connection.execute("PRAGMA journal_mode = WAL")
    await refused(path, "not a KernelArc campaign")


async def test_a_file_that_is_no_database_is_left_alone(folder: Path) -> None:
    path = folder / "campaign.db"
    path.write_bytes(b"not a database at all" * 500)
    await refused(path, "not a KernelArc campaign")


async def test_a_missing_database_is_not_created(folder: Path) -> None:
    for opening in (lambda: StoreReader(folder), lambda: StoreReader(folder / "campaign.db")):
        with pytest.raises(StoreError, match="no campaign database"):
            opening()
    with pytest.raises(StoreError, match="no campaign database"):
        await StoreWriter.open(folder / "campaign.db")
    assert list(folder.iterdir()) == []


def test_an_empty_file_is_a_campaign_that_never_was(folder: Path) -> None:
    (folder / "campaign.db").touch()
    with pytest.raises(StoreError, match="cut short"):
        StoreReader(folder)


async def test_a_damaged_database_is_said_to_be_damaged_and_left_alone(database: Path) -> None:
    async with await StoreWriter.open(database) as writer:
        for position in range(1, 40):
            await writer.commit_verdict(keep(position=position))
    broken = bytearray(database.read_bytes())
    for page in range(3, len(broken) // 4096, 2):
        broken[page * 4096 : page * 4096 + 900] = b"\xa5" * 900
    database.write_bytes(broken)
    with pytest.raises(StoreError, match="is damaged") as caught:
        await StoreWriter.open(database)
    assert "\n" not in caught.value.message
    assert database.read_bytes() == bytes(broken)
    with pytest.raises(StoreError), StoreReader(database) as reader:
        for number in range(1, 40):
            reader.candidate(number), reader.solution(number), reader.workloads(number)


READ_ONLY = """
import asyncio, concurrent.futures.thread, os, sys  # all that is needed, before the rights to read it are gone
from pathlib import Path
from engine.errors import KernelArcError
from engine.store.lock import CampaignLock
from engine.store.reader import StoreReader
from engine.store.writer import StoreWriter
if os.geteuid() == 0:  # root may write anywhere
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
path = Path(sys.argv[1])
print(StoreReader(path).campaign().name)
for attempt in (lambda: asyncio.run(StoreWriter.open(path)), CampaignLock(path.parent).acquire):
    try:
        attempt()
    except KernelArcError as error:
        print(error.message)
"""


def test_a_read_only_folder_can_be_read_and_not_resumed(database: Path) -> None:
    for parent in (database, *database.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055 if parent.is_dir() else 0o444)
    database.parent.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(database)], capture_output=True, text=True, check=False
    )
    database.parent.chmod(0o755)
    assert done.returncode == 0, done.stderr
    name, opening, locking = done.stdout.strip().splitlines()
    assert name == "c1"
    assert "cannot be opened" in opening and "you may write in" in opening
    assert "cannot be locked" in locking


# A full disk


def limit_pages(pages: int) -> object:
    """A database that may not grow is a full disk to SQLite."""

    def run(tx: Tx) -> None:
        used = tx.connection.execute("PRAGMA page_count").fetchone()[0]
        tx.connection.execute(f"PRAGMA max_page_count = {used + pages}")

    return run


def give_room(tx: Tx) -> None:
    tx.connection.execute("PRAGMA max_page_count = 1000000")


async def fill(writer: StoreWriter) -> tuple[list[int], list[int]]:
    """Commit verdicts until the disk is full; (acknowledged, refused) positions."""
    done, refused_at = [], []
    for position in range(1, 60):
        try:
            await writer.commit_verdict(keep(position=position, ms=1.0 / position))
        except StoreError as error:
            assert "disk is full" in error.message
            refused_at.append(position)
            if len(refused_at) == 3:
                break
        else:
            done.append(position)
    return done, refused_at


async def test_a_full_disk_loses_no_decision(writer: StoreWriter) -> None:
    await writer.transact(limit_pages(4))  # type: ignore[arg-type]
    done, refused_at = await fill(writer)
    assert len(refused_at) == 3 and writer.problem is not None and writer.waiting == 3
    with pytest.raises(StoreError, match="disk is full"):
        await writer.reserve("a1", "m", 0.1, 100)
    with StoreReader(writer.path) as reader:
        assert reader.summary().candidates == len(done) == writer.summary.candidates
    await writer._on_thread(lambda c: c.execute("PRAGMA max_page_count = 1000000"))
    again = await writer.commit_verdict(keep(position=refused_at[0], ms=1.0 / refused_at[0]))
    assert (again.fresh, again.number) == (False, len(done) + 1)
    assert writer.problem is None and writer.waiting == 0
    with StoreReader(writer.path) as reader:
        assert [c.position for c in reader.candidates_after(0)] == [*done, *refused_at]
        assert reader.ledger_totals().calls == 0


async def test_waiting_decisions_are_written_as_soon_as_there_is_room(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.store.writer.RETRY_S", 0.05)
    await writer.transact(limit_pages(0))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="nothing was lost"):
        await writer.append(*(ev.HintGiven(agent="a1", text="x" * 2000) for _ in range(10)))
    assert writer.waiting == 1
    await writer._on_thread(lambda c: c.execute("PRAGMA max_page_count = 1000000"))
    for _ in range(100):
        await asyncio.sleep(0.02)
        if not writer.waiting:
            break
    with StoreReader(writer.path) as reader:
        assert len(reader.events(3)) == 10


async def test_a_full_disk_is_not_tried_in_a_busy_loop(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a queue of more than one batch nor live rows and telemetry cut the pause between two tries short."""
    await writer.transact(limit_pages(0))  # type: ignore[arg-type]
    tries = 0
    attempt = writer._attempt

    async def counted(batch: object) -> object:
        nonlocal tries
        tries += 1
        return await attempt(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(writer, "_attempt", counted)
    hints = [writer.append(ev.HintGiven(agent="a1", text="x" * 2000)) for _ in range(600)]
    refused = await asyncio.gather(*hints, return_exceptions=True)
    assert all(isinstance(error, StoreError) for error in refused)
    after, waiting = tries, writer.waiting
    for number in range(50):
        writer.live("a1", tokens=number)
        await asyncio.sleep(0.01)
    assert waiting == writer.waiting == 600
    assert tries - after <= 1
    await writer._on_thread(lambda c: c.execute("PRAGMA max_page_count = 1000000"))


async def test_closing_on_a_full_disk_says_what_was_given_up(database: Path) -> None:
    writer = await StoreWriter.open(database)
    await writer.transact(limit_pages(0))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="disk is full"):
        await writer.commit_verdict(dataclasses.replace(keep(), prompt=os.urandom(50_000).hex()))
    with pytest.raises(StoreError, match="1 decision could not be written") as gone:
        await writer.close()
    assert "nothing was lost" not in gone.value.message and gone.value.exit_code == 3
    with StoreReader(database) as reader:
        assert reader.summary().candidates == 0


async def test_closing_on_a_disk_that_fails_otherwise_says_it_too(database: Path) -> None:
    def unreadable(tx: Tx) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR_READ"
        raise error

    writer = await StoreWriter.open(database)
    with pytest.raises(StoreError, match="the disk failed"):
        await writer.transact(unreadable)
    with pytest.raises(StoreError, match=r"the disk failed.*1 decision could not be written") as gone:
        await writer.close()
    assert gone.value.exit_code == 3


FULL_DISK = """
import asyncio, os, sys
from pathlib import Path
from engine.errors import StoreError
from engine.store.create import create_database
from engine.store.reader import StoreReader
from engine.store.writer import StoreWriter
from tests.fixtures.store_records import SEED, keep, row, started
from engine.store import events as ev

async def main(folder):
    path = folder / "campaign.db"
    create_database(path, row(), SEED, started())
    writer = await StoreWriter.open(path)
    held = 0
    for position in range(1, 400):
        try:
            await writer.transact(lambda tx: tx.blob(os.urandom(20_000)))
            await writer.commit_verdict(keep(position=position))
        except StoreError as error:
            print("refused:", error.message)
            break
    ballast = folder / "ballast"
    ballast.unlink()
    again = await writer.commit_verdict(keep(position=position))
    await writer.close()
    with StoreReader(path) as reader:
        numbers = [c.number for c in reader.candidates_after(0, 1000)]
    print("numbers", numbers == list(range(1, position + 1)), again.number == position)

folder = Path(sys.argv[1])
(folder / "ballast").write_bytes(b"x" * 1_000_000)
asyncio.run(main(folder))
"""


def test_a_really_full_file_system(tmp_path: Path) -> None:
    mounted = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    script = tmp_path / "full.py"
    script.write_text(FULL_DISK)
    root = Path(__file__).resolve().parents[2]
    small = tmp_path / "small"
    small.mkdir()
    command = f"mount -t tmpfs -o size=4m none {small} && PYTHONPATH={root} {sys.executable} {script} {small}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, check=False)
    if "mount" in done.stderr and not done.stdout:
        pytest.skip("may not mount here")
    refusal, numbers = done.stdout.strip().splitlines()
    assert "disk is full" in refusal and "nothing was lost" in refusal
    assert numbers == "numbers True True"


# Migration


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """A schema folder one version ahead."""
    folder = tmp_path / "schema"
    shutil.copytree(migrations.SCHEMA, folder)
    version = migrations.latest() + 1
    (folder / f"{version:04d}_colour.sql").write_text(
        "-- one more column; with ; in a comment\nALTER TABLE campaign ADD COLUMN colour TEXT;\n"
        "CREATE TRIGGER t AFTER INSERT ON live BEGIN SELECT 1; SELECT 2; END;\n-- the end\n"
    )
    return folder


def test_a_migration_keeps_a_copy_of_what_was(database: Path, later: Path) -> None:
    before = migrations.latest()
    connection = connect_writable(database)
    assert migrations.migrate(connection, database, later) == before + 1
    assert migrations.migrate(connection, database, later) == before + 1
    connection.execute("SELECT colour FROM campaign")
    connection.close()
    copy = database.with_name(f"campaign.db.v{before}.bak")
    with StoreReader(copy) as reader:
        assert reader.campaign().name == "c1"
    with pytest.raises(StoreError, match="newer"):
        StoreReader(database)


def test_a_migration_that_fails_changes_nothing(database: Path, later: Path) -> None:
    version = migrations.latest() + 1
    (later / f"{version:04d}_colour.sql").write_text(
        "CREATE TABLE extra (x);\nALTER TABLE nowhere ADD COLUMN y;\n"
    )
    connection = connect_writable(database)
    with pytest.raises(sqlite3.OperationalError):
        migrations.migrate(connection, database, later)
    assert connection.execute("PRAGMA user_version").fetchone()[0] == version - 1
    assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'extra'").fetchall() == []
    connection.close()
    with StoreReader(database) as reader:
        assert reader.campaign().name == "c1"


def test_the_database_says_whose_it_is(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        assert connection.execute("PRAGMA user_version").fetchone()[0] == migrations.latest()


async def test_an_unknown_kind_of_event_is_a_clear_line(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute('INSERT INTO events (seq, at, data) VALUES (2, 1, \'{"kind":"FromTheFuture"}\')')
    with StoreReader(database) as reader, pytest.raises(StoreError, match="event 2 cannot be read"):
        reader.events(0)
    with pytest.raises(StoreError, match="an event cannot be read"):
        await StoreWriter.open(database)


async def test_bad_input_is_not_trouble(writer: StoreWriter) -> None:
    with pytest.raises(BadInput):
        await writer.edit("veto", 7)
    assert writer.problem is None
    assert (await writer.commit_verdict(other())).number == 1
