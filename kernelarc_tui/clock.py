"""The wall clock of the screens, in one place so that a recorded campaign can be shown at its own time."""

from __future__ import annotations

import time


def now() -> float:
    """Unix seconds."""
    return time.time()
