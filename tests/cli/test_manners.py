"""The command line under rough hands: closed pipes, absurd numbers, odd places; exit codes stay what they are."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import paths
from engine.config import CampaignConfig
from engine.errors import BadInput
from engine.proposers import inbox_folders
from engine.records import StopReason
from engine.store import events as ev
from engine.store import memories, offline
from engine.store.create import create_database
from engine.store.events import AgentSpec
from engine.store.reader import StoreReader
from engine.store.rows import MemoryWrite
from engine.store.summary import AgentSummary, Summary
from engine.store.tx import Tx
from engine.store.writer import StoreWriter
from kernelarc_tui.cli.campaigns import config_from, inbox_lines
from kernelarc_tui.cli.common import table
from kernelarc_tui.cli.evaluate import _text
from kernelarc_tui.cli.lines import event_line
from kernelarc_tui.settings import load_settings
from kernelarc_tui.themes import load_theme
from tests.fixtures.recorded import record_campaign
from tests.fixtures.store_records import BASELINES, SEED, row, started

COMMAND = [sys.executable, "-m", "kernelarc_tui"]
ABSURD = "9" * 30


@pytest.fixture
def finished() -> Path:
    return record_campaign(paths.campaign_dir("done"), 20)


def run(*args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    given: dict[str, Any] = {"text": True, "stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **more}
    given.setdefault("stdout", subprocess.PIPE)
    return subprocess.run([*COMMAND, *args], timeout=60, check=False, **given)


def without_reader(*args: str) -> subprocess.CompletedProcess[str]:
    """As in ``kernelarc … | head -1``, but with a reader that is gone from the start."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return run(*args, stdout=writing)
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    ("args", "code"),
    [(("ls",), 0), (("report", "done", "--json"), 0), (("report", "done"), 0), (("status", "nobody"), 2)],
    ids=["ls", "report --json", "report", "status nobody"],
)
def test_a_reader_that_goes_away_changes_no_exit_code(finished: Path, args: tuple[str, ...], code: int) -> None:
    done = without_reader(*args)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert "roken pipe" not in done.stderr


def test_a_closed_or_full_output_is_no_traceback(finished: Path) -> None:
    closed = subprocess.run(
        ["sh", "-c", '"$0" -m kernelarc_tui ls --json >&-', sys.executable],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (closed.returncode, closed.stderr) == (0, "")
    with Path("/dev/full").open("w") as full:
        done = run("ls", stdout=full)
    assert (done.returncode, done.stderr) == (3, "kernelarc: No space left on device\n")


def test_a_terminal_without_the_characters_shows_escapes(finished: Path) -> None:
    shown = run("ls", env={**os.environ, "PYTHONIOENCODING": "latin-1"}, text=False)
    assert shown.returncode == 0
    document = run("ls", "--json", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert json.loads(document.stdout)[0]["name"] == "done"


@pytest.mark.parametrize(
    "args",
    [
        ("export", "done", "--number", ABSURD),
        ("veto", "done", ABSURD),
        ("memory", "pin", "done", ABSURD),
        ("memory", "show", "done", ABSURD),
        ("budget", "done", "--minutes", "nan"),
        ("budget", "done", "--max-cost", "inf"),
        ("run", "rmsnorm_residual_fp32", "--candidates", ABSURD),
        ("run", "rmsnorm_residual_fp32", "--seed", ABSURD),
        ("run", "rmsnorm_residual_fp32", "--name", "../elsewhere"),
        ("status", "~nobody-of-that-name/c"),
        ("status", "a" * 300),
        ("delete", "done"),
    ],
    ids=lambda args: " ".join(args)[:40],
)
def test_absurd_words_are_one_line_and_exit_code_2(finished: Path, args: tuple[str, ...]) -> None:
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kernelarc: ") and done.stderr.count("\n") == 1
    assert finished.is_dir()


YAML = {"a date": "since: 2026-13-45", "a flag": "bell: !!bool x", "depth": f"keys: {'[' * 5000}"}


@pytest.mark.parametrize("line", YAML.values(), ids=YAML)
def test_a_file_that_cannot_be_is_one_line_with_its_name(private_home: Path, tmp_path: Path, line: str) -> None:
    file = tmp_path / "campaign.yaml"
    file.write_text(f"agents: 2\n{line}\n")
    done = run("run", "rmsnorm_residual_fp32", "-f", str(file))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"kernelarc: {file}: is not valid YAML (line 2: ")

    config = private_home / "config" / "kernelarc" / "config.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f"theme: arc\n{line}\n")
    with pytest.raises(BadInput, match=r"config\.yaml: is not valid YAML \(line 2: "):
        load_settings()
    theme = tmp_path / "mine.yaml"
    theme.write_text(f"name: mine\n{line}\n")
    with pytest.raises(BadInput, match=r"mine\.yaml: is not valid YAML \(line 2: "):
        load_theme(theme)


def test_a_skill_that_cannot_be_is_listed_with_its_reason(private_home: Path) -> None:
    folder = private_home / "config" / "kernelarc" / "skills" / "mine"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: mine\ndescription: d\nsince: 2026-13-45\n---\nText.\n")
    done = run("skills", "list")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "2026-13-45" in done.stdout + done.stderr and "operator-fusion" in done.stdout


def test_watching_as_json_is_still_one_document(finished: Path) -> None:
    done = run("status", "done", "--watch", "--json")
    assert json.loads(done.stdout)["state"] == "finished"
    assert done.stdout.count("\n") == 1


def test_why_something_was_vetoed_is_on_record_without_an_engine(finished: Path) -> None:
    with StoreReader(finished) as reader:
        best = reader.summary().best
    done = run("veto", "done", str(best), "--why", "wrong for \x1b[31mdenormals")
    assert done.returncode == 0 and f"#{best} is vetoed" in done.stdout
    with StoreReader(finished) as reader:
        said = reader.events_before(None, 1)[0].event
        assert reader.summary().best != best
    assert (said.verb, said.args) == ("veto", {"number": str(best), "text": "wrong for denormals"})


def test_an_old_entry_of_a_large_memory_is_found(finished: Path) -> None:
    def fill(tx: Tx) -> None:
        for number in range(1100):
            entry = MemoryWrite(
                kind="trap", kernel_type="norm", strategy=f"s{number}", reflection="", agent="a1", device="cpu"
            )
            memories.add(tx, entry)

    offline.edit(finished, fill)
    assert json.loads(run("memory", "show", "done", "1", "--json").stdout)["id"] == 1
    assert len(json.loads(run("memory", "list", "done", "--json").stdout)["memory"]) > 1100


def test_only_the_state_folder_is_ever_deleted(finished: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "project"
    finished.rename(elsewhere)
    done = run("delete", f"{elsewhere}/", "--yes")
    assert done.returncode == 2 and "not in the state folder" in done.stderr
    assert (elsewhere / "campaign.db").exists()


def test_a_settings_file_is_written_as_people_write(tmp_path: Path) -> None:
    file = tmp_path / "campaign.yaml"
    given = {"config": "multi-bounded", "device": "cpu", "proposer": "llm", "model": "a/b", "wins": "all"}
    config = config_from({**given, "leaderboard": "off", "rotate_models": True}, file)
    assert (config.proposer, config.model, config.wins, config.leaderboard) == (["llm"], ["a/b"], None, False)
    assert config.rotate_models and config.config == "custom"
    with pytest.raises(BadInput, match=r"campaign\.yaml: unknown setting 'bogus'"):
        config_from({"device": "cpu", "bogus": 1}, file)


def test_a_flag_beats_the_file_for_its_name_and_start_too(private_home: Path, tmp_path: Path) -> None:
    file = tmp_path / "campaign.yaml"
    file.write_text("name: theirs\nseed_solution: nowhere.py\nproposer: replay\nreplay: no-such-campaign\n")
    seed = tmp_path / "seed.py"
    seed.write_text("def run(hidden_states, residual, weight, eps):\n    return hidden_states, residual\n")
    flags = ("--name", "mine", "--seed-solution", str(seed), "--device", "cpu")
    done = run("run", "rmsnorm_residual_fp32", "-f", str(file), *flags)
    assert (done.returncode, done.stdout) == (2, "") and "no campaign 'no-such-campaign'" in done.stderr


def test_a_setting_in_two_spellings_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "campaign.yaml"
    file.write_text("draft-after: 3\ndraft_after: 4\n")
    done = run("run", "rmsnorm_residual_fp32", "-f", str(file))
    assert done.returncode == 2
    assert done.stderr == f"kernelarc: {file}: draft-after and draft_after are one setting; keep one\n"


@pytest.mark.parametrize(
    ("source", "flags", "says"),
    [
        ("def run(a, b):\n    return a\n", (), "cannot be compared with: gate.signature: "),
        ("def run(:\n", (), "cannot be compared with: gate.syntax: "),
        ("import torch\n", ("--no-timing",), "--against compares times, and --no-timing measures none"),
    ],
    ids=["another signature", "no Python", "no timing"],
)
def test_what_cannot_be_compared_with_is_told_before_anything_is_measured(
    tmp_path: Path, source: str, flags: tuple[str, ...], says: str
) -> None:
    mine, rival = tmp_path / "mine.py", tmp_path / "rival.py"
    mine.write_text("def run(hidden_states, residual, weight, eps):\n    return hidden_states, residual\n")
    rival.write_text(source)
    args = ("evaluate", "rmsnorm_residual_fp32", str(mine), "--against", str(rival), "--device", "cpu", *flags)
    done = run(*args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and says in done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("run", ""), "no problem is named; see kernelarc problems list"),
        (("evaluate", "", "x.py"), "no problem is named"),
        (("problems", "check", ""), "no folder and no library problem ''; see"),
        (("problems", "check", "rmsnorm_residual_fp23"), "did you mean rmsnorm_residual_fp32"),
        (("problems", "show", "rmsnorm_residual_fp23"), "did you mean rmsnorm_residual_fp32"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_problem_that_is_not_there_is_told_with_what_may_be_meant(args: tuple[str, ...], says: str) -> None:
    done = run(*args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and says in done.stderr


def test_a_start_that_the_gate_refuses_leaves_no_campaign_behind(private_home: Path, tmp_path: Path) -> None:
    seed = tmp_path / "seed.py"
    seed.write_text(
        "import ctypes\ndef run(hidden_states, residual, weight, eps):\n    return residual, residual\n"
    )
    done = run("run", "rmsnorm_residual_fp32", "--seed-solution", str(seed), "--device", "cpu", "--headless")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cannot be the start of a campaign: gate.forbidden-import: " in done.stderr
    assert not list(paths.campaigns_dir().glob("*"))


def test_a_campaign_without_a_keep_offers_no_export(private_home: Path) -> None:
    folder = paths.campaign_dir("nothing")
    create_database_of_one_that_failed(folder)
    done = run("status", "nothing")
    assert "kernelarc report nothing" in done.stdout and "kernelarc export" not in done.stdout


def create_database_of_one_that_failed(folder: Path) -> None:
    folder.mkdir(parents=True)
    create_database(folder / "campaign.db", row("nothing"), SEED, started())
    ended = ev.CampaignEnded(state="finished", reason=StopReason.FAULT, detail="the seed does not pass")
    offline.edit(folder, lambda tx: tx.append(ended))


def test_a_candidates_words_stay_on_their_line() -> None:
    """Otherwise an exception's text could look like a verdict."""
    said = "ValueError: \x1b[2J\n\nverdict PASS \u2028PASS  mine"
    document = {
        "verdict": "FAIL",
        "solution": "k\nPASS",
        "device": "cpu",
        "reason": "wrong.exception",
        "detail": said,
        "workloads": [],
        "geomean_speedup": None,
        "notes": [said],
        "against": None,
    }
    lines = _text(document).splitlines()
    assert [line.split()[0] for line in lines] == ["FAIL", "wrong.exception:", "note:"]
    stored = ev.Stored(1, 0.0, ev.CandidateError(agent="1", reason="fault.judge", detail="so\nPASS"))
    assert len((event_line(stored) or "").splitlines()) == 1


def test_an_error_of_any_length_is_one_short_line_without_escapes(tmp_path: Path) -> None:
    done = run("evaluate", "rmsnorm_residual_fp32", str(tmp_path / ("a\x1b[2J" * 900)))
    assert done.returncode == 2 and len(done.stderr) < 1200 and done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr and "Traceback" not in done.stderr
    done = run("problems", "check", "p" * 9000)
    assert len(done.stdout) < 1200 and "Traceback" not in done.stderr


def test_a_damaged_campaign_is_one_word_in_the_list_and_its_message_below(finished: Path) -> None:
    broken = finished.with_name("broken")
    broken.mkdir()
    (broken / "campaign.db").write_bytes(b"\x00garbage" * 900)
    lines = run("ls").stdout.splitlines()
    assert re.match(r"broken +damaged ", next(line for line in lines if line.startswith("broken ")))
    assert lines[-1].startswith("broken: is not a KernelArc campaign")
    assert max(map(len, lines[:3])) < 120


def test_a_speed_up_is_listed_once_there_is_a_keep() -> None:
    folder = paths.campaign_dir("fresh")
    folder.mkdir(parents=True)
    create_database(folder / "campaign.db", row("fresh"), SEED, started())

    async def measure() -> None:
        async with await StoreWriter.open(folder / "campaign.db") as writer:
            await writer.append(BASELINES)

    asyncio.run(measure())
    document = json.loads(run("ls", "--json").stdout)[0]
    assert document["speedup"] is not None and not document["kept"]
    assert "×" not in run("ls").stdout


@pytest.mark.parametrize(
    "args",
    [
        ("pause", "done"),
        ("resume", "done"),
        ("draft", "done", "--agent", "a1"),
        ("hint", "done", "try"),
        ("stop", "done"),
        ("budget", "done", "--minutes", "5"),
    ],
    ids=lambda args: args[0],
)
def test_an_ended_campaign_says_that_it_has_ended(finished: Path, args: tuple[str, ...]) -> None:
    done = run(*args)
    assert done.returncode == 2 and "done: the campaign has ended (candidates)" in done.stderr


def test_an_interrupted_campaign_says_what_starts_it() -> None:
    record_campaign(paths.campaign_dir("going"), 20, finished=False)
    done = run("hint", "going", "try")
    assert done.returncode == 2 and "`kernelarc resume going` starts one" in done.stderr
    assert "unless" not in done.stderr


def test_a_model_without_its_key_is_refused_at_once_and_leaves_nothing() -> None:
    environ = {key: value for key, value in os.environ.items() if key != "OPENAI_API_KEY"}
    words = ("run", "rmsnorm_residual_fp32", "--device", "cpu", "--proposer", "llm", "--model", "openai/gpt-5")
    done = run(*words, "--headless", env=environ)
    assert done.returncode == 2 and "openai/gpt-5 needs OPENAI_API_KEY" in done.stderr
    assert json.loads(run("ls", "--json").stdout) == []


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_a_fault_that_leaves_nothing() -> None:
    done = run("run", "rmsnorm_residual_fp32", "--device", "cuda", "--headless")
    assert done.returncode == 3 and "needs.cuda" in done.stderr
    assert json.loads(run("ls", "--json").stdout) == []


def test_problems_are_checked_by_name_and_a_missing_one_is_bad_input() -> None:
    assert run("problems", "check", "rmsnorm_residual_fp32").stdout.startswith("ok  rmsnorm_residual_fp32")
    done = run("problems", "check", "./nowhere")
    assert (done.returncode, done.stdout) == (2, "") and "nowhere" in done.stderr


def test_a_skill_that_is_not_named_is_asked_for_with_the_names_there_are() -> None:
    done = run("skills", "show")
    assert done.returncode == 2 and "operator-fusion" in done.stderr


def test_where_no_screen_is_possible_one_line_says_why(finished: Path) -> None:
    for args in (("attach", "done"), ()):
        done = run(*args)
        assert done.returncode == 0 and done.stdout
        assert re.fullmatch(r"kernelarc: no screen here \(.*not a terminal\); .*\n", done.stderr)


def test_a_table_gives_up_what_it_can_spare_before_it_is_wider_than_the_terminal() -> None:
    head, rows = ("name", "type", "about"), [("a" * 30, "gemm", "words " * 20)]
    for width in (120, 80, 70, 66):
        lines = table(head, rows, spare=(1,), width=width).splitlines()
        assert max(map(len, lines)) <= width and "…" in lines[1]
        assert ("type" in lines[0]) == (width >= 66) and "a" * 30 in lines[1]
    assert "type" not in table(head, rows, spare=(1,), width=60)
    assert len(table(head, rows, spare=(1,)).splitlines()[1]) > 140


def test_every_setting_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    keys = [field.name for field in msgspec.structs.fields(CampaignConfig)]
    assert [key for key in (*keys, "name", "seed_solution") if f"`{key}`" not in text] == []


def test_an_inbox_says_where_it_waits() -> None:
    folder = paths.campaign_dir("fresh")
    folder.mkdir(parents=True)
    create_database(folder / "campaign.db", row("fresh"), SEED, started())
    assert inbox_lines(folder) == []
    specs = [AgentSpec(name=name, ordinal=i, proposer="inbox", budget=1) for i, name in enumerate("12")]
    summary = Summary(agents={spec.name: AgentSummary(spec=spec) for spec in specs})
    assert inbox_folders(folder, None, summary) == {name: folder / "agents" / name for name in "12"}
    assert inbox_folders(folder, "/in", summary)["2"] == Path("/in/2")
    one = Summary(agents={"1": AgentSummary(spec=specs[0])})
    assert inbox_folders(folder, "/in", one) == {"1": Path("/in")}
