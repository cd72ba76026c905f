"""The kernel's own isolation, entered through libc by a process that was exec'd for it: no helper needed.

Every function reports failure as ``OSError``; callers decide whether a layer may be missing and record it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 1, 4, 38, 36
PR_CAPBSET_DROP = 24

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.unshare.argtypes = [ctypes.c_int]
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.syscall.restype = ctypes.c_long

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    result = _libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None)
    _check(result, f"mount {target}")


def umount(target: str) -> None:
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def prctl(option: int, value: int = 0) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), "prctl")


def prctl_pointer(option: int, value: int, address: int) -> None:
    _check(_libc.prctl(option, value, address, 0, 0), "prctl")


def die_with_parent(parent: int) -> None:
    """SIGKILL when the parent dies; exits at once if it already has (``parent`` is its pid before the fork)."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(125)


def map_own_user(uid: int, gid: int, inside: int) -> None:
    """After ``unshare(CLONE_NEWUSER)``: make us ``inside`` in there (0 for the sandbox's own root)."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{inside} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{inside} {gid} 1")


def bind(source: str, target: str, *, writable: bool = False) -> None:
    """Recursive bind, read-only unless asked otherwise. Submounts keep their own flags."""
    mount(source, target, "", MS_BIND | MS_REC)
    if not writable:
        mount("none", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | _locked_flags(target))


def _locked_flags(target: str) -> int:
    """Flags that a mount inherited from a more privileged namespace and that a remount must repeat."""
    flags = os.statvfs(target).f_flag
    return flags & (MS_NOSUID | MS_NODEV | MS_NOEXEC)


def pivot_root(new_root: str) -> None:
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"pivot_root: unknown on {os.uname().machine}")
    os.chdir(new_root)
    _check(_libc.syscall(number, b".", b"."), "pivot_root")
    umount(".")
    os.chdir("/")


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc.process_vm_readv.restype = ctypes.c_ssize_t


def read_memory(pid: int, source: int, target: int, size: int) -> int:
    """Copies ``size`` bytes at ``source`` of another process to our ``target``; returns how many could be read."""
    done = 0
    while done < size:
        local, remote = _Span(target + done, size - done), _Span(source + done, size - done)
        count = _libc.process_vm_readv(
            pid, ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1), ctypes.c_ulong(0)
        )
        if count <= 0:
            break
        done += count
    return done


def drop_bounding_set() -> None:
    """No later exec can regain a capability."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break


def clear_capabilities() -> None:
    """Empties the effective, permitted and inheritable sets (``capset`` version 3)."""
    header = struct.pack("<Ii", 0x20080522, 0)
    number = {"x86_64": 126, "aarch64": 91}.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "capset: unknown machine")
    _check(_libc.syscall(ctypes.c_long(number), header, bytes(24)), "capset")


def is_mapped(uid: int) -> bool:
    """Whether this user namespace knows ``uid`` (an unprivileged one maps only our own)."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = (int(word) for word in line.split())
        if first <= uid < first + count:
            return True
    return False
