"""Folders of a benchmark: gone when it ends."""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def scratch_folder(prefix: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def own_home(prefix: str) -> None:
    """Campaigns and caches of this run alone, unless ``KERNELARC_HOME`` says where they shall be kept."""
    if "KERNELARC_HOME" not in os.environ:
        os.environ["KERNELARC_HOME"] = str(scratch_folder(prefix))


def run_parts(description: str | None, parts: Mapping[str, Callable[[Path, str], None]]) -> None:
    """The parts of a benchmark on one device, all or those named by ``--only``, in a folder and a home of its own.

    Commands that a part starts find this checkout.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", nargs="*", default=list(parts))
    options = parser.parse_args()
    own_home("kernelarc-benchmark-home-")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="kernelarc-benchmark-") as folder:
        for name, part in parts.items():
            if name in options.only:
                part(Path(folder), options.device)
