"""Copying over SSH: through tmux where it runs, else OSC 52, and a file where neither is sure to arrive."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from engine.paths import home

if TYPE_CHECKING:
    from textual.app import App

OSC52_LIMIT = 74_994  # bytes of text that most terminals take (100 kB of base64)


def copy(app: App[object], text: str) -> str:
    """Copy ``text`` and say in one line which way it went."""
    if os.environ.get("TMUX") and shutil.which("tmux"):
        problem = _tmux(text)
        if not problem:
            return f"copied {len(text):,} characters to tmux and, where it passes them on, your terminal"
    if len(text.encode()) <= OSC52_LIMIT:
        app.copy_to_clipboard(text)
        return f"sent {len(text):,} characters to your terminal's clipboard (OSC 52)"
    path = save(text)
    return f"too long for the terminal's clipboard; saved as {path}"


def save(text: str, name: str = "copied.txt") -> Path:
    """Write ``text`` to a file under the state folder."""
    folder = home() / "copied"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def _tmux(text: str) -> str:
    """``load-buffer -w`` works with tmux's default options, where a plain OSC 52 is dropped."""
    try:
        done = subprocess.run(
            ["tmux", "load-buffer", "-w", "-"], input=text.encode(), capture_output=True, timeout=3, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.decode(errors="replace").strip() if done.returncode else ""
