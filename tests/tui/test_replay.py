"""A finished campaign again: any moment of it, at any speed, with the same screens."""

from __future__ import annotations

import re

import pytest

from engine.records import AgentState
from engine.store.reader import StoreReader
from kernelarc_tui.keys import key_groups, palette_rows
from kernelarc_tui.player import Player
from kernelarc_tui.replayed import state_at
from kernelarc_tui.screens.candidate import CandidateScreen


@pytest.fixture
def player(ended):
    with StoreReader(ended) as reader:
        yield Player(ended, reader)


def test_a_moment_shows_what_was_known_then(player):
    view = player.seek(player.last_seq // 2)
    assert 0 < view.summary.candidates < 40
    assert view.points[-1][0] == view.summary.candidates
    assert all(entry.at <= view.now for entry in view.memory)
    assert all(sample.at <= view.now for series in view.samples.values() for sample in series)
    assert len(view.memory) == view.summary.wins + view.summary.traps


def test_stepping_goes_from_outcome_to_outcome_both_ways(player):
    player.seek(1)
    numbers = [player.step(1).summary.candidates for _ in range(3)]
    assert numbers == [1, 2, 3]
    assert player.step(-1).summary.candidates == 2


def test_seeking_forward_folds_what_a_fresh_seek_reads(player):
    player.seek(20)
    near = player.seek(90).summary
    player.seek(1)
    assert player.reader.summary_at(90) == near


def test_playing_cuts_quiet_stretches_and_ends_at_the_end(player):
    player.seek(1)
    assert player.toggle()
    player.speed = 3600
    for _ in range(500):
        player.advance(0.25)
    assert player.seq == player.last_seq and not player.playing
    assert player.toggle() and player.seq == 1  # once more from the start


async def test_the_screen_plays_steps_seeks_and_is_read_only(ended, show):
    async with show(ended, replay=True) as screen:
        assert "replay" in screen.text("#header") and "40/100" in screen.text("#header")
        await screen.press("0")
        await screen.until(lambda: " 0/100" in screen.text("#header"))
        await screen.press("right", "right", "full_stop")
        await screen.until(lambda: " 3/100" in screen.text("#header"))
        assert "#3" in screen.text("#stream") and "#4 " not in screen.text("#stream")
        await screen.press("left")
        await screen.until(lambda: "#3" not in screen.text("#stream"))
        await screen.press("greater_than_sign")
        assert re.search(r"event \d+ of \d+", screen.text("#scrubber"))
        await screen.press("p")
        await screen.sees("this is a replay: nothing was sent")


async def test_space_plays_at_a_chosen_speed(ended, show):
    async with show(ended, replay=True) as screen:
        await screen.press("0", "plus", "plus", "plus", "space")
        await screen.until(lambda: "▶ 600×" in screen.text("#scrubber"))
        await screen.until(lambda: not re.search(r" 0/100", screen.text("#header")), timeout_s=8)
        await screen.press("space", "9")
        await screen.until(lambda: "40/100" in screen.text("#header"))


async def test_a_click_on_the_time_line_goes_there(ended, show):
    async with show(ended, replay=True) as screen:
        await screen.pilot.click("#scrubber", offset=(30, 0))
        await screen.until(lambda: "40/100" not in screen.text("#header"))


async def test_a_candidate_opens_from_a_replay(ended, show):
    async with show(ended, replay=True) as screen:
        await screen.press("0", "right", "2", "enter")
        await screen.until(lambda: isinstance(screen.app.screen, CandidateScreen))
        await screen.sees("#1 agent")


PHASES = {"start": 1.0, "compile": 4.0, "wait": 2.0, "correctness": 2.0, "timing": 1.0}


@pytest.mark.parametrize(
    ("now", "state", "since"),
    [
        (100, "proposing", 100),
        (109, "proposing", 100),
        (110.5, "gating", 110),
        (113, "compiling", 111),
        (116, "waiting device", 115),
        (118, "benching", 117),
        (119.9, "benching", 117),
    ],
)
def test_what_an_agent_did_follows_from_its_next_verdict(now, state, since):
    assert state_at(now, 100.0, 120.0, PHASES) == (state, since)


def test_a_rejected_candidate_was_proposed_until_its_verdict():
    assert state_at(119.0, 100.0, 120.0, {}) == ("proposing", 100.0)


def test_a_bench_longer_than_the_gap_starts_with_it():
    assert state_at(100.5, 100.0, 103.0, PHASES) == ("gating", 100.0)


def test_agents_do_something_until_their_last_candidate(player):
    assert set(player.seek(1).live) == {"1", "2"}
    player.seek(1)
    assert {row.state for row in player.view.live.values()} == {"starting"}
    view = player.step(20)
    assert {row.state for row in view.live.values()} <= set(AgentState)
    assert all(row.since <= view.now for row in view.live.values())
    assert player.seek(player.last_seq).live == {}


async def test_the_agents_of_a_replay_are_seen_at_work(ended, show):
    async with show(ended, replay=True) as screen:
        await screen.press("0", *("right",) * 12)
        await screen.until(lambda: "12/100" in screen.text("#header"))
        assert re.search(r"propos|compil|bench|gating|device", screen.text("#agents"))


async def test_a_long_answer_lies_over_the_scrubber(ended, show):
    async with show(ended, (50, 20), replay=True) as screen:
        await screen.press("plus")
        await screen.sees("120 seconds of the campaign a second", "stretches are cut short")


async def test_help_and_palette_leave_out_what_a_replay_cannot_do(ended, show):
    async with show(ended, replay=True) as screen:
        rows = [row for _, rows in key_groups(screen.app.screen) for row in rows]
        assert not any(binding_id.startswith("do.") for _, _, binding_id in rows)
        assert any(binding_id == "replay.play" for _, _, binding_id in rows)
        assert not any("pause or resume the campaign" in title for title, *_ in palette_rows(screen.app.screen))
