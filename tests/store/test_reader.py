"""Readers follow a running engine, never write, never hold it up."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import StoreError
from engine.records import Outcome
from engine.store import events as ev
from engine.store.reader import StoreReader
from engine.store.writer import StoreWriter
from tests.fixtures.store_records import keep, other


async def test_two_readers_follow_one_engine(writer: StoreWriter) -> None:
    with StoreReader(writer.path) as one, StoreReader(writer.path.parent) as two:
        assert one.changed() and two.changed()
        assert not one.changed()
        await writer.commit_verdict(keep())
        assert one.changed() and two.changed()
        assert one.last_seq() == two.last_seq() == writer.summary.seq
        assert [stored.seq for stored in one.events(3)] == [4, 5]
        assert [stored.seq for stored in two.events_before(None, limit=2)] == [4, 5]
        assert [stored.seq for stored in two.events_before(4, limit=2)] == [2, 3]


async def test_candidates_are_paged_from_either_end(writer: StoreWriter) -> None:
    for position in range(1, 11):
        await writer.commit_verdict(keep("a1", position, 1.0 / position))
        await writer.commit_verdict(other("a2", position))
    with StoreReader(writer.path) as reader:
        assert [c.number for c in reader.candidates(limit=3)] == [20, 19, 18]
        assert [c.number for c in reader.candidates(before=18, limit=3)] == [17, 16, 15]
        assert [c.number for c in reader.candidates(limit=2, agent="a2")] == [20, 18]
        assert [c.number for c in reader.candidates(limit=2, agent="a1", outcome="KEEP")] == [19, 17]
        assert [c.number for c in reader.candidates_after(17, outcome="REVERT")] == [18, 20]
        assert reader.candidate(99) is None and reader.solution(2) is None and reader.evaluation(2) is None
        first = reader.candidate(1)
        assert first is not None and first.source_sha is not None
        assert reader.candidate_by_source(first.source_sha) == first
        assert [stored.event.agent for stored in reader.events_before(None, 3, agent="a2")] == ["a2"] * 3  # type: ignore[union-attr]


async def test_no_read_scans_a_table_or_sorts(writer: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    await writer.commit_verdict(keep())
    plans: list[str] = []

    with StoreReader(writer.path) as reader:
        real = reader._all

        def explained(sql: str, values: object = ()) -> list[tuple[object, ...]]:
            if sql.lstrip().startswith("SELECT"):
                found = reader._connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()  # type: ignore[arg-type]
                plans.extend(f"{row[3]}: {sql}" for row in found)
            return real(sql, values)  # type: ignore[arg-type]

        monkeypatch.setattr(reader, "_all", explained)
        reader.summary(), reader.last_seq(), reader.campaign()
        reader.events(0), reader.events_before(5), reader.events_before(5, agent="a1")
        for agent in (None, "a1"):
            for outcome in (None, "KEEP"):
                reader.candidates(9, 5, agent, outcome), reader.candidates_after(0, 5, agent, outcome)
        reader.candidate(1), reader.workloads(1), reader.solution(1), reader.prompt(1)
        reader.candidate_by_source("x"), reader.memory_entry(1), reader.answer("x"), reader.memo("a1")
    bad = [plan for plan in plans if "SCAN" in plan.split(":")[0] or "TEMP B-TREE" in plan]
    small = ("FROM current", "FROM campaign", "FROM live", "max(seq)")
    assert [plan for plan in bad if not any(table in plan for table in small)] == []
    assert len(plans) > 15


async def test_a_reader_that_stays_does_not_keep_the_log_from_shrinking(writer: StoreWriter) -> None:
    with StoreReader(writer.path) as reader:
        for position in range(1, 60):
            await writer.commit_verdict(keep(position=position))
            await writer.transact(lambda tx: tx.blob(os.urandom(200_000)))
            reader.changed(), reader.summary(), reader.candidates(), reader.events(0)
    assert writer.path.with_name("campaign.db-wal").stat().st_size < 8_000_000


async def test_a_reader_cannot_write(writer: StoreWriter) -> None:
    with StoreReader(writer.path) as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader._connection.execute("DELETE FROM events")


async def test_a_reader_survives_an_engines_restart(database: Path) -> None:
    first = await StoreWriter.open(database)
    with StoreReader(database) as reader:
        reader.changed()
        await first.append(ev.EngineAttached(pid=1))
        await first.close()
        second = await StoreWriter.open(database)
        await second.append(ev.EngineAttached(pid=2, resumed=True))
        assert reader.changed()
        assert reader.last_seq() == 3
        await second.close()


async def test_a_reader_notices_a_newer_engine(writer: StoreWriter) -> None:
    with StoreReader(writer.path) as reader:
        assert reader.changed()
        await writer.transact(lambda tx: tx.connection.execute("PRAGMA user_version = 99"))
        with pytest.raises(StoreError, match="newer KernelArc"):
            reader.changed()
        await writer.transact(lambda tx: tx.connection.execute("PRAGMA user_version = 1"))


AS_NOBODY = """
import os, sys
from pathlib import Path
import engine.store.reader, engine.store.campaigns  # before the rights to read them are gone
os.setgid(65534); os.setuid(65534)
from engine.errors import StoreError
from engine.store.campaigns import list_campaigns
from engine.store.reader import StoreReader
try:
    with StoreReader(Path(sys.argv[1])) as reader:
        print("summary", reader.summary().candidates, reader.changed(), reader.changed())
except StoreError as error:
    print("error", error.message)
"""


def as_nobody(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(folder)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def open_folder(database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign that another user may look at."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    for parent in (database, *database.parents):
        if parent.stat().st_uid == 0 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055 if parent.is_dir() else 0o644)
    return database.parent


async def test_another_user_reads_a_campaign_that_has_ended(open_folder: Path) -> None:
    async with await StoreWriter.open(open_folder / "campaign.db") as writer:
        await writer.commit_verdict(keep())
    assert as_nobody(open_folder) == "summary 1 True False"
    assert {p.name for p in open_folder.iterdir()} == {"campaign.db"}


async def test_another_user_reads_a_campaign_that_is_running(open_folder: Path) -> None:
    async with await StoreWriter.open(open_folder / "campaign.db") as writer:
        await writer.commit_verdict(keep())
        assert as_nobody(open_folder) == "summary 1 True False"


async def test_another_user_is_told_when_a_crash_left_the_log_behind(open_folder: Path) -> None:
    writer = await StoreWriter.open(open_folder / "campaign.db")
    await writer.commit_verdict(keep())
    copy = open_folder.parent / "crashed"
    copy.mkdir(mode=0o755)
    for name in ("campaign.db", "campaign.db-wal"):
        (copy / name).write_bytes((open_folder / name).read_bytes())
        (copy / name).chmod(0o644)
    await writer.close()
    answer = as_nobody(copy)
    assert answer.startswith("error") and "cannot be opened" in answer and "Traceback" not in answer


def test_outcomes_are_text_that_a_screen_can_group_by() -> None:
    assert [str(outcome) for outcome in Outcome] == ["REJECT", "KEEP", "ACCEPT", "REVERT", "ERROR"]
