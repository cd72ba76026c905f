"""A candidate's layers around another tool: ``python -m engine.profile.confined SPAWN FOLDER COMMAND…``.

Exec'd in the outer sandbox. Namespaces, mounts, folders, limits and user are those of every candidate; COMMAND
(Nsight Compute, then the harness) runs behind them as the candidate's user. The system-call filter is installed by
the harness itself, before the candidate's first line: Nsight Compute must be connected by then.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from engine.bench import compile_cache, wire
from engine.bench.confine import SCRATCH, confine, may_change_user, private_folders, private_mounts, write_sources
from engine.bench.session import LIBRARY
from engine.bench.zygote import enter_child_namespaces
from engine.profile.wire import REQUEST, Request


def main() -> NoReturn:
    spawn = msgspec.json.decode(sys.argv[1], type=wire.Spawn)
    folder, command = Path(sys.argv[2]), sys.argv[3:]
    enter_child_namespaces()  # without them nothing is run: the outer sandbox is there, so this works
    child = os.fork()
    if child == 0:
        try:
            _enter(spawn, folder)
            os.execv(command[0], command)
        except OSError as error:
            print(f"{error} ({command[0]})", file=sys.stderr, flush=True)
        finally:
            os._exit(71)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _enter(spawn: wire.Spawn, folder: Path) -> None:
    """As pid 1 of the new namespace."""
    request = msgspec.json.decode((folder / REQUEST).read_bytes(), type=Request)
    caches = compile_cache.Store.open(spawn.cache)
    layers = private_mounts(spawn)
    if layers.get("private-tmp") != "on":
        raise OSError(f"no private /tmp: {layers.get('private-tmp')}")
    private_folders(SCRATCH, spawn.uid)
    write_sources(SCRATCH, request.sources)
    if request.library:
        target = Path(SCRATCH) / "src" / f"{LIBRARY}.so"
        shutil.copyfile(folder / f"{LIBRARY}.so", target)
        target.chmod(0o555)
    if caches is not None:
        caches.restore(f"{SCRATCH}/cache", spawn.uid if may_change_user(spawn.uid) else -1)
    confine(spawn, set(), 1, SCRATCH, filtered=False)


if __name__ == "__main__":
    main()
