"""Started in a sandbox: says that it could be entered, and with ``layers`` what a candidate would be confined by.

``python -m engine.bench.selfcheck [layers]`` makes the same processes as a zygote does, without torch: entry
process, keeper, candidate. Prints ``inside``, or one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from engine.bench import namespaces as ns
from engine.bench import wire
from engine.bench.confine import SCRATCH, confine, confinement_of, private_folders, private_mounts
from engine.bench.zygote import enter_child_namespaces

_UID = 61000
_SPAWN = wire.Spawn(
    child=0,
    uid=_UID,
    limits=wire.Limits(memory=4 << 30),
    device="cpu",
    input_bytes=0,
    output_bytes=0,
    keeper_cores=[],
    child_cores=[],
)


def layers() -> dict[str, str]:
    """Layer → ``on`` or ``off: why``, found in a throw-away candidate."""
    read, write = os.pipe()
    entry = os.fork()
    if entry == 0:
        try:
            _enter(write)
        finally:
            os._exit(1)
    os.close(write)
    data = b""
    while chunk := os.read(read, 65536):
        data += chunk
    os.waitpid(entry, 0)
    found: dict[str, str] = json.loads(data) if data else {"candidate-process": "off: it could not be started"}
    return found


def _enter(answer: int) -> None:
    found = {"pid-namespace": "on"}
    try:
        enter_child_namespaces()
    except OSError as error:
        found["pid-namespace"] = f"off: {error}"
    keeper = os.fork()
    if keeper:
        os.close(answer)
        os.waitpid(keeper, 0)
        os._exit(0)
    if found["pid-namespace"] == "on":
        found |= private_mounts(_SPAWN)
    scratch = SCRATCH if found.get("private-tmp") == "on" else f"/tmp/kernelarc-selfcheck-{os.getpid()}"
    private_folders(scratch, _UID)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        confine(_SPAWN, {write}, write, scratch)
        os.write(write, b".")
        time.sleep(60)
        os._exit(0)
    os.close(write)
    os.read(read, 1)
    found |= confinement_of(child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if scratch != SCRATCH:
        _remove(scratch)
    os.write(answer, json.dumps(found).encode())
    os._exit(0)


def _remove(scratch: str) -> None:
    import shutil

    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    if "layers" in sys.argv[1:]:
        ns.prctl(ns.PR_SET_CHILD_SUBREAPER, 1)
        sys.stdout.write(json.dumps(layers()) + "\n")
    else:
        sys.stdout.write("inside\n")
