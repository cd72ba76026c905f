"""A profile end to end without a GPU: the layers around a candidate, a stand-in for Nsight Compute, the store."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from tempfile import gettempdir

import pytest

from engine import paths
from engine.bench.sandbox import choose_sandbox
from engine.errors import BadInput, Fault
from engine.hardware.facts import cpu_facts
from engine.problems.solution import Solution, python_solution
from engine.profile import campaign as profiles
from engine.profile import run as profile_run
from engine.profile.run import profile_on, profile_solution
from engine.profile.talk import Failed
from engine.records import KernelFacts, Profile
from engine.store import events as ev
from engine.store import offline
from engine.store.reader import StoreReader
from kernelarc_tui.cli import cli
from tests.bench.conftest import make_problem
from tests.fixtures.recorded import record_campaign

PROBLEM = make_problem()
GOOD = "import torch\ndef run(x, y, scale):\n    return torch.softmax(x, dim=-1) * scale + y\n"
HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC","gpu__time_duration.sum","launch__registers_per_thread"'
)
ROWS = (
    '"","","","","","","","","","","","ns","register/thread"\n'
    '"0","3","python","h","softmax","1","7","(256, 1, 1)","(48, 1, 1)","0","9.0","2,500","24"'
)

pytestmark = [
    pytest.mark.skipif(choose_sandbox().kind == "none", reason="needs an outer sandbox"),
    pytest.mark.usefixtures("own_device_locks"),
]


def solution(source: str) -> Solution:
    return python_solution(source, definition=PROBLEM.name, name="candidate")


def profile(source: str, tool: str = "", workload: str = "") -> Profile:
    return asyncio.run(profile_on(PROBLEM, solution(source), cpu_facts(), "cpu", workload=workload, tool=tool))


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    """A program that is called as Nsight Compute is: runs what follows its options, then prints a table."""
    tool = tmp_path / "bin" / "ncu"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/bash\n"
        'echo "==PROF== $*" | tr "\\n" " "; echo\n'
        'while [[ "$1" != *python* ]]; do shift; done\n'
        f'"$@"\ncat <<END\n{HEADER}\n{ROWS}\nEND\n'
    )
    tool.chmod(0o755)
    os.chmod(tool.parent, 0o755)
    os.chmod(tmp_path, 0o755)
    return str(tool)


def test_the_counters_of_one_call(stand_in: str) -> None:
    found = profile(GOOD, stand_in)
    assert (found.source, found.workload, found.shape) == ("ncu", "w48", "rows=48"), "the largest workload"
    assert found.kernels == [
        KernelFacts(name="softmax", duration_us=2.5, grid=[48, 1, 1], block=[256, 1, 1], registers=24)
    ]


def test_without_permission_the_rest_is_told_and_why(tmp_path: Path, stand_in: str) -> None:
    Path(stand_in).write_text(
        "#!/bin/bash\n"
        'while [[ "$1" != *python* ]]; do shift; done\n'
        '"$@"\necho "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters"\n'
    )
    found = profile(GOOD, stand_in, "w16")
    assert (found.source, found.workload) == ("metadata", "w16")
    assert len(found.notes) == 1 and "ERR_NVGPUCTRPERM" in found.notes[0]


@pytest.mark.parametrize(
    ("source", "reason", "detail"),
    [
        ("def run(x, y, scale):\n    raise ValueError('\\x1b[31mbad')\n", "wrong.exception", "ValueError: bad"),
        ("import os\nos._exit(0)\ndef run(x, y, scale): ...\n", "crash.exit", "ended early"),
        ("import socket\ndef run(x, y, scale):\n    socket.socket()\n", "wrong.exception", "PermissionError"),
        (
            "import os\ndef run(x, y, scale):\n"
            "    raise RuntimeError(f'uid {os.getuid()} of {os.listdir(\"/home\")}')\n",
            "wrong.exception",
            "",
        ),
        (
            "import glob\ndef run(x, y, scale):\n"
            f"    open(glob.glob('{gettempdir()}/kernelarc-profile-*')[0] + '/go', 'w')\n",
            "wrong.exception",
            "Read-only file system",
        ),
    ],
    ids=["raises", "exits", "network", "files", "signals itself"],
)
def test_a_hostile_candidate_only_fails(source: str, reason: str, detail: str) -> None:
    with pytest.raises(Failed) as caught:
        profile(source)
    assert caught.value.reason == reason and detail in caught.value.detail
    assert "\x1b" not in caught.value.detail
    if os.getuid() == 0:
        assert "uid 0" not in caught.value.detail


def test_a_forged_report_is_cleaned_and_bounded() -> None:
    kernel = '{"name":"\\\\u001b[2Jevil","duration_us":1e300,"registers":7}'
    source = f"""
import os
calls = []
def run(x, y, scale):
    calls.append(1)
    for fd in range(3, 16) if len(calls) == 3 else ():
        try:
            os.write(fd, b'KERNELARC-PROFILE {{"timed":true,"kernels":[{kernel}]}}\\n')
        except OSError:
            pass
    return x * scale + y
"""
    found = profile(source)
    assert [(k.name, k.duration_us, k.registers) for k in found.kernels] == [("evil", None, 7)]


def test_one_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.profile.talk.READY_S", 8.0)
    with pytest.raises(Failed) as caught:
        profile("import time\ndef run(x, y, scale):\n    time.sleep(1000)\n")
    assert caught.value.reason == "resource.timeout"


def test_a_profile_needs_a_gpu_and_says_so() -> None:
    with pytest.raises(Fault, match=r"needs.cuda: a profile is of GPU kernels"):
        asyncio.run(profile_solution(PROBLEM, solution(GOOD), cpu_facts()))
    with pytest.raises(BadInput, match="no workload 'nope'"):
        profile(GOOD, workload="nope")


def test_a_stored_profile_is_found_by_candidate_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    folder = record_campaign(paths.campaign_dir("done"), 20)
    found = Profile(source="ncu", device="d", shape="rows=4", kernels=[KernelFacts(name="k", duration_us=2.0)])
    with StoreReader(folder) as reader:
        best = reader.summary().best
        assert reader.profile(best) is None
    offline.edit(folder, lambda tx: profiles.keep(tx, best, "1", found))
    newer = Profile(source="ncu", device="d", shape="rows=8")
    offline.edit(folder, lambda tx: profiles.keep(tx, 1, "1", newer))
    with StoreReader(folder) as reader:
        assert reader.profile(best) == found and reader.profile(1) == newer and reader.profile(2) is None
        event = reader.events(reader.last_seq() - 2)[0].event
    assert isinstance(event, ev.CandidateProfiled)
    assert event.lines[1].startswith("k: 2 µs")
    for args, code, words in (
        (["profile", "done", str(best)], 0, "k: 2 µs"),
        (["report", "done"], 0, "profile: k: 2 µs"),
        (["profile", "done", "999"], 2, "candidate 999 is not there"),
        (["profile", "done", str(best), "--workload", "77"], 2, "no workload '77'"),
        (["profile", "done", str(best), "--again"], 3, "needs.cuda"),
    ):
        with pytest.raises(SystemExit) as exit_:
            cli(args)
        out = capsys.readouterr()
        assert (exit_.value.code, words in out.out + out.err) == (code, True), (args, out)


async def test_a_profile_finds_what_the_bench_compiled(tmp_path: Path) -> None:
    """The same key for the same source, versions and device: nothing is compiled again for a profile."""
    from engine.bench.bench import ProcessBench

    bench = ProcessBench(PROBLEM, "cpu", tmp_path / "scratch")
    try:
        session = (await bench.opened()).session
        key = session.cache_key(solution(GOOD))
    finally:
        await bench.close()
    assert profile_run._cache_key(solution(GOOD), cpu_facts(), "cpu") == key
