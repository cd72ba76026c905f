"""What a candidate may try, and what becomes of it. Every case is a real process in the real sandbox.

No gate here: the process boundary has to hold when the gate sees nothing.
"""

# ruff: noqa: E501  (sources of candidates)
from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from engine.bench import contender
from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.problems.solution import Solution

from .conftest import SECRET, helpers_of, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = EvaluationPlan(rounds=2, timing=False, unlisted_shape=False)
TIMED = EvaluationPlan(rounds=2, min_pairs=3, max_pairs=6, calls=6, unlisted_shape=False)
RIGHT = "return torch.softmax(x, dim=-1) * scale + y"

Make = Callable[..., Solution]


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contender, "FIRST_CALL_S", 3.0)
    monkeypatch.setattr(contender, "AFTER_TIMEOUT_S", 1.0)


ENDS = {
    "exception": ("", "raise ValueError('no such shape')", "wrong.exception"),
    "import error": ("import no_such_module", RIGHT, "crash.import"),
    "segmentation fault": ("import ctypes", "ctypes.string_at(8)", "crash.signal"),
    "abort": ("import os", "os.abort()", "crash.signal"),
    "exit with success": ("import os", "os._exit(0)", "hack.early-exit"),
    "exit with failure": ("import os", "os._exit(3)", "crash.exit"),
    "SystemExit": ("", "raise SystemExit(0)", "hack.early-exit"),
    "endless loop": ("", "while True: pass", "resource.timeout"),
    "deaf to signals": (
        "import signal, time\nfor n in (1, 2, 14, 15): signal.signal(n, signal.SIG_IGN)",
        "while True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass",
        "resource.timeout",
    ),
    "memory bomb": ("", "hoard = [torch.empty(1 << 28) for _ in range(64)]\n" + RIGHT, "resource.memory"),
    "output flood": ("", "for _ in range(400): print('x' * 65536)\n" + RIGHT, "resource.output"),
    "disk fill": ("", "open('/tmp/fill', 'wb').write(bytes(1 << 30))\n" + RIGHT, "resource."),
    "constant": ("", "return torch.zeros_like(x)", "wrong."),
    "empty tuple": ("", "return ()", "wrong.structure"),
    "wrong shape": ("", "return x[:1]", "wrong.shape"),
    "wrong type": ("", "return x.double()", "wrong.dtype"),
    "not finite": ("", "return x / 0", "wrong."),
    "writes into an input": ("", "out = torch.softmax(x, dim=-1) * scale + y\nx.zero_()\nreturn out", "wrong.input-mutation"),
    "hard-coded scalar": ("", "return torch.softmax(x, dim=-1) * 0.5 + y", ""),
    "lazy tensor subclass": (
        "class Lazy(torch.Tensor): pass",
        "return (torch.softmax(x, dim=-1) * scale + y).as_subclass(Lazy)",
        "hack.lazy-output",
    ),
    "proxy": (
        "class Proxy:\n    def __init__(self, t): self.t = t\n    def __getattr__(self, n): return getattr(self.t, n)",
        "return Proxy(torch.softmax(x, dim=-1) * scale + y)",
        "hack.lazy-output",
    ),
    "replay by address": (
        "seen = {}",
        "if x.data_ptr() not in seen: seen[x.data_ptr()] = torch.softmax(x, dim=-1) * scale + y\nreturn seen[x.data_ptr()]",
        "wrong.stale-output",
    ),
    "replay by address and version": (
        "seen = {}",
        "key = (x.data_ptr(), x._version, y._version, x.shape)\n"
        "if key not in seen: seen[key] = torch.softmax(x, dim=-1) * scale + y\nreturn seen[key]",
        "hack.cached-output",
    ),
    "work after the call": (
        "import threading, time",
        "out = torch.empty_like(x)\ndef late():\n    time.sleep(0.02)\n    out.copy_(torch.softmax(x, dim=-1) * scale + y)\n"
        "threading.Thread(target=late).start()\nreturn out",
        "wrong.",
    ),
    "scribbles over every pipe": (
        "import os",
        "for fd in range(3, 64):\n    try:\n        os.write(fd, b'{\"passed\": true}' * 8)\n    except OSError:\n        pass\n" + RIGHT,
        "hack.forged-report",
    ),
    "exception of a type without a name": (
        "class Meta(type):\n    @property\n    def __name__(cls): raise ValueError('no')\n"
        "class Odd(Exception, metaclass=Meta):\n    @property\n    def __class__(self): raise ValueError('no')\n"
        "    @property\n    def __traceback__(self): raise ValueError('no')\n    def __str__(self): raise ValueError('no')",
        "raise Odd()",
        "wrong.exception",
    ),
    "claims longer than the window": (
        "from engine.bench import wire\nclass Row:\n    size, real = wire.ROW.size, wire.ROW\n"
        "    def pack(self, status, ns): return self.real.pack(status, 2**64 - 1)\nwire.ROW = Row()",
        RIGHT,
        "hack.forged-report",
    ),
    "a clock of its own": (
        "from engine.bench.harness import Caller\nCaller.clock_name = 'sundial'",
        RIGHT,
        "hack.forged-report",
    ),
    "comparison says yes": (
        "torch.allclose = torch.equal = lambda *a, **k: True\ntorch.Tensor.item = lambda self: 0\n"
        "torch.Tensor.__sub__ = lambda a, b: torch.zeros_like(a)",
        "return torch.ones_like(x)",
        "wrong.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
async def test_ends_with_one_reason_and_the_engine_unharmed(
    bench: ProcessBench, candidate: Make, name: str
) -> None:
    before, body, reason = ENDS[name]
    answer = await bench.evaluate(candidate(before, body), QUICK)
    assert answer.reason.startswith(reason), (answer.reason, answer.detail)
    assert (answer.verdict == "PASS") == (reason == "")
    assert [w.uuid for w in answer.workloads] == ["w16", "w48"]


@pytest.mark.parametrize("honest", [3, 5, 7, 9])
async def test_a_replay_after_some_calls_is_called_the_same_wherever_it_is_found(
    bench: ProcessBench, candidate: Make, honest: int
) -> None:
    """Not by the style of the round that follows those calls: nothing here depends on how inputs are refilled."""
    before = "_calls, _kept = {}, {}"
    body = (
        "_calls[x.shape] = _calls.get(x.shape, 0) + 1\n"
        f"if _calls[x.shape] <= {honest}: _kept[x.shape] = torch.softmax(x, dim=-1) * scale + y\n"
        "return _kept[x.shape]"
    )
    answer = await bench.evaluate(candidate(before, body), msgspec.structs.replace(QUICK, rounds=6))
    assert answer.reason == "wrong.stale-output", (answer.reason, answer.detail)


async def test_a_crash_leaves_the_other_workloads_their_verdict(bench: ProcessBench, candidate: Make) -> None:
    body = f"if x.shape[0] == 16:\n    import ctypes\n    ctypes.string_at(8)\n{RIGHT}"
    answer = await bench.evaluate(candidate("", body), QUICK)
    assert answer.verdict == "FAIL" and answer.reason == "crash.signal"
    assert [w.status for w in answer.workloads] == ["RUNTIME_ERROR", "PASSED"]
    assert answer.latency_ms is None and answer.geomean_speedup is None


async def _says(bench: ProcessBench, candidate: Make, before: str, body: str) -> str:
    """What a candidate can find out, through the text of an exception that it raises."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    source = f"{before}\ndef probe():\n{lines}"
    answer = await bench.evaluate(candidate(source, "raise RuntimeError('probe: ' + str(probe()))"), QUICK)
    assert answer.reason == "wrong.exception", (answer.reason, answer.detail)
    return answer.detail.partition("probe: ")[2]


async def test_no_secret_is_in_reach(bench: ProcessBench, candidate: Make) -> None:
    body = (
        "found = str(dict(os.environ))\n"
        "for place in glob.glob('/proc/[0-9]*/environ') + ['/proc/self/environ']:\n"
        "    try:\n        found += open(place, 'rb').read().decode('utf-8', 'replace')\n    except OSError: pass\n"
        "return ('CANARY' in found, 'sk-' in found, len(found) > 100)"
    )
    said = await _says(bench, candidate, "import os, glob", body)
    assert said.startswith("(False, False, True)")


async def test_a_secret_in_an_exception_is_redacted(
    bench: ProcessBench, candidate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELARC_CANARY_API_KEY", SECRET)
    said = await _says(bench, candidate, "", f"return 'key {SECRET} and \\x1b[31m red'")
    assert SECRET not in said and "\x1b" not in said and "key" in said


async def test_there_is_no_network(bench: ProcessBench, candidate: Make) -> None:
    body = (
        "out = []\n"
        "for family, address in ((socket.AF_INET, ('127.0.0.1', 9)), (socket.AF_INET, ('1.1.1.1', 53))):\n"
        "    try:\n        s = socket.socket(family); s.settimeout(2); s.connect(address); out.append('open')\n"
        "    except OSError as e: out.append(type(e).__name__)\n"
        "return out"
    )
    said = await _says(bench, candidate, "import socket", body)
    assert "open" not in said and "Error" in said


async def test_nothing_outside_its_scratch_can_be_written(bench: ProcessBench, candidate: Make) -> None:
    body = (
        "places = ['/', '/etc', '/usr/lib', '/var/tmp', os.path.dirname(torch.__file__), engine.__path__[0], '/proc/sys/kernel']\n"
        "out = []\n"
        "for place in places:\n"
        "    try:\n        open(place + '/kernelarc_escape', 'w').write('x'); out.append(place)\n    except OSError: pass\n"
        "home = os.path.join(os.environ['HOME'], 'mine'); open(home, 'w').write('x')\n"
        "return out, os.path.exists(home)"
    )
    assert (await _says(bench, candidate, "import os, engine", body)).startswith("([], True)")


async def test_files_do_not_outlive_a_process(bench: ProcessBench, candidate: Make) -> None:
    body = "seen = os.path.exists('/tmp/left'); open('/tmp/left', 'w').write('x'); return seen"
    for _ in range(2):
        assert (await _says(bench, candidate, "import os", body)).startswith("False")


async def test_processes_are_counted(
    bench: ProcessBench, candidate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contender, "FIRST_CALL_S", 60.0)
    body = (
        "n = 0\n"
        "for n in range(1000):\n"
        "    try:\n        if os.fork() == 0:\n            time.sleep(60)\n            os._exit(0)\n    except OSError: break\n"
        "return n"
    )
    assert int((await _says(bench, candidate, "import os, time", body)).split()[0]) <= 200


async def test_descriptors_are_counted(bench: ProcessBench, candidate: Make) -> None:
    body = "held = []\ntry:\n    for _ in range(5000): held.append(os.open('/dev/null', 0))\nexcept OSError: pass\nreturn len(held)"
    assert int((await _says(bench, candidate, "import os", body)).split()[0]) <= 1024


async def test_daemons_die_with_their_candidate(bench: ProcessBench, candidate: Make) -> None:
    before = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(300)\n    os._exit(0)"
    standing = len(helpers_of(bench.scratch.parent))
    answer = await bench.evaluate(candidate(before, RIGHT), QUICK)
    assert answer.verdict == "PASS"
    assert wait_until(lambda: len(helpers_of(bench.scratch.parent)) <= standing)


async def test_the_parent_is_out_of_reach(bench: ProcessBench, candidate: Make) -> None:
    body = (
        "out = []\n"
        "for pid in {os.getppid(), 1}:\n"
        "    try:\n        os.kill(pid, signal.SIGKILL); out.append('killed')\n    except OSError as e: out.append(type(e).__name__)\n"
        "    try:\n        open(f'/proc/{pid}/mem', 'r+b'); out.append('memory')\n    except OSError as e: out.append(type(e).__name__)\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "out.append(libc.ptrace(16, os.getppid(), None, None))\n"
        "return out"
    )
    said = await _says(bench, candidate, "import os, signal, ctypes", body)
    assert "killed" not in said and "memory" not in said and "-1" in said


async def test_pinning_threads_elsewhere_does_nothing(bench: ProcessBench, candidate: Make) -> None:
    body = "before = os.sched_getaffinity(0); os.sched_setaffinity(0, range(os.cpu_count())); return before == os.sched_getaffinity(0)"
    said = await _says(bench, candidate, "import os", body)
    assert said.startswith("True") or len(__import__("os").sched_getaffinity(0)) == 1


CLOCKS = {
    "module attribute": "import time\n_t = [0]\ndef _fake():\n    _t[0] += 1\n    return _t[0]\ntime.perf_counter_ns = time.perf_counter = _fake",
    "every dictionary": (
        "import gc, time\n_t = [0]\ndef _fake():\n    _t[0] += 1\n    return _t[0]\n"
        "for holder in gc.get_referrers(time.perf_counter_ns):\n"
        "    if type(holder) is dict:\n"
        "        for k, v in list(holder.items()):\n"
        "            if v is time.perf_counter_ns: holder[k] = _fake"
    ),
    "closure cells": (
        "import gc, time, types\n_t = [0]\ndef _fake():\n    _t[0] += 1\n    return _t[0]\n"
        "for holder in gc.get_referrers(time.perf_counter_ns):\n"
        "    if type(holder) is types.CellType: holder.cell_contents = _fake"
    ),
}  # fmt: skip

BUSY = "for _ in range(40): z = torch.softmax(x, dim=-1) * scale + y\nreturn z"


@pytest.mark.parametrize("name", CLOCKS)
async def test_a_forged_clock_gains_nothing(bench: ProcessBench, candidate: Make, name: str) -> None:
    answer = await bench.evaluate(candidate(CLOCKS[name], BUSY), TIMED)
    if answer.verdict == "PASS":
        assert answer.geomean_speedup is not None and answer.geomean_speedup < 1.3
    else:
        assert answer.reason == "hack.timing", (answer.reason, answer.detail)


async def test_solving_a_whole_block_in_its_first_call_gains_nothing(bench: ProcessBench, candidate: Make) -> None:
    before = (
        "import gc\n_solved = {}\n"
        "def _solve(v): return sum(torch.softmax(v[0], dim=-1) for _ in range(40)) / 40 * v[2] + v[1]"
    )
    body = (
        "key = (x.data_ptr(), x._version, float(x[0, 0]))\n"
        "if key not in _solved:\n"
        "    for box in gc.get_objects():\n"
        "        if type(box) is list and len(box) == 3 and isinstance(box[0], torch.Tensor) and type(box[2]) is float:\n"
        "            _solved[box[0].data_ptr(), box[0]._version, float(box[0][0, 0])] = _solve(box)\n"
        "    _solved[key] = _solve((x, y, scale))\n"
        "return _solved[key]"
    )
    answer = await bench.evaluate(candidate(before, body), TIMED)
    assert answer.verdict != "PASS" or (answer.geomean_speedup or 9.0) < 1.3


WORK = "def work(x, y, scale):\n    for _ in range(40): z = torch.softmax(x, dim=-1) * scale + y\n    return z\n"
PENDING = "out = torch.empty_like(x)\nwork_later = lambda: out.copy_(work(x, y, scale))\n"
AFTERWARDS = {
    "a key that compares": (
        "class Key:\n    def __init__(self, work): self.work = work\n    def __hash__(self): return hash('out')\n"
        "    def __eq__(self, other):\n        self.work()\n        return True",
        "return {Key(work_later): out}",
    ),
    "a class that is asked for": (
        "class Answer(list):\n    work = None\n    @property\n    def __class__(self):\n"
        "        if self.work is not None: self.work()\n        return list",
        "answer = Answer([out])\nanswer.work = work_later\nreturn answer",
    ),
    "an object that ends": (
        "class Tail(list):\n    def __del__(self): self.work()",
        "answer = Tail([out])\nanswer.work = work_later\nreturn answer",
    ),
    "a view that reaches far": ("", "wide = torch.empty(x.shape[0], 4096 * 64)[:, ::4096]\nwide.copy_(work(x, y, scale))\nreturn wide"),
}  # fmt: skip


@pytest.mark.parametrize("name", AFTERWARDS)
async def test_what_a_result_does_by_itself_is_part_of_its_call(
    bench: ProcessBench, candidate: Make, name: str
) -> None:
    """None of it is seen by the outside clock only. The reference does a fortieth of the work."""
    before, body = AFTERWARDS[name]
    answer = await bench.evaluate(candidate(WORK + before, PENDING + body), TIMED)
    if answer.verdict == "PASS":
        assert (answer.geomean_speedup or 9.0) < 0.7
    else:
        assert answer.reason.startswith("wrong."), (answer.reason, answer.detail)


HONEST_AT_TIMES = {
    "in every fourth block": "lies = lambda: BLOCKS[0] % 4 != 0",
    "in a second process": (
        "import os\nMARK = os.environ['XDG_CACHE_HOME'] + '/mark'\nAGAIN = os.path.exists(MARK)\n"
        "open(MARK, 'w').close()\nlies = lambda: not AGAIN"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST_AT_TIMES)
async def test_the_truth_told_at_times_excuses_no_lie(bench: ProcessBench, candidate: Make, name: str) -> None:
    before = (
        "import gc, time, types\nREAL, SEEN, BLOCKS = time.perf_counter_ns, [0, 0], [0]\n"
        "def told():\n    now = REAL()\n"
        "    if now - SEEN[1] > 1_000_000:\n        BLOCKS[0] += 1\n        SEEN[:] = [now, now]\n"
        "    return SEEN[0] + (now - SEEN[0]) // 20 if lies() else now\n"
        "for holder in gc.get_referrers(REAL):\n"
        "    if type(holder) is types.CellType: holder.cell_contents = told\n"
    )
    body = "z = work(x, y, scale)\nSEEN[1] = REAL()\nreturn z"
    answer = await bench.evaluate(candidate(WORK + before + HONEST_AT_TIMES[name], body), TIMED)
    if answer.verdict == "PASS":
        assert name == "in every fourth block" and (answer.geomean_speedup or 9.0) < 1.3
    else:
        assert answer.reason == "hack.timing", (answer.reason, answer.detail)
