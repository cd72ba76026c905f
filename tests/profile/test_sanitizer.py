"""compute-sanitizer's report read, and its run behind a candidate's layers (with a stand-in)."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import msgspec
import pytest

from engine.bench import device_lock
from engine.bench.sandbox import choose_sandbox
from engine.hardware.facts import cpu_facts
from engine.problems.solution import Solution, python_solution
from engine.profile import sanitize as module
from engine.profile.sanitize import concluded, sanitize, wants_sanitizer, words
from engine.profile.sanitizer_report import SanitizerReport, parse_report
from tests.bench.conftest import make_problem

PROBLEM = make_problem()
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
WRITE = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at scale_kernel(float *, int)+0x70
=========     by thread (32,0,0) in block (0,0,0)
=========     Access at 0x7f1200000080 is out of bounds
=========
========= ERROR SUMMARY: 1 error
"""
RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at reduce(float *)+0x90
=========     and Read access at reduce(float *)+0xc0 [120 hazards]
=========
========= Warning: Race reported between Write access at other(float *)+0x10
=========     and Write access at other(float *)+0x20 [3 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
CUBLAS = """\
========= COMPUTE-SANITIZER
========= Error: Something that later versions of the tool report
=========     at nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT+0x90
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
MANY = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at void mine::scale_kernel<float, (int)4>(T1 *, int)+0x70
=========     by thread (32,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 112 errors
"""
TRITON = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at scale_kernel+0xec0 in matmul.py:43
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f1200000080 is out of bounds
=========     and is 1,025 bytes after the nearest allocation at 0x7f1200000000 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main in time.py:12 [0x1234]
=========
========= ERROR SUMMARY: 1 error
"""
ELSEWHERE = TRITON.replace("scale_kernel+0xec0 in matmul.py:43", "void <unnamed>::any_library<float>(T1 *)+0x70")
UNNAMED = TRITON.replace("scale_kernel+0xec0 in matmul.py:43", "void <unnamed>::scale_kernel<float>(T1 *)+0x70")
OLD = TRITON.replace("scale_kernel+0xec0 in matmul.py:43", "0x70 in /tmp/k.cu:12:scale_kernel(float *, int)")
LOCAL = TRITON.replace("Invalid __global__ read of size 4 bytes", "Out-of-range shared or local address")
CUTE = TRITON.replace("scale_kernel+0xec0 in matmul.py:43", "kernel_cutlass_scale_kernel_tensorptrf32_0+0x10")
BROKEN = """\
========= COMPUTE-SANITIZER
========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception.
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
SOURCES = """\
import time  # bytes, py, void
__global__ void scale_kernel(float *x, int n) {}
__global__ void reduce(float *x) {}
"""
TORCHS = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void at::native::reduce_kernel<512>(T3)+0x90
=========     and Read access at void at::native::reduce_kernel<512>(T3)+0xc0 [8 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.mark.parametrize(
    ("tool", "text", "own", "library", "unknown", "first"),
    [
        ("memcheck", CLEAN, 0, 0, 0, ""),
        ("memcheck", WRITE, 1, 0, 0, "Invalid __global__ write of size 4 bytes in scale_kernel"),
        ("memcheck", MANY, 112, 0, 0, "Invalid __global__ write of size 4 bytes in mine::scale_kernel"),
        ("memcheck", TRITON, 1, 0, 0, "Invalid __global__ read of size 4 bytes in scale_kernel"),
        ("memcheck", ELSEWHERE, 0, 0, 1, ""),
        ("memcheck", UNNAMED, 1, 0, 0, "Invalid __global__ read"),
        ("memcheck", OLD, 1, 0, 0, "Invalid __global__ read"),
        ("memcheck", LOCAL, 1, 0, 0, "Out-of-range shared or local address"),
        ("memcheck", CUTE, 1, 0, 0, "Invalid __global__ read"),
        ("racecheck", RACE, 1, 0, 0, "Error: Race reported between Write access"),
        ("racecheck", TORCHS, 0, 1, 0, ""),
        ("racecheck", CUBLAS, 0, 0, 1, ""),
        ("memcheck", "noise of the program\n" + WRITE + CLEAN, 1, 0, 0, "Invalid __global__ write"),
    ],
)
def test_only_errors_in_kernels_that_the_sources_name_are_the_candidates(
    tool: str, text: str, own: int, library: int, unknown: int, first: str
) -> None:
    report = parse_report(tool, text, SOURCES)
    assert (report.own, report.library, report.unknown, report.problem) == (own, library, unknown, "")
    assert report.first.startswith(first)
    assert bool(report.unread) is bool(library or unknown)


def test_an_error_of_the_tools_own_is_why_it_could_not_look() -> None:
    assert "failed to handle" in parse_report("racecheck", BROKEN, SOURCES).problem
    found = concluded([parse_report("racecheck", CUBLAS, SOURCES)], "w")
    assert not found.reason and "1 errors that nobody could be blamed for" in found.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Traceback (most recent call last)\n",
        "========= Error: Target application terminated before first instrumented API call\n",
        "========= Device not supported. Please refer to the documentation\n",
        "ERROR SUMMARY: 0 errors\n",  # the program's own words carry no prefix
    ],
)
def test_silence_is_not_a_clean_report(text: str) -> None:
    assert parse_report("memcheck", text, SOURCES).problem


def test_a_forged_summary_hides_nothing() -> None:
    assert parse_report("memcheck", "========= ERROR SUMMARY: 0 errors\n" + WRITE, SOURCES).own == 1


def test_the_first_error_decides_and_an_unusable_tool_is_a_note() -> None:
    bad = concluded([parse_report("memcheck", WRITE, SOURCES), parse_report("racecheck", RACE, SOURCES)], "w")
    assert bad.reason == "wrong.memory-access" and "scale_kernel" in bad.detail
    assert concluded([parse_report("racecheck", RACE, SOURCES)], "w").reason == "wrong.race"
    unusable = concluded([SanitizerReport(tool="memcheck", problem="Device not supported")], "w")
    assert not unusable.reason and unusable.notes == ["memcheck could not look: Device not supported"]
    theirs = concluded([parse_report("racecheck", TORCHS, SOURCES)], "w")
    assert not theirs.reason and "nothing found on the smallest workload (1 in library kernels)" in theirs.notes[0]


def test_only_kernels_of_the_candidates_own_are_looked_at() -> None:
    gpu = msgspec.structs.replace(cpu_facts(), kind="cuda")
    triton = python_solution("def run(): pass", definition="", name="x", languages=("triton",))
    assert wants_sanitizer(triton, gpu) and not wants_sanitizer(triton, cpu_facts())
    assert not wants_sanitizer(python_solution("def run(): pass", definition="", name="x"), gpu)


def test_both_tools_leave_api_errors_and_library_kernels_alone() -> None:
    assert words("cs", "memcheck").count("--kernel-name-exclude") > 3  # a comma would mean "and"
    assert "kns=cutlass" in words("cs", "memcheck", ["triton"])
    assert "kns=cutlass" not in words("cs", "memcheck", ["cute_dsl"])  # there they are the candidate's own
    assert "--report-api-errors" in words("cs", "memcheck") and "analysis" in words("cs", "racecheck")


def test_without_the_tool_the_evidence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_sanitizer", lambda: None)
    found = asyncio.run(sanitize(PROBLEM, solution(), cpu_facts(), place="cpu"))
    assert not found.reason and "not installed" in found.notes[0]


def solution(body: str = "return torch.softmax(x, dim=-1) * scale + y") -> Solution:
    source = f"import torch\ndef scale_kernel(): pass\ndef run(x, y, scale):\n    {body}\n"
    return python_solution(source, definition=PROBLEM.name, name="candidate")


def stand_in(folder: Path, memcheck: str, racecheck: str) -> str:
    """A program that runs the command behind its options and then says what the tool would."""
    for name, text in (("memcheck", memcheck), ("racecheck", racecheck)):
        (folder / name).write_text(text)
    tool = folder / "compute-sanitizer"
    tool.write_text(
        '#!/bin/sh\ncheck=$2\nwhile [ "$1" != "--error-exitcode" ]; do shift; done\nshift 2\n'
        'if [ "$1" = "--racecheck-report" ]; then shift 2; fi\n'
        f'"$@"\ncat {folder}/$check\n'
    )
    tool.chmod(0o755)
    for place in (folder, *folder.parents):
        if str(place).startswith("/tmp/"):
            os.chmod(place, 0o755)
    return str(tool)


@pytest.mark.skipif(choose_sandbox().kind == "none", reason="needs an outer sandbox")
@pytest.mark.usefixtures("own_device_locks")
def test_a_candidate_is_run_under_the_tool_behind_its_layers(tmp_path: Path) -> None:
    tool = stand_in(
        tmp_path,
        WRITE,
        CLEAN.replace("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"),
    )
    found = asyncio.run(sanitize(PROBLEM, solution(), cpu_facts(), tool=tool, place="cpu"))
    assert found.reason == "wrong.memory-access", found
    assert found.notes == ["racecheck: nothing found on the smallest workload"]
    assert found.evidence["sanitizer"]["workload"] == "w16"  # type: ignore[index]


@pytest.mark.skipif(choose_sandbox().kind == "none", reason="needs an outer sandbox")
@pytest.mark.usefixtures("own_device_locks")
@pytest.mark.parametrize("end", ["raise RuntimeError('CUDA error: unspecified launch failure')", "os._exit(1)"])
def test_a_stray_access_that_ends_the_call_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(module, "TOOLS", ("memcheck",))
    tool = stand_in(tmp_path, WRITE, CLEAN)
    found = asyncio.run(sanitize(PROBLEM, solution(f"import os; {end}"), cpu_facts(), tool=tool, place="cpu"))
    assert found.reason == "wrong.memory-access" and "scale_kernel" in found.detail, found


@pytest.mark.skipif(choose_sandbox().kind == "none", reason="needs an outer sandbox")
@pytest.mark.parametrize("lacking", ["folder", "lock"])
def test_a_machine_that_has_no_room_for_the_tool_loses_no_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    tool = stand_in(tmp_path, CLEAN, CLEAN)
    if lacking == "folder":
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    else:
        monkeypatch.setattr(device_lock, "lock_dir", lambda: tmp_path)
        (tmp_path / "cpu.lock").mkdir()
    found = asyncio.run(sanitize(PROBLEM, solution(), cpu_facts(), tool=tool, place="cpu"))
    assert not found.reason and found.notes[0].startswith("compute-sanitizer could not look"), found


@pytest.mark.skipif(choose_sandbox().kind == "none", reason="needs an outer sandbox")
@pytest.mark.usefixtures("own_device_locks")
def test_a_tool_that_does_not_end_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOOLS", ("memcheck",))
    tool = stand_in(tmp_path, CLEAN, CLEAN)
    found = asyncio.run(
        sanitize(
            PROBLEM, solution("import time; time.sleep(600)"), cpu_facts(), call_s=6.0, tool=tool, place="cpu"
        )
    )
    assert not found.reason and "took longer than 6 s" in found.notes[0]
