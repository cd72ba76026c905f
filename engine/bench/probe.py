"""Which isolation layers this box allows, found by trying each in a throw-away process."""

from __future__ import annotations

import functools
import shutil
import subprocess

import msgspec

from engine.bench.sandbox import Sandbox, command, environment


def _tries(kind: str) -> str:
    """Empty if a helper process starts in this outer sandbox, else why not."""
    argv = command(Sandbox(kind=kind, layers={}), "engine.bench.selfcheck", [], environment("cpu"))
    try:
        done = subprocess.run(argv, capture_output=True, timeout=20, env=environment("cpu"), check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0 and b"inside" in done.stdout:
        return ""
    return " ".join(done.stderr.decode("utf-8", "replace").split())[-200:] or f"exit status {done.returncode}"


@functools.cache
def outer_sandbox() -> Sandbox:
    layers: dict[str, str] = {}
    if shutil.which("bwrap"):
        problem = _tries("bubblewrap")
        layers["bubblewrap"] = f"off: {problem}" if problem else "on"
        if not problem:
            return Sandbox(kind="bubblewrap", layers=layers)
    else:
        layers["bubblewrap"] = "off: not installed"
    problem = _tries("namespaces")
    layers["namespaces"] = f"off: {problem}" if problem else "on"
    return Sandbox(kind="none" if problem else "namespaces", layers=layers)


def probe_layers() -> dict[str, str]:
    """Layer name → ``on`` or ``off: why``, for ``doctor``: tried in a throw-away candidate, under a second."""
    sandbox = outer_sandbox()
    env = environment("cpu")
    argv = command(sandbox, "engine.bench.selfcheck", ["layers"], env)
    found: dict[str, str]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=20, env=env, check=False)
        found = msgspec.json.decode(done.stdout, type=dict[str, str])
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
        found = {"candidate-process": f"off: {error}"}
    network = {
        "network-namespace": "on" if sandbox.kind != "none" else "off: no outer sandbox; sockets are filtered"
    }
    return {**sandbox.layers, **network, **found}
