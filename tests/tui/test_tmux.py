"""The whole way in a real terminal: start, steer from two windows at once, leave, come back, stop."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.launch import create_campaign, start_detached
from engine.presets import resolve
from engine.problems.model import Definition, Problem, TensorSpec, VarAxis, Workload
from engine.store.lock import engine_alive
from engine.store.reader import StoreReader

MAIN = Path(__file__).resolve().parent.parent / "fixtures" / "engine_main.py"

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")


class Tmux:
    """A tmux server of this test's own, with default options."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "tmux"
        self.env = {k: v for k, v in os.environ.items() if k not in ("TMUX", "TMUX_PANE", "NO_COLOR")}
        self.env["TERM"] = "xterm-256color"

    def __call__(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self.socket), "-f", "/dev/null", *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=20, check=True).stdout

    def open(self, name: str, *words: str, size: tuple[int, int] = (80, 24)) -> None:
        shell = " ".join([sys.executable, "-m", "kernelarc_tui", *words])
        columns, rows = map(str, size)
        self("new-session", "-d", "-s", name, "-x", columns, "-y", rows, f"{shell}; exec sh")

    def screen(self, name: str) -> str:
        return self("capture-pane", "-p", "-t", name)

    def press(self, name: str, *keys: str) -> None:
        self("send-keys", "-t", name, *keys)

    def until(self, name: str, pattern: str, timeout_s: float = 20.0) -> float:
        """Wait for a pattern; returns the seconds it took."""
        started = time.monotonic()
        while not re.search(pattern, self.screen(name)):
            if time.monotonic() - started > timeout_s:
                raise AssertionError(f"{pattern!r} not within {timeout_s} s:\n{self.screen(name)}")
            time.sleep(0.05)
        return time.monotonic() - started


@pytest.fixture
def tmux(tmp_path):
    server = Tmux(tmp_path)
    yield server
    subprocess.run(["tmux", "-S", str(server.socket), "kill-server"], capture_output=True, timeout=10, check=False)


@pytest.fixture
def running(monkeypatch):
    """A campaign of the real engine on a bench that judges at once."""
    monkeypatch.setenv("FAKE_DELAY_S", "0.3")
    shape = TensorSpec(dtype="float32", shape=["rows"])
    problem = Problem(
        definition=Definition(
            name="double",
            op_type="elementwise",
            axes={"rows": VarAxis()},
            inputs={"x": shape},
            outputs={"y": shape},
            reference="import torch\n\n\ndef run(x):\n    return x + x\n",
        ),
        workloads=[Workload(uuid="w1", axes={"rows": 8})],
    )
    folder = create_campaign(
        resolve({"candidates": 4000, "agents": 2, "stop_after": 3000}), problem, None, "steered"
    )
    start_detached(folder, [str(MAIN), str(folder)])
    yield folder
    if engine_alive(folder):
        from engine.control.client import command, send

        send(folder, command("stop"))


def test_start_steer_detach_attach_and_stop(tmux, running):
    tmux.open("one", "attach", "steered")
    tmux.open("two", "attach", "steered", size=(200, 50))
    tmux.until("one", r"q leave running")
    tmux.until("one", r"#\d+ ")
    tmux.until("two", r"q leave running")

    tmux.press("one", "p")
    assert tmux.until("one", r"‖ paused|pausing") < 5
    tmux.until("two", r"‖ paused")
    tmux.until("two", r"> pause")  # the other viewer sees who did what
    tmux.press("two", "p")
    tmux.until("one", r"▶ \d\d:")

    tmux.press("two", "j", "d")
    tmux.until("two", r"✓ agent 2's next proposal is a draft")
    tmux.press("one", "h")
    tmux.until("one", r"Hint for agent 1")
    tmux.press("one", "-l", "use one pass")
    tmux.press("one", "Enter")
    tmux.until("one", r"✓ the hint is on record, but agent 1 proposes from recipes")
    tmux.press("one", "s")
    tmux.until("one", r"Stop what\?")
    tmux.press("one", "a")
    tmux.until("two", r"stopped user")

    tmux.press("one", "q")
    tmux.until("one", r"steered keeps running; come back with: kernelarc attach steered")
    assert engine_alive(running)
    tmux.press("one", "-l", f"{sys.executable} -m kernelarc_tui attach")
    tmux.press("one", "Enter")
    tmux.until("one", r"q leave running")

    tmux.press("one", "s")
    tmux.until("one", r"the whole campaign")
    tmux.press("one", "c")
    tmux.until("one", r"■ stopped")
    tmux.until("two", r"■ stopped")
    with StoreReader(running) as reader:
        assert reader.summary().stop_reason == "user"


def test_the_other_controls_from_both_windows(tmux, running):
    tmux.open("one", "attach", "steered")
    tmux.open("two", "attach", "steered", size=(200, 50))
    tmux.until("one", r"#\d+ +K ")
    tmux.until("two", r"q leave running")

    tmux.press("two", "D")
    tmux.until("two", r"✓ every agent's next proposal is a draft")
    tmux.press("one", "H")
    tmux.until("one", r"Hint for every agent")
    tmux.press("one", "-l", "in one pass")
    tmux.press("one", "Enter")
    tmux.until("one", r"✓ the hint is on record, but every agent proposes from recipes")
    tmux.until("two", r"> hint")
    tmux.press("two", "j", "P")
    tmux.until("two", r"✓ agent 2 pauses")
    tmux.until("one", r" 2 .*paus")
    tmux.press("one", "j", "P")
    tmux.until("one", r"✓ agent 2 goes on")
    tmux.press("one", "b")
    tmux.until("one", r"New totals")
    tmux.press("one", "-l", "4500")
    tmux.press("one", "Enter")
    tmux.until("one", r"✓ candidates 4500")
    tmux.until("two", r"/4500")
    tmux.press("two", "w")
    tmux.until("two", r"Switch agent 2 to")
    tmux.press("two", "j", "Enter")
    tmux.until("two", r"✓ agent 2 uses")
    tmux.until("one", r"> switch")
    tmux.press("one", "v")
    tmux.until("one", r"Veto #\d+\?")
    tmux.press("one", "y")
    tmux.until("one", r"✓ #\d+ .*vetoed")
    tmux.until("two", r"v veto|> veto")
    tmux.press("two", "m")
    tmux.until("two", r"wins and traps")
    tmux.press("two", "q")
    tmux.press("two", "s")
    tmux.until("two", r"the whole campaign")
    tmux.press("two", "c")
    tmux.until("one", r"■ stopped")


def test_resizing_the_window_and_reattaching_keep_the_screen_whole(tmux, running):
    tmux.open("one", "attach", "steered")
    tmux.until("one", r"q leave running")
    for columns, rows in ((120, 40), (40, 12), (200, 50), (80, 24)):
        tmux("resize-window", "-t", "one", "-x", str(columns), "-y", str(rows))
        time.sleep(0.2)
    tmux.until("one", r"q leave running")
    tmux.until("one", r"─ agents ")


def test_killing_the_window_leaves_the_engine_running(tmux, running):
    tmux.open("one", "attach", "steered")
    tmux.until("one", r"q leave running")
    tmux("kill-session", "-t", "one")
    with StoreReader(running) as reader:
        before = reader.summary().candidates
        deadline = time.monotonic() + 15
        while reader.summary().candidates <= before:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert engine_alive(running)


def test_copying_in_tmux_fills_its_buffer_with_default_options(tmux, running):
    tmux.open("one", "attach", "steered")
    tmux.until("one", r"#\d+ +[AKR] ")
    tmux.press("one", "2", "Enter")
    tmux.until("one", r"1 source")
    tmux.press("one", "Y")
    tmux.until("one", r"copied [\d,]+ characters to tmux")
    assert "def run" in tmux("show-buffer")
