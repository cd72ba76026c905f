"""Nothing that a model, a candidate or a problem file contains can break the screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import recorded
from recorded import START, Story
from rich.cells import cell_len

from engine import skills
from engine.problems.solution import python_solution
from engine.records import Mode, Outcome
from engine.store import events as ev
from engine.store.create import create_database
from engine.store.rows import MemoryWrite, VerdictRecord
from kernelarc_tui.safe import one_line, source_lines
from kernelarc_tui.screens.candidate import CandidateScreen
from kernelarc_tui.screens.live import Live
from kernelarc_tui.widgets.text_pane import TextPane
from tests.fixtures.store_records import learning

HOSTILE = {
    "markup": "[bold red]x[/] [/nothing] [@click=app.exit]y[/] $primary [[",
    "escapes": "\x1b[2J\x1b]0;owned\x07\x1b[31mred\x1b[?1049l\x9b5n\x00\x07\x08",
    "long": "A" * 1_000_000,
    "lines": "\r\n\n\x0b\x0c\u2028\u2029\x85" * 2000,
    "wide": "漢字かな😀👩‍👩‍👧‍👦🇩🇪" * 300,
    "marks": "Z" + "\u0301\u0489" * 5000 + "algo",
    "bidi": "\u202eevil\u2066שלום עולם العربية\u2069\u200f",
    "surrogate": "\ud83d half a pair",
    "tags": "\U000e0041\ufe0f\u200b\ufeffinvisible",
}
SIZES = ((80, 24), (160, 45))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_one_line_is_one_printable_bounded_line(text):
    shown = one_line(text, 300)
    assert len(shown) <= 301 and "\n" not in shown
    assert all(char.isprintable() for char in shown)
    assert not any("\u202a" <= char <= "\u202e" or "\u2066" <= char <= "\u2069" for char in shown)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_source_lines_are_printable_and_bounded(text):
    lines = source_lines(text)
    assert all(len(line) < 2100 and all(char.isprintable() for char in line) for line in lines)


def test_a_megabyte_is_cleaned_at_once():
    import time

    started = time.process_time()
    one_line("\x1b[31m漢" * 300_000)
    source_lines("\x1b[31m漢\u0301" * 300_000)
    assert time.process_time() - started < 0.5


def test_plain_text_stays_as_it_is():
    source = "def run(x):\n    return x  # größer – schneller"
    assert source_lines(source) == source.split("\n")
    assert one_line("naïve café → 3×") == "naïve café → 3×"


@pytest.mark.parametrize("size", SIZES)
async def test_every_screen_keeps_its_shape(engine, show, size):
    text = "".join(value[:3000] for value in HOSTILE.values()).encode("utf-8", "replace").decode()
    await engine.writer.commit_verdict(_verdict(text))
    await engine.writer.append(
        ev.CandidateError(agent="2", reason="model.weird", detail=text),
        ev.HintGiven(agent="1", text=text),
        ev.Attention(code="x", text=text, level="error"),
        ev.StrategyChosen(agent="1", strategy=text, why=text),
        ev.CommandAnswered(id="z", verb="hint", text=text),
    )
    engine.writer.live("1", state="proposing", hypothesis=text, reply=text, detail=text)
    await engine.writer.flush()
    async with show(engine.folder, size) as screen:
        _rectangular(screen, size)
        await screen.press("e")
        _rectangular(screen, size)
        for key in ("a", "m", "l", "i", "question_mark"):
            await screen.press(key)
            _rectangular(screen, size)
            await screen.press("q")
        screen.app.push_screen(CandidateScreen(64))
        for tab in "123456":
            await screen.press(tab)
            await screen.pilot.pause(0.1)
            _rectangular(screen, size)
        await screen.press("2", "t")
        await screen.pilot.pause(0.1)
        _rectangular(screen, size)
        assert screen.app._exception is None


def _verdict(text: str) -> VerdictRecord:
    verdict = ev.Verdict(
        number=0,
        agent="1",
        position=900,
        mode=Mode.REFINE,
        strategy=text[:100],
        family=text[:100],
        outcome=Outcome.REVERT,
        reason="wrong.numerical",
        detail=text,
        hypothesis=text,
        parent=48,
    )
    memory = MemoryWrite(
        kind="trap", kernel_type="gemm", strategy=text[:160], reflection=text[:1200], agent="1", device="H200"
    )
    return VerdictRecord(
        verdict=verdict,
        solution=python_solution(f"{text}\ndef run(x): pass\n", definition="d", name=text[:80], path="a/b.py"),
        prompt=text,
        reply=text,
        predicted_change=text[:200],
        parameters={text[:50]: text[:50]},
        then=learning(memory),
    )


def _rectangular(screen, size) -> None:
    rows = screen.text().split("\n")
    assert len(rows) == size[1]
    for row in rows:
        assert cell_len(row) == size[0], row
        assert all(char.isprintable() for char in row), row


def _hostile_campaign(root: Path) -> Path:
    """Every name that a problem, a model list or a device can bring along is hostile."""
    text = "".join(value[:400] for value in HOSTILE.values()).encode("utf-8", "replace").decode()
    story = Story(name="hostile")
    row = msgspec.structs.replace(
        recorded._row(story), name=text, problem_name=text, kernel_type=text, device=text[:80], created_at=START
    )
    begun = recorded._started(story)
    agents = [
        msgspec.structs.replace(spec, model=text, strategy=text, proposer=text[:200]) for spec in begun.agents
    ]
    started = msgspec.structs.replace(
        begun, name=text, problem=text, device_name=text, kernel_type=text, config=text, agents=agents
    )
    folder = root / "campaigns" / "hostile"
    folder.mkdir(parents=True)
    seed = python_solution(f"# {text}\ndef run(x): pass\n", definition="d", name="reference")
    create_database(folder / "campaign.db", row, seed, started, lambda: START)
    return folder


@pytest.mark.parametrize("size", SIZES)
async def test_names_of_problems_devices_and_models_are_harmless(private_home, show, size, tmp_path, monkeypatch):
    folder = _hostile_campaign(private_home)
    skill = tmp_path / "odd"
    skill.mkdir()
    body = "[bold]x[/] \x1b[31m漢字 \u202eevil\n" * 40
    (skill / "SKILL.md").write_text(f"---\nname: odd\ndescription: '[red]{HOSTILE['bidi']}'\n---\n\n# T\n{body}")
    monkeypatch.setattr(skills, "skill_dirs", lambda: [tmp_path])
    async with show(None, size) as screen:
        await screen.until(lambda: "reading" not in screen.text())
        _rectangular(screen, size)
        await screen.press("enter")
        await screen.until(lambda: isinstance(screen.app.screen, Live))
        for key in ("a", "m", "l", "i", "question_mark", "ctrl+p", "s"):
            await screen.press(key)
            await screen.pilot.pause(0.1)
            _rectangular(screen, size)
            await screen.press("escape")
        screen.app.push_screen(CandidateScreen(1))
        await screen.pilot.pause(0.1)
        _rectangular(screen, size)
        assert screen.app._exception is None
    async with show(folder, size, replay=True) as screen:
        await screen.press("0", "right")
        _rectangular(screen, size)


async def test_megabyte_lines_are_shown_at_once_and_searchable(engine, show):
    line = "漢" * 300_000 + "x" * 1_000_000
    record = _verdict("short")
    solution = python_solution(f"# {line}\ndef run(x): pass\n", definition="d", name="big", path="a.py")
    await engine.writer.commit_verdict(replace(record, solution=solution, prompt=line, reply=line))
    engine.writer.live("1", state="proposing", reply=line, hypothesis=line)
    await engine.writer.flush()
    async with show(engine.folder) as screen:
        screen.app.push_screen(CandidateScreen(64))
        for tab in "156":
            await screen.press(tab)
            await screen.until(lambda: "漢漢" in screen.text())
            assert max(pane.virtual_size.width for pane in screen.app.screen.query(TextPane)) < 5000
            _rectangular(screen, (80, 24))
        await screen.press("q", "a")
        _rectangular(screen, (80, 24))
