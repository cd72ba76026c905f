"""The pure parts: painting, plotting, diffing, the feed, the follower, themes, settings, keys."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import msgspec
import pytest
from rich.cells import cell_len

from engine.errors import BadInput
from engine.store.reader import StoreReader
from kernelarc_tui import diffing, fmt
from kernelarc_tui.feed import Feed, FeedFilter
from kernelarc_tui.glyphs import gauge, spark, to_ascii
from kernelarc_tui.paint import Line, Palette, clip, fold, wrap
from kernelarc_tui.plotting import Level, Picture, Series, draw, visible_levels
from kernelarc_tui.screens.memory import detail_lines
from kernelarc_tui.view import View
from kernelarc_tui.widgets.keyline import hint_row
from kernelarc_tui.widgets.memory import memory_line

# Numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.08434, "0.0843"), (1.2345, "1.234"), (12.345, "12.35"), (123.45, "123.5"), (1234.5, "1234")],
)
def test_latencies_have_four_digits(value, text):
    assert fmt.ms(value) == text


def test_a_delta_is_in_latency_and_signed():
    import math

    assert fmt.delta(math.log(1 / 0.979)) == "−2.1 %"
    assert fmt.delta(-math.log(1.058)) == "+5.8 %"
    assert fmt.delta(None) == ""


def test_clock_span_money_and_counts():
    assert fmt.clock(2467) == "00:41:07" and fmt.clock(90061) == "1d 01:01:01"
    assert [fmt.span(s) for s in (12, 240, 7560 * 3, 260_000)] == ["12s", "4m", "6.3h", "3d"]
    assert fmt.money(4.123) == "$4.12" and fmt.money(1, unknown=True) == "≥$1.00"
    assert fmt.count(327_600) == "328k" and fmt.count(950) == "950"


# Painting


def test_cells_not_characters_are_counted():
    assert Line().fit("漢字", 5).width == 5
    assert clip("漢字かな", 5) == "漢字…"
    assert [cell_len(row) for row in wrap("漢字かな漢字 ab", 5)] == [4, 4, 4, 2]
    assert [line.width for line in fold(Line("漢字", "bold").add("abc"), 3)] == [2, 3, 2]


def test_folding_keeps_every_character_and_style():
    line = Line("for k in range", "accent").add("(0, K)", "warning")
    parts = fold(line, 7)
    assert "".join(part.text for part in parts) == line.text
    assert {style for part in parts for _, style in part.pieces} == {"accent", "warning"}


def test_gauge_and_spark():
    assert gauge(2, 5, 5) == "▮▮▯▯▯" and gauge(1, 15, 5) == "▮▯▯▯▯" and gauge(9, 5, 5) == "▮▮▮▮▮"
    assert spark([0.0, 0.5, 1.0, None]) == "▁▅█ "
    assert spark([0.0, 1.0], ascii=True).isascii()


def test_ascii_keeps_widths():
    text = "▶ 1.41× ▮▮▯▯▯ ╭─╮│ ⠉⣀ 漢 −2 %"
    assert to_ascii(text).isascii() and len(to_ascii(text)) == cell_len(text)


# Plotting


def _picture(**options):
    lines = [
        Series("1", "agent-1", [(0, 0.12), (10, 0.10), (40, 0.08)], end=60),
        Series("2", "agent-2", [(0, 0.12), (20, 0.09)], end=60),
    ]
    return Picture(series=lines, levels=[Level("reference", 0.12, "muted")], x_max=60, **options)


@pytest.mark.parametrize("width", [30, 60, 120])
@pytest.mark.parametrize("height", [6, 12, 24])
def test_a_plot_fills_exactly_its_area(width, height):
    rows = draw(_picture(), width, height)
    assert len(rows) == height and all(row.width <= width for row in rows)


@pytest.mark.parametrize("x_max", [1, 2, 4, 5, 7, 40, 100])
@pytest.mark.parametrize("width", [40, 100, 180])
def test_no_two_labels_of_an_axis_read_the_same(width, x_max):
    *_, labels = draw(
        Picture(series=[Series("1", "agent-1", [(0, 0.1)], end=x_max)], levels=[], x_max=x_max), width, 9
    )
    words = labels.text.split()
    assert len(words) == len(set(words)) >= 2 and words == sorted(words, key=int)


HINTS = [
    ("p", "resume", "a"),
    ("d", "draft", "b"),
    ("h", "hint", "c"),
    ("⏎", "open", "d"),
    ("q", "leave running", "e"),
]


@pytest.mark.parametrize("width", range(16, 70))
def test_how_to_leave_is_named_in_every_width(width):
    line, spans = hint_row(HINTS, width)
    assert line.text.endswith("q leave running") and line.width <= width
    assert spans[-1][2] == "e" and line.text[spans[-1][0] : spans[-1][1]] == "q leave running"
    for (start, end, action), (key, word, wanted) in zip(spans[:-1], HINTS, strict=False):
        assert (line.text[start:end], action) == (f"{key} {word}", wanted)


def test_lines_fall_and_end_with_their_labels():
    rows = [row.text for row in draw(_picture(), 60, 14)]
    ends = {row.rstrip()[-1]: index for index, row in enumerate(rows) if row.rstrip()[-1:] in "12"}
    assert ends["2"] < ends["1"]  # 0.09 is drawn above 0.08


@pytest.mark.parametrize(("width", "labels"), [(25, "1234"), (40, "2143"), (90, "4321")])
def test_labels_of_lines_that_end_together_stand_beside_each_other(width, labels):
    lines = [Series(str(n), "", [(0, 0.2), (5, 0.1 + n / 10_000)], end=9) for n in (3, 1, 2, 4)]
    rows = [row.text.rstrip() for row in draw(Picture(series=lines, x_max=9), width, 8)[:-2]]
    ends = [row[width - 5 :].rpartition(" ")[2] for row in rows]
    assert "".join(end for end in ends if set(end) <= set("1234")) == labels


def test_a_levels_name_keeps_out_of_the_way_of_a_line():
    level = Level("reference", 0.2, "muted")
    late = Series("1", "", [(0, 0.1), (5, 0.2)], end=9)  # runs along the reference in the right half
    row = next(
        row.text for row in draw(Picture(series=[late], levels=[level], x_max=9), 60, 8) if "ref" in row.text
    )
    after = row.partition(" reference ")[2]
    assert any(0x2800 < ord(char) <= 0x28FF for char in after)
    whole = Series("2", "", [(0, 0.2)], end=9)  # nowhere free: the name is still whole
    assert any("reference" in row.text for row in draw(Picture(series=[whole], levels=[level], x_max=9), 60, 8))


def test_ascii_plots_draw_lines_with_their_labels():
    text = "\n".join(row.text for row in draw(_picture(ascii=True), 60, 14))
    assert text.isascii() and "1111" in text and "2222" in text


def test_outcomes_stand_on_the_axis_the_best_of_a_column_first():
    attempts = [
        (x, "1", outcome, 0.1) for x, outcome in ((1, "REVERT"), (30, "REJECT"), (30, "KEEP"), (31, "ACCEPT"))
    ]
    axis = draw(_picture(attempts=attempts), 30, 10)[-2].text
    assert "R" in axis and "K" in axis and "x" not in axis


def test_a_far_bound_does_not_flatten_the_lines():
    lines = [Series("1", "", [(0, 0.1), (5, 0.09)], end=9)]
    near, far = Level("bound", 0.06, ""), Level("bound", 0.001, "")
    assert visible_levels([near, far], lines, log=False) == [near]


def test_too_small_or_empty_is_no_plot():
    assert draw(_picture(), 10, 10) == [] and draw(_picture(), 60, 3) == [] and draw(Picture(), 60, 10) == []


def test_log_and_equal_values_are_drawn():
    flat = Picture(series=[Series("1", "", [(0, 0.5)], end=4)], x_max=4)
    assert draw(flat, 40, 8)
    wide = Picture(series=[Series("1", "", [(0, 100.0), (2, 0.1)], end=4)], x_max=4, log=True)
    labels = [row.text[:4] for row in draw(wide, 60, 16)]
    assert any("100" in label for label in labels) and any("1" in label for label in labels)


# Memory


def test_a_win_shows_the_speed_up_that_was_recorded_not_a_quotient_of_two_moments(reader):
    win = next(entry for entry in reader.memory() if entry.kind == "win")
    noisy = msgspec.structs.replace(win, speedup=1.78, gain=0.4, before_ms=0.65, after_ms=1.0)
    assert memory_line(noisy, 60).text.split()[-2] == "1.78×"
    told = [line.text.strip() for line in detail_lines(noisy, View(), 60)]
    assert "1.40×" in told and "1.78×" in told and not any("0.65×" in line for line in told)


# Diffing


def test_unchanged_stretches_are_folded_and_changes_counted():
    old = [f"line {i}" for i in range(40)]
    new = [*old[:20], "new", *old[21:], "end"]
    rows = diffing.rows(old, new)
    assert diffing.changes(rows) == (2, 1)
    assert [row.skipped for row in rows if row.kind == "@"] == [17, 13]
    texts = [line.text for line in diffing.unified(rows, [Line(t) for t in old], [Line(t) for t in new])]
    assert "  21      - line 20" in texts and "       21 + new" in texts


def test_side_by_side_rows_have_one_width():
    old, new = [Line("q" * 100), Line("same")], [Line("b" * 90), Line("same"), Line("c")]
    rows = diffing.rows([line.text for line in old], [line.text for line in new])
    lines = diffing.split(rows, old, new, 81)
    assert all(line.text.index("│") == 40 for line in lines if "│" in line.text)
    assert "".join(line.text for line in lines).count("q") == 100


def test_equal_texts_have_no_changes():
    assert diffing.changes(diffing.rows(["x"], ["x"])) == (0, 0)


# The feed


@pytest.fixture
def reader(campaign):
    with StoreReader(campaign) as opened:
        yield opened


def test_the_feed_is_newest_first_and_knows_more_than_it_holds(reader):
    feed = Feed(reader, FeedFilter(), reader.last_seq())
    rows = [feed.row(index) for index in range(len(feed))]
    assert [row.seq for row in rows] == sorted((row.seq for row in rows), reverse=True)
    assert sum(1 for row in rows if row.letter in "KARx" and row.number) == 63


@pytest.mark.parametrize(
    ("chosen", "check"),
    [
        (FeedFilter(outcome="KEEP"), lambda row: row.letter == "K"),
        (FeedFilter(outcome="ERROR"), lambda row: row.letter == "E"),
        (FeedFilter(agent="2"), lambda row: row.agent == "2"),
        (FeedFilter(text="CTYPES"), lambda row: "ctypes" in row.text),
        (FeedFilter(agent="1", outcome="REVERT"), lambda row: row.agent == "1" and row.letter == "R"),
    ],
)
def test_a_filter_shows_only_what_matches(reader, chosen, check):
    feed = Feed(reader, chosen, reader.last_seq())
    while feed.backfill():
        pass
    assert len(feed) and all(check(feed.row(index)) for index in range(len(feed)))


def test_older_events_are_indexed_in_chunks(reader, monkeypatch):
    from kernelarc_tui import feed as module

    monkeypatch.setattr(module, "TAIL", 5)
    monkeypatch.setattr(module, "CHUNK", 10)
    feed = Feed(reader, FeedFilter(everything=True), reader.last_seq())
    assert len(feed) == 5 and not feed.complete
    while not feed.complete:
        feed.backfill()
    assert len(feed) == reader.last_seq() and feed.seq_at(len(feed) - 1) == 1


# The follower


def test_a_view_is_read_anew_after_a_commit_only_where_something_changed(campaign):
    from kernelarc_tui.follow import ViewReader

    with StoreReader(campaign) as opened:
        views = ViewReader(campaign, opened)
        first = views.read()
        again = views.read()
    assert first.summary.candidates == len(first.points) == 63
    assert len(first.samples["GPU-0"]) == 120 and again.memory is first.memory
    assert again.summary is first.summary  # no event, nothing decoded again


def test_a_store_that_disappears_is_said_and_not_fatal(campaign):
    import threading

    from kernelarc_tui.follow import Follower

    seen, arrived = [], threading.Event()

    def publish(view):
        seen.append(view)
        if view.problem:
            arrived.set()

    follower = Follower(campaign, publish)
    follower.first()
    follower._views.reader._connection.close()
    (campaign / "campaign.db").rename(campaign / "gone.db")
    follower._views = None
    follower.start()
    assert arrived.wait(5)
    follower.stop()
    assert "there is no campaign database" in seen[-1].problem


@pytest.fixture
def followed(campaign, monkeypatch):
    """A follower of the campaign, and every view that it handed over."""
    from kernelarc_tui import follow

    monkeypatch.setattr(follow, "LOST_S", 0.1)
    monkeypatch.setattr(follow, "POLL_ENDED_S", 0.05)
    monkeypatch.setattr(follow, "ALIVE_S", 0.1)
    seen = []
    follower = follow.Follower(campaign, seen.append)
    follower.first()
    follower.start()
    yield follower, seen
    follower.stop()


def _until(condition, timeout_s=5.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_row_that_cannot_be_read_is_said_and_the_view_goes_on_when_it_is_gone(campaign, followed):
    _, seen = followed
    with closing(sqlite3.connect(campaign / "campaign.db", isolation_level=None)) as connection:
        connection.execute("INSERT INTO samples VALUES ('cpu', 1e12, '{}')")
        _until(lambda: seen and "sample of cpu" in seen[-1].problem)
        assert seen[-1].summary.candidates == 63, "with the last view that could be read"
        connection.execute("DELETE FROM samples WHERE at = 1e12")
        _until(lambda: not seen[-1].problem)


def test_a_defect_in_a_view_is_said_and_ends_nothing(followed, monkeypatch):
    _, seen = followed
    with monkeypatch.context() as patch:
        patch.setattr("kernelarc_tui.follow.campaign_state", lambda *given: 1 // 0)
        _until(lambda: seen and "fault.view: ZeroDivisionError" in seen[-1].problem)
    _until(lambda: not seen[-1].problem)


# Themes


def test_every_shipped_theme_is_usable_and_there_are_enough():
    from kernelarc_tui.themes import load_themes

    loaded, broken = load_themes()
    names = {theme.name for theme in loaded}
    assert broken == [] and len(names) >= 6
    assert {"arc", "paper", "high-contrast", "colour-blind", "terminal"} <= names


def _contrast(a: str, b: str) -> float:
    from textual.color import Color

    def luminance(text: str) -> float:
        def linear(c: float) -> float:
            return c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4

        r, g, b = (linear(c / 255) for c in Color.parse(text).rgb)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_in_every_theme():
    from kernelarc_tui.themes import load_themes

    for theme in load_themes()[0]:
        if theme.ansi:
            continue
        least = 7.0 if theme.name == "high-contrast" else 4.4
        for name in ("muted", *(n for n in theme.variables if n.startswith(("verdict-", "agent-")))):
            assert _contrast(theme.variables[name], theme.background) >= least, (theme.name, name)
        assert _contrast(theme.foreground, theme.background) >= 7.0, theme.name


def test_a_theme_of_a_few_lines_works_and_wrong_ones_name_file_field_and_fix(tmp_path):
    from kernelarc_tui.themes import load_theme

    good = tmp_path / "mine.yaml"
    good.write_text("name: mine\ncolors: {background: '#101010', foreground: '#eeeeee', primary: '#ff8800'}\n")
    assert load_theme(good).variables["verdict-keep"]
    for text, complaint in (
        ("name: mine\ncolors: {background: '#10'}", "colors.foreground is missing"),
        ("name: mine\ncolors: {backgroud: '#101010'}", "did you mean 'background'"),
        ("name: My Theme\ncolors: {}", "lower-case words"),
        ("name: x\ncolors: {background: nope, foreground: '#fff', primary: '#fff'}", "not a colour"),
        ("name: x\ncolours: {}", "unknown field"),
        ("name: [", "is not valid YAML (line 2"),
    ):
        bad = tmp_path / "bad.yaml"
        bad.write_text(text)
        with pytest.raises(BadInput) as error:
            load_theme(bad)
        assert complaint in error.value.message and str(bad) in error.value.message


async def test_a_users_theme_is_offered_and_reloaded_when_its_file_changes(engine, show):
    from kernelarc_tui.themes import user_theme_dir

    folder = user_theme_dir()
    folder.mkdir(parents=True)
    text = "name: mine\ncolors: {background: '#101010', foreground: '#eeeeee', primary: '#ff8800'}\n"
    (folder / "mine.yaml").write_text(text)
    (folder / "broken.yaml").write_text("name: broken\n")
    async with show(engine.folder) as screen:
        await screen.until(lambda: "mine" in screen.app.available_themes)
        assert any("broken.yaml" in note.message for note in screen.app._notifications)
        screen.app.choose_theme("mine")
        await screen.pilot.pause()
        assert screen.app.current_theme.primary == "#ff8800"
        (folder / "mine.yaml").write_text(text.replace("#ff8800", "#0088ff"))
        await screen.until(lambda: screen.app.current_theme.primary == "#0088ff", timeout_s=8)
    async with show(engine.folder) as screen:
        assert screen.app.theme == "mine"  # remembered


# Settings and keys


def _configure(text: str) -> None:
    from kernelarc_tui.settings import config_path

    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text(text)


def test_the_file_beats_what_was_remembered(private_home):
    from kernelarc_tui.settings import load_settings, remember

    remember("theme", "ember")
    remember("diff", "split")
    _configure("theme: paper\n")
    settings = load_settings()
    assert (settings.theme, settings.diff) == ("paper", "split")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("thme: paper", "did you mean 'theme'"),
        ("mouse: maybe", "mouse"),
        ("axis: years", "axis"),
        ("- a", "mapping"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(private_home, text, complaint):
    from kernelarc_tui.settings import load_settings

    _configure(text)
    with pytest.raises(BadInput, match=complaint):
        load_settings()


async def test_a_broken_config_file_is_a_toast_not_the_end(engine, show):
    _configure("thme: paper")
    async with show(engine.folder) as screen:
        assert any("did you mean 'theme'" in note.message for note in screen.app._notifications)


async def test_keys_can_be_moved_and_unknown_ids_are_named(engine, show):
    _configure("keys: {do.draft: ctrl+t, do.drafft: x}")
    async with show(engine.folder) as screen:
        assert any("did you mean 'do.draft'" in note.message for note in screen.app._notifications)
        await screen.press("ctrl+t")
        await screen.until(lambda: engine.commands and engine.last.verb == "draft")
        await screen.press("question_mark")
        assert "ctrl+t" in screen.app.screen.query_one("TextPane").text


async def test_attention_rings_once_if_asked_to(engine, show, monkeypatch):
    from engine.store import events as ev

    _configure("bell: true")
    async with show(engine.folder) as screen:
        rung = []
        monkeypatch.setattr(screen.app, "bell", lambda: rung.append(1))
        await engine.writer.append(ev.Attention(code="best.new", text="new best", level="info"))
        await screen.until(lambda: rung)
        await engine.writer.append(ev.StrategyChosen(agent="1", strategy="x", why=""))
        await screen.pilot.pause(0.6)
        assert rung == [1]


def test_a_reversed_row_keeps_attributes_and_loses_colours():
    palette = Palette({"good": "ansi_green"}, ansi=True)
    strip = Line("a", "bold good").add("b").strip(palette, 4, palette["on cursor"])
    assert {segment.style.color for segment in strip} == {None}
    assert all(segment.style.reverse for segment in strip) and next(iter(strip)).style.bold
