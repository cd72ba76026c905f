"""A campaign from its first measurement to its end: budgets, outcomes, plateau, drafts, ERRORs, crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from stub_proposer import ProposerError, in_order, slowly_better

from engine.campaign import LAST
from engine.guard import confirmation, stop
from engine.guard.stop import split_budget
from engine.profile.sanitize import Sanitized
from engine.proposers.base import Context, UnusableReply
from engine.records import CampaignState, Mode, StopReason
from engine.store import events as ev
from engine.store.summary import Summary


async def test_every_reply_takes_one_position_and_the_budget_ends_the_campaign(lab) -> None:
    script = in_order(["ms=0.9", "ms=0.905", "ms=1.5", "fail=wrong.numerical", "reject=gate.custom", "ms=0.7"])
    campaign = lab(script, candidates=6)
    summary = await campaign.run()
    assert campaign.outcomes() == ["KEEP", "ACCEPT", "REVERT", "REVERT", "REJECT", "KEEP"]
    assert (summary.state, summary.stop_reason) == (CampaignState.FINISHED, StopReason.CANDIDATES)
    assert summary.candidates == 6
    assert [e.position for e in campaign.events(ev.Verdict)] == [1, 2, 3, 4, 5, 6]
    assert [e.r for e in campaign.events(ev.Verdict)] == [0, 1, 2, 3, 3, 0]
    assert summary.best_ms == pytest.approx(0.7)


async def test_the_budget_is_split_evenly_with_the_remainder_to_the_first(lab) -> None:
    campaign = lab(slowly_better, candidates=11, agents=3, config="multi-bounded")
    summary = await campaign.run()
    assert [agent.candidates for agent in summary.agents.values()] == [4, 4, 3] == split_budget(11, 3)
    assert summary.candidates == 11
    with campaign.reader() as reader:
        assert [row.number for row in reader.candidates_after(0, 100)] == list(range(1, 12))


async def test_the_reference_is_measured_once_and_the_search_starts_from_it(lab) -> None:
    campaign = lab(slowly_better, candidates=2)
    await campaign.run()
    assert campaign.bench.measured == 1
    assert campaign.contexts[0].base.number == 0
    assert "def run" in campaign.contexts[0].base.solution.entry_source
    assert campaign.bench.closed


async def test_a_keep_needs_its_confirmation(lab) -> None:
    campaign = lab(in_order(["ms=0.5 unconfirmed", "ms=0.6"]), candidates=2)
    await campaign.run()
    first, second = campaign.events(ev.Verdict)
    assert (first.outcome, first.reason) == ("ACCEPT", "keep.unconfirmed")
    assert second.outcome == "KEEP" and second.speedup == pytest.approx(1 / 0.6)


async def test_no_gain_is_kept_that_is_smaller_than_the_new_kernels_own_noise(lab) -> None:
    campaign = lab(in_order(["ms=0.9 noise=0.2", "ms=0.7 noise=0.3", "ms=0.6"]), candidates=3)
    summary = await campaign.run()
    told = [(e.outcome, e.reason) for e in campaign.events(ev.Verdict)]
    assert told == [("ACCEPT", "keep.unconfirmed"), ("KEEP", ""), ("ACCEPT", "keep.near-best")]
    assert summary.noise_of == {2: 0.3}


async def test_a_keep_whose_kernels_write_out_of_bounds_is_none(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    async def sanitized(problem, solution, device, *, call_s: float, wanted: asyncio.Event) -> Sanitized:
        await wanted.wait()
        looked.append(solution.entry_source)
        stray = Sanitized(reason="wrong.memory-access", detail="memcheck: 1 errors", evidence={"sanitizer": 1})
        return stray if "stray" in solution.entry_source else Sanitized(notes=["memcheck: nothing found"])

    monkeypatch.setattr(confirmation, "wants_sanitizer", lambda solution, device: True)
    monkeypatch.setattr(confirmation, "sanitize", sanitized)
    campaign = lab(in_order(["ms=0.5 stray", "ms=0.6", "ms=0.9", "ms=0.4 unconfirmed"]), candidates=4)
    await campaign.run()
    told = [(e.outcome, e.reason) for e in campaign.events(ev.Verdict)]
    assert told[:3] == [("REVERT", "wrong.memory-access"), ("KEEP", ""), ("REVERT", "keep.slower")]
    assert told[3][0] != "KEEP"
    assert len(looked) == 2, "the tool has the device only for what would be kept"
    with campaign.reader() as reader:
        assert "memcheck: nothing found" in reader.evaluation(2).notes


async def test_a_keep_says_which_workloads_it_slowed_down(lab) -> None:
    campaign = lab(in_order(["ms=0.6 uneven", "ms=0.5"]), candidates=2)
    await campaign.run()
    with campaign.reader() as reader:
        uneven, even = reader.evaluation(1), reader.evaluation(2)
    assert [note for note in uneven.notes if "10.0% slower than the best" in note]
    assert not [note for note in even.notes if "slower than the best" in note]


async def test_the_plateau_opens_a_draft_line_of_three_tries(lab) -> None:
    replies = ["ms=0.8"] + ["ms=1.2"] * 4 + ["ms=0.95", "fail=crash.signal", "ms=1.1"] + ["ms=1.3"] * 5
    campaign = lab(
        in_order([f"{r} n={i}" for i, r in enumerate(replies)]), draft_after=4, stop_after=10, candidates=40
    )
    summary = await campaign.run()
    modes = [context.mode for context in campaign.contexts]
    assert modes[:5] == [Mode.REFINE] * 5 and modes[5:8] == [Mode.DRAFT] * 3 and modes[8] is Mode.REFINE
    bases = [context.base.number for context in campaign.contexts]
    assert bases[5:8] == [1, 6, 6], "the line builds on its own last correct candidate, even a slower one"
    assert bases[8] == 1
    opened, closed = campaign.events(ev.DraftLineOpened), campaign.events(ev.DraftLineClosed)
    assert len(opened) >= 1 and closed[0].kept is False
    assert summary.stop_reason is StopReason.PLATEAU
    assert summary.agents["1"].r == 10


async def test_the_target_ends_the_campaign_for_everybody(lab) -> None:
    campaign = lab(
        lambda c: "ms=0.45" if c.agent == "2" and c.position == 2 else "ms=1.3",
        agents=2,
        candidates=100,
        target_speedup=2.0,
        stop_after=90,
        draft_after=80,
        delay_s=0.01,
    )
    summary = await campaign.run()
    assert summary.stop_reason is StopReason.TARGET
    assert {agent.stopped for agent in summary.agents.values()} == {StopReason.TARGET}
    assert summary.best_speedup == pytest.approx(1 / 0.45)


async def test_time_ends_the_campaign(lab) -> None:
    campaign = lab(
        slowly_better, candidates=None, minutes=0.4 / 60, delay_s=0.02, stop_after=10_000, draft_after=5000
    )
    summary = await asyncio.wait_for(campaign.run(), 10)
    assert summary.stop_reason is StopReason.TIME


def slowly_confirmed(seconds: float) -> Callable[[Context], str]:
    """A win of agent 1; agent 2 goes on trying what is slower."""
    return lambda c: f"ms=0.5 slow={seconds}" if c.agent == "1" else f"ms=1.2 n={c.position}"


TWO = {"agents": 2, "candidates": None, "minutes": 60, "delay_s": 0.02, "draft_after": 500, "stop_after": 999}


def states(campaign: Any) -> list[str]:
    with campaign.reader() as reader:
        return [row.state for row in reader.live()]


def is_told(summary: Summary) -> bool:
    return any(note.code == LAST for note in summary.attention)


async def time_is_up(campaign: Any, confirming: int = 1) -> None:
    """While so many wins are being confirmed, however long it takes to come so far."""
    await campaign.until(lambda s: states(campaign).count("confirming") == confirming)
    assert (await campaign.order("budget", minutes=0.0001)).ok


async def test_a_win_that_is_being_confirmed_when_time_is_up_is_still_kept(lab) -> None:
    campaign = lab(slowly_confirmed(1.0), **TWO)
    running = campaign.start()
    await time_is_up(campaign)
    summary = await asyncio.wait_for(running, 10)
    assert summary.stop_reason is StopReason.TIME
    assert campaign.outcomes("1") == ["KEEP"], "and nothing is proposed after it"
    stopped = {e.agent: e for e in campaign.events(ev.AgentStopped)}
    assert {e.reason for e in stopped.values()} == {StopReason.TIME}
    kept = next(i for i, e in enumerate(campaign.events()) if isinstance(e, ev.Verdict) and e.outcome == "KEEP")
    assert campaign.events().index(stopped["2"]) < kept, "the other one did not go on meanwhile"


async def test_a_confirmation_does_not_keep_a_campaign_for_ever(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "CONFIRM_GRACE_S", 0.1)
    campaign = lab(slowly_confirmed(60), **TWO)
    running = campaign.start()
    await time_is_up(campaign)
    summary = await asyncio.wait_for(running, 10)
    assert summary.stop_reason is StopReason.TIME
    assert campaign.outcomes("1") == []


async def test_a_person_who_stops_a_campaign_waits_for_no_confirmation(lab) -> None:
    campaign = lab(lambda context: f"ms={0.5 - 0.01 * int(context.agent)} slow=60", **TWO)
    running = campaign.start()
    await time_is_up(campaign, confirming=2)
    await campaign.until(is_told)
    assert (await campaign.order("stop")).ok
    summary = await asyncio.wait_for(running, 5)
    assert summary.stop_reason is StopReason.USER


async def test_more_time_while_a_win_is_being_confirmed_lets_everybody_go_on(lab) -> None:
    """It was answered with ok, agents went on, and the campaign ended all the same once the win was confirmed."""
    campaign = lab(slowly_confirmed(60), **TWO)
    running = campaign.start()
    await time_is_up(campaign)
    await campaign.until(is_told)
    tried = len(campaign.outcomes("2"))
    assert (await campaign.order("budget", minutes=60)).ok
    summary = await campaign.until(lambda s: s.agents["2"].candidates > tried)
    assert summary.agents["1"].stopped is None, "what was being confirmed still is"
    await campaign.until(lambda s: not is_told(s))
    assert not running.done()
    await campaign.order("stop")
    assert (await asyncio.wait_for(running, 5)).stop_reason is StopReason.USER


async def test_an_engine_that_ends_while_a_win_is_being_confirmed_leaves_no_notice_of_it(lab) -> None:
    campaign = lab(slowly_confirmed(60), **TWO)
    running = campaign.start()
    await time_is_up(campaign)
    await campaign.until(is_told)
    running.cancel()
    await asyncio.wait({running})
    assert not is_told(await asyncio.wait_for(campaign.run(), 10))


async def test_nobody_waits_for_a_win_whose_confirmation_a_pause_does_not_let_begin(lab) -> None:
    campaign = lab(slowly_confirmed(60), **(TWO | {"agents": 1, "delay_s": 1.0}))
    running = campaign.start()
    await campaign.until(lambda s: "benching" in states(campaign))
    assert (await campaign.order("pause")).ok
    await campaign.until(lambda s: "paused" in states(campaign))
    assert (await campaign.order("budget", minutes=0.0001)).ok
    assert (await asyncio.wait_for(running, 10)).stop_reason is StopReason.TIME


async def test_the_same_program_in_other_words_is_a_reject_that_names_the_first(lab) -> None:
    from stub_proposer import source_of

    from engine.proposers.base import Proposal

    class Same:
        name, model = "stub", None

        async def propose(self, context, live):
            solution = source_of(context, "ms=0.9")
            text = solution.entry_source.replace(f"candidate {context.agent}.{context.position}", "candidate")
            text = f"# attempt {context.position} of agent {context.agent}\n\n{text}"
            from engine.problems.solution_io import solution_from_source

            return Proposal(
                solution=solution_from_source(text, context.problem, name="same"), strategy="s", family="f"
            )

        async def judged(self, *args): ...

        async def close(self): ...

    campaign = lab(slowly_better, candidates=4, agents=2, config="multi-bounded")
    campaign._build = lambda session, control: Same()
    await campaign.run()
    verdicts = campaign.events(ev.Verdict)
    rejected = [e for e in verdicts if e.outcome == "REJECT"]
    assert len(verdicts) == 4 and len(rejected) == 3
    assert {e.reason for e in rejected} == {"gate.duplicate"} and {e.agent for e in rejected} == {"1", "2"}
    assert campaign.bench.calls == 2, "only the first was benched: once, and once to confirm"


async def test_an_unusable_reply_is_a_reject_with_its_own_reason(lab) -> None:
    reply = UnusableReply(reason="reply.no-code", detail="no fence", strategy="operator-fusion", reply="sorry")
    campaign = lab(in_order([reply, "ms=0.9"]), candidates=2)
    summary = await campaign.run()
    assert campaign.outcomes() == ["REJECT", "KEEP"]
    assert summary.agents["1"].candidates == 2
    with campaign.reader() as reader:
        row = reader.candidate(1)
        assert row.reason == "reply.no-code" and row.solution is None
        assert reader.reply(1) == "sorry"


async def test_errors_take_no_position_and_the_fifth_in_a_row_pauses_the_agent(lab, monkeypatch) -> None:
    monkeypatch.setattr("engine.agent.backoff_s", lambda streak: 0.0)
    calls: list[int] = []

    def script(context):
        calls.append(context.position)
        if context.agent == "1" and len([c for c in calls if c == 1]) > 0 and context.position == 2:
            return ProposerError("model.refused", "connection refused")
        return f"ms=1.{context.position}"

    campaign = lab(script, agents=2, candidates=8, config="multi-bounded")
    summary = await campaign.run(end_when_stuck=True)
    first, second = summary.agents["1"], summary.agents["2"]
    assert (first.candidates, first.errors, first.r) == (1, 5, 1)
    assert second.candidates == 4 and second.stopped is StopReason.CANDIDATES
    paused = campaign.events(ev.AgentPaused)
    assert len(paused) == 1 and paused[0].by == "errors" and "connection refused" in paused[0].why
    assert [e.streak for e in campaign.events(ev.CandidateError)] == [1, 2, 3, 4, 5]
    assert summary.stop_reason is StopReason.FAULT


async def test_a_fault_of_the_bench_is_an_error_and_the_position_is_used_again(lab, monkeypatch) -> None:
    monkeypatch.setattr("engine.agent.backoff_s", lambda streak: 0.0)
    tries: list[int] = []

    def script(context):
        tries.append(context.position)
        return "error=fault.device" if len(tries) <= 2 else f"ms=0.{9 - context.position}"

    campaign = lab(script, candidates=3)
    summary = await campaign.run()
    assert tries == [1, 1, 1, 2, 3], "each reply is judged twice before another is asked for"
    assert summary.candidates == 3 and summary.errors == 4
    assert summary.agents["1"].error_streak == 0


async def test_a_crashed_agent_restarts_and_the_breaker_opens_at_the_third(lab) -> None:
    campaign = lab(in_order(["ms=0.9", RuntimeError("boom \x1b[31m")]), candidates=5)
    task = campaign.start()
    summary = await campaign.until(lambda s: bool(s.agents and s.agents["1"].paused))
    assert "boom" in summary.agents["1"].paused and "\x1b" not in summary.agents["1"].paused
    assert len(campaign.events(ev.AgentRestarted)) == 2
    assert any(note.code == "breaker.open" for note in summary.attention)
    async with asyncio.timeout(5):
        while campaign.live("1").state != "broken":
            await asyncio.sleep(0.05)
    answer = await campaign.order("stop")
    assert answer.ok
    summary = await task
    assert summary.state is CampaignState.STOPPED and summary.candidates == 1


async def test_an_agent_that_the_guard_stopped_is_never_restarted(lab) -> None:
    campaign = lab(lambda c: f"ms=1.{c.position:03d}", draft_after=1, stop_after=4, candidates=30, agents=2)
    summary = await campaign.run()
    assert {a.stopped for a in summary.agents.values()} == {StopReason.PLATEAU}
    assert summary.stop_reason is StopReason.PLATEAU
    assert not campaign.events(ev.AgentRestarted)
