"""Every control reaches the engine, and its answer is on the screen."""

from __future__ import annotations

import re

import pytest
from textual.events import Key

from engine.store.reader import StoreReader

CONTROLS = [
    (("p",), "pause", None),
    (("P",), "pause", "1"),
    (("j", "P"), "pause", "2"),
    (("d",), "draft", "1"),
    (("j", "j", "d"), "draft", "3"),
    (("D",), "draft", None),
]


@pytest.mark.parametrize(("keys", "verb", "agent"), CONTROLS)
async def test_a_key_sends_its_command_for_the_agent_or_all(engine, show, keys, verb, agent):
    async with show(engine.folder) as screen:
        await screen.press(*keys)
        await screen.sees(f"✓ {verb} carried out")
        assert (engine.last.verb, engine.last.agent) == (verb, agent)


async def test_pause_becomes_resume(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("p")
        await screen.until(lambda: "‖ pausing" in screen.text("#header"))
        await screen.press("p")
        await screen.until(lambda: engine.last.verb == "resume" and "▶" in screen.text("#header"))


async def test_a_paused_agent_shows_it_and_P_resumes_it(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("P")
        await screen.until(lambda: "paused" in screen.text("#agents"))
        await screen.press("P")
        await screen.until(lambda: (engine.last.verb, engine.last.agent) == ("resume", "1"))


async def test_a_hint_is_typed_and_delivered_as_written(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("j", "h")
        await screen.type("try split-K 2")
        await screen.press("enter")
        await screen.until(lambda: engine.commands)
        assert (engine.last.verb, engine.last.agent, engine.last.text) == ("hint", "2", "try split-K 2")
        await screen.press("H")
        await screen.type("all")
        await screen.press("enter")
        await screen.until(lambda: engine.last.text == "all")
        assert engine.last.agent is None


async def test_an_empty_or_cancelled_hint_sends_nothing(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("h", "enter")
        await screen.press("h")
        await screen.type("no")
        await screen.press("escape")
        await screen.pilot.pause(0.1)
        assert engine.commands == []


async def test_stop_asks_and_the_safe_answer_comes_first(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("s", "enter")
        await screen.pilot.pause(0.1)
        assert engine.commands == []
        await screen.press("s", "a")
        await screen.until(lambda: engine.commands)
        assert (engine.last.verb, engine.last.agent) == ("stop", "1")
        await screen.until(lambda: "■ by user" in screen.text("#agents"))
        await screen.press("s", "c")
        await screen.until(lambda: len(engine.commands) == 2)
        assert (engine.last.verb, engine.last.agent) == ("stop", None)
        await screen.until(lambda: "■ stopped" in screen.text("#header"))


async def test_a_veto_confirms_and_the_best_goes_back_everywhere(engine, show):
    async with show(engine.folder, (120, 30)) as screen:
        await screen.press("v")
        assert "Veto #48?" in screen.text() and "#45" in screen.text()
        await screen.press("n")
        await screen.pilot.pause(0.05)
        assert engine.commands == []
        await screen.press("v", "y")
        await screen.until(lambda: engine.commands)
        assert (engine.last.verb, engine.last.number) == ("veto", 48)
        await screen.until(lambda: "#45" in screen.text("#header"))


async def test_a_veto_in_the_stream_takes_the_selected_keep(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("f", "2", "j", "v")
        assert "Veto #52?" in screen.text()


async def test_budgets_are_new_totals_and_checked(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("b")
        assert "candidates (now 100)" in screen.text() and "US dollars (now 20)" in screen.text()
        await screen.type("0.5")
        await screen.press("enter")
        await screen.sees("candidates must be a whole number above zero")
        assert engine.commands == []
        await screen.press("ctrl+u")
        await screen.type("250")
        await screen.press("enter")
        await screen.until(lambda: engine.commands)
        assert (engine.last.verb, engine.last.candidates, engine.last.minutes) == ("budget", 250, None)
        await screen.until(lambda: "63/250" in screen.text("#header"))


async def test_switching_offers_eligible_strategies_and_models(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("w")
        await screen.sees("Switch agent 1 to", "operator-fusion", "another model …")
        await screen.press("j", "enter")
        await screen.until(lambda: engine.commands)
        assert engine.last.verb == "strategy" and engine.last.agent == "1" and engine.last.text


async def test_another_model_is_typed(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("w")
        await screen.sees("another model …")
        await screen.press("G", "enter")
        await screen.sees("A litellm name")
        await screen.type("x/y")
        await screen.press("enter")
        await screen.until(lambda: engine.commands)
        assert (engine.last.verb, engine.last.text) == ("model", "x/y")


async def test_a_refusal_is_shown_with_its_reason(engine, show):
    engine.refuse = "agent 1 is paused already"
    async with show(engine.folder) as screen:
        await screen.press("d")
        await screen.sees("! agent 1 is paused already")


async def test_no_engine_is_one_clear_line(campaign, show):
    async with show(campaign) as screen:
        await screen.press("d")
        await screen.sees("no engine runs this campaign")


async def test_read_only_sends_nothing_and_says_so(engine, show):
    async with show(engine.folder, read_only=True) as screen:
        assert "read-only" in screen.text("#header")
        for key in ("p", "d", "h", "s", "v", "b", "w"):
            await screen.press(key)
            await screen.sees("opened read-only: nothing was sent")
        assert engine.commands == []


async def test_every_control_is_in_the_command_palette(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("ctrl+p")
        await screen.type("drafts next")
        await screen.sees("the selected agent drafts next")
        await screen.press("down", "enter")
        await screen.until(lambda: engine.commands and engine.last.verb == "draft")


async def test_controls_work_from_the_other_screens_too(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("j", "a", "d")
        await screen.until(lambda: engine.commands)
        assert (engine.last.verb, engine.last.agent) == ("draft", "2")
        await screen.sees("✓ draft carried out")
        await screen.press("q", "l", "j", "j", "P")
        await screen.until(lambda: len(engine.commands) == 2)
        assert (engine.last.verb, engine.last.agent) == ("pause", "3")


async def test_a_click_on_a_hint_or_a_row_does_what_it_says(engine, show):
    async with show(engine.folder) as screen:
        await screen.pilot.click("#agents", offset=(5, 2))
        await screen.pilot.click("#keys", offset=(screen.text("#keys").index("d draft"), 0))
        await screen.until(lambda: engine.commands)
        assert (engine.last.verb, engine.last.agent) == ("draft", "2")


async def test_memory_is_pinned_noted_and_expired(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("m", "n")
        await screen.until(lambda: engine.commands)
        assert engine.last.verb == "memory.pin" and engine.last.number == 17
        await screen.sees("★")
        await screen.press("N")
        await screen.type("checked by hand")
        await screen.press("enter")
        await screen.sees("checked by hand")
        await screen.press("x", "n")
        assert engine.last.verb == "memory.note"
        await screen.press("x", "y")
        await screen.until(lambda: engine.last.verb == "memory.expire")
        await screen.until(lambda: "· 16" in screen.text("#entries"))


async def test_memory_of_an_ended_campaign_is_edited_in_its_store(ended, show):
    from engine.store.reader import StoreReader

    async with show(ended) as screen:
        await screen.press("m", "n")
        await screen.sees("is pinned")
    with StoreReader(ended) as reader:
        assert reader.memory()[0].pinned


async def test_a_finished_campaigns_keep_is_vetoed_without_an_engine(ended, show):
    with StoreReader(ended) as reader:
        before = reader.summary()
    async with show(ended, (120, 30)) as screen:
        await screen.press("v")
        await screen.sees(f"Veto #{before.best}?")
        await screen.press("y")
        await screen.until(lambda: re.search(rf"✓ #{before.best} .*vetoed", screen.text("#keys")))
        await screen.until(lambda: f"#{before.best}" not in screen.text("#header"))
        await screen.until(lambda: re.search(r"> veto", screen.text("#stream")))
    with StoreReader(ended) as reader:
        after = reader.summary()
        assert after.best != before.best and after.best_ms > before.best_ms
        assert reader.candidate(before.best).vetoed_at is not None


@pytest.mark.parametrize("key", ["p", "P", "d", "D", "h", "H", "s", "b", "w"])
async def test_a_control_of_a_finished_campaign_says_that_it_has_ended_before_it_asks(ended, show, key):
    async with show(ended) as screen:
        await screen.press(key)
        await screen.sees("! the campaign has ended (candidates); u, then n starts a new one")
        assert not screen.app.screen.is_modal


async def test_the_palette_shows_keys_and_finds_by_fuzzy_text(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("ctrl+p")
        await screen.sees(" d  the selected agent drafts next")
        await screen.type("drfts nxt")
        await screen.until(lambda: "pause or resume" not in screen.text())
        await screen.until(lambda: "the selected agent drafts next" in screen.text())
        await screen.press("down", "enter")
        await screen.until(lambda: engine.commands)
        assert engine.last.verb == "draft"


def _typed_at_once(screen, text: str) -> None:
    """As when a slow line delivers several keys in one piece."""
    for char in text:
        screen.app.post_message(Key(char if char != " " else "space", char))


async def test_what_is_typed_ahead_of_a_dialog_is_for_the_dialog(engine, show):
    async with show(engine.folder) as screen:
        _typed_at_once(screen, "hdDp stop")
        await screen.sees("Hint for agent 1", "dDp stop")
        await screen.press("enter")
        await screen.until(lambda: engine.commands)
        assert [(command.verb, command.text) for command in engine.commands] == [("hint", "dDp stop")]
        _typed_at_once(screen, "s")
        await screen.sees("the whole campaign")
        _typed_at_once(screen, "np")  # no, and then a control again
        await screen.until(lambda: len(engine.commands) == 2)
        assert engine.last.verb == "pause"


async def test_several_keys_at_once_are_several_controls(engine, show):
    async with show(engine.folder) as screen:
        _typed_at_once(screen, "djD")
        await screen.until(lambda: len(engine.commands) == 2)
        assert sorted((command.verb, command.agent or "") for command in engine.commands) == [
            ("draft", ""),
            ("draft", "1"),
        ]


async def test_a_refused_dialog_holds_no_keys(campaign, show):
    async with show(campaign, read_only=True) as screen:
        _typed_at_once(screen, "sm")
        await screen.sees("wins and traps", timeout_s=1.5)  # sooner than keys are let go by themselves
