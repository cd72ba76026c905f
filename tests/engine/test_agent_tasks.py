"""Agents' lives, whoever changes them at once: one coroutine each, and none that nobody knows of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from stub_proposer import Exhausted, ProposerError, StubProposer, slowly_better

from engine.errors import BadInput, Fault
from engine.records import CampaignState, StopReason
from engine.store import events as ev

LONG = {"candidates": 500, "draft_after": 300, "stop_after": 400}


@asynccontextmanager
async def slowly_recorded(campaign: Any, kind: type, agent: str) -> AsyncIterator[asyncio.Event]:
    """An event of ``kind`` about ``agent`` takes long to be recorded; what is yielded is set when that begins."""
    session = campaign.launcher.session
    record, begun = session.record, asyncio.Event()

    async def slow(*events: ev.Event) -> None:
        await record(*events)
        if any(isinstance(event, kind) and event.agent == agent for event in events):  # type: ignore[attr-defined]
            begun.set()
            await asyncio.sleep(0.1)

    session.record = slow
    yield begun
    session.record = record


async def test_an_agent_that_is_renewed_twice_at_once_has_one_coroutine(lab) -> None:
    class Slow(StubProposer):
        async def close(self) -> None:
            await asyncio.sleep(0.05)
            await super().close()

    def build(session: Any, control: Any) -> Slow:
        made.append(Slow(slowly_better, pause_s=0.01))
        return made[-1]

    made: list[Slow] = []
    campaign = lab(slowly_better, **LONG)
    campaign._build = build
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 1)
    await asyncio.gather(*(campaign.launcher.agents.renew("1") for _ in range(3)))
    await asyncio.sleep(0.05)
    assert [one for one in made if not one.closed] == made[-1:]
    await campaign.order("stop")
    await task
    assert all(one.closed for one in made)


async def test_stopping_an_agent_while_anothers_end_is_recorded_ends_no_engine(lab) -> None:
    over = asyncio.Event()

    class Ending(StubProposer):
        async def propose(self, context: Any, live: Any) -> Any:
            await over.wait()
            raise Exhausted("the script is over")

    campaign = lab(slowly_better, agents=3)
    campaign._build = lambda session, control: (
        Ending(slowly_better) if control.spec.name != "3" else StubProposer(slowly_better, pause_s=0.05)
    )
    task = campaign.start()
    await campaign.until(lambda s: s.agents["3"].candidates >= 1)
    async with slowly_recorded(campaign, ev.AgentStopped, "1") as begun:
        over.set()
        await begun.wait()
        await campaign.order("stop", agent="2")
    summary = await asyncio.wait_for(task, 10)
    assert summary.agents["3"].stopped is StopReason.CANDIDATES
    assert [e.agent for e in campaign.events(ev.AgentStopped)] == ["1", "2", "3"]


async def test_an_agent_that_is_stopped_while_its_crash_is_recorded_is_not_started_again(lab) -> None:
    crash = asyncio.Event()

    class Crashing(StubProposer):
        async def propose(self, context: Any, live: Any) -> Any:
            proposed.append(context.position)
            await crash.wait()
            raise RuntimeError("boom")

    proposed: list[int] = []
    campaign = lab(slowly_better, agents=2, **LONG)
    campaign._build = lambda session, control: (
        Crashing(slowly_better) if control.spec.name == "1" else StubProposer(slowly_better, pause_s=0.01)
    )
    task = campaign.start()
    await campaign.until(lambda s: s.candidates >= 1)
    async with slowly_recorded(campaign, ev.AgentRestarted, "1") as begun:
        crash.set()
        await begun.wait()
        crash.clear()
        assert (await campaign.order("stop", agent="1")).ok
    await asyncio.sleep(0.05)
    seen = len(proposed)
    crash.set()
    await asyncio.sleep(0.1)
    assert len(proposed) == seen and not campaign.events(ev.AgentPaused)
    assert len(campaign.launcher.agents.running) == 1
    await campaign.order("stop")
    await task


async def test_an_agent_that_a_library_cancelled_has_crashed_and_goes_on(lab) -> None:
    class Cancelled(StubProposer):
        async def propose(self, context: Any, live: Any) -> Any:
            if context.position == 2 and not cancelled:
                cancelled.append(context.position)
                raise asyncio.CancelledError
            return await super().propose(context, live)

    cancelled: list[int] = []
    campaign = lab(slowly_better, candidates=3)
    campaign._build = lambda session, control: Cancelled(slowly_better)
    summary = await asyncio.wait_for(campaign.run(), 10)
    assert (summary.candidates, summary.stop_reason) == (3, StopReason.CANDIDATES)
    assert ["CancelledError" in e.why for e in campaign.events(ev.AgentRestarted)] == [True]


async def test_an_admission_that_a_library_cancelled_is_a_fault(lab) -> None:
    campaign = lab(slowly_better, bench={"raises": {"measure_baselines": asyncio.CancelledError()}})
    summary = await asyncio.wait_for(campaign.run(), 10)
    assert summary.stop_reason is StopReason.FAULT and "fault.admission" in summary.stop_detail


async def test_a_broken_agent_waits_for_a_person_whatever_model_it_is_given(lab) -> None:
    class Crashing(StubProposer):
        async def propose(self, context: Any, live: Any) -> Any:
            proposed.append(context.position)
            if broken:
                raise RuntimeError("boom")
            return await super().propose(context, live)

    broken, proposed = [True], []  # type: ignore[var-annotated]
    campaign = lab(slowly_better, delay_s=0.01, **LONG)
    campaign._build = lambda session, control: Crashing(slowly_better, pause_s=0.01)
    task = campaign.start()
    await campaign.until(lambda s: bool(s.agents and s.agents["1"].paused))
    await campaign.launcher.agents.renew("1")
    await asyncio.sleep(0.05)
    assert len(proposed) == 3 and not campaign.launcher.agents.running
    broken.clear()
    assert (await campaign.order("resume", agent="1")).ok
    summary = await campaign.until(lambda s: s.candidates >= 2)
    assert "breaker.open" not in {note.code for note in summary.attention}
    await campaign.order("stop")
    await task


async def test_nothing_is_started_in_a_campaign_that_is_ending(lab) -> None:
    campaign = lab(slowly_better, candidates=2)
    await campaign.run()
    agents = campaign.launcher.agents
    for change in (agents.resume, agents.renew):
        with pytest.raises(BadInput, match="is ending"):
            await change("1")
    agents.begin()
    assert not agents.running


# What a person's resume brings back


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.agent.backoff_s", lambda streak: 0.0)


class Model:
    """A model whose key can be mended."""

    def __init__(self, *without_key: str) -> None:
        self.without_key = set(without_key)

    def __call__(self, context: Any) -> Any:
        if context.agent in self.without_key:
            return ProposerError("model.auth", "bad key")
        return f"ms=1.{context.position:02d}{context.agent}"


async def test_a_campaign_that_ended_because_all_agents_failed_can_be_resumed(lab, no_waiting: None) -> None:
    model = Model("1", "2")
    campaign = lab(model, agents=2, candidates=4)
    ended = await campaign.run(end_when_stuck=True)
    assert ended.stop_reason is StopReason.FAULT
    assert {agent.stopped for agent in ended.agents.values()} == {StopReason.FAULT}
    assert {note.code for note in ended.attention} == {"agent.errors"}

    model.without_key.clear()
    summary = await asyncio.wait_for(campaign.run(end_when_stuck=True), 10)
    assert (summary.candidates, summary.stop_reason) == (4, StopReason.CANDIDATES)
    assert {(agent.paused, agent.error_streak) for agent in summary.agents.values()} == {("", 0)}
    assert not summary.attention
    with campaign.reader() as reader:
        assert reader.summary_at(reader.last_seq()) == summary


async def test_a_campaign_that_never_began_can_be_resumed_and_its_fault_does_not_stand(lab) -> None:
    gone: dict[str, BaseException] = {"measure_baselines": Fault("fault.device", "the device is gone")}
    campaign = lab(slowly_better, candidates=2, bench={"raises": gone})
    ended = await campaign.run()
    assert ended.stop_reason is StopReason.FAULT
    assert [note.code for note in ended.attention] == ["campaign.fault"]
    gone.clear()
    summary = await asyncio.wait_for(campaign.run(), 10)
    assert (summary.candidates, summary.attention) == (2, [])


async def test_what_a_person_stopped_or_paused_stays_so_when_the_rest_is_resumed(lab, no_waiting: None) -> None:
    model = Model("1")
    campaign = lab(model, agents=4, delay_s=0.01, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.agents and bool(s.agents["1"].paused) and s.candidates >= 3)
    assert (await campaign.order("pause", agent="2", text="lunch")).ok
    assert (await campaign.order("stop", agent="3")).ok
    task.cancel()
    await asyncio.wait({task})

    model.without_key.clear()
    again = campaign.start()
    summary = await campaign.until(lambda s: s.agents["1"].candidates >= 1)
    assert summary.agents["2"].paused == "user: lunch"
    assert summary.agents["3"].stopped is StopReason.USER
    live = campaign.launcher.session.agents
    assert [(live[name].paused, live[name].stopped) for name in "123"] == [
        ("", None),
        ("user", None),
        ("", StopReason.USER),
    ]
    assert [e.agent for e in campaign.events(ev.AgentResumed)] == ["1"]
    await campaign.order("stop")
    await again


async def test_resuming_a_running_engines_campaign_brings_broken_agents_back_too(lab, no_waiting: None) -> None:
    model = Model("1")
    campaign = lab(model, agents=2, delay_s=0.01, **LONG)
    task = campaign.start()
    await campaign.until(lambda s: s.agents and bool(s.agents["1"].paused))
    assert (await campaign.order("pause")).ok
    model.without_key.clear()
    assert (await campaign.order("resume")).ok
    summary = await campaign.until(lambda s: s.agents["1"].candidates >= 1)
    assert summary.state is CampaignState.RUNNING and not summary.attention
    await campaign.order("stop")
    await task
