"""A terminal for benchmarks: a process in a pty, its output with arrival times, its memory and CPU time."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

_ESCAPES = re.compile(rb"\x1b\[[0-9;?<>=$]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_TICK = os.sysconf("SC_CLK_TCK")


class Terminal:
    """Runs ``command`` at ``columns`` × ``rows`` with 256 colours and collects what it writes."""

    def __init__(
        self, command: list[str], env: dict[str, str] | None = None, columns: int = 160, rows: int = 45
    ) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in (
            "COLORTERM",
            "NO_COLOR",
            "TMUX",
            "SSH_TTY",
            "SSH_CONNECTION",
            "TEXTUAL_FPS",
            "COLUMNS",
            "LINES",
            "PYTHONDONTWRITEBYTECODE",
        ):
            environment.pop(name, None)
        environment |= env or {}
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.master = master
        self.received = bytearray()
        self.chunks: list[tuple[float, int]] = []  # (arrival, end offset in ``received``)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_for(self, *texts: str, timeout_s: float = 30.0) -> float:
        """Seconds from the start until every text has been written. Raises TimeoutError."""
        wanted = [text.encode() for text in texts]
        deadline = time.perf_counter() + timeout_s
        while time.perf_counter() < deadline:
            plain = _ESCAPES.sub(b"", bytes(self.received))
            if all(text in plain for text in wanted):
                return self.chunks[-1][0] - self.started
            time.sleep(0.002)
        tail = _ESCAPES.sub(b"", bytes(self.received))[-2000:].decode(errors="replace")
        raise TimeoutError(f"{texts} not on screen after {timeout_s} s; last output: {tail}")

    def send(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def next_output(self, after: float, timeout_s: float = 2.0) -> float | None:
        """When something was written later than ``after``."""
        deadline = after + timeout_s
        while time.perf_counter() < deadline:
            later = [arrival for arrival, _ in self.chunks[-50:] if arrival > after]
            if later:
                return later[0]
            time.sleep(0.0005)
        return None

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def memory_mib(self, field: str = "VmRSS") -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", text)[1]) / 1024  # type: ignore[index]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._thread.join(timeout=1)
        os.close(self.master)

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self.master], [], [], 0.1)
            if not ready:
                if self.process.poll() is not None:
                    return
                continue
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            if not data:
                return
            self.received += data
            self.chunks.append((time.perf_counter(), len(self.received)))


BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("bare app", markup=False)
Bare().run()
"""


def bare_app() -> list[str]:
    return [sys.executable, "-c", BARE]


def attach(name: str) -> list[str]:
    return [sys.executable, "-m", "kernelarc_tui", "attach", name]


def median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
