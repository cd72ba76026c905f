"""Status, report and export say what the store holds, in the documented form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import paths
from engine.errors import BadInput
from engine.problems.solution import Solution, SolutionSpec, SourceFile, python_solution, solution_sha
from engine.problems.solution_io import load_solution
from engine.records import Outcome
from engine.reports.export import export_best
from engine.reports.report import build_report, report_text
from engine.reports.status import status_json, status_text
from engine.reports.textplot import Level, Series, step_plot
from engine.store import events as ev
from engine.store.campaigns import list_campaigns
from engine.store.create import create_database
from engine.store.lock import CampaignLock
from engine.store.reader import StoreReader
from engine.store.rows import VerdictRecord
from engine.store.summary import Summary
from engine.store.writer import StoreWriter
from engine.text import counted, cut, cut_middle
from tests.fixtures.recorded import record_campaign
from tests.fixtures.store_records import BASELINES, SEED, row, started, verdict

DOCUMENTED = {
    "campaign": str,
    "state": str,
    "stop_reason": str | None,
    "problem": str,
    "device": str,
    "config": str,
    "elapsed_s": float,
    "candidates": int,
    "budget": int | None,
    "outcomes": dict[str, int],
    "errors": int,
    "reference_ms": float,
    "seed_ms": float,
    "best_ms": float,
    "speedup": float,
    "seed_speedup": float,
    "sol_score": float | None,
    "sol_basis": dict[str, str] | None,
    "cost_usd": float,
    "tokens": int,
    "agents": list[dict[str, Any]],
    "wins": int,
    "traps": int,
}
AGENT = {
    "name": str,
    "strategy": str,
    "model": str | None,
    "state": str,
    "candidates": int,
    "best_ms": float | None,
    "r": int,
    "mode": str,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_campaign(tmp_path_factory.mktemp("campaigns") / "sample", 80)


@pytest.fixture
def running() -> Path:
    return record_campaign(paths.campaign_dir("going"), 40, finished=False)


def conforms(document: dict[str, Any], shape: dict[str, Any]) -> None:
    assert list(document) == list(shape)
    for key, kind in shape.items():
        msgspec.convert(document[key], kind, strict=True)


def test_the_recorded_campaign_is_the_same_every_time(tmp_path: Path, finished: Path) -> None:
    again = record_campaign(tmp_path / "sample", 80)
    with StoreReader(finished) as one, StoreReader(again) as two:
        assert one.summary() == two.summary()
        assert one.events(0, 1000) == two.events(0, 1000)
        assert set(one.summary().outcomes) == {"KEEP", "ACCEPT", "REVERT", "REJECT"} and one.summary().errors


def test_status_json_is_the_documented_object(finished: Path) -> None:
    with StoreReader(finished) as reader:
        document = status_json(reader, finished)
    conforms(document, DOCUMENTED)
    for agent in document["agents"]:
        conforms(agent, AGENT)
        assert agent["state"] == "stopped" and agent["mode"] in ("refine", "draft")
    assert list(document["outcomes"]) == ["REJECT", "KEEP", "ACCEPT", "REVERT"]
    assert sum(document["outcomes"].values()) == document["candidates"] == document["budget"] == 80
    assert (document["state"], document["stop_reason"]) == ("finished", "candidates")
    assert document["sol_basis"] == {"bound": "roofline", "baseline": "eager"}
    assert document["speedup"] / document["seed_speedup"] == pytest.approx(0.1193 / 0.1187)
    assert json.loads(json.dumps(document)) == document


@pytest.mark.parametrize(("timer", "over_seed"), [("cupti", 1.173 / 1.184), ("wall", 2.84 / 2.837)])
def test_a_best_on_a_cpu_is_not_behind_the_seed_that_it_has_beaten(timer: str, over_seed: float) -> None:
    """What the reference says of two moments of a busy box may contradict the pairs that made it the best."""
    summary = Summary(timer=timer, seed_ms=2.84, seed_speedup=1.184, best=5, best_ms=2.837, best_speedup=1.173)
    assert summary.best_over_seed == pytest.approx(over_seed)
    assert Summary(timer=timer).best_over_seed is None


def test_a_running_campaign_is_interrupted_without_its_engine(running: Path) -> None:
    with StoreReader(running) as reader:
        gone = status_json(reader, running)
        assert gone["state"] == "interrupted" and {a["state"] for a in gone["agents"]} == {"interrupted"}
        assert gone["elapsed_s"] == status_json(reader, running)["elapsed_s"]
        with CampaignLock(running):
            here = status_json(reader, running)
            assert here["state"] == "running"
            assert [a["state"] for a in here["agents"]] == ["benching", "proposing", "waiting model"]


async def test_a_campaign_without_baselines_has_no_numbers_yet() -> None:
    folder = paths.campaign_dir("fresh")
    folder.mkdir(parents=True)
    create_database(folder / "campaign.db", row("fresh"), SEED, started())
    with CampaignLock(folder), StoreReader(folder) as reader:
        document = status_json(reader, folder)
        assert document["state"] == "running"
        assert [document[key] for key in ("reference_ms", "best_ms", "speedup", "seed_speedup", "sol_score")] == [
            None
        ] * 5
        assert "being measured" in status_text(reader, folder)
        assert "(nothing measured yet)" in report_text(build_report(reader, folder))


async def test_a_paused_and_a_broken_agent_are_told_apart() -> None:
    folder = paths.campaign_dir("c1")
    folder.mkdir(parents=True)
    create_database(folder / "campaign.db", row(), SEED, started("a1", "a2", "a3"))
    with CampaignLock(folder):
        async with await StoreWriter.open(folder / "campaign.db") as writer:
            await writer.append(
                ev.EngineAttached(pid=1),
                BASELINES,
                ev.AgentPaused(agent="a1", by="user"),
                ev.AgentPaused(agent="a2", by="errors", why="5 ERRORs in a row"),
            )
            with StoreReader(folder) as reader:
                states = [agent["state"] for agent in status_json(reader, folder)["agents"]]
    assert states == ["paused", "broken", "starting"]


def test_the_text_status_fits_one_screen(finished: Path, running: Path) -> None:
    for folder in (finished, running):
        with StoreReader(folder) as reader:
            lines = status_text(reader, folder).splitlines()
        assert len(lines) <= 24 and max(map(len, lines)) < 80
        assert all(line.isprintable() for line in lines)
    assert lines[-2:] == ["the engine is gone; to go on from the store:", "  kernelarc resume going"]


def test_money_is_told_with_its_worth_and_its_gaps(finished: Path) -> None:
    """Cost, tokens and cost per KEEP; an unknown price makes a sum a least one, in every place."""
    with StoreReader(finished) as reader:
        report, summary = build_report(reader, finished), reader.summary()
        known = status_text(reader, finished)
    standing = sum(not keep.vetoed for keep in report.keeps)
    assert summary.cost_per_keep_usd == pytest.approx(summary.cost_usd / standing) == report.cost_per_keep_usd
    assert f"{summary.tokens} tokens  ${summary.cost_per_keep_usd:.2f} per KEEP" in known
    assert "at least" not in report_text(report) and "≥" not in known
    gaps = msgspec.structs.replace(report, cost_unknown=True)
    assert "at least $" in report_text(gaps) and "some prices are unknown" in report_text(gaps)
    assert Summary(cost_usd=1.0).cost_per_keep_usd is None


def test_the_report_has_every_part(finished: Path) -> None:
    with StoreReader(finished) as reader:
        report = build_report(reader, finished)
        summary = reader.summary()
    text = report_text(report)
    for title in ("Best so far", "KEEPs", "Outcomes", "Wins", "Traps", "Best kernel", "Settings", "Environment"):
        assert f"\n{title}" in text
    assert [keep.number for keep in report.keeps if not keep.vetoed] == sorted(
        keep.number for agent in summary.agents.values() for keep in agent.keeps
    )
    assert any(keep.vetoed for keep in report.keeps)
    assert report.best is not None and report.best.number == summary.best
    assert report.best.sources[0]["content"].rstrip() in text
    assert report.ledger.calls == 0 and report.cost_per_keep_usd
    assert max(len(line) for line in text.splitlines()) < 100
    msgspec.json.encode(report)


async def test_a_hostile_kernel_cannot_reach_the_terminal(tmp_path: Path) -> None:
    folder = paths.campaign_dir("c1")
    folder.mkdir(parents=True)
    create_database(folder / "campaign.db", row(), SEED, started())
    source = "def run(x):\n    return x  # \x1b]0;owned\x07\x1b[2J\u202e\n"
    async with await StoreWriter.open(folder / "campaign.db") as writer:
        await writer.append(BASELINES)
        solution = python_solution(source, definition="scale", name="evil")
        await writer.commit_verdict(
            VerdictRecord(verdict=verdict(outcome=Outcome.KEEP, latency_ms=1.0), solution=solution)
        )
    with StoreReader(folder) as reader:
        text = report_text(build_report(reader, folder))
    assert "\x1b" not in text and "\u202e" not in text and "def run(x):" in text


async def test_a_plain_c_entry_is_said_to_be_no_form_of_the_benchmarks(tmp_path: Path) -> None:
    folder = paths.campaign_dir("c1")
    folder.mkdir(parents=True)
    create_database(folder / "campaign.db", row(), SEED, started())
    spec = SolutionSpec(languages=["cuda_cpp"], entry_point="k.c::run", binding="c")
    source = SourceFile("k.c", "int run(void *const *t, const long *const *s, void *q) { return 0; }\n")
    solution = Solution(name="plain", definition="scale", author="me", spec=spec, sources=[source])
    async with await StoreWriter.open(folder / "campaign.db") as writer:
        await writer.append(BASELINES)
        await writer.commit_verdict(
            VerdictRecord(verdict=verdict(outcome=Outcome.KEEP, latency_ms=1.0), solution=solution)
        )
    with StoreReader(folder) as reader:
        assert "need a torch binding" in export_best(reader, tmp_path / "out").text


def test_the_best_kernel_goes_home_as_files(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "best"
    with StoreReader(finished) as reader:
        exported = export_best(reader, out)
        best = reader.summary().best
        solution = reader.solution(best)
        assert solution is not None
        assert exported.number == best and exported.agent == reader.summary().best_agent
    names = {Path(file).name for file in exported.files}
    assert names == {"solution.json", "kernel.py", "evidence.json", "trace.jsonl"}
    assert solution_sha(load_solution(out / "solution.json")) == solution_sha(solution)
    assert (out / "kernel.py").read_text() == solution.entry_source
    evidence = json.loads((out / "evidence.json").read_text())
    assert evidence["evaluation"]["evidence"]["seeds"] and evidence["device"]["versions"]["torch"]
    assert evidence["solution_sha"] == solution_sha(solution)
    lines = [json.loads(line) for line in (out / "trace.jsonl").read_text().splitlines()]
    assert [line["evaluation"]["status"] for line in lines] == ["PASSED"] * 4


def test_nothing_is_overwritten_unless_asked(finished: Path, tmp_path: Path) -> None:
    with StoreReader(finished) as reader:
        (tmp_path / "kernel.py").write_text("mine")
        with pytest.raises(BadInput, match="exists already"):
            export_best(reader, tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["kernel.py"]
        export_best(reader, tmp_path, overwrite=True)
        assert (tmp_path / "kernel.py").read_text() != "mine"
        target = tmp_path / "elsewhere"
        target.write_text("mine")
        (tmp_path / "evidence.json").unlink()
        (tmp_path / "evidence.json").symlink_to(target)
        with pytest.raises(BadInput, match="symbolic link"):
            export_best(reader, tmp_path, overwrite=True)
        assert target.read_text() == "mine"


def test_an_agents_best_the_seed_or_any_candidate_can_be_taken(finished: Path, tmp_path: Path) -> None:
    with StoreReader(finished) as reader:
        agents = reader.summary().agents
        assert export_best(reader, tmp_path / "a", agent="a1").number == agents["a1"].best
        seed = export_best(reader, tmp_path / "b", number=0)
        assert "the seed" in seed.text and not (tmp_path / "b" / "trace.jsonl").exists()
        rejected = next(c for c in reader.candidates(limit=80) if c.solution is None)
        for wrong, words in (
            ({"agent": "zz"}, "agents: a1, a2, a3"),
            ({"number": 999}, "no candidate 999"),
            ({"number": rejected.number}, "holds no solution"),
        ):
            with pytest.raises(BadInput, match=words):
                export_best(reader, tmp_path / "c", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()


LINES = [
    Series(label="a1", mark="1", points=[(0, 1.0), (10, 0.5), (40, 0.25)]),
    Series(label="a2", mark="2", points=[(0, 1.0), (30, 0.7)]),
]


def test_a_plot_shows_steps_levels_and_legend() -> None:
    plot = step_plot(LINES, [Level(label="bound", y=0.2)], width=60, height=12, x_label="candidates")
    lines = plot.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[-1] == "1 a1   2 a2" and lines[-2].endswith("40") and "candidates" in lines[-2]
    assert any(line.endswith(" bound") and "┄" in line for line in lines)
    ends = {mark: [i for i, line in enumerate(lines[:12]) if mark in line[10:]][-1] for mark in "12"}
    bound = next(i for i, line in enumerate(lines) if "┄" in line)
    assert ends["2"] < ends["1"] < bound


def test_a_plot_can_be_plain_ascii() -> None:
    assert step_plot(LINES, [Level(label="bound", y=0.2)], ascii_only=True).isascii()


@pytest.mark.parametrize(
    "series",
    [
        [],
        [Series(label="x", mark="x", points=[])],
        [Series(label="x", mark="x", points=[(0, float("nan"))])],
        [Series(label="x", mark="x", points=[(0, 1.0)])],
        [Series(label="x", mark="x", points=[(0, 0.0), (0, 0.0)])],
        [Series(label="x", mark="x", points=[(0, float("inf")), (3, 2.0)])],
    ],
)
def test_odd_data_makes_no_odd_plot(series: list[Series]) -> None:
    assert step_plot(series, width=40, height=5)


def test_names_of_workloads_keep_what_tells_them_apart(finished: Path) -> None:
    with StoreReader(finished) as reader:
        report = build_report(reader, finished)
    assert report.best is not None
    names = ["tokens2048", "tokens2049", f"{'a' * 40}-x1", f"{'a' * 40}-x2"]
    shown = [{**result, "uuid": name} for result, name in zip(report.best.workloads, names, strict=True)]
    best = msgspec.structs.replace(report.best, workloads=shown)
    text = report_text(msgspec.structs.replace(report, best=best))
    assert "1  tokens2048 " in text and "2  tokens2049 " in text
    assert "…" in text and "-x1 " in text and "-x2 " in text


def test_nothing_is_cut_without_a_mark() -> None:
    assert [cut("abcdef", limit) for limit in (6, 4, 1, 0)] == ["abcdef", "abc…", "…", ""]
    assert [cut_middle("abcdefghi", limit) for limit in (9, 7, 1, 0)] == ["abcdefghi", "ab…fghi", "…", ""]


def test_a_report_says_latency_where_the_screens_do_and_words_for_comparisons(finished: Path) -> None:
    with StoreReader(finished) as reader:
        report = build_report(reader, finished)
    half = msgspec.structs.replace(report.keeps[0], gain=1.0)
    reasons = {"keep.slower": 3, "gate.no-entry": 1}
    text = report_text(msgspec.structs.replace(report, keeps=[half], reasons=reasons))
    assert re.search(r"speed-up +latency", text) and "-50.0%" in text
    assert "   3  slower\n" in text and "gate.no-entry" in text and "keep." not in text
    assert "1 agent a1   2 agent a2" in text


def test_what_a_win_says_in_full_is_not_said_twice(finished: Path) -> None:
    with StoreReader(finished) as reader:
        report = build_report(reader, finished)
    told = "The epilogue runs in place while the block is in cache, one launch less"
    row = msgspec.structs.replace(report.wins[0], strategy=f"fusion · gemm: {told[:40]}…", reflection=told)
    text = report_text(msgspec.structs.replace(report, wins=[row]))
    assert text.count("The epilogue runs in place") == 1 and "+ fusion · gemm" in text


def test_one_of_a_kind_is_not_many() -> None:
    assert [counted(number, "win") for number in (0, 1, 2)] == ["0 wins", "1 win", "2 wins"]


async def test_text_and_json_call_a_starting_campaign_the_same() -> None:
    folder = paths.campaign_dir("fresh")
    folder.mkdir(parents=True)
    create_database(folder / "campaign.db", row("fresh"), SEED, started())
    with CampaignLock(folder), StoreReader(folder) as reader:
        assert status_json(reader, folder)["state"] == list_campaigns()[0].state == "running"
        assert status_text(reader, folder).splitlines()[1].startswith("running ")
