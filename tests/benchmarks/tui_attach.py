"""How long ``kernelarc attach`` takes to its first full screen, what it holds in memory, what it costs idle.

A recorded campaign of 5,000 candidates and 100,000 events, and a small one; 160×45, 256 colours, in a pty; each
number is the median of five runs and is also given as a ratio to a bare Textual app in the same run.

    python tests/benchmarks/tui_attach.py
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tui")]

from recorded import Story, record  # noqa: E402
from tui_pty import Terminal, attach, bare_app, median  # noqa: E402

RUNS = 5
IDLE_S = 10.0
SMALL = Story(name="small", state="finished")
LARGE = Story(name="large", candidates=5000, budget=6000, agents=4, events=100_000, gap_s=2, state="finished")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kernelarc-bench-") as folder:
        env = {"KERNELARC_HOME": folder, "XDG_CONFIG_HOME": f"{folder}/config", "PYTHONWARNINGS": "ignore"}
        os.environ.update(env)
        started = time.perf_counter()
        for story in (SMALL, LARGE):
            record(Path(folder) / "campaigns", story)
        print(f"recorded both campaigns in {time.perf_counter() - started:.1f} s")
        for command in (bare_app(), attach(SMALL.name)):  # fill the page cache
            _paint(command, env, "bare app" if command == bare_app() else "leave")
        bare, small, large, memory = [], [], [], []
        for _ in range(RUNS):
            bare.append(_paint(bare_app(), env, "bare app")[0])
            small.append(_paint(attach(SMALL.name), env, f"#{SMALL.candidates}", "leave")[0])
            seconds, mib = _paint(attach(LARGE.name), env, f"#{LARGE.candidates}", "leave")
            large.append(seconds)
            memory.append(mib)
        base = median(bare)
        for name, values in (("bare app", bare), ("small campaign", small), ("large campaign", large)):
            value = median(values)
            print(f"{name:16} first full paint {value * 1000:6.0f} ms  {value / base:4.2f} × bare")
        print(f"large campaign   memory after paint {median(memory):.0f} MiB")
        _idle(env)


def _paint(command: list[str], env: dict[str, str], *texts: str) -> tuple[float, float]:
    terminal = Terminal(command, env)
    try:
        seconds = terminal.wait_for(*texts)
        time.sleep(0.3)
        return seconds, terminal.memory_mib()
    finally:
        terminal.close()


def _idle(env: dict[str, str]) -> None:
    terminal = Terminal(attach(LARGE.name), env)
    try:
        terminal.wait_for("leave")
        time.sleep(3.0)
        cpu, sent = terminal.cpu_s(), len(terminal.received)
        time.sleep(IDLE_S)
        share = (terminal.cpu_s() - cpu) / IDLE_S
        print(
            f"large campaign   idle {share:.2%} of a core, {(len(terminal.received) - sent) / IDLE_S:.0f} bytes/s"
        )
    finally:
        terminal.close()


if __name__ == "__main__":
    main()
