"""What a person can do to a running campaign, over its socket, and how it is written down."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from stub_proposer import StubProposer, in_order, slowly_better

from engine.control.client import asend, command
from engine.errors import StoreError
from engine.proposers.base import BudgetSpent
from engine.records import CampaignState, Mode, StopReason, Usage
from engine.store import events as ev
from tests.fixtures.store_records import archived

LONG = {"candidates": 500, "draft_after": 300, "stop_after": 400}


async def test_pause_gives_the_device_back_and_resume_goes_on(lab) -> None:
    campaign = lab(slowly_better, delay_s=0.02, agents=2, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 2)
    assert (await campaign.order("pause")).ok
    await campaign.until(lambda s: s.state is CampaignState.PAUSED)
    for _ in range(200):
        if campaign.bench.suspensions:
            break
        await asyncio.sleep(0.01)
    assert campaign.bench.suspensions == 1 and campaign.bench.inside == 0
    calls = campaign.bench.calls
    await asyncio.sleep(0.15)
    assert campaign.bench.calls == calls, "nobody benches while paused"
    async with asyncio.timeout(5):
        while {campaign.live(agent).state for agent in ("1", "2")} != {"paused"}:
            await asyncio.sleep(0.05)
    again = await campaign.order("pause")
    assert not again.ok and "already" in again.text
    before = (await campaign.until(lambda s: True)).candidates
    assert (await campaign.order("resume")).ok
    await campaign.until(lambda s: s.candidates > before)
    await campaign.order("stop")
    summary = await task
    assert (summary.state, summary.stop_reason) == (CampaignState.STOPPED, StopReason.USER)


async def test_pauses_do_not_count_as_running_time(lab) -> None:
    campaign = lab(slowly_better, delay_s=0.01, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 1)
    await campaign.order("pause")
    frozen = await campaign.until(lambda s: s.state is CampaignState.PAUSED)
    assert frozen.elapsed_s(frozen.last_at + 3600) == frozen.elapsed_s(frozen.last_at)
    await campaign.order("stop")
    await task


async def test_one_agent_pauses_alone(lab) -> None:
    campaign = lab(slowly_better, delay_s=0.01, agents=2, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 2)
    assert (await campaign.order("pause", agent="1", text="lunch")).ok
    await asyncio.sleep(0.1)
    one = (await campaign.until(lambda s: True)).agents["1"].candidates
    await campaign.until(lambda s: s.agents["2"].candidates >= 10)
    assert (await campaign.until(lambda s: True)).agents["1"].candidates == one
    assert campaign.bench.suspensions == 0
    assert (await campaign.order("pause", agent="2")).ok
    for _ in range(200):
        if campaign.bench.suspensions:
            break
        await asyncio.sleep(0.01)
    assert campaign.bench.suspensions == 1, "with everybody paused the device is given back too"
    assert (await campaign.order("resume", agent="1")).ok
    await campaign.until(lambda s: s.agents["1"].candidates > one)
    await campaign.order("stop")
    await task


async def test_stop_cancels_what_is_in_flight_at_once(lab) -> None:
    campaign = lab(slowly_better, delay_s=30.0)
    task = campaign.start()
    await asyncio.sleep(0.2)
    await campaign.order("stop")
    summary = await asyncio.wait_for(task, 5)
    assert summary.state is CampaignState.STOPPED and summary.candidates == 0


async def test_stopping_one_agent_leaves_the_others(lab) -> None:
    campaign = lab(slowly_better, delay_s=0.01, agents=2, candidates=20, draft_after=100, stop_after=200)
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 2)
    assert (await campaign.order("stop", agent="1")).ok
    summary = await task
    assert summary.agents["1"].stopped is StopReason.USER
    assert summary.agents["2"].candidates == 10, "what a stopped agent leaves is not redistributed"
    refused = [e for e in campaign.events(ev.CommandAnswered) if e.verb == "stop"]
    assert len(refused) == 1 and refused[0].args == {"agent": "1"}


async def test_a_forced_draft_is_the_next_proposal(lab) -> None:
    campaign = lab(slowly_better, delay_s=0.03, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 1)
    assert (await campaign.order("draft", agent="1")).ok
    seen = len(campaign.contexts)
    await campaign.until(lambda s: s.candidates >= seen + 5)
    modes = [context.mode for context in campaign.contexts[seen : seen + 5]]
    assert modes[0] is Mode.DRAFT and campaign.contexts[seen].forced_draft
    assert modes.count(Mode.DRAFT) <= 3
    assert campaign.events(ev.DraftLineOpened)[0].forced
    await campaign.order("stop")
    await task


async def test_who_hints_is_told_who_reads_prompts(lab) -> None:
    models = {"proposer": ["llm", "recipes"], "model": ["a/b"], "api_base": "http://localhost:1/v1"}
    for settings, asked, says in (
        ({}, "1", "on record, but agent 1 proposes from recipes and reads no prompt"),
        ({}, None, "on record, but every agent proposes from recipes and reads no prompt"),
        (models, "1", "the hint is in agent 1's next prompt"),
        (models, "2", "agent 2 proposes from recipes and reads no prompt"),
        (models, None, "the hint is in every agent's next prompt, but recipes read none"),
    ):
        campaign = lab(slowly_better, delay_s=0.03, agents=2, **LONG, **settings)
        task = campaign.start()
        await campaign.until(lambda s: s.candidates >= 1)
        answer = await campaign.order("hint", text="one pass", agent=asked)
        assert answer.ok and says in answer.text
        await campaign.order("stop")
        await task


async def test_a_hint_reaches_the_next_prompt_once(lab) -> None:
    campaign = lab(slowly_better, delay_s=0.03, agents=2, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 2)
    assert (await campaign.order("hint", text="one pass, \x1b[1monline", agent="1")).ok
    empty = await campaign.order("hint", text="  \x1b[2J ")
    assert not empty.ok
    await campaign.until(lambda s: s.candidates >= 12)
    hinted = [context for context in campaign.contexts if context.hints]
    assert len(hinted) == 1 and hinted[0].agent == "1"
    assert hinted[0].hints == ("one pass, online",)
    delivered = campaign.events(ev.HintDelivered)
    assert len(delivered) == 1 and delivered[0].position == hinted[0].position
    await campaign.order("stop")
    await task


async def test_a_veto_takes_the_best_back_everywhere(lab) -> None:
    replies = ["ms=0.9", "ms=0.7", *[f"ms=1.{i}" for i in range(100, 400)]]
    campaign = lab(in_order(replies), delay_s=0.02, **{**LONG, "candidates": 300})
    task = campaign.start()
    await campaign.until(lambda s: s.best == 2)
    answer = await campaign.order("veto", number=2, text="wrong for denormals")
    assert answer.ok and "#1" in answer.text
    summary = await campaign.until(lambda s: s.candidates >= 6)
    assert (summary.best, summary.agents["1"].best) == (1, 1)
    assert campaign.contexts[-1].best.number == 1 and campaign.contexts[-1].base.number == 1
    with campaign.reader() as reader:
        assert archived(reader.path) == [("1", 1, False), ("1", 2, True)]
        assert [row.candidate for row in reader.memory("win")] == [1]
    assert not (await campaign.order("veto", number=2)).ok
    assert not (await campaign.order("veto", number=99)).ok
    await campaign.order("stop")
    await task


async def test_budgets_can_grow_and_an_agent_that_ran_out_goes_on(lab) -> None:
    campaign = lab(
        lambda c: f"ms=1.{c.position:04d}" if c.agent == "1" else slowly_better(c),
        agents=2,
        delay_s=0.02,
        candidates=8,
        draft_after=100,
        stop_after=300,
    )
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 2)
    assert (await campaign.order("budget", candidates=12, minutes=5.0)).ok
    summary = await task
    assert [agent.candidates for agent in summary.agents.values()] == [6, 6]
    assert (summary.budget, summary.minutes) == (12, 5.0)
    with campaign.reader() as reader:
        assert reader.campaign().config.candidates == 12


async def test_strategy_can_be_chosen_by_a_person_and_given_back(lab) -> None:
    campaign = lab(slowly_better, delay_s=0.02, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 1)
    unknown = await campaign.order("strategy", agent="1", text="magic")
    assert not unknown.ok and "eligible here" in unknown.text
    not_here = await campaign.order("strategy", agent="1", text="native-tensor-core")
    assert not not_here.ok
    assert (await campaign.order("strategy", agent="1", text="memory-layout")).ok
    seen = len(campaign.contexts)
    await campaign.until(lambda s: s.candidates >= seen + 4)
    assert {context.strategy for context in campaign.contexts[seen:]} == {"memory-layout"}
    assert (await campaign.order("strategy", agent="1", text="auto")).ok
    assert not (await campaign.order("model", agent="1", text="openai/gpt")).ok
    await campaign.order("stop")
    await task


async def test_memory_can_be_pinned_noted_and_expired(lab) -> None:
    campaign = lab(in_order(["ms=0.8", *[f"ms=1.{i}" for i in range(100, 400)]]), delay_s=0.02, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.wins == 1)
    with campaign.reader() as reader:
        win = reader.memory("win")[0].id
    assert (await campaign.order("memory.pin", number=win)).ok
    assert (await campaign.order("memory.note", number=win, text="seen on two boxes")).ok
    with campaign.reader() as reader:
        entry = reader.memory_entry(win)
        assert entry.pinned and entry.note == "seen on two boxes"
    assert (await campaign.order("memory.expire", number=win)).ok
    assert not (await campaign.order("memory.expire", number=win)).ok
    assert not (await campaign.order("memory.pin", number=10_000)).ok
    seen = len(campaign.contexts)
    await campaign.until(lambda s: s.candidates >= seen + 2)
    assert campaign.contexts[-1].wins == ()
    await campaign.order("stop")
    await task


async def test_a_repeated_command_is_carried_out_once_and_every_answer_is_an_event(lab) -> None:
    campaign = lab(slowly_better, delay_s=0.02, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 1)
    order = command("hint", text="again", agent="1")
    first, second = await asend(campaign.folder, order), await asend(campaign.folder, order)
    assert first == second and first.seq > 0
    await campaign.order("hint", text="x", agent="7")
    answered = campaign.events(ev.CommandAnswered)
    assert [(e.verb, e.ok) for e in answered] == [("hint", True), ("hint", False)]
    assert len(campaign.events(ev.HintGiven)) == 1
    await campaign.order("stop")
    await task


async def test_a_candidate_measured_against_a_vetoed_best_is_measured_again(lab) -> None:
    replies = ["ms=0.5", *[f"ms=0.9 n={i}" for i in range(40)]]
    campaign = lab(in_order(replies), delay_s=0.15, **{**LONG, "candidates": 41})
    task = campaign.start()
    await campaign.until(lambda s: s.best == 1)
    calls = campaign.bench.calls
    async with asyncio.timeout(5):
        while campaign.bench.calls == calls or not campaign.bench.inside:
            await asyncio.sleep(0.005)
    assert (await campaign.order("veto", number=1)).ok
    await campaign.until(lambda s: s.candidates >= 2)
    second = campaign.events(ev.Verdict)[1]
    assert second.outcome == "KEEP", "0.9 ms is slower than the vetoed 0.5 ms, but faster than the seed"
    await campaign.order("stop")
    await task


async def test_a_budget_that_the_disk_refused_changes_nothing(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at once nor when the disk has room again."""
    campaign = lab(slowly_better, delay_s=0.02, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 1)
    session = campaign.launcher.session
    transact = session.writer.transact

    async def full(run: Any, *, durable: bool = False, keep: bool = True) -> Any:
        if durable and not keep:
            raise StoreError("the disk is full")
        return await transact(run, durable=durable, keep=keep)

    monkeypatch.setattr(session.writer, "transact", full)
    refused = await campaign.order("budget", candidates=900, max_cost_usd=3.0)
    assert not refused.ok and "disk is full" in refused.text
    assert (session.config.candidates, session.config.max_cost, session.summary.budget) == (500, None, 500)
    monkeypatch.setattr(session.writer, "transact", transact)
    assert (await campaign.order("budget", candidates=900)).ok
    assert (session.config.candidates, session.summary.budget) == (900, 900)
    await campaign.order("stop")
    await task


async def test_an_agent_that_ran_out_of_money_goes_on_when_there_is_more(lab) -> None:
    poor = True

    def spender(context):
        return BudgetSpent("the next call could pass the limit") if poor and context.agent == "2" else "ms=1"

    campaign = lab(spender, agents=2, delay_s=0.02, max_cost=1.0, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.agents["2"].stopped is StopReason.COST)
    assert (await campaign.order("budget", minutes=60.0)).ok
    assert (await campaign.until(lambda s: s.minutes == 60.0)).agents["2"].stopped is StopReason.COST
    poor = False
    assert (await campaign.order("budget", max_cost_usd=5.0)).ok
    await campaign.until(lambda s: s.agents["2"].candidates >= 2)
    await campaign.order("stop")
    await task


async def test_a_person_is_told_once_that_the_money_is_nearly_spent_until_there_is_more(lab) -> None:
    last = asyncio.Event()

    class Paid(StubProposer):
        async def propose(self, context: Any, live: Any) -> Any:
            if context.position == 20:
                await last.wait()
            reply = await super().propose(context, live)
            return msgspec.structs.replace(reply, usage=Usage(model="m", tokens_in=1, cost_usd=0.05))

    campaign = lab(slowly_better, max_cost=1.0, **LONG)
    campaign._build = lambda session, control: Paid(lambda c: f"ms=1.{c.position:03d}")
    task = campaign.start()
    await campaign.until(lambda s: s.candidates == 19)
    summary = await campaign.until(lambda s: bool(s.attention))
    assert [(note.code, note.text) for note in summary.attention] == [
        ("cost.90", "more than 90% of 1.00 USD are spent")
    ]
    assert (await campaign.order("budget", max_cost_usd=5.0)).ok
    await campaign.until(lambda s: not s.attention)
    assert [e.clear for e in campaign.events(ev.Attention)] == [False, True]
    last.set()
    await campaign.order("stop")
    await task
