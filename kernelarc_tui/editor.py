"""A candidate's sources in the person's own editor: copies to read, never what the store holds."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from engine.problems.solution import Solution


def view_in_editor(name: str, solution: Solution) -> str:
    """Open copies of the sources in ``$VISUAL`` or ``$EDITOR`` (else vi), wait, and say what happened."""
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory(prefix=f"kernelarc-{_plain(name)}-") as folder:
        paths = []
        for source in solution.sources:
            path = Path(folder) / _plain(source.path)
            path.write_text(source.content, encoding="utf-8", errors="replace")
            path.chmod(0o444)
            paths.append(str(path))
        try:
            code = subprocess.run([*command, *paths], check=False).returncode
        except OSError as error:
            return f"{command[0]} cannot be started ({error.strerror}); set $EDITOR"
    return f"{command[0]} ended with {code}" if code else "back from the editor; the copies are gone"


def _plain(name: str) -> str:
    """A file name of safe characters: paths in a solution are a model's words."""
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in name)[-80:].lstrip(".-") or "file"
