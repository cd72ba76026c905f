"""How the store does with a long campaign: ``python -m tests.benchmarks.store_load [--candidates N --events N]``.

Writes a recorded campaign, then prints, each as the median of several runs: what attaching reads (open, summary,
last pages), a jump in a replay, and what a commit takes while a reader follows. Figures are for reading, not for
asserting: they move with the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median

from engine.config import CampaignConfig
from engine.memory import adding
from engine.records import Outcome
from engine.store import memories
from engine.store.create import open_database
from engine.store.reader import StoreReader
from engine.store.rows import MemoryWrite
from engine.store.tx import transaction
from engine.store.writer import StoreWriter
from tests.fixtures.recorded import record_campaign
from tests.fixtures.store_records import keep, other


def timed(run: Callable[[], object], repeat: int = 9) -> float:
    """Median milliseconds."""
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1e3)
    return median(times)


def attach(folder: Path) -> None:
    """What a screen reads before its first paint."""
    with StoreReader(folder) as reader:
        reader.changed()
        summary = reader.summary()
        reader.events_before(summary.seq + 1, 200)
        reader.candidates(limit=100)
        reader.live()
        reader.samples(limit=120)
        reader.memory()


ATTACH_PROCESS = """
import sys
from pathlib import Path
from tests.benchmarks.store_load import attach
attach(Path(sys.argv[1]))
"""
BARE_PROCESS = "import tests.benchmarks.store_load"


def whole_process(code: str, *arguments: str) -> float:
    return timed(lambda: subprocess.run([sys.executable, "-c", code, *arguments], check=True), 5)


async def commits(folder: Path, count: int) -> dict[str, float]:
    """Verdict and event commits one at a time and from 16 producers, while a reader polls 10 times a second."""
    writer = await StoreWriter.open(folder / "campaign.db")
    agent = next(iter(writer.summary.agents))
    position = writer.summary.agents[agent].candidates
    times: list[float] = []
    reader = StoreReader(folder)

    async def poll() -> None:
        while True:
            if reader.changed():
                reader.summary(), reader.events(writer.summary.seq - 20)
            await asyncio.sleep(0.1)

    polling = asyncio.create_task(poll())
    for i in range(count):
        position += 1
        record = keep(agent, position, 0.05) if i % 20 == 0 else other(agent, position, Outcome.REVERT)
        began = time.perf_counter()
        await writer.commit_verdict(record)
        times.append((time.perf_counter() - began) * 1e3)
    began = time.perf_counter()
    await asyncio.gather(*(writer.transact(lambda tx, i=i: tx.blob(str(i).encode())) for i in range(2000)))
    batch_s = time.perf_counter() - began
    polling.cancel()
    reader.close()
    await writer.close()
    times.sort()
    return {
        "commit_verdict_p50_ms": median(times),
        "commit_verdict_p99_ms": times[int(len(times) * 0.99)],
        "queued_writes_per_s": 2000 / batch_s,
    }


def remembering(path: Path, entries: int) -> float:
    """Milliseconds of one entry more under an unbounded retention, with so many live ones of 135 words each."""
    rng = random.Random(0)
    words = ["".join(rng.choices(string.ascii_lowercase, k=6)) for _ in range(2000)]

    def entry() -> MemoryWrite:
        idea, why = (" ".join(rng.choices(words, k=k)) for k in (15, 120))
        common = {"kernel_type": "load", "agent": "a1", "device": "a CPU", "error": "wrong.numerical"}
        return MemoryWrite(kind="trap", strategy=idea, reflection=why, **common)

    rule = partial(adding, config=CampaignConfig(wins=None, traps=None))
    connection, summary = open_database(path)
    with closing(connection), transaction(connection, summary, time.time()) as tx:
        for _ in range(entries):
            memories.add(tx, entry())
        memories.remember(tx, [entry()], rule)
        return timed(lambda: memories.remember(tx, [entry()], rule))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=5000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--commits", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        began = time.perf_counter()
        folder = record_campaign(Path(root) / "load", options.candidates, events=options.events, stop_after=10**6)
        figures: dict[str, float] = {"write_all_s": time.perf_counter() - began}
        figures["database_mb"] = (folder / "campaign.db").stat().st_size / 1e6
        with StoreReader(folder) as reader:
            last = reader.last_seq()
            figures["events"] = last
            figures["changed_us"] = timed(reader.changed, 99) * 1e3
            figures["summary_ms"] = timed(reader.summary)
            figures["last_100_candidates_ms"] = timed(lambda: reader.candidates(limit=100))
            figures["agent_outcome_page_ms"] = timed(
                lambda: reader.candidates(limit=100, agent="a2", outcome="KEEP")
            )
            figures["last_500_events_ms"] = timed(lambda: reader.events_before(None, 500))
            figures["agent_log_200_ms"] = timed(lambda: reader.events_before(None, 200, agent="a3"))
            figures["replay_jump_ms"] = timed(lambda: reader.summary_at(last // 2 + 499))
            figures["one_candidate_in_full_ms"] = timed(
                lambda: (
                    reader.candidate(777),
                    reader.solution(777),
                    reader.evaluation(777),
                    reader.workloads(777),
                )
            )
        figures["attach_ms"] = timed(lambda: attach(folder))
        figures["attach_process_ms"] = whole_process(ATTACH_PROCESS, str(folder))
        figures["bare_process_ms"] = whole_process(BARE_PROCESS)
        opened = timed(lambda: asyncio.run(open_and_close(folder)), 5)
        figures["engine_open_ms"] = opened
        figures |= asyncio.run(commits(folder, options.commits))
        figures["remember_at_3000_ms"] = remembering(folder / "campaign.db", 3000)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=1))


async def open_and_close(folder: Path) -> None:
    await (await StoreWriter.open(folder / "campaign.db")).close()


if __name__ == "__main__":
    main()
