"""Terminal manners, in a real pty: signals, stray mouse bytes, colours, plain text where there is no terminal."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from tui_pty import Terminal

from kernelarc_tui.terminal import few_characters

ALTERNATE_SCREEN_OFF = b"\x1b[?1049l"
MOUSE_OFF = b"\x1b[?1000l"


@pytest.fixture
def start(ended):
    """Start ``kernelarc attach`` in a pty; stopped at the end of the test."""
    terminals = []

    def run(*options: str, columns: int = 80, rows: int = 24, **env: str) -> Terminal:
        command = [sys.executable, "-m", "kernelarc_tui", "attach", ended.name, *options]
        terminal = Terminal(command, env, columns, rows)
        terminals.append(terminal)
        return terminal

    yield run
    for terminal in terminals:
        terminal.close()


def _after_exit(terminal: Terminal) -> bytes:
    terminal.process.wait(timeout=10)
    terminal._thread.join(timeout=2)
    return bytes(terminal.received)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
def test_a_signal_leaves_a_clean_terminal(start, number):
    terminal = start()
    terminal.wait_for("q leave")
    terminal.process.send_signal(number)
    written = _after_exit(terminal)
    assert ALTERNATE_SCREEN_OFF in written and MOUSE_OFF in written
    assert terminal.process.returncode == 0


def test_q_leaves_a_line_in_the_shell(start):
    terminal = start()
    terminal.wait_for("q leave")
    terminal.send("q")
    written = _after_exit(terminal)
    assert written.rindex(ALTERNATE_SCREEN_OFF) < written.rindex(b"is finished; kernelarc report cpu-20260528")


def test_stray_and_malformed_mouse_reports_do_not_end_it(start):
    terminal = start()
    terminal.wait_for("q leave")
    for report in (
        b"\x1b[M \xf0\x90",
        b"\x1b[M\xff\xff\xff",
        b"\x1b[<0;999999;1M",
        b"\x1b[<-1;;M",
        b"\xc3\x28\x1b[M",
    ):
        os.write(terminal.master, report)
        time.sleep(0.05)
    time.sleep(0.4)
    assert terminal.process.poll() is None
    terminal.send("?")
    terminal.wait_for("the selected agent drafts next")


def test_no_mouse_asks_for_no_mouse(start):
    terminal = start("--no-mouse")
    terminal.wait_for("q leave")
    assert b"\x1b[?1000h" not in terminal.received


def test_a_lost_terminal_ends_the_screen(ended):
    """The other end of the pty is closed, as when sshd or tmux dies: every write fails from then on."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "kernelarc_tui", "attach", ended.name]
    screen = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(slave)
    shown = b""
    while b"q leave" not in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown):
        shown += os.read(master, 65536)
    os.close(master)
    screen.send_signal(signal.SIGHUP)
    try:
        screen.wait(timeout=10)
    finally:
        screen.kill()


def test_no_color_sends_no_colours(start):
    terminal = start(NO_COLOR="1")
    terminal.wait_for("q leave")
    colours = re.findall(rb"\x1b\[[0-9;]*(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|[34]8;[25])[0-9;]*m", terminal.received)
    assert colours == []
    assert b"\x1b[1" in terminal.received or b";7" in terminal.received  # bold and reverse still tell apart


def test_ascii_sends_only_ascii(start):
    terminal = start("--ascii")
    terminal.wait_for("q leave")
    assert bytes(terminal.received).isascii()
    assert b"|" in terminal.received and b"+" in terminal.received


def test_a_terminal_without_unicode_gets_ascii_by_itself(start):
    terminal = start(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    terminal.wait_for("q leave")
    assert bytes(terminal.received).isascii()


def test_exported_columns_and_lines_do_not_freeze_the_size(start):
    terminal = start(COLUMNS="60", LINES="10", columns=130, rows=30)
    terminal.wait_for("q leave", "K 5")  # the counts are shown from 110 columns on


def test_sixteen_colours_are_enough(start):
    terminal = start(TERM="screen", TEXTUAL_COLOR_SYSTEM="standard")
    terminal.wait_for("q leave")
    assert b"38;2;" not in terminal.received and b"38;5;" not in terminal.received


def test_a_dumb_terminal_or_a_pipe_gets_plain_text(ended):
    command = [sys.executable, "-m", "kernelarc_tui", "attach", ended.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0 and "finished" in done.stdout and "\x1b" not in done.stdout
    terminal = Terminal(command, {"TERM": "dumb"})
    terminal.wait_for("finished")
    terminal.process.wait(timeout=10)
    assert b"\x1b" not in terminal.received
    terminal.close()


def test_a_broken_store_is_one_line_in_the_shell(ended):
    (ended / "campaign.db").write_bytes(b"garbage" * 1000)
    terminal = Terminal([sys.executable, "-m", "kernelarc_tui", "attach", ended.name])
    terminal.process.wait(timeout=20)
    terminal._thread.join(timeout=2)
    text = bytes(terminal.received).decode()
    terminal.close()
    assert "Traceback" not in text and "campaign.db" in text and len(text.strip().splitlines()) == 1


def test_a_slow_terminal_keeps_the_keys_alive(start):
    """The reader takes a little now and then, as a thin line does; a key still gets through."""
    terminal = start(columns=200, rows=50)
    terminal.wait_for("q leave")
    for _ in range(30):
        terminal.send("ez")
    terminal.send("q")
    assert terminal.process.wait(timeout=20) == 0


def test_a_defect_of_ours_is_one_line_and_a_report_in_a_file(ended, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from kernelarc_tui.terminal import run_app\n"
        "from kernelarc_tui.widgets.agents import AgentsTable\n"
        "AgentsTable.action_move = lambda self, step: 1 / 0\n"
        "print(run_app(Path(sys.argv[1])))\n"
    )
    terminal = Terminal([sys.executable, str(script), str(ended)])
    terminal.wait_for("q leave")
    terminal.send("j")
    written = _after_exit(terminal)
    terminal.close()
    tail = written[written.rindex(ALTERNATE_SCREEN_OFF) :].decode()
    assert "the screen failed (ZeroDivisionError" in tail and "Traceback" not in tail
    report = Path(os.environ["KERNELARC_HOME"]) / "screen-crash.log"
    assert "ZeroDivisionError" in report.read_text()


def _ends(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=15)
    finally:
        process.kill()
        process.wait()


def _unread(ended: Path, rows: int, columns: int) -> tuple[subprocess.Popen[bytes], int]:
    """A screen in a pty of that size that nobody reads from, once it has drawn something."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    screen = subprocess.Popen(
        [sys.executable, "-m", "kernelarc_tui", "attach", ended.name],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(slave)
    assert b"\x1b[?1049h" in os.read(master, 65536)
    return screen, master


def test_a_terminal_of_no_size_is_drawn_once_and_its_end_ends_the_screen(ended):
    """Some hosts open a pty of 0×0 cells. It used to be drawn without end, and to outlive its terminal."""
    screen, master = _unread(ended, 0, 0)
    written, deadline = 0, time.monotonic() + 2.5
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.1)[0]:
            written += len(os.read(master, 65536))
    assert written < 400_000
    os.close(master)
    _ends(screen)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_screen_whose_terminal_takes_nothing(ended, number):
    """Flow control or a dead line: the output is full, the event loop waits for room."""
    screen, master = _unread(ended, 50, 200)
    for _ in range(40):
        os.write(master, b"ezze")  # each key asks for a whole screen
        time.sleep(0.05)
    screen.send_signal(number)
    _ends(screen)
    os.close(master)


def test_a_really_slow_terminal_still_gets_the_last_key(ended):
    """One kilobyte every 20 ms: frames are late, keys are not lost."""
    screen, master = _unread(ended, 50, 200)
    for key in b"eezz2q":
        os.write(master, bytes([key]))
        os.read(master, 1024)
        time.sleep(0.02)
    deadline = time.monotonic() + 30
    while screen.poll() is None and time.monotonic() < deadline:
        if select.select([master], [], [], 0.02)[0]:
            try:
                os.read(master, 1024)
            except OSError:
                break
        time.sleep(0.02)
    _ends(screen)
    assert screen.returncode == 0
    os.close(master)


@pytest.mark.parametrize(
    ("env", "few"),
    [
        ({"TERM": "linux", "LANG": "en_US.UTF-8"}, True),
        ({"TERM": "screen", "STY": "1.x", "LANG": "C"}, True),
        ({"TERM": "screen", "STY": "1.x", "LC_CTYPE": "C.UTF-8"}, True),  # set by Python, not by a person
        ({"TERM": "screen", "STY": "1.x", "LANG": "de_DE.UTF-8"}, False),
        ({"TERM": "screen", "STY": "1.x", "LC_ALL": "C.UTF-8"}, False),
        ({"TERM": "screen-256color", "LANG": "C"}, False),  # tmux and bare containers: the terminal can do more
        ({"TERM": "xterm-256color"}, False),
    ],
)
def test_terminals_with_few_characters_are_known(env, few):
    assert few_characters(env) is few
