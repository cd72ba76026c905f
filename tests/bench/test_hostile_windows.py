"""What happens outside a measured window, or is made to look so: no gate here, the process boundary has to hold."""

# ruff: noqa: E501  (sources of candidates)
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.bench import contender, correctness, timing
from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.bench.herd import Awake, Herd
from engine.problems.solution import Solution

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.alone]

QUICK = EvaluationPlan(rounds=2, timing=False, unlisted_shape=False)
TIMED = EvaluationPlan(rounds=2, min_pairs=3, max_pairs=6, calls=6, unlisted_shape=False)
SLOW = "z = 0\nfor _ in range(40): z = torch.softmax(x, dim=-1) * scale + y\nreturn z"
Make = Callable[..., Solution]

# Takes the harness over at import and speaks its protocol: the first bytes of a report go out before any work.
TAKE_OVER = """
import gc, os, socket, stat, msgspec
from engine.bench import harness, wire
def _alive(o):
    try: return type(o) is socket.socket and stat.S_ISSOCK(os.fstat(o.fileno()).st_mode)
    except OSError: return False
_channel = [o for o in gc.get_objects() if _alive(o)][0]
_caller = [o for o in gc.get_objects() if type(o) is harness.Caller][0]
def _true(x, y, scale):
    for _ in range(40): z = torch.softmax(x, dim=-1) * scale + y
    return z
def _place(v): return (v.data_ptr(), *v.stride(), *(0,) * (8 - v.dim()))
_channel.sendall(wire.pack_report([(0, 0)], [], b'wall'))
_runs = msgspec.msgpack.Decoder(wire.Run)
while True:
    try: _run = wire.receive(_channel, _runs)
    except EOFError: os._exit(0)
    _prepared = [_caller.arguments(_run.workload, c) for c in _run.calls]
    _head = wire.REPORT.pack(wire.REPORT_MAGIC, len(_prepared), 1, 0)
    _channel.sendall(_head[:EARLY])
    _outs = [_true(*a) for a in _prepared]
    _channel.sendall(_head[EARLY:] + wire.ROW.pack(0, 1000) * len(_outs) + b''.join(wire.PLACE.pack(*_place(o)) for o in _outs))
"""


@pytest.mark.parametrize("early", [1, 12], ids=["a byte", "the header"])
async def test_a_report_that_begins_before_the_work_ends_no_window(
    bench: ProcessBench, candidate: Make, early: int
) -> None:
    answer = await bench.evaluate(candidate(TAKE_OVER.replace("EARLY", str(early)), SLOW), TIMED)
    assert answer.reason == "hack.timing", (answer.reason, answer.geomean_speedup)


async def test_a_judge_that_ended_is_replaced(bench: ProcessBench, candidate: Make) -> None:
    assert (await bench.evaluate(candidate(), QUICK)).verdict == "PASS"
    process = (await bench.opened()).session.judge.helper.process
    process.kill()
    await process.wait()
    assert (await bench.evaluate(candidate(), QUICK)).verdict == "PASS"


async def test_memory_that_nobody_maps_cannot_be_had(bench: ProcessBench, candidate: Make) -> None:
    body = (
        "import ctypes, os\nfound = []\n"
        "try: os.memfd_create('x'); found.append('memfd')\nexcept OSError: pass\n"
        "if ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600) >= 0: found.append('shm')\n"
        "if found: raise ValueError(str(found))\nreturn torch.softmax(x, dim=-1) * scale + y"
    )
    answer = await bench.evaluate(candidate("", body), QUICK)
    assert answer.verdict == "PASS", answer.detail


TELLS_LIES = {
    "equal to every type": (
        "class M(type(torch.Tensor)):\n    def __eq__(a, b): return True\n    __hash__ = type.__hash__\n"
        "class Lazy(torch.Tensor, metaclass=M): pass",
        "return (torch.softmax(x, dim=-1) * scale + y).as_subclass(Lazy)",
        "hack.lazy-output",
    ),
    "computes when its layout is read": (
        "_jobs = {}\n_layout = torch._C.TensorBase.layout\n"
        "def lay(self):\n    job = _jobs.pop(self.data_ptr(), None)\n"
        "    if job is not None: torch._C.TensorBase.copy_(self, torch.softmax(job[0], dim=-1) * job[2] + job[1])\n"
        "    return _layout.__get__(self)\ntorch.Tensor.layout = property(lay)",
        "out = torch.empty_like(x)\n_jobs[out.data_ptr()] = (x, y, scale)\nreturn out",
        "wrong.",
    ),
    "an exception whose text raises": (
        "class E(RuntimeError):\n    def __str__(self): raise KeyboardInterrupt",
        "raise E()",
        "wrong.exception",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TELLS_LIES)
async def test_what_a_result_says_of_itself_is_not_asked(bench: ProcessBench, candidate: Make, name: str) -> None:
    before, body, reason = TELLS_LIES[name]
    answer = await bench.evaluate(candidate(before, body), QUICK)
    assert answer.reason.startswith(reason), (answer.reason, answer.detail)


# Six processes that wake each other and the main one with SIGCONT, as quickly as they can.
RESTLESS = """
import mmap, os, signal
_pids = mmap.mmap(-1, 64)
for _i in range(6):
    _p = os.fork()
    if _p == 0:
        while True:
            for _j in range(6):
                _q = int.from_bytes(_pids[4 * _j : 4 * _j + 4], 'little')
                if _q: os.kill(_q, signal.SIGCONT)
            os.kill(os.getppid(), signal.SIGCONT)
    _pids[4 * _i : 4 * _i + 4] = _p.to_bytes(4, 'little')
"""


async def test_processes_that_wake_each_other_gain_nothing(
    bench: ProcessBench, candidate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contender, "FIRST_CALL_S", 20.0)
    answer = await bench.evaluate(candidate(RESTLESS, SLOW), TIMED)
    assert answer.verdict != "PASS" or (answer.geomean_speedup or 9.0) < 1.3, answer.geomean_speedup


PAIR = """
import os, signal, time
other = os.fork()
peer = other or os.getppid()
print("up", flush=True)
while True:
    os.kill(peer, signal.SIGCONT)
"""


async def test_everything_is_seen_standing_before_a_window_ends() -> None:
    """A herd of two that wake each other: either both stand still, or the keeper is told."""
    process = subprocess.Popen([sys.executable, "-c", PAIR], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    herd = Herd(process.pid, alone=False, visible=True)
    herd.everyone = lambda: [process.pid, *_children(process.pid)]  # type: ignore[method-assign]
    herd.signal = lambda number: [os.kill(pid, number) for pid in herd.everyone()]  # type: ignore[method-assign]
    try:
        try:
            herd.freeze()
        except Awake:
            return
        before = [_ticks(pid) for pid in herd.frozen]
        herd.check_still()
        time.sleep(0.05)
        assert [_ticks(pid) for pid in herd.frozen] == before
        os.kill(herd.frozen[-1], signal.SIGCONT)
        time.sleep(0.05)
        with pytest.raises(Awake):
            herd.check_still()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for pid in (*_children(process.pid), process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _ticks(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]


ONLY_THE_LAST = """
import sys
_buffers = {}
"""
ONLY_THE_LAST_BODY = """
seen = sys._getframe(1).f_locals
count, index = len(seen['prepared']), len(seen['rows'])
if count <= 2: return torch.softmax(x, dim=-1) * scale + y
out = _buffers.setdefault(x.shape, torch.empty_like(x))
if index == count - 1:
    for _ in range(40): out.copy_(torch.softmax(x, dim=-1) * scale + y)
return out
"""


async def test_one_buffer_for_a_whole_block_hides_no_skipped_call(bench: ProcessBench, candidate: Make) -> None:
    """Only the last call of such a block can be compared: then a block holds one call, and a lie is still seen."""
    answer = await bench.evaluate(candidate(ONLY_THE_LAST, ONLY_THE_LAST_BODY.strip()), TIMED)
    assert answer.verdict != "PASS" or (answer.geomean_speedup or 9.0) < 1.3, answer.geomean_speedup
    lies = TAKE_OVER.replace("EARLY", "0").replace("_outs = [", "_outs = [_prepared[0][0]] * 0 + [")
    lies = lies.replace("    return z\n", "    return _one.copy_(z)\n").replace(
        "_channel.sendall(wire", "_one = None\n_channel.sendall(wire", 1
    )
    lies = lies.replace(
        "    _outs = ",
        "    if _one is None or _one.shape != _prepared[0][0].shape: _one = torch.empty_like(_prepared[0][0])\n    _outs = ",
    )
    answer = await bench.evaluate(candidate(lies, SLOW), TIMED)
    assert answer.reason == "hack.timing", (answer.reason, answer.geomean_speedup)


STOPS = """
import time
_seen = {}

def _block_of(shape):
    block, last = _seen.get(shape, (0, 0.0))
    block += time.monotonic() - last > 0.004
    return block

def _ended(shape, block):
    _seen[shape] = (block, time.monotonic())

_outs = {}
"""
STOPS_BODY = """
block = _block_of(x.shape)
if block <= 5: _outs[x.shape] = sum(torch.softmax(x, dim=-1) for _ in range(40)) / 40 * scale + y
out = _outs[x.shape]RETURNED
_ended(x.shape, block)
return out
"""


@pytest.mark.parametrize("returned", ["", ".clone()"], ids=["one buffer", "new buffers"])
async def test_who_stops_computing_once_the_checks_are_spent_gains_nothing(
    bench: ProcessBench, candidate: Make, monkeypatch: pytest.MonkeyPatch, returned: str
) -> None:
    """Where comparing is dear only few timed calls are looked at: here none but those of each first pair."""
    monkeypatch.setattr(timing, "_CHECKS_S", 0.0)
    monkeypatch.setattr(timing, "_CHECK_SHARE", 0.0)
    monkeypatch.setattr(timing.secrets, "randbelow", lambda limit: 0)
    source = candidate(STOPS, STOPS_BODY.strip().replace("RETURNED", returned))
    answer = await bench.evaluate(source, TIMED)
    assert answer.verdict != "PASS" or (answer.geomean_speedup or 9.0) < 1.3, answer.geomean_speedup


LONGER = """
import time
_seen, _outs = {}, {}
"""
LONGER_BODY = """
block, inside, first, last = _seen.get(x.shape, (0, 0, 0, 0.0))
if time.monotonic() - last > 0.004:
    if block == 4: first = inside
    block, inside = block + 1, 0
inside += 1
if not (SKIPS and first and inside > first):
    _outs[x.shape] = sum(torch.softmax(x, dim=-1) for _ in range(40)) / 40 * scale + y
out = _outs[x.shape].clone()
_seen[x.shape] = (block, inside, first, time.monotonic())
return out
"""


@pytest.mark.parametrize("pairs", [4, 5])
@pytest.mark.parametrize(("skips", "verdict"), [("True", "FAIL"), ("False", "PASS")], ids=["skips", "honest"])
async def test_who_stops_computing_in_the_second_half_of_long_blocks_is_met_there(
    bench: ProcessBench, candidate: Make, monkeypatch: pytest.MonkeyPatch, pairs: int, skips: str, verdict: str
) -> None:
    """Every second block on a CPU is twice as long: a last look at a short one would never see it."""
    monkeypatch.setattr(timing, "_CHECKS_S", 0.0)
    monkeypatch.setattr(timing, "_CHECK_SHARE", 0.0)
    monkeypatch.setattr(timing.secrets, "randbelow", lambda limit: 0)
    monkeypatch.setattr(correctness, "chosen", lambda calls, count: [calls - 1])
    plan = msgspec.structs.replace(TIMED, min_pairs=pairs, max_pairs=pairs)
    answer = await bench.evaluate(candidate(LONGER, LONGER_BODY.strip().replace("SKIPS", skips)), plan)
    assert answer.verdict == verdict, (answer.reason, answer.detail, answer.geomean_speedup)
