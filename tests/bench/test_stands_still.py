"""Who is stopped stays stopped, or it is noticed: the kernel itself can be asked to continue a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.bench.herd import stands_still

CODE = """
import ctypes, os, signal, sys, time
from engine.bench.herd import Awake, Herd

class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 48)]

armed = sys.argv[1] == "armed"
child = os.fork()
if child == 0:
    os.setsid()
    libc = ctypes.CDLL(None)
    if armed:
        timer, when = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 0, 0, 250_000_000)
        libc.timer_create(1, ctypes.byref(Event(None, int(signal.SIGCONT), 0)), ctypes.byref(timer))
        libc.timer_settime(timer, 0, when, None)
    while True:
        pass
herd = Herd(child, alone=False, visible=True)
time.sleep(0.1)
herd.freeze()
herd.check_still()
time.sleep(0.5)
try:
    herd.check_still()
    print("still")
except Awake:
    print("awake")
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def watched(*words: str) -> str:
    done = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


STAT = "7 (a (b) c) {state} 1 7 7 0 -1 {flags} 0 0 0 0"


@pytest.mark.parametrize(
    ("state", "flags", "still"),
    [
        ("T", 0x400040, True),
        ("R", 0x400040, False),
        ("S", 0x400040, False),  # somebody may wake it up
        ("D", 0x400040, True),
        ("R", 0x400044, True),  # a thread that a pool has joined, still on its way out of the kernel
        ("Z", 0x40004C, True),
    ],
)
def test_a_thread_that_is_ending_stands_still(state: str, flags: int, still: bool) -> None:
    assert stands_still(STAT.format(state=state, flags=flags)) is still


def test_a_lone_process_stands_still() -> None:
    assert watched("not") == "still"


def test_a_lone_process_that_had_itself_continued_is_found_running() -> None:
    assert watched("armed") == "awake"


FILTERED = """
import ctypes, errno, fcntl, os
from engine.bench import namespaces as ns, seccomp

ns.prctl(ns.PR_SET_NO_NEW_PRIVS, 1)
seccomp.install()
libc = ctypes.CDLL(None, use_errno=True)
timer = ctypes.c_void_p()
print(libc.timer_create(1, None, ctypes.byref(timer)), ctypes.get_errno() == errno.EPERM)
read, write = os.pipe()
for command in (10, 1026):
    try:
        fcntl.fcntl(read, command, 18)
        print("set")
    except PermissionError:
        print("refused")
fcntl.fcntl(read, fcntl.F_SETFL, os.O_NONBLOCK)
print("nonblocking", os.get_blocking(read))
"""


def test_the_filter_refuses_what_would_wake_the_stopped() -> None:
    done = subprocess.run([sys.executable, "-c", FILTERED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:4] == ["-1 True", "refused", "refused", "nonblocking False"]
