"""Readers follow a running engine, never write, never hold it up."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from engine.errors import StoreError
from engine.records import Outcome
from engine.store import events as ev
from engine.store import memories
from engine.store.reader import StoreReader
from engine.store.rows import MemoryRow, MemoryWrite
from engine.store.tx import Tx
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
        reader.memory_entry(1), reader.memo("a1"), reader.memory("win", "elementwise"), reader.expired_memory(9)
    bad = [plan for plan in plans if "SCAN" in plan.split(":")[0] or "TEMP B-TREE" in plan]
    small = ("FROM current", "FROM campaign", "FROM live", "max(seq)")
    assert [plan for plan in bad if not any(table in plan for table in small)] == []
    assert len(plans) > 15


async def test_all_that_is_in_recall_is_read_and_what_expired_in_pages(writer: StoreWriter) -> None:
    """However many entries came and went after a win, it is found."""

    def learn(tx: Tx) -> None:
        common = {"kernel_type": "norm", "strategy": "s", "reflection": "", "agent": "a1", "device": "a CPU"}
        memories.add(tx, MemoryWrite(kind="win", **common))
        for _ in range(1100):
            memories.add(tx, MemoryWrite(kind="trap", **common))
        for identity in range(2, 1086):
            memories.expire(tx, identity, "retention")

    await writer.transact(learn)
    with StoreReader(writer.path) as reader:
        assert [entry.id for entry in reader.memory()] == [*range(1101, 1085, -1), 1]
        assert [entry.id for entry in reader.memory("win", "norm")] == [1] and reader.memory("win", "gemm") == []
        first = reader.expired_memory(limit=3)
        assert [entry.id for entry in first] == [1085, 1084, 1083]
        assert [entry.id for entry in reader.expired_memory(first[-1].id, limit=2)] == [1082, 1081]
        assert reader.expired_memory(2) == [] and reader.expired_memory(kind="win") == []
        assert [entry.id for entry in reader.all_memory()] == list(range(1101, 0, -1))


async def test_an_entry_that_leaves_recall_between_two_reads_is_listed_once(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(tx: Tx) -> None:
        for strategy in ("first", "second"):
            memories.add(
                tx,
                MemoryWrite(
                    kind="win", kernel_type="norm", strategy=strategy, reflection="", agent="a1", device="a CPU"
                ),
            )

    await writer.transact(learn)
    with StoreReader(writer.path) as reader, sqlite3.connect(writer.path) as other:
        live = reader.memory

        def then_expired(kind: str | None = None) -> list[MemoryRow]:
            rows = live(kind)
            other.execute("UPDATE memory SET expired_at = 5, expired_why = 'retention' WHERE id = 1")
            other.commit()
            return rows

        monkeypatch.setattr(reader, "memory", then_expired)
        assert [(entry.id, entry.expired_why) for entry in reader.all_memory()] == [(2, ""), (1, "retention")]


UNREADABLE = {
    "a sample": (
        "INSERT INTO samples VALUES ('cpu', 1e12, '{}')",
        lambda r: r.samples(),
        "sample of cpu at 1000000000000",
    ),
    "a solution": ("UPDATE blobs SET data = :blob", lambda r: r.solution(0), "solution of candidate 0"),
    "an evaluation": ("UPDATE blobs SET data = :blob", lambda r: r.evaluation(1), "evaluation of candidate 1"),
    "a blob": ("UPDATE blobs SET data = 'text'", lambda r: r.prompt(1), "blob .* is damaged"),
    "a workload": ("UPDATE workload_results SET data = 7", lambda r: r.workloads(1), "workload of candidate 1"),
    "parameters": ("UPDATE candidates SET parameters = '{'", lambda r: r.candidate(1), "candidate 1"),
    "a candidate": ("UPDATE candidates SET speedup = 'fast'", lambda r: r.candidates(), "candidate 1"),
    "a point": ("UPDATE candidates SET latency_ms = 'x'", lambda r: r.points(), "candidate"),
    "memory": ("UPDATE memory SET versions = '[1]'", lambda r: r.memory(), "memory entry 1"),
    "a memory entry": ("UPDATE memory SET speedup = 'x'", lambda r: r.memory_entry(1), "memory entry 1"),
    "a memo": ("INSERT INTO agent_memo VALUES ('a1', 'k', '{')", lambda r: r.memo("a1"), "memo k of 'a1'"),
    "a deep memo": ("INSERT INTO agent_memo VALUES ('a1', 'k', :deep)", lambda r: r.memo("a1"), "memo k of 'a1'"),
    "a profile": ("INSERT INTO agent_memo VALUES ('profiles', '1', '7')", lambda r: r.profile(1), "profile of"),
    "a live row": (
        "INSERT INTO live VALUES ('a1', '', '', 0, '', '', '', '', 'x', 0)",
        lambda r: r.live(),
        "live row of agent a1",
    ),
    "an event": ("UPDATE events SET data = 7 WHERE seq = 2", lambda r: r.events(0), "event 2"),
    "the settings": ("UPDATE campaign SET config = 7", lambda r: r.campaign(), "campaign's settings"),
    "the device": ("UPDATE campaign SET device_facts = '{'", lambda r: r.campaign(), "campaign's device"),
}


@pytest.mark.parametrize("name", list(UNREADABLE))
async def test_a_row_that_cannot_be_read_is_one_clear_line(name: str, writer: StoreWriter) -> None:
    await writer.commit_verdict(keep())
    damage, ask, says = UNREADABLE[name]
    values = {"blob": zlib.compress(b"{}"), "deep": "[" * 100_000 + "]" * 100_000}
    await writer.transact(lambda tx: tx.connection.execute(damage, values))
    with StoreReader(writer.path) as reader, pytest.raises(StoreError, match=says) as raised:
        ask(reader)
    assert str(writer.path) in raised.value.message and "\n" not in raised.value.message


async def test_parameters_of_early_campaigns_that_hold_nan_are_read(writer: StoreWriter) -> None:
    await writer.commit_verdict(keep())
    await writer.transact(lambda tx: tx.connection.execute("UPDATE candidates SET parameters = '{\"a\": NaN}'"))
    with StoreReader(writer.path) as reader:
        row = reader.candidate(1)
    assert row is not None and row.parameters["a"] != row.parameters["a"]


async def test_a_summary_of_another_version_is_folded_anew(writer: StoreWriter) -> None:
    await writer.transact(lambda tx: tx.connection.execute('UPDATE current SET summary = \'{"seq": "x"}\''))
    with StoreReader(writer.path) as reader:
        assert reader.summary() == writer.summary


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
