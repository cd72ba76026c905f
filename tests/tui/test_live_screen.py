"""One glance at 80×24 answers: is it running, what leads, why did the last one fail, does anything need me."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from engine.records import CampaignState, StopReason
from engine.store import events as ev
from engine.store.events import AgentSpec
from engine.store.rows import LiveRow
from engine.store.summary import AgentSummary, Summary
from kernelarc_tui.feed import FeedFilter
from kernelarc_tui.screens.agent import standing
from kernelarc_tui.view import View, attention, doing
from kernelarc_tui.widgets.agents import AgentsTable
from kernelarc_tui.widgets.header import first_line, second_line
from kernelarc_tui.widgets.keyline import KeyLine
from kernelarc_tui.widgets.memory import MemoryPanel
from kernelarc_tui.widgets.plot import TrajectoryPlot
from kernelarc_tui.widgets.stream import OutcomeStream, nothing_text


async def test_the_header_says_state_time_candidates_cost_best_and_who_holds_it(engine, show):
    async with show(engine.folder) as screen:
        first, second = screen.text("#header").split("\n")
        assert "attn_out_proj_residual" in first and "H200" in first
        assert re.search(r"▶ 00:41:07\s+63/100 candidates\s+\$4.12 of \$20", first)
        assert "best 0.0845 ms" in second and "1.41× ref" in second and "62 % of bound" in second
        assert "1 #48" in second
        assert "! agent 3" in second  # what needs a person


async def test_agents_are_told_apart_with_state_best_and_distance_to_their_plateau(engine, show):
    async with show(engine.folder) as screen:
        title, *rows = screen.text("#agents").split("\n")
        assert re.search(
            r"agents\s+doing\s+best ms stuck", title
        )  # the columns have names, in no row of their own
        assert re.search(r"▸1★ precision\s+benching\s+0\.0845 ▮▮▮▮▮", rows[0])
        assert re.search(r" 2  tiling\s+propose 13s\s+0\.0893 ▮▮▮▯▯", rows[1])
        assert re.search(r" 3  tiling\s+model 14s\s+0\.0951 ▮▯▯▯▯", rows[2])


async def test_the_stream_tells_why_the_last_candidate_failed(engine, show):
    async with show(engine.folder) as screen:
        stream = screen.text("#stream")
        assert re.search(r"3 #62\s+x reject\s+tiling\s+gate: kernel.py has no function run\(x, res", stream)
        assert re.search(r"1 #60\s+R revert\s+precision\s+0\.0928\s+\+9\.8 %  slower: prefetch", stream)


async def test_a_wide_stream_tells_strategy_and_reason_in_full(engine, show):
    async with show(engine.folder, (160, 45)) as screen:
        stream = screen.text("#stream")
        assert re.search(
            r"3 #62\s+x reject\s+tiling-pipelining\s+gate: .*run\(x, residual, weight, bias\)", stream
        )
        assert re.search(
            r"0\.0928\s+\+9\.8 %  slower: prefetch the residual tile while the last K step runs", stream
        )


async def test_the_plot_shows_every_agents_line_the_reference_and_the_bound(engine, show):
    async with show(engine.folder) as screen:
        plot = screen.text("#plot")
        assert "reference" in plot and "bound" in plot
        assert re.search(r" 32\s*$", plot, re.M) and re.search(r" 1\s*$", plot, re.M)
        assert any(0x2800 < ord(char) <= 0x28FF for char in plot)


async def test_device_and_memory_are_on_the_same_screen(engine, show):
    async with show(engine.folder) as screen:
        assert re.search(r"75 %.*7\.2/139 GiB\s+63 °C", screen.text("#device"))
        assert "GPU 0" in screen.text("#device")
        memory = screen.text("#memory")
        assert "12 wins · 5 traps" in memory and "+ persistent kernel, one wave" in memory


async def test_wider_screens_show_more_columns(engine, show):
    async with show(engine.folder, (200, 50)) as screen:
        agents = screen.text("#agents")
        for title in ("strategy", "doing", "best ms", "speed-up", "plateau", "mode", "tried", "model"):
            assert title in agents
        assert "model 14s" in agents and "openai/gpt-5" in agents


async def test_a_narrow_terminal_keeps_what_matters(engine, show):
    async with show(engine.folder, (60, 20)) as screen:
        assert "best 0.0845 ms" in screen.text() and "#62" in screen.text()
        assert "q" in screen.text("#keys")


async def test_the_footer_names_the_keys(engine, show):
    async with show(engine.folder) as screen:
        keys = screen.text("#keys")
        for hint in ("p pause", "d draft", "h hint", "s stop", "⏎ open", "/ filter", "? help", "q leave running"):
            assert hint in keys


async def test_j_k_g_and_G_move_in_every_list(engine, show):
    async with show(engine.folder) as screen:
        agents = screen.app.screen.query_one(AgentsTable)
        await screen.press("j", "j")
        assert agents.cursor == 2
        await screen.press("k")
        assert agents.cursor == 1
        await screen.press("g")
        assert agents.cursor == 0
        await screen.press("2", "G")
        stream = screen.app.screen.query_one(OutcomeStream)
        assert stream.has_focus and stream.cursor == stream.row_count() - 1
        assert "#1 " in screen.text("#stream")
        await screen.press("g")
        assert stream.cursor == 0


async def test_tab_goes_round_the_panes(engine, show):
    async with show(engine.folder) as screen:
        seen = []
        for _ in range(3):
            seen.append(screen.app.screen.focused.id)
            await screen.press("tab")
        assert sorted(seen) == ["agents", "memory", "stream"]


async def test_the_filter_takes_an_outcome_an_agent_and_words(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("slash")
        await screen.type("reject a2")
        await screen.press("enter")
        await screen.until(lambda: "agent 2" in screen.text("#stream"))
        rows = [row for row in screen.text("#stream").split("\n")[1:] if "#" in row]
        assert rows and all(" 2 #" in row and "x reject" in row for row in rows)
        await screen.press("escape")
        await screen.until(lambda: "accept" in screen.text("#stream"))


async def test_f_steps_through_the_outcomes_and_e_shows_all_events(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("f")
        assert "keep" in screen.text("#stream") and "accept" not in screen.text("#stream")
        await screen.press("escape", "e", "2", "g")
        await screen.press("j")
        assert "all events" in screen.text("#stream")
        await screen.press("G")
        assert "start" in screen.text("#stream")  # the campaign's first event


async def test_x_and_y_change_the_plots_axes_and_are_remembered(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("x")
        assert "ms over time" in screen.text("#plot") and "40m" in screen.text("#plot")
        await screen.press("x", "y")
        assert "over dollars" in screen.text("#plot") and "log" in screen.text("#plot")
    async with show(engine.folder) as screen:
        assert screen.app.screen.query_one(TrajectoryPlot).axis == "dollars"


async def test_z_shows_one_pane_alone_and_back(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("2", "z")
        stream = screen.app.screen.query_one(OutcomeStream)
        assert stream.size.height >= 18
        assert "has no function" in screen.text()
        await screen.press("z")
        assert stream.size.height < 12
        await screen.press("3", "z")
        memory = screen.app.screen.query_one(MemoryPanel)
        assert memory.size.width >= 76 and memory.size.height >= 18
        assert "− split-K below 512 rows" in screen.text("#memory")


async def test_a_commit_is_on_screen_within_half_a_second(engine, show):
    from engine.store import events as ev

    async with show(engine.folder) as screen:
        await engine.writer.append(ev.Attention(code="disk.low", text="2 GiB left", level="error"))
        await screen.until(lambda: "2 GiB left" in screen.text("#header"), timeout_s=2)
        await engine.writer.append(ev.CandidateError(agent="2", reason="fault.judge", detail="the judge ended"))
        await screen.until(lambda: "fault.judge" in screen.text("#stream"), timeout_s=2)


async def test_the_cursor_stays_on_its_row_while_rows_arrive(engine, show):
    from engine.store import events as ev

    async with show(engine.folder) as screen:
        await screen.press("2", "j", "j")
        stream = screen.app.screen.query_one(OutcomeStream)
        before = stream.selected
        await engine.writer.append(ev.CandidateError(agent="2", reason="fault.judge"))
        await screen.until(lambda: stream.row_count() > 0 and stream.cursor == 3)
        assert stream.selected == before


async def test_an_engine_that_goes_away_is_called_interrupted(engine, show):
    async with show(engine.folder) as screen:
        engine._lock.release()
        await screen.until(lambda: "! interrupted" in screen.text("#header"), timeout_s=5)
        assert "resume" in screen.text("#keys")
        engine._lock.acquire()


async def test_leaving_says_that_the_campaign_goes_on_and_how_to_come_back(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("q")
    assert screen.app.return_value == "attn-20260528 keeps running; come back with: kernelarc attach attn-20260528"


async def test_two_screens_at_once_see_the_same(engine, show):
    async with show(engine.folder) as one, show(engine.folder) as two:
        await one.press("p")
        for screen in (one, two):
            await screen.until(lambda screen=screen: "‖ pausing" in screen.text("#header"), timeout_s=2)
        await two.until(lambda: "pause carried" in two.text("#stream"))


async def test_what_e_shows_is_remembered_and_escape_keeps_it(engine, show):
    async with show(engine.folder) as screen:
        assert "· hint" not in screen.text("#stream")
        await screen.press("e")
        await screen.until(lambda: "outcomes · all events" in screen.text("#stream"))
        await screen.press("slash")
        await screen.type("a2")
        await screen.press("enter")
        await screen.until(lambda: "agent 2" in screen.text("#stream").split("\n")[0])
        await screen.press("escape")
        await screen.until(lambda: "outcomes · all events" in screen.text("#stream"))
    async with show(engine.folder) as screen:
        await screen.until(lambda: "outcomes · all events" in screen.text("#stream"))
        await screen.press("e")
    async with show(engine.folder) as screen:
        assert "all events" not in screen.text("#stream")


async def test_hints_can_be_hidden_and_answers_still_show(engine, show):
    async with show(engine.folder) as screen:
        screen.app.toggle_setting("footer")
        await screen.sees("footer is off")
        screen.app.screen.query_one(KeyLine)._forget()
        await screen.until(lambda: "q leave running" not in screen.text())
        await screen.press("d")
        await screen.sees("✓ draft carried out")
    async with show(engine.folder) as screen:
        assert "q leave running" not in screen.text()


async def test_a_new_best_says_how_long_ago_and_not_after_the_end(engine, show):
    from engine.store import events as ev

    async with show(engine.folder, (120, 30)) as screen:
        await engine.writer.append(
            ev.Attention(code="model.failing", text="", agent="3", clear=True),
            ev.Attention(code="best.new", text="agent 1 leads with #48: a long sentence", level="info"),
        )
        await screen.until(lambda: re.search(r"i new best \S+ ago", screen.text("#header")))
        await screen.press("s", "c")
        await screen.until(lambda: "■ stopped" in screen.text("#header"))
        await screen.until(lambda: "new best" not in screen.text("#header"))


async def test_enter_tells_an_event_and_n_every_note_in_full(engine, show):
    from engine.store import events as ev

    long = (
        "the starting solution does not pass on any workload: " + "3 of 3 differ by more than 1e-2, " * 4 + "END"
    )
    async with show(engine.folder) as screen:
        await engine.writer.append(
            ev.CandidateError(agent="2", reason="fault.judge", detail=long),
            ev.Attention(code="disk.low", text=f"disk {long}", level="error"),
        )
        await screen.until(lambda: "fault.judge" in screen.text("#stream"))
        await screen.press("2", "g", "enter")
        await screen.sees("error · agent 2", "END")
        await screen.press("enter")
        await screen.until(lambda: "END" not in screen.text())
        await screen.press("n")
        await screen.sees("Notes", "END", "agent 3: the model answers 429")
        await screen.press("q")
        await screen.until(lambda: "Notes" not in screen.text())


async def test_a_campaign_that_failed_before_measuring_says_so(engine, show):
    from engine.store import events as ev

    async with show(engine.folder) as screen:
        await engine.writer.append(ev.CampaignEnded(state="finished", reason=StopReason.FAULT, detail="no seed"))
        await screen.until(lambda: "! failed" in screen.text("#header"))


async def test_f_goes_through_every_outcome_and_back_to_all(ended, show):
    async with show(ended) as screen:
        seen = []
        for _ in range(6):
            await screen.press("f")
            seen.append(screen.text("#stream").split("\n")[0].strip(" ─"))
        assert seen == [f"outcomes · {word}" for word in ("keep", "accept", "revert", "reject", "error")] + [
            "outcomes"
        ]
        assert "all outcomes again" in screen.text("#keys")


def test_an_outcome_that_has_not_come_yet_is_named_with_how_many_others_have():
    summary = Summary(outcomes={"KEEP": 2, "REVERT": 8})
    assert nothing_text(FeedFilter(outcome="REJECT"), summary) == "no REJECT yet (10 others)"
    assert nothing_text(FeedFilter(outcome="REJECT", text="x"), summary) == "nothing matches reject · “x”"
    assert nothing_text(FeedFilter(outcome="KEEP"), Summary()) == "nothing matches keep"
    assert nothing_text(FeedFilter(), Summary()) == "no outcome yet"
    assert nothing_text(FeedFilter(everything=True, agent="1"), Summary()) == "no outcome yet"  # an agent's log


async def test_the_kind_of_an_empty_filter_stays_in_the_title_and_f_goes_on_from_it(engine, show):
    async with show(engine.folder) as screen:
        screen.app.screen._filter(FeedFilter(outcome="KEEP", text="nothing has this in it"))
        await screen.until(lambda: "outcomes · keep" in screen.text("#stream"))
        await screen.press("f")
        assert screen.app.screen.query_one(OutcomeStream).filter.outcome == "ACCEPT"


async def test_what_the_machine_did_is_marked_as_of_the_end_once_the_campaign_has_ended(engine, ended, show):
    async with show(engine.folder) as screen:
        assert "at the end" not in screen.text("#device")
    async with show(ended) as screen:
        assert "CPU · at the end" in screen.text("#device")


async def test_in_a_low_terminal_every_agent_has_its_row_before_the_outcomes(engine, show):
    async with show(engine.folder, (80, 15)) as screen:
        rows = screen.text("#agents").split("\n")
        assert sum(bool(re.match(r"[ ▸][123]", row)) for row in rows) == 3
        assert "#63" in screen.text("#stream")


@pytest.mark.parametrize("width", [30, 40, 50, 59])
async def test_a_narrow_header_says_first_how_it_stands(engine, show, width):
    async with show(engine.folder, (width, 24)) as screen:
        first = screen.text("#header").split("\n")[0]
        assert first.startswith(" ▶ 00:41:07  63/100")
        assert "dual" in first or width < 50  # the name keeps its end


@pytest.mark.parametrize(
    ("state", "detail", "benches"),
    [
        ("benching", "", True),
        ("confirming", "", True),
        ("compiling", "", True),
        ("waiting device", "", True),  # inside the bench, behind another candidate
        ("starting", "measuring the reference: benching", True),
        ("starting", "", False),
        ("proposing", "", False),
        ("waiting model", "", False),
        ("paused", "its candidate waits for the device", False),
    ],
)
async def test_a_pause_that_waits_for_a_bench_says_so(engine, show, state, detail, benches):
    """A colleague who waits for the device must see when it is given back."""
    async with show(engine.folder) as screen:
        view = screen.app.screen.view
    first, *others = view.agents
    live = {first.spec.name: LiveRow(agent=first.spec.name, state=state, detail=detail, since=view.now - 9)}
    view = replace(view, state=CampaignState.PAUSED, live=live)
    assert ("‖ pausing" in first_line(view, "", 120).text, "‖ paused" in first_line(view, "", 120).text) == (
        benches,
        not benches,
    )
    assert doing(view, first)[0] == (state if benches else "paused")
    assert {doing(view, agent)[0] for agent in others} == {"paused"}


async def test_rows_that_came_above_an_older_one_are_counted_in_the_title(engine, show):
    async with show(engine.folder) as screen:
        assert "newer above" not in screen.text("#stream")
        await screen.press("2", "G")
        await screen.until(lambda: re.search(r"outcomes · \d+ newer above \(g\)", screen.text("#stream")))
        await screen.press("g")
        await screen.until(lambda: "newer above" not in screen.text("#stream"))


async def test_a_persons_own_words_are_shown_with_the_answer(engine, show):
    async with show(engine.folder, (160, 45)) as screen:
        hint = ev.CommandAnswered(
            id="h", verb="hint", args={"text": "one pass", "agent": "1"}, text="it is on record"
        )
        await engine.writer.append(hint)
        await screen.until(
            lambda: "> hint" in screen.text("#stream") and '"one pass": it is on record' in screen.text("#stream")
        )


@pytest.mark.parametrize("width", [44, 60, 80, 120])
def test_an_agents_standing_is_cut_nowhere(width):
    agent = AgentSummary(
        spec=AgentSpec(name="1", ordinal=0, proposer="recipes", model=None, budget=20),
        budget=20, candidates=12, best=5, best_ms=2.363, best_speedup=1.173, r=4, cost_usd=1.5, tokens=90_000,
    )  # fmt: skip
    text = standing(Summary(), agent, width).text
    assert len(text) <= width and re.search("4 (without gain|stuck) .*12/20", text)
    assert ("stop at 15)" in text) is (width >= 80) and ("tokens" in text) is (width >= 120)
    assert (
        standing(Summary(), msgspec.structs.replace(agent, best_ms=None), width).text == "nothing is measured yet"
    )


def test_an_agent_without_ideas_is_not_called_out_of_budget():
    spec = AgentSpec(name="1", ordinal=0, proposer="recipes", model=None, budget=20)
    dry = AgentSummary(spec=spec, budget=20, candidates=12, stopped=StopReason.CANDIDATES)
    assert doing(View(), dry)[0] == "stopped no ideas"
    assert doing(View(), msgspec.structs.replace(dry, candidates=20))[0] == "stopped candidates"
    ended = Summary(
        budget=40, candidates=29, stop_reason=StopReason.CANDIDATES, stop_detail="3 recipes tried to the end"
    )
    assert ended.why_ended == "3 recipes tried to the end"
    assert msgspec.structs.replace(ended, candidates=40).why_ended == "candidates"


async def test_an_inbox_agent_that_waits_says_for_which_folder(engine, show):
    async with show(engine.folder) as screen:
        view = screen.app.session.view
        first = view.agents[0]
        spec = msgspec.structs.replace(first.spec, proposer="inbox")
        agents = {**view.summary.agents, first.spec.name: msgspec.structs.replace(first, spec=spec)}
        live = LiveRow(agent=first.spec.name, state="proposing", detail="waiting for a save in /a/b/agents/1")
        waiting = replace(
            view,
            summary=msgspec.structs.replace(view.summary, agents=agents, attention=[]),
            live={**view.live, first.spec.name: live},
        )
        assert [note.text for note in attention(waiting)] == ["waiting for a save in /a/b/agents/1"]
        assert attention(replace(waiting, state=CampaignState.FINISHED)) == []
        assert second_line(waiting, 80).text.endswith("agents/1")


async def test_an_answer_that_is_longer_than_the_row_is_shown_in_full(engine, show):
    engine.refuse = (
        "agent 1 has stopped already, and here is a long sentence that says what a person can do about it"
    )
    async with show(engine.folder) as screen:
        await screen.press("d")
        await screen.until(lambda: "about it" in screen.text("#keys"))
        assert len(screen.text("#keys").split("\n")) == 2
        screen.app.screen.query_one(KeyLine)._forget()
        await screen.until(lambda: len(screen.text("#keys").split("\n")) == 1)
