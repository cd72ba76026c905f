"""``kernelarc doctor``: everything that decides what works on this box, as a list of checks."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from engine.hardware import checks
from engine.hardware.checks import Check
from engine.hardware.facts import probe_cuda
from engine.hardware.nvml import Nvml, driver_version, within

__all__ = ["Check", "examine"]

SANDBOX_S = 60.0
_LAYERS = "import json; from engine.bench.probe import probe_layers; print(json.dumps(probe_layers()))"


def examine(api_base: str | None = None) -> list[Check]:
    """Run every check, the slow ones (driver, sandbox, model server) with a deadline. Never raises."""
    probe = probe_cuda()
    driver = driver_version() if probe.devices else None
    uuids = within(lambda: Nvml().uuids()) if driver else None
    base = api_base or os.environ.get("OPENAI_API_BASE") or os.environ.get("OPENAI_BASE_URL")
    return [
        checks.python(),
        checks.torch(),
        checks.processor(),
        *checks.gpus(probe),
        checks.nvml(driver, uuids, probe),
        checks.cupti(probe),
        checks.host_compiler(),
        checks.cuda_compiler(probe),
        *checks.sandbox(_layers()),
        *checks.python_path(),
        checks.ptrace(),
        checks.sqlite(),
        checks.state_folder(),
        checks.lock_folder(),
        checks.runtime_folder(),
        checks.keys(),
        *([checks.endpoint(base)] if base else []),
        checks.terminal(),
    ]


def _layers() -> dict[str, str] | None:
    """The bench's isolation layers, tried in a process of its own."""
    argv = [sys.executable, "-c", _LAYERS]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=SANDBOX_S, check=False, stdin=subprocess.DEVNULL)
        return msgspec.json.decode(done.stdout, type=dict[str, str])
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError):
        return None
