"""A small system-call filter for candidates: no ptrace, no mounts, no new namespaces, no sockets but Unix ones.

Classic BPF, built here because the four dozen numbers need no library. Calls are refused with ``EPERM``;
``clone3`` answers ``ENOSYS`` (libc then uses ``clone``, whose flags can be read), and so does what holds memory
that no process maps; ``sched_set*`` are answered with success and do nothing, so that honest code which pins
threads runs on while nothing leaves its core.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct

from engine.bench import namespaces as ns

_LD_W_ABS, _JEQ, _JSET, _JGE, _RET = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OFFSET_NR, _OFFSET_ARCH, _OFFSET_ARG0, _OFFSET_ARG1 = 0, 4, 16, 24
_X32 = 0x40000000
_NAMESPACE_FLAGS = 0x7E020000  # every CLONE_NEW* that clone(2) takes
_PR_SET_SECCOMP, _FILTER = 22, 2

# name → (x86_64, aarch64)
_REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "chroot": (161, 51),
    "setns": (308, 268),
    "unshare": (272, 97),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "personality": (135, 92),
    # Whoever is stopped would be continued by the kernel, at a time of its own choosing.
    "timer_create": (222, 107),
    "mq_notify": (244, 184),
}
_IGNORED = {
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
# Memory that no process has mapped is seen by no limit of ours. Libraries have another way where it is missing.
_MISSING = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "clone3": (435, 435),
}
_CLONE, _SOCKET, _FCNTL = (56, 220), (41, 198), (72, 25)
_F_SETSIG, _F_NOTIFY = 10, 1026  # other ways to have SIGCONT sent by the kernel
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _instruction(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, jump_true, jump_false, k)


def _answer(number: int, error: int) -> list[bytes]:
    return [_instruction(_JEQ, number, 0, 1), _instruction(_RET, _ERRNO | error)]


def build_filter(machine: str) -> bytes:
    """The BPF program. Raises ``KeyError`` for a machine whose call numbers are not known here."""
    column, architecture = _MACHINES[machine]
    code = [
        _instruction(_LD_W_ABS, _OFFSET_ARCH),
        _instruction(_JEQ, architecture, 1, 0),
        _instruction(_RET, _ERRNO | errno.EPERM),
        _instruction(_LD_W_ABS, _OFFSET_NR),
    ]
    if machine == "x86_64":
        code += [_instruction(_JGE, _X32, 0, 1), _instruction(_RET, _ERRNO | errno.ENOSYS)]
    for numbers in _REFUSED.values():
        code += _answer(numbers[column], errno.EPERM)
    for numbers in _IGNORED.values():
        code += _answer(numbers[column], 0)
    for numbers in _MISSING.values():
        code += _answer(numbers[column], errno.ENOSYS)
    code += [
        _instruction(_JEQ, _CLONE[column], 0, 4),
        _instruction(_LD_W_ABS, _OFFSET_ARG0),
        _instruction(_JSET, _NAMESPACE_FLAGS, 0, 1),
        _instruction(_RET, _ERRNO | errno.EPERM),
        _instruction(_RET, _ALLOW),
        _instruction(_JEQ, _SOCKET[column], 0, 3),
        _instruction(_LD_W_ABS, _OFFSET_ARG0),
        _instruction(_JEQ, int(socket.AF_UNIX), 1, 0),
        _instruction(_RET, _ERRNO | errno.EACCES),
        _instruction(_JEQ, _FCNTL[column], 0, 4),
        _instruction(_LD_W_ABS, _OFFSET_ARG1),
        _instruction(_JEQ, _F_SETSIG, 1, 0),
        _instruction(_JEQ, _F_NOTIFY, 0, 1),
        _instruction(_RET, _ERRNO | errno.EPERM),
        _instruction(_RET, _ALLOW),
    ]
    return b"".join(code)


def install() -> None:
    """For this process and all it starts, for good. Needs ``no_new_privs``. Raises ``OSError``."""
    machine = platform.machine()
    if machine not in _MACHINES or struct.calcsize("P") != 8:
        raise OSError(errno.ENOSYS, f"no system-call filter for {machine}")
    code = build_filter(machine)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    ns.prctl_pointer(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(program))
