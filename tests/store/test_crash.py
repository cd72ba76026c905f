"""kill -9 of the process that writes, at any moment: what was acknowledged is there, and nothing is half there."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.store.reader import StoreReader
from engine.store.writer import StoreWriter
from tests.fixtures.store_records import archived, fold_all, keep

WRITES = """
import asyncio, sys
from pathlib import Path
from engine.store.lock import CampaignLock
from engine.store.writer import StoreWriter
from tests.fixtures.store_records import keep, other

async def agent(writer, name):
    position = writer.summary.agents[name].candidates + 1
    while True:
        record = keep(name, position, 1.0 / position) if position % 4 == 1 else other(name, position)
        committed = await writer.commit_verdict(record)
        print(committed.number, name, position, flush=True)
        writer.live(name, state="proposing", tokens=position)
        position += 1

async def main(path):
    with CampaignLock(path.parent):
        writer = await StoreWriter.open(path)
        await asyncio.gather(agent(writer, "a1"), agent(writer, "a2"))

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("seed", range(4))
async def test_a_killed_writer_loses_nothing_it_acknowledged(database: Path, seed: int) -> None:
    rng = random.Random(seed)
    acknowledged: list[tuple[str, str, str]] = []
    root = str(Path(__file__).resolve().parents[2])
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITES, str(database)], stdout=subprocess.PIPE, text=True, cwd=root
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        lines = (first + process.stdout.read()).splitlines(keepends=True)
        process.wait()
        acknowledged += [tuple(line.split()) for line in lines if line.endswith("\n")]  # type: ignore[misc]
        check(database, acknowledged)
    async with await StoreWriter.open(database) as writer:
        agent = writer.summary.agents["a1"]
        assert (await writer.commit_verdict(keep("a1", agent.candidates + 1))).number == writer.summary.candidates


def check(database: Path, acknowledged: list[tuple[str, str, str]]) -> None:
    with StoreReader(database) as reader:
        rows = reader.candidates_after(0, 100_000)
        stored = {(str(row.number), row.agent, str(row.position)) for row in rows}
        assert set(acknowledged) <= stored
        assert [row.number for row in rows] == list(range(1, len(rows) + 1))
        for name in ("a1", "a2"):
            positions = [row.position for row in rows if row.agent == name]
            assert positions == list(range(1, len(positions) + 1))
        keeps = [row.number for row in rows if row.outcome == "KEEP"]
        assert [number for _, number, _ in archived(database)] == keeps
        assert sorted(entry.candidate or 0 for entry in reader.memory()) == keeps
        assert all(reader.solution(number) for number in keeps)
        assert fold_all(reader.events(0, 100_000)) == reader.summary()
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


FORGETS = """
import asyncio, sys
from pathlib import Path
from engine.store.writer import StoreWriter
from tests.fixtures.store_records import keep

async def main(path):
    writer = await StoreWriter.open(path)
    await writer.commit_verdict(keep())
    raise SystemExit(7)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_process_that_never_closed_its_store_still_ends(database: Path) -> None:
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run([sys.executable, "-c", FORGETS, str(database)], cwd=root, timeout=20, check=False)
    assert done.returncode == 7
    check(database, [("1", "a1", "1")])
