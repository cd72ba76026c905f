"""What Nsight Compute, CUPTI and the compilers write: each layout that is read, each way it can be bad."""

from __future__ import annotations

import json

import pytest

from engine.errors import BadInput
from engine.profile.ncu import METRICS, parse_csv, refusal, words
from engine.profile.resources import (
    KERNELS,
    Resources,
    TritonKernel,
    compiled_only,
    merged,
    parse_resources,
    parse_trace,
    parse_triton,
    with_compiled,
)
from engine.profile.text import LINES, profile_lines, profile_text
from engine.records import KernelFacts, Profile

BASE = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC"'
)
WIDE = "\n".join(
    [
        "==PROF== Connected to process 7 (/usr/bin/python3)",
        '==PROF== Profiling "_rms": 0%....50%....100% - 1 pass',
        f'{BASE},"dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum",'
        '"launch__registers_per_thread","launch__shared_mem_per_block_static","lts__t_bytes.sum",'
        '"l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",'
        '"sm__throughput.avg.pct_of_peak_sustained_elapsed",'
        '"sm__warps_active.avg.pct_of_peak_sustained_active"',
        '"","","","","","","","","","","","byte","Kbyte","ns","register/thread","byte/block","Mbyte","sector","%","%"',
        '"0","7","python3","box","_rms","1","7","(256, 1, 1)","(4096, 1, 1)","0","9.0","1,048,576","1,024.5",'
        '"12,345","40","1,024","1.5","0","34.50","61.2"',
        '"1","7","python3","box","void scaled<float, 2>(T1 *, int)","1","7","(128, 2, 1)","(8, 1, 1)","0","9.0",'
        '"n/a","(!) nan","1000","255","0","0","64","5","n/a"',
        "==PROF== Disconnected from process 7",
    ]
)
LONG = "\n".join(
    [
        f'{BASE},"Section Name","Metric Name","Metric Unit","Metric Value"',
        *(
            f'"{launch}","7","python3","box","k{launch}","1","7","(32, 1, 1)","(2, 1, 1)","0","9.0",'
            f'"Command line profiler metrics","{metric}","{unit}","{value}"'
            for launch in (0, 1)
            for metric, unit, value in (
                ("gpu__time_duration.sum", "usecond", "2.5"),
                ("dram__bytes_read.sum", "Mbyte", "2"),
                ("launch__registers_per_thread", "register/thread", "16"),
            )
        ),
    ]
)


def test_a_row_per_launch_with_units_and_thousands_separators() -> None:
    first, second = parse_csv(WIDE)
    assert (first.name, first.grid, first.block) == ("_rms", [4096, 1, 1], [256, 1, 1])
    assert first.duration_us == pytest.approx(12.345)
    assert first.dram_bytes == pytest.approx(1_048_576 + 1_024_500)
    assert (first.registers, first.shared_bytes, first.l2_bytes) == (40, 1024, 1.5e6)
    assert (first.sm_share, first.occupancy) == (pytest.approx(0.345), pytest.approx(0.612))
    assert first.local_bytes == 0, "counted, and there were none"
    assert first.memory_share is None, "not among the columns"
    assert second.dram_bytes is None and second.occupancy is None, "not collected is not zero"
    assert second.local_bytes == 64 * 32
    assert second.name == "void scaled<float, 2>(T1 *, int)", "a quoted comma is part of the name"


def test_a_row_per_metric_is_read_too() -> None:
    first, second = parse_csv(LONG)
    assert (first.name, second.name) == ("k0", "k1")
    assert first.duration_us == pytest.approx(2.5) and first.dram_bytes == 2e6 and first.registers == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a header with .ID. and .Kernel Name. is missing"),
        ("==ERROR== nothing was profiled", "is missing"),
        (f'{BASE},"gpu__time_duration.sum"', "the row of units after the header is missing"),
        (
            f'{BASE},"gpu__time_duration.sum"\n"0","7","p","h","k","1","7","(1,1,1)","(1,1,1)","0","9.0","5"',
            "the row of units after the header is missing",
        ),
        (WIDE.replace(',"34.50","61.2"', ',"34.50"'), "row 2 has 19 columns, the header 20"),
        (WIDE.replace('"12,345"', '"twelve"'), "row 2, gpu__time_duration.sum: 'twelve' is not a number"),
        (WIDE.replace('"ns"', '"fortnight"'), "unknown unit of time 'fortnight'"),
        (WIDE.replace('"Mbyte"', '"furlong"'), "lts__t_bytes.sum: unknown unit of size 'furlong'"),
        (LONG.replace('"2.5"', '"2.5.5"'), "launch 0, gpu__time_duration.sum: '2.5.5' is not a number"),
    ],
)
def test_bad_output_is_one_clear_reason(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        parse_csv(text)
    assert "\n" not in caught.value.message and caught.value.message.startswith("ncu output")


def test_output_that_ends_early_gives_what_was_complete() -> None:
    lines = WIDE.splitlines()
    assert [
        k.name for k in parse_csv("\n".join([*lines[:5], "Traceback (most recent call last):", lines[5]]))
    ] == ["_rms"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "ERR_NVGPUCTRPERM"),
        ("==ERROR== Failed to find metric x", "Nsight Compute: Failed to find metric x"),
        ("==PROF== Connected", ""),
    ],
)
def test_why_nsight_compute_refuses(said: str, why: str) -> None:
    found = refusal(said)
    assert why in found and "\n" not in found
    assert bool(found) == bool(why)


def test_clocks_are_left_alone_and_only_one_call_is_profiled() -> None:
    line = words("/opt/ncu")
    assert line[line.index("--clock-control") + 1] == "none"
    assert line[line.index("--profile-from-start") + 1] == "off"
    assert line[line.index("--metrics") + 1].split(",") == list(METRICS)


# As the toolkit's cuobjdump prints them for a plain and for a templated kernel, and for a library.
USAGE = """
Fatbin elf code:
================
arch = sm_90a

Resource usage:
 Common:
  GLOBAL:0
 Function _ZN1a6scaledIfLi128EEEvPT_i:
  REG:8 STACK:0 SHARED:1536 LOCAL:0 CONSTANT[0]:540 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z4axpyPfPKffi:
  REG:32 STACK:256 SHARED:0 LOCAL:0 CONSTANT[0]:552 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function broken
  REG:9
"""


def test_the_assemblers_figures_by_function() -> None:
    assert parse_resources(USAGE) == {
        "_ZN1a6scaledIfLi128EEEvPT_i": Resources(8, 0, 1536),
        "_Z4axpyPfPKffi": Resources(32, 256, 0),
    }
    assert parse_resources("") == {}


def test_mangled_names_find_the_kernel_that_ran() -> None:
    ran = [
        KernelFacts(name="void a::scaled<float, 128>(float*, int)", registers=8),
        KernelFacts(name="axpy(float*, float const*, float, int)"),
        KernelFacts(name="xpy(float*)"),
        KernelFacts(name="_rms"),
    ]
    triton = [TritonKernel("_rms", 8, 3, 2048)]
    found = with_compiled(ran, triton, parse_resources(USAGE))
    assert (found[0].stack_bytes, found[1].registers, found[1].stack_bytes) == (0, 32, 256)
    assert found[2] == ran[2], "another name that ends alike"
    assert (found[3].warps, found[3].stages) == (8, 3)


def test_a_kernel_tuned_in_several_ways_claims_none_of_them() -> None:
    ran = [KernelFacts(name="_k", registers=40)]
    both = [TritonKernel("_k", 4, 2), TritonKernel("_k", 8, 2)]
    assert with_compiled(ran, both, {"_k": Resources(64, 0, 0)}) == ran, "nor figures that the launch contradicts"


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"name": "k"}', b'{"name": 1, "num_warps": 4}', b"\xff\xfe"]
)
def test_what_is_no_metadata_of_a_kernel(data: bytes) -> None:
    assert parse_triton(data) is None


def test_tritons_metadata_keeps_what_it_needs() -> None:
    data = json.dumps({"hash": "x", "name": "_k", "num_warps": 4, "num_stages": 3, "shared": 0, "target": {}})
    assert parse_triton(data.encode()) == TritonKernel("_k", 4, 3, 0)


def test_kernels_of_a_chrome_trace() -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "dur": 9},
        {
            "ph": "X", "cat": "kernel", "name": "k", "dur": 3.5, "ts": 1,
            "args": {
                "grid": [4, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 64,
                "est. achieved occupancy %": 50,
            },
        },
        {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "dur": 1, "args": {"grid": "odd"}},
    ]  # fmt: skip
    kernel, fill = parse_trace(json.dumps({"traceEvents": events}).encode())
    assert (kernel.name, kernel.duration_us, kernel.grid, kernel.block) == ("k", 3.5, [4, 1, 1], [128, 1, 1])
    assert (kernel.registers, kernel.shared_bytes, kernel.occupancy) == (32, 64, 0.5)
    assert (fill.duration_us, fill.grid, fill.registers) == (1, [], None)


def test_launches_alike_are_taken_together_and_nothing_absurd_is_believed() -> None:
    same = KernelFacts(name="\x1b[31mk\n", duration_us=2.0, grid=[1, 1, 1], block=[32, 1, 1], dram_bytes=10.0)
    odd = KernelFacts(name="", duration_us=float("inf"), registers=-5, grid=[-1, 4], l2_bytes=float("nan"))
    found, left = merged([same, same, odd, *(KernelFacts(name=f"k{i}", duration_us=0.5) for i in range(KERNELS))])
    assert (found[0].name, found[0].calls, found[0].duration_us, found[0].dram_bytes) == ("k", 2, 4.0, 20.0)
    assert len(found) == KERNELS and left == 2
    (alone,), _ = merged([odd])
    assert alone == KernelFacts(name="unnamed", grid=[4])


def test_a_prompt_gets_five_lines_at_most() -> None:
    kernels = [
        KernelFacts(
            name=f"kernel_{i}", duration_us=10.0 - i, grid=[8, 1, 1], block=[256, 1, 1], registers=40,
            sm_share=0.5, memory_share=0.9, occupancy=0.25, dram_bytes=3e6, local_bytes=0.0,
        )
        for i in range(6)
    ]  # fmt: skip
    profile = Profile(source="ncu", device="H200", shape="rows=4", kernels=kernels, left_out=2, notes=["n"])
    lines = profile_lines(profile)
    assert len(lines) == LINES
    assert lines[0] == "one call on rows=4, 6 launches, 45 µs in kernels; from Nsight Compute's counters"
    assert lines[1] == (
        "kernel_0: 10 µs (22%), 8 blocks of 256, SM 50%, memory 90%, occupancy 25%, 40 registers, no spills, "
        "DRAM 3 MB"
    )
    assert lines[-1] == "and 5 more kinds of kernels"
    assert len(profile_lines(Profile(source="ncu", kernels=kernels[:4]))) == LINES, "four fit without a remainder"
    assert "note: n" in profile_text(profile) and "kernel_5" in profile_text(profile)
    assert profile_lines(Profile(reason="crash.exit", detail="gone")) == ["no profile (crash.exit): gone"]
    spills = profile_lines(
        Profile(source="cupti", kernels=[KernelFacts(name="k", stack_bytes=256, warps=8, stages=3)])
    )
    assert spills[1] == "k: spills: 256 B of stack a thread, 8 warps, 3 stages"


def test_compiled_kernels_without_a_clock() -> None:
    found = compiled_only([TritonKernel("_k", 4, 2)], {"_k": Resources(48, 0, 2048)})
    assert found == [
        KernelFacts(name="_k", calls=0, registers=48, stack_bytes=0, shared_bytes=2048, warps=4, stages=2)
    ]
