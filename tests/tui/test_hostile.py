"""Nothing that a model, a candidate or a problem file contains can break the screen."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from engine.problems.solution import python_solution
from engine.records import Mode, Outcome
from engine.store import events as ev
from engine.store.rows import MemoryWrite, VerdictRecord
from kernelarc_tui.safe import one_line, source_lines
from kernelarc_tui.screens.candidate import CandidateScreen

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
        memory=(memory,),
    )


def _rectangular(screen, size) -> None:
    rows = screen.text().split("\n")
    assert len(rows) == size[1]
    for row in rows:
        assert cell_len(row) == size[0], row
        assert all(char.isprintable() for char in row), row
