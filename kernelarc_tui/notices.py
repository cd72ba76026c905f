"""What leaves the screen: a crash report in a file, a notification through the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.store.summary import Note


def write_crash(report: str) -> Path:
    from engine.paths import home
    from engine.text import redact

    path = home() / "screen-crash.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(redact(report), encoding="utf-8")
    except OSError:
        return Path("/dev/null")
    return path


def desktop_notification(name: str, note: Note) -> str:
    """OSC 9 (iTerm2, kitty, WezTerm, Windows Terminal) and OSC 777 (urxvt, foot, VTE); others ignore both."""
    from kernelarc_tui.safe import one_line

    text = one_line(f"{name}: {note.text}", 120).replace(";", ",")
    return f"\x1b]9;{text}\x07\x1b]777;notify;KernelArc;{text}\x07"
