"""The list of campaigns: open, resume, replay, start from a form, delete with a question."""

from __future__ import annotations

import re

import pytest

from engine.errors import BadInput
from kernelarc_tui.screens.home import Home
from kernelarc_tui.screens.live import Live
from kernelarc_tui.screens.replay import Replay
from kernelarc_tui.screens.start import StartForm, config_of


async def test_campaigns_are_listed_with_state_budget_best_and_speedup(engine, ended, show):
    async with show(None, (130, 24)) as screen:
        await screen.sees("attn-20260528", "cpu-20260528", "1 running")
        assert re.search(
            r"▶\s+attn-20260528\s+running\s+attn_out\S+\s+H200\s+63/100\s+0\.0845\s+1\.41×", screen.text()
        )
        assert re.search(r"✓\s+cpu-20260528\s+finished", screen.text())
        assert "ended: candidates" in screen.text("#facts") or "agents  ran" in screen.text("#facts")


async def test_an_empty_list_says_how_to_start(show):
    async with show(None) as screen:
        await screen.sees("no campaign yet", "kernelarc demo")


async def test_enter_opens_and_q_comes_back(engine, show):
    async with show(None) as screen:
        await screen.sees("attn-20260528")
        await screen.press("enter")
        await screen.until(lambda: isinstance(screen.app.screen, Live))
        assert "q back" in screen.text("#keys")
        await screen.press("q")
        assert isinstance(screen.app.screen, Home)


async def test_u_leads_from_a_campaign_to_the_list_and_to_another_campaign(engine, ended, show):
    async with show(engine.folder) as screen:
        await screen.press("u")
        await screen.sees("cpu-20260528")
        await screen.press("slash")
        await screen.type("cpu")
        await screen.press("enter")
        await screen.until(lambda: "attn-20260528" not in screen.text())
        await screen.press("enter")
        await screen.until(lambda: "✓ finished" in screen.text("#header"))


async def test_y_replays(ended, show):
    async with show(None) as screen:
        await screen.sees("cpu-20260528")
        await screen.press("y")
        await screen.until(lambda: isinstance(screen.app.screen, Replay))


async def test_delete_asks_and_refuses_a_running_campaign(engine, ended, show):
    async with show(None) as screen:
        await screen.sees("cpu-20260528")
        rows = [entry.name for entry in screen.app.screen.query_one("CampaignList").entries]
        await screen.press(*(["j"] * rows.index("attn-20260528")), "x", "y")
        await screen.sees("already runs this campaign")
        await screen.press("g", *(["j"] * rows.index("cpu-20260528")), "x", "enter")
        assert ended.exists()
        await screen.press("x", "y")
        await screen.until(lambda: not ended.exists())
        await screen.until(lambda: "cpu-20260528 is deleted" in screen.text())


async def test_an_unreadable_campaign_is_listed_with_its_reason(private_home, show):
    folder = private_home / "campaigns" / "broken"
    folder.mkdir(parents=True)
    (folder / "campaign.db").write_bytes(b"not a database at all, by no means" * 50)
    async with show(None, (120, 24)) as screen:
        await screen.sees("broken")
        assert "database" in screen.text().lower()
        await screen.press("enter")
        await screen.until(lambda: "!" in screen.text("#keys"))
        assert isinstance(screen.app.screen, Home)


async def test_read_only_changes_nothing(ended, show):
    async with show(None, read_only=True) as screen:
        await screen.sees("cpu-20260528")
        for key in ("n", "r", "x"):
            await screen.press(key)
            await screen.sees("opened read-only: nothing was changed")


async def test_the_form_searches_problems_and_checks_like_the_command_line(show):
    async with show(None) as screen:
        await screen.press("n")
        await screen.until(lambda: isinstance(screen.app.screen, StartForm))
        await screen.sees("cross_entropy_fp32")
        await screen.type("softmax")
        await screen.until(lambda: "cross_entropy_fp32" not in screen.text())
        await screen.press("tab", "tab", "tab", "right", "ctrl+g")  # proposer llm, and no model
        await screen.sees("llm without a model")
        await screen.press("escape")
        assert isinstance(screen.app.screen, Home)


def test_form_values_become_a_checked_configuration():
    values = {"config": "single", "proposer": "recipes", "candidates": "40", "minutes": "2.5", "device": "cpu"}
    config = config_of({**values, "agents": "", "model": "", "max_cost": "$3"})
    assert (config.config, config.agents, config.candidates, config.minutes) == ("single", 1, 40, 2.5)
    assert config.max_cost == 3.0 and config.leaderboard is False


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"candidates": "many"}, "candidates is 'many'; use a whole number"),
        ({"agents": "99"}, "agents is 99"),
        ({"device": "tpu"}, "device 'tpu'"),
        ({"minutes": "-1"}, "minutes is -1"),
    ],
)
def test_wrong_values_are_one_clear_line(change, complaint):
    with pytest.raises(BadInput, match=re.escape(complaint)):
        config_of({"config": "multi-bounded", "proposer": "recipes", **change})


async def test_an_ended_campaign_is_not_resumed_and_that_is_said(ended, show):
    async with show(None) as screen:
        await screen.sees("cpu-20260528")
        await screen.press("r")
        await screen.sees("! cpu-20260528 has ended (candidates); n starts a new one")


async def test_names_that_are_alike_are_told_apart_by_their_ends(ended, show):
    for number in (1, 2):
        ended.with_name(f"attention_output_projection_residual-{number}").symlink_to(ended)
    async with show(None) as screen:
        await screen.until(lambda: "residual-1" in screen.text() and "residual-2" in screen.text())
