"""Folders of a benchmark: gone when it ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def scratch_folder(prefix: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def own_home(prefix: str) -> None:
    """Campaigns and caches of this run alone, unless ``KERNELARC_HOME`` says where they shall be kept."""
    if "KERNELARC_HOME" not in os.environ:
        os.environ["KERNELARC_HOME"] = str(scratch_folder(prefix))
