"""A busy engine and a screen on it: key-to-frame, commit-to-screen, processor and bytes per second.

Another process writes 200 events a second (and live rows, samples and verdicts as an engine would) into a
campaign of 5,000 candidates and 100,000 events, while keys are pressed in a pty of 160×45 with 256 colours.

    python tests/benchmarks/tui_live.py [seconds]
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tui")]

from recorded import STRATEGIES, Story, record  # noqa: E402
from tui_pty import Terminal, attach, percentile  # noqa: E402

from engine.records import Mode, Outcome, Sample  # noqa: E402
from engine.store import events as ev  # noqa: E402
from engine.store.lock import CampaignLock  # noqa: E402
from engine.store.rows import VerdictRecord  # noqa: E402
from engine.store.writer import StoreWriter  # noqa: E402

EVENTS_A_SECOND = 200
STORY = Story(name="busy", candidates=5000, budget=9000, agents=4, events=100_000, gap_s=2)


async def write(folder: Path, seconds: float) -> None:
    """The engine's side. Prints ``number time`` of each verdict after its commit."""
    lock = CampaignLock(folder)
    lock.acquire()
    writer = await StoreWriter.open(folder / "campaign.db")
    started = time.monotonic()
    tick = 0
    try:
        while time.monotonic() - started < seconds:
            tick += 1
            for index in range(EVENTS_A_SECOND // 20):
                name = str((tick + index) % STORY.agents + 1)
                await writer.append(ev.StrategyChosen(agent=name, strategy=STRATEGIES[index % 4], why="in turn"))
            for agent in range(STORY.agents):
                writer.live(str(agent + 1), state="proposing", tokens=tick, reply=f"token {tick} " * 40)
            if tick % 20 == 0:
                writer.sample(Sample(at=time.time(), device="GPU-0", index=0, utilization=(tick % 97) / 97))
            if tick % 10 == 0:
                number = await _verdict(writer, tick)
                print(number, time.perf_counter(), flush=True)
            await asyncio.sleep(max(0.0, started + tick / 20 - time.monotonic()))
    finally:
        await writer.close()
        lock.release()


async def _verdict(writer: StoreWriter, tick: int) -> int:
    name = str(tick // 10 % STORY.agents + 1)
    verdict = ev.Verdict(
        number=0,
        agent=name,
        position=100_000 + tick,
        mode=Mode.REFINE,
        strategy=STRATEGIES[0],
        family="",
        outcome=Outcome.ACCEPT,
        latency_ms=0.08,
        log_ratio=0.001,
    )
    return (await writer.commit_verdict(VerdictRecord(verdict=verdict))).number


def watch(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="kernelarc-bench-") as home:
        env = {"KERNELARC_HOME": home, "XDG_CONFIG_HOME": f"{home}/config"}
        os.environ.update(env)
        folder = record(Path(home) / "campaigns", STORY)
        engine = subprocess.Popen(
            [sys.executable, str(HERE / "tui_live.py"), "--write", str(folder), str(seconds + 8)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        terminal = Terminal(attach(STORY.name), env)
        try:
            terminal.wait_for("leave running")
            time.sleep(2.0)
            _measure(terminal, seconds)
        finally:
            terminal.close()
            engine.terminate()
        commits = dict(_pairs(engine.communicate()[0]))
    delays = _delays(terminal, commits)
    print(f"commit to screen   p50 {percentile(delays, 0.5):4.0f} ms  p95 {percentile(delays, 0.95):4.0f} ms"
          f"  ({len(delays)} verdicts)")  # fmt: skip


def _measure(terminal: Terminal, seconds: float) -> None:
    cpu, sent, began = terminal.cpu_s(), len(terminal.received), time.perf_counter()
    waits: list[float] = []
    while time.perf_counter() - began < seconds:
        pressed = time.perf_counter()
        terminal.send("j" if len(waits) % 2 else "k")
        arrived = terminal.next_output(pressed)
        if arrived is not None:
            waits.append((arrived - pressed) * 1000)
        time.sleep(0.13)
    took = time.perf_counter() - began
    print(f"key to frame       p50 {percentile(waits, 0.5):4.0f} ms  p95 {percentile(waits, 0.95):4.0f} ms"
          f"  ({len(waits)} keys)")  # fmt: skip
    print(f"processor          {(terminal.cpu_s() - cpu) / took:.1%} of a core")
    print(f"to the terminal    {(len(terminal.received) - sent) / took / 1024:.0f} KiB/s")
    print(f"memory             {terminal.memory_mib():.0f} MiB")


def _pairs(text: str) -> list[tuple[int, float]]:
    return [(int(number), float(at)) for number, at in (line.split() for line in text.splitlines())]


def _delays(terminal: Terminal, commits: dict[int, float]) -> list[float]:
    """From the end of each verdict's commit to the arrival of its number on the terminal."""
    delays = []
    for number, at in commits.items():
        found = re.search(rf"#{number}\b".encode(), terminal.received)
        if found is None:
            continue
        arrival = next(when for when, end in terminal.chunks if end >= found.end())
        if arrival >= at - 0.5:
            delays.append(max(0.0, arrival - at) * 1000)
    return delays


if __name__ == "__main__":
    if "--write" in sys.argv:
        asyncio.run(write(Path(sys.argv[2]), float(sys.argv[3])))
    else:
        watch(float(sys.argv[1]) if len(sys.argv) > 1 else 15.0)
