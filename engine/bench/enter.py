"""The outer sandbox without bubblewrap: ``python -m engine.bench.enter PLAN COMMAND…``.

Enters user (if not root), mount, pid, network, IPC and UTS namespaces, builds a root of allow-listed read-only
binds, and replaces itself with COMMAND as pid 1 in there. PLAN is JSON from :mod:`engine.bench.sandbox`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from engine.bench import namespaces as ns

_BASE = "/tmp"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1"}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def main() -> NoReturn:
    plan, command = json.loads(sys.argv[1]), sys.argv[2:]
    uid, gid = os.getuid(), os.getgid()
    flags = ns.CLONE_NEWNS | ns.CLONE_NEWPID | ns.CLONE_NEWNET | ns.CLONE_NEWIPC | ns.CLONE_NEWUTS
    if uid == 0:
        ns.unshare(flags)
    else:
        ns.unshare(flags | ns.CLONE_NEWUSER)
        ns.map_own_user(uid, gid, 0)
    parent = os.getpid()
    inner = os.fork()
    if inner == 0:
        # The parent's pid is not visible from the new namespace, so only the signal can be asked for.
        ns.prctl(ns.PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError):
            loopback_up()
        build_root(plan)
        os.execv(command[0], command)
    if os.getppid() == 1 or parent <= 0:
        os.kill(inner, signal.SIGKILL)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(inner, signal.SIGKILL))
    _, status = os.waitpid(inner, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def loopback_up() -> None:
    """Some libraries talk to themselves over 127.0.0.1; a new network namespace has it down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(probe, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def build_root(plan: dict[str, Any]) -> None:
    """Raises ``OSError`` if any part is refused: a half-built sandbox is not used."""
    ns.mount("none", "/", "", ns.MS_REC | ns.MS_PRIVATE)
    sources = [(path, False) for path in plan["read"]] + [(path, True) for path in plan["write"]]
    links = {path: str(Path(path).readlink()) for path, _ in sources if Path(path).is_symlink()}
    # Sources below the mount point disappear under it, so they are reached through descriptors.
    held = [(p, w, os.open(p, os.O_PATH | os.O_CLOEXEC)) for p, w in sorted(sources) if p not in links]
    device_fds = [(name, os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC)) for name in _DEVICES]
    if plan["cuda"]:
        device_fds += [
            (node.name, os.open(node, os.O_PATH | os.O_CLOEXEC)) for node in Path("/dev").glob("nvidia*")
        ]
    ns.mount("tmpfs", _BASE, "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "mode=755,size=16m")
    root = f"{_BASE}/root"
    for folder in ("", "/proc", "/dev", "/dev/shm", "/tmp"):
        Path(root + folder).mkdir(mode=0o755)
    ns.mount("tmpfs", f"{root}/tmp", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "mode=1777")
    ns.mount("tmpfs", f"{root}/dev/shm", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "mode=1777")
    for name, fd in device_fds:
        _bind_fd(fd, f"{root}/dev/{name}", writable=True)
    for name, target in _DEVICE_LINKS.items():
        Path(f"{root}/dev/{name}").symlink_to(target)
    for path, target in links.items():
        Path(root + path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        Path(root + path).symlink_to(target)
    for path, writable, fd in held:
        _bind_fd(fd, root + path, writable=writable)
    ns.mount("proc", f"{root}/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
    ns.bind(root, root, writable=True)
    ns.pivot_root(root)
    ns.mount("none", "/", "", ns.MS_REMOUNT | ns.MS_BIND | ns.MS_RDONLY | ns.MS_NOSUID | ns.MS_NODEV)


def _bind_fd(fd: int, target: str, *, writable: bool) -> None:
    source = f"/proc/self/fd/{fd}"
    place = Path(target)
    if Path(source).is_dir():
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
    else:
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        place.touch()
    ns.bind(source, target, writable=writable)
    os.close(fd)


if __name__ == "__main__":
    main()
