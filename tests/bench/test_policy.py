"""The bench's pure parts: layout, block sizes, reasons, the cross-check, the unlisted workload, evidence."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.bench import compile_cache, wire
from engine.bench.claims import accusation
from engine.bench.clocks import ClockReading, disturbance
from engine.bench.compile_cache import MAX_BYTES, Store, copy_regular
from engine.bench.contender import Block
from engine.bench.crosscheck import covered, cross_check, device_check
from engine.bench.evidence import write_evidence
from engine.bench.keeper import share_memory
from engine.bench.layout import PAGE, workload_spec
from engine.bench.memory_plan import slots_of
from engine.bench.noise import Cost, affordable
from engine.bench.noop import overhead_of
from engine.bench.plan_calls import FRESH, HIDDEN, REFILLED, block_size, style_of_round
from engine.bench.reasons import missing_package, reason_of, status_of, verdict_of
from engine.bench.spotcheck import chosen, falls_on, spot_checks
from engine.bench.stats import TimingCheck, process_noise_floor
from engine.bench.unlisted import UUID, unlisted_workload
from engine.problems.axes import resolve_axes
from engine.problems.model import CustomInput, Problem, SafetensorsInput, ScalarInput, VarAxis
from engine.problems.solution import python_solution
from engine.records import Evaluation

from .conftest import make_problem

MS = 1_000_000


def noop(k: int, each_us: float = 3.0) -> list[Block]:
    sizes = [k, 2 * k] * 4
    return [
        Block(0, [500] * n, wall_ns=int(120_000 + n * each_us * 1000), cpu_ns=int(60_000 + n * each_us * 1000))
        for n in sizes
    ]


def blocks(
    k: int, claimed_ms: float, hidden_ms: float, *, per_block_ms: float = 0.0, cpu: bool = True
) -> list[Block]:
    made = []
    for n in [k, 2 * k] * 4:
        spent = int(n * (claimed_ms + hidden_ms) * MS + per_block_ms * MS + 60_000 + n * 3000)
        made.append(Block(0, [int(claimed_ms * MS)] * n, wall_ns=spent + 60_000, cpu_ns=spent if cpu else 0))
    return made


@pytest.mark.parametrize("cpu", [True, False])
def test_an_honest_claim_is_not_suspected(cpu: bool) -> None:
    check = cross_check(blocks(3, 1.0, 0.0, cpu=cpu), 3, overhead_of(noop(3)), None)
    assert check is not None and not check.suspect and not check.weak


@pytest.mark.parametrize(
    ("hidden_ms", "per_block_ms"), [(0.5, 0.0), (0.0, 2.0)], ids=["share of every call", "fixed amount per block"]
)
@pytest.mark.parametrize("cpu", [True, False])
def test_hidden_time_is_suspected(hidden_ms: float, per_block_ms: float, cpu: bool) -> None:
    claims = blocks(3, 1.0, hidden_ms, per_block_ms=per_block_ms, cpu=cpu)
    check = cross_check(claims, 3, overhead_of(noop(3)), None)
    assert check is not None and check.suspect


def moody(k: int, real_ms: float, claimed_ms: float, *, cpu: bool, honest: Callable[[int], bool]) -> list[Block]:
    """Blocks of ``real_ms`` a call; those that ``honest`` does not name claim less."""
    return [
        block
        if honest(index)
        else msgspec.structs.replace(block, claimed_ns=[int(claimed_ms * MS)] * len(block.claimed_ns))
        for index, block in enumerate(blocks(k, real_ms, 0.0, cpu=cpu))
    ]


MOODS: dict[str, Callable[[int], bool]] = {
    "one block of each size": lambda index: index < 2,
    "every fourth": lambda index: index % 4 == 0,
    "blocks of one size": lambda index: index % 2 == 0,
    "none": lambda index: False,
}


@pytest.mark.parametrize("mood", MOODS)
@pytest.mark.parametrize("cpu", [True, False])
def test_telling_the_truth_in_some_blocks_excuses_no_other(mood: str, cpu: bool) -> None:
    told = moody(3, 1.0, 0.01, cpu=cpu, honest=MOODS[mood])
    check = cross_check(told, 3, overhead_of(noop(3)), None)
    assert check is not None and check.suspect
    for block in covered(told, overhead_of(noop(3))):
        assert block.mean_ms == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("cpu", [True, False])
def test_true_claims_are_counted_as_they_are(cpu: bool) -> None:
    told = blocks(3, 1.0, 0.0, cpu=cpu)
    assert all(new is old for new, old in zip(covered(told, overhead_of(noop(3))), told, strict=True))
    waited = [msgspec.structs.replace(block, wall_ns=block.wall_ns + 20 * MS) for block in told]
    if cpu:  # waiting for a busy core is no work
        assert covered(waited, overhead_of(noop(3))) == waited


@pytest.mark.parametrize(("first_ms", "suspect"), [(1.0, False), (0.97, False), (0.5, True), (0.01, True)])
def test_a_second_process_is_asked_about_the_first_ones_claims(first_ms: float, suspect: bool) -> None:
    """However true its own are."""
    check = cross_check(blocks(3, 1.0, 0.0), 3, overhead_of(noop(3)), None, claimed_ms=first_ms)
    assert check is not None and check.suspect is suspect


def test_a_claim_below_the_bound_is_suspected() -> None:
    check = cross_check(blocks(3, 0.1, 0.0), 3, overhead_of(noop(3)), 0.2)
    assert check is not None and check.below_bound and check.suspect


def prelude_blocks(k: int, call_ns: int, *, wobble_ns: int = 15_000) -> list[Block]:
    """Blocks for the outside clock on a GPU: 500 µs of fills before each call, 60 µs to notice the end."""
    return [
        Block(0, [0] * n, wall_ns=n * (500_000 + call_ns) + 60_000 + index * wobble_ns // 6)
        for index, n in enumerate([k, 2 * k] * 3)
    ]


@pytest.mark.parametrize(
    ("claimed_ms", "real_ms", "suspect"),
    [(0.003, 0.003, False), (0.003, 0.02, True), (0.1, 0.1, False), (0.1, 0.105, False), (0.1, 0.125, True)],
)
def test_on_a_gpu_what_keeps_the_device_busy_must_be_claimed(
    claimed_ms: float, real_ms: float, suspect: bool
) -> None:
    idle = overhead_of(prelude_blocks(16, 2_000))
    check = device_check(prelude_blocks(16, int(real_ms * MS)), claimed_ms, 16, idle, None)
    assert check is not None and check.suspect is suspect


@pytest.mark.parametrize(
    ("claimed_ms", "real_ms", "bound_ms", "forged"),
    [
        (0.1, 0.1, 1.0, False),  # a cache that is mostly masked, products in a cheaper order: the clock sees it
        (0.1, 1.0, 1.0, True),
        (0.1, 0.1, 0.1, False),
        (0.002, 0.002, 0.006, True),  # what lies between them is less than this clock can see
        (0.002, 0.006, 0.006, True),
    ],
)
def test_below_the_bound_a_claim_needs_a_clock_that_agrees(
    claimed_ms: float, real_ms: float, bound_ms: float, forged: bool
) -> None:
    idle = overhead_of(prelude_blocks(16, 2_000))
    check = device_check(prelude_blocks(16, int(real_ms * MS)), claimed_ms, 16, idle, bound_ms)
    assert check is not None and check.suspect is forged and check.below_bound is forged


@pytest.mark.parametrize(
    ("calls", "claimed_ms", "real_ms", "forged"),
    [(16, 0.009, 0.020, True), (1, 0.1, 0.240, True), (16, 0.009, 0.009, False), (1, 0.1, 0.1, False)],
)
def test_who_slows_short_blocks_has_no_clock_that_agrees(
    calls: int, claimed_ms: float, real_ms: float, forged: bool
) -> None:
    """The slope between blocks of k and 2k calls is then what it likes."""
    idle = overhead_of(prelude_blocks(calls, 2_000))
    blocks = [
        msgspec.structs.replace(b, wall_ns=b.wall_ns + int(calls * (real_ms - claimed_ms) * MS))
        if len(b.claimed_ns) == calls
        else b
        for b in prelude_blocks(calls, int(real_ms * MS))
    ]
    check = device_check(blocks, claimed_ms, calls, idle, real_ms if forged else 4 * real_ms)
    assert check is not None and check.suspect is forged, check


def reading(mhz: float, *why: str) -> ClockReading:
    return ClockReading(sm_mhz=mhz, throttle=why)


@pytest.mark.parametrize(
    ("readings", "says"),
    [
        ([], ""),
        ([reading(1980), reading(1980), reading(1965)], ""),
        ([reading(1980), reading(1980), reading(1900)], "1900 to 1980 MHz"),
        ([reading(1755, "power cap"), reading(1750, "power cap")], ""),
        ([reading(1980), reading(1980, "hardware thermal")], "hardware thermal"),
    ],
)
def test_a_pair_counts_only_if_the_clock_stood_still(readings: list[ClockReading], says: str) -> None:
    found = disturbance(readings)
    assert says in found and bool(found) == bool(says)


@pytest.mark.parametrize(
    ("excess_ms", "on_gpu", "below_bound", "reason"),
    [
        (0.5, True, False, "hack.timing"),
        (500.0, True, False, "resource.host-time"),  # it computes on the host before it launches anything
        (500.0, True, True, "hack.timing"),
        (500.0, False, False, "hack.timing"),  # on a CPU all of a call's time is claimed
    ],
)
def test_what_the_host_takes_beside_the_kernels_is_no_lie(
    excess_ms: float, on_gpu: bool, below_bound: bool, reason: str
) -> None:
    check = TimingCheck(
        suspect=True, weak=False, slope_ms=1.0, excess_ms=excess_ms, allowed_ms=0.1, below_bound=below_bound
    )
    found, detail = accusation(check, on_gpu=on_gpu)
    assert found == reason and ("datasheet" if below_bound else f"{excess_ms:.0f}") in detail


@pytest.mark.parametrize(
    ("costs", "measured"),
    [
        ({0: Cost(0.0001, 0.001), 1: Cost(0.001, 0.002)}, [0, 1]),
        ({0: Cost(0.4, 0.5), 1: Cost(0.0001, 0.001), 2: Cost(0.001, 0.002)}, [1, 2]),  # half a second, five times
        ({0: Cost(0.0001, 0.9), 1: Cost(0.3, 0.01)}, [1]),  # a short kernel whose inputs take long to draw
        ({0: Cost(0.8, 0.9), 1: Cost(0.7, 0.8)}, [1]),  # one at any price
    ],
)
def test_a_panel_leaves_the_longest_calls_out(costs: dict[int, Cost], measured: list[int]) -> None:
    assert affordable(costs, 5) == measured


def test_the_noise_of_a_panel_is_what_processes_differ_by_not_what_rounds_scatter() -> None:
    rng = random.Random(5)
    effects = [0.01, -0.01, 0.005, -0.005, 0.0]
    quiet = [[e + rng.gauss(0, 0.0005) for _ in range(6)] for e in effects]
    scattered = [[rng.gauss(0, 0.01) for _ in range(6)] for _ in effects]
    assert 0.03 < process_noise_floor(quiet) < 0.06
    assert process_noise_floor(scattered) < process_noise_floor(quiet)
    with pytest.raises(ValueError, match="three processes"):
        process_noise_floor(quiet[:2])


def test_blocks_of_one_size_are_asked_too() -> None:
    """A candidate that hands out one buffer has blocks of one call only."""
    ones = {hidden: [b for b in blocks(1, 1.0, hidden) if len(b.claimed_ns) == 1] for hidden in (0.0, 1.0)}
    honest, liar = (cross_check(ones[hidden], 1, overhead_of(noop(1)), None) for hidden in (0.0, 1.0))
    assert honest is not None and not honest.suspect
    assert liar is not None and liar.suspect


def test_too_few_blocks_say_nothing() -> None:
    assert cross_check(blocks(3, 1.0, 0.0)[:1], 3, overhead_of(noop(3)), None) is None


@pytest.mark.parametrize(
    ("call_s", "slots", "least", "most"), [(1e-5, 32, 16, 16), (1e-3, 8, 3, 4), (0.2, 8, 1, 1), (5.0, 2, 1, 1)]
)
def test_blocks_are_neither_too_short_nor_too_long(call_s: float, slots: int, least: int, most: int) -> None:
    k = block_size(20, 5, call_s, slots)
    assert least <= k <= most and 2 * k <= max(slots, 2)


def test_every_style_is_used_openly_refilled_first() -> None:
    assert [style_of_round(i) for i in range(3)] == [REFILLED, HIDDEN, FRESH]
    assert {style_of_round(i) for i in range(3, 80)} == {FRESH, REFILLED, HIDDEN}


def test_slots_do_not_overlap(problem: Problem) -> None:
    for workload in problem.workloads:
        spec = workload_spec(problem.definition, workload, resolve_axes(problem.definition, workload))
        for items, stride in ((spec.inputs, spec.input_stride), (spec.outputs, spec.output_stride)):
            ends = [0]
            for item in items:
                if item.shape is not None:
                    assert item.offset >= ends[-1] and item.offset % 256 == 0
                    ends.append(item.offset + item.nbytes)
            assert stride >= ends[-1] and stride % PAGE == 0
        assert slots_of(spec) >= 2
        assert slots_of(spec, device_bytes=spec.input_stride * 40) < slots_of(spec)


EVENTS = [
    (wire.Report(event="done", rows=[(wire.OK, 5)]), ""),
    (wire.Report(event="done", rows=[(wire.OK, 5), (wire.SHAPE, 0)]), "wrong.shape"),
    (wire.Report(event="done", rows=[(wire.MEMORY, 0)]), "resource.memory"),
    (wire.Report(event="done", rows=[(77, 0)]), "hack.forged-report"),
    (wire.Report(event="exit", code=0), "hack.early-exit"),
    (wire.Report(event="exit", code=9), "crash.exit"),
    (wire.Report(event="signal", code=signal.SIGSEGV), "crash.signal"),
    (wire.Report(event="signal", code=signal.SIGXCPU), "resource.timeout"),
    (wire.Report(event="timeout"), "resource.timeout"),
    (wire.Report(event="output"), "resource.output"),
    (wire.Report(event="protocol"), "hack.forged-report"),
]


@pytest.mark.parametrize(("report", "reason"), EVENTS)
def test_every_end_has_one_reason(report: wire.Report, reason: str) -> None:
    assert reason_of(report)[0] == reason
    assert (status_of(reason) == "PASSED") == (reason == "")
    assert verdict_of(reason) == ("PASS" if not reason else "FAIL")


def test_faults_are_errors() -> None:
    assert verdict_of("needs.cuda") == verdict_of("fault.reference") == "ERROR"
    assert verdict_of("gate.forbidden-import") == "REJECT" and status_of("fault.reference") == "INVALID_REFERENCE"


@pytest.mark.parametrize(
    ("listed", "made"), [((512, 1024), 768), ((16, 48), 32), ((1, 2), None), ((3, 9), 6), ((128, 256, 384), 192)]
)
def test_an_unlisted_size_is_found_between_the_listed_ones(listed: tuple[int, ...], made: int | None) -> None:
    found = unlisted_workload(make_problem(listed))
    assert found is not None and found.axes["rows"] == (made if made is not None else listed[0])


def test_the_unlisted_workload_moves_axes_and_scalars(problem: Problem) -> None:
    made = unlisted_workload(problem)
    assert made is not None and made.uuid == UUID
    assert made.axes["rows"] in {32} and made.axes["rows"] % 16 == 0
    scale = made.inputs["scale"]
    assert isinstance(scale, ScalarInput) and scale.value != 0.5


@pytest.mark.parametrize(("names", "moves"), [(("rows",), True), (("rows", "pages"), False)])
def test_where_the_problems_code_makes_inputs_a_lone_axis_moves(
    problem: Problem, names: tuple[str, ...], moves: bool
) -> None:
    """Its other numbers, and several axes, may depend on each other."""
    definition = msgspec.structs.replace(
        problem.definition, axes={**problem.definition.axes, **{name: VarAxis() for name in names}}
    )
    workloads = [
        msgspec.structs.replace(
            w, axes=dict.fromkeys(names, w.axes["rows"]), inputs={**w.inputs, "x": CustomInput()}
        )
        for w in problem.workloads
    ]
    made = unlisted_workload(msgspec.structs.replace(problem, definition=definition, workloads=workloads))
    assert (made is not None) is moves
    assert made is None or (made.axes["rows"] == 32 and made.inputs["scale"] == ScalarInput(0.5))


def test_problems_with_stored_inputs_get_no_unlisted_workload(problem: Problem) -> None:
    stored = {"x": SafetensorsInput(path="a", tensor_key="b")}
    workloads = [msgspec.structs.replace(problem.workloads[0], inputs=stored)]
    assert unlisted_workload(msgspec.structs.replace(problem, workloads=workloads)) is None


def test_a_report_that_is_too_long_is_cut() -> None:
    data = wire.pack_report([(wire.OK, 1)], [[(7, *(0,) * wire.MAX_DIMS)]], b"x" * 100_000)
    assert len(data) == wire.REPORT.size + wire.ROW.size + wire.PLACE.size + wire.MAX_TEXT


def test_compile_caches_copy_files_and_never_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "kernel.so").write_bytes(b"code")
    (source / "secret").symlink_to("/etc/passwd")
    (source / "etc").symlink_to("/etc")
    copy_regular(source, tmp_path / "target")
    found = {str(p.relative_to(tmp_path / "target")) for p in (tmp_path / "target").rglob("*") if p.is_file()}
    assert found == {"deep/kernel.so"}
    with (source / "huge").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(OSError, match="MiB"):
        copy_regular(source, tmp_path / "other")


def test_compile_caches_keep_no_empty_folders_and_count_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    assert copy_regular(source, tmp_path / "empty") == [] and not list((tmp_path / "empty").iterdir())
    (source / "a" / "c").mkdir()
    (source / "a" / "c" / "kernel.so").write_bytes(b"code")
    made = copy_regular(source, tmp_path / "target")
    assert [str(path.relative_to(tmp_path / "target")) for path in made] == ["a", "a/c", "a/c/kernel.so"]
    monkeypatch.setattr(compile_cache, "MAX_FILES", 3)
    with pytest.raises(OSError, match="folders"):
        copy_regular(source, tmp_path / "other")


def test_the_compile_store_has_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was used longest ago makes room; nothing is left of what was begun and never finished."""
    monkeypatch.setattr(compile_cache, "MAX_STORE_BYTES", 120_000)
    root, source = tmp_path / "store", tmp_path / "source"
    root.mkdir()
    source.mkdir()
    (source / "kernel.so").write_bytes(bytes(30_000))
    (root / ".begun.0").mkdir()
    os.utime(root / ".begun.0", (1, 1))
    fd = os.open(root, os.O_RDONLY)
    keys = [str(n) * 32 for n in range(4)]
    for age, key in enumerate(keys[:2]):
        assert Store(fd, key).save(str(source)) == "kept"
        os.utime(root / key, (1000 + age, 1000 + age))
    Store(fd, keys[0]).restore(str(tmp_path / "restored"), -1)  # and so it has been used last
    for key in keys[2:]:
        assert Store(fd, key).save(str(source)) == "kept"
    assert {entry.name for entry in root.iterdir()} == {keys[0], keys[2], keys[3]}
    (source / "kernel.so").unlink()
    assert Store(fd, "f" * 32).save(str(source)) == "empty" and not (root / ("f" * 32)).exists()
    os.close(fd)


OUTPUTS = [wire.OutputSpec("a", "float32", (4, 8), 0, 128), wire.OutputSpec("b", "float32", (8,), 128, 32)]


@pytest.mark.parametrize(
    ("rows", "shared"),
    [
        ([((1000, 8, 1), (5000, 1)), ((2000, 8, 1), (6000, 1))], False),
        ([((1000, 8, 1), (5000, 1)), ((2000, 8, 1), (5000, 1))], True),  # the second output
        ([((1000, 8, 1), (5000, 1)), ((1064, 8, 1), (6000, 1))], True),  # a part
        ([((1000, 8, 1), (5000, 1)), ((5000, 8, 1), (6000, 1))], True),  # one call's second is another's first
        ([((1000, 8, 1), (1000, 1)), ((2000, 8, 1), (2004, 1))], False),  # within a call only
        ([((1000, 8, 1),), ()], False),
        ([((2**64 - 1, -(2**63), 2**62), (0, 0)), ((1, 2**62, 2**62), (0, 0))], True),
    ],
)
def test_outputs_of_two_calls_in_the_same_memory_are_noticed(
    rows: list[tuple[tuple[int, ...], ...]], shared: bool
) -> None:
    places = [[(*place, *(0,) * (9 - len(place))) for place in row] for row in rows]
    assert share_memory(places, OUTPUTS) is shared


def test_evidence_can_be_audited(problem: Problem, tmp_path: Path) -> None:
    import hashlib

    solution = python_solution("def run(x, y, scale): pass\n", definition=problem.name, name="../odd name")
    folder = write_evidence(tmp_path, 3, problem, solution, Evaluation(verdict="PASS", evidence={"seeds": [1]}))
    assert folder.parent == tmp_path and folder.name.startswith("003-")
    manifest = json.loads((folder / "manifest.json").read_text())
    for relative, digest in manifest["sha256"].items():
        assert hashlib.sha256((folder / relative).read_bytes()).hexdigest() == digest
    assert "sources/kernel.py" in manifest["sha256"] and manifest["solution_sha"]


@pytest.mark.parametrize(
    ("calls", "pairs", "each_s", "room_s", "wanted"),
    [(8, 5, 0.0, 1.0, 5), (2, 5, 0.0, 1.0, 2), (8, 5, 0.5, 1.0, 2), (8, 5, 9.0, 1.0, 1), (8, 40, 0.0, 1.0, 1)],
)
def test_how_many_timed_calls_are_compared(
    calls: int, pairs: int, each_s: float, room_s: float, wanted: int
) -> None:
    assert spot_checks(calls, pairs, each_s, room_s) == wanted
    picked = chosen(calls, wanted)
    assert len(set(picked)) == wanted and all(0 <= index < calls for index in picked)


def test_which_timed_blocks_are_looked_at() -> None:
    """Every one while that is cheap, none where nothing may be spent, and else the share that can be afforded."""
    assert all(falls_on(0.0, 0.1) and falls_on(0.1, 0.1) for _ in range(100))
    assert not any(falls_on(0.0, 0.0) or falls_on(0.1, -0.1) for _ in range(100))
    assert 50 < sum(falls_on(1.0, 0.25) for _ in range(400)) < 150


@pytest.mark.parametrize(
    ("languages", "detail", "installed", "package"),
    [
        (["cute_dsl"], "ModuleNotFoundError: No module named 'cutlass' (k.py, line 1)", False, "cutlass"),
        (["cutile"], "ModuleNotFoundError: No module named 'cuda.tile'", False, "cuda.tile"),
        (["cute_dsl"], "ModuleNotFoundError: No module named 'cutlass'", True, ""),
        (["pytorch"], "ModuleNotFoundError: No module named 'cutlass'", False, ""),
        (["triton"], "NameError: name 'triton' is not defined", False, ""),
    ],
)
def test_a_language_whose_package_is_missing_is_the_machines_fault(
    languages: list[str], detail: str, installed: bool, package: str
) -> None:
    assert missing_package(languages, detail, lambda name: installed) == package
