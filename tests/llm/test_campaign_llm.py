"""Whole campaigns of LLM agents: real server, litellm and store; the bench reads verdicts off a comment."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from engine.config import PRESETS
from engine.host import serve
from engine.launch import create_campaign
from engine.presets import resolve
from engine.problems.model import Problem
from engine.proposers.llm import access
from engine.proposers.llm.calls import IN_FLIGHT
from engine.records import Evaluation, StopReason
from engine.store import events as ev
from engine.store.reader import StoreReader
from engine.store.summary import Summary
from tests.llm.test_proposer import ERRORS, REJECTS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:pydantic.*", "ignore::DeprecationWarning:litellm.*")

PRICED = "openai/gpt-4o"
NOUNS = re.findall(
    r"\w+",
    """wave lattice ember harbor violet granite meadow copper lantern thistle marble canyon willow
    falcon saffron glacier orchid timber cobalt juniper quartz raven summit tulip""",
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Short pauses; the reference is traced (a child that imports torch) in one test only."""
    if request.function is not test_two_agents_with_streaming_costs_and_memory:
        monkeypatch.setattr("engine.tracing.trace.trace_problem", _untraced)
    monkeypatch.setattr("engine.breaker.BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr("engine.proposers.llm.failures.FIRST_PAUSE_S", 0.02)


def _untraced(problem: Problem) -> dict[str, Any]:
    return {}


def answer(ms: float, number: int, *, run: str = "run") -> str:
    """A kernel that the fake bench times at ``ms``; words differ enough for memory to keep them apart."""
    first, second, third = (NOUNS[(number * k + k) % len(NOUNS)] for k in (1, 5, 7))
    about = (
        f"family: {first} {second}\nhypothesis: {first} beats {second} near {third}\nreflection: {third} {first}\n"
    )
    code = f'FAKE = "fake: ms={ms}"\ndef {run}(x, eps):\n    return x * {number}\n'
    return f"```yaml\n{about}```\n\n```python kernel.py\n{code}```\n"


def improving(
    api: ModuleType, start: float = 0.95, step: float = 0.95, chunk: int = 40, pause_s: float = 0.005
) -> Callable[[dict[str, Any]], Any]:
    """Every reply is five per cent faster than the one before, in numbered programs."""
    count = 0

    def choose(body: dict[str, Any]) -> Any:
        nonlocal count
        count += 1
        return api.Reply(
            answer(round(start * step**count, 6), count), usage=(1200, 300), chunk=chunk, pause_s=pause_s
        )

    return choose


class Campaign:
    def __init__(self, problem: Problem, bench: Any, server: Any, settings: dict[str, Any]) -> None:
        explicit = {
            "proposer": ["llm"],
            "model": [PRICED],
            "api_base": server.base_url,
            "candidates": 6,
            "proposal_deadline_s": 20.0,
            "reply_tokens": 1000,
            **settings,
        }
        self.folder: Path = create_campaign(resolve(explicit), problem)
        self._bench = bench
        self.launcher: Any = None

    async def run(self, started: Callable[[Any], None] | None = None) -> Summary:
        def begun(launcher: Any) -> None:
            self.launcher = launcher
            if started is not None:
                started(launcher)

        return await serve(self.folder, bench=self._bench, end_when_stuck=True, started=begun)

    def reader(self) -> StoreReader:
        return StoreReader(self.folder)

    def events(self, *kinds: type) -> list[Any]:
        with self.reader() as reader:
            return [item.event for item in reader.events(0, 100_000) if isinstance(item.event, kinds)]

    def prompts(self) -> list[str]:
        """By candidate number."""
        with self.reader() as reader:
            rows = reader.candidates_after(0, 1000)
            return [reader.blob(row.prompt).decode() if row.prompt else "" for row in rows]


@pytest.fixture
def campaign(problem: Problem, server: Any) -> Callable[..., Campaign]:
    from tests.llm.conftest import _fixture

    bench = _fixture("fake_bench").FakeBench
    return lambda **settings: Campaign(problem, bench, server, settings)


async def test_two_agents_with_streaming_costs_and_memory(campaign: Any, server: Any, api: ModuleType) -> None:
    server.default = improving(api, chunk=10, pause_s=0.02)  # longer than a live row waits to be written
    run = campaign(agents=2, candidates=6)
    task = asyncio.create_task(run.run())
    grown = 0
    while not task.done():
        await asyncio.sleep(0.05)
        with run.reader() as reader:
            grown += any(row.reply and "fake" not in row.reply for row in reader.live())
    summary = await task
    assert (summary.candidates, summary.outcomes.get("KEEP", 0) > 2, summary.errors) == (6, True, 0)
    assert grown, "somebody who looked saw a reply before it was complete"

    with run.reader() as reader:
        totals = reader.ledger_totals()
    per_call = 1200 * 2.5e-6 + 300 * 1e-5
    assert totals.charged_usd == pytest.approx(6 * per_call) == summary.cost_usd
    assert summary.tokens == 6 * 1500 and totals.reserved_usd == 0
    verdicts = run.events(ev.Verdict)
    assert all(v.cost_usd == pytest.approx(per_call) and v.model == PRICED for v in verdicts)
    assert summary.wins > 0

    last = run.prompts()[-1]
    assert "What worked, and why" in last and "before→after" in last
    assert "# Your last tries, newest first" in last and "KEEP" in last
    assert all(p.count("# How to answer") == 1 for p in run.prompts())


async def test_a_reject_takes_a_position_and_is_fed_back_in_words(
    campaign: Any, server: Any, api: ModuleType
) -> None:
    bad = api.Reply("```python\ndef forward(x):\n    return x\n```")
    server.script.extend([bad, bad])
    server.default = improving(api)
    run = campaign(agents=1, candidates=2)
    await run.run()
    first, second = run.events(ev.Verdict)
    assert (first.outcome, first.reason, first.position, first.r) == ("REJECT", "reply.wrong-entry-point", 1, 0)
    assert second.position == 2
    assert "reply.wrong-entry-point: no block defines a top-level run(…); it defines forward" in run.prompts()[1]


async def test_what_failed_is_shown_to_its_author_and_a_draft_line_goes_on_with_it(
    campaign: Any, server: Any, api: ModuleType
) -> None:
    wrong = [
        answer(1.0, number).replace("fake: ms=1.0", f"fake: fail=wrong.numerical n{number}") for number in (1, 2)
    ]
    server.script.extend(api.Reply(text) for text in [*wrong, answer(1.01, 3), answer(0.5, 4)])
    run = campaign(agents=1, candidates=4, draft_after=1, stop_after=4)
    await run.run()
    rows = run.events(ev.Verdict)
    assert [v.outcome for v in rows] == ["REVERT", "REVERT", "ACCEPT", "KEEP"]
    assert len({v.strategy for v in rows[1:]}) == 1 and rows[0].strategy != rows[1].strategy
    begun, second, third = run.prompts()[1:]
    assert "# This time: draft\n" in begun and "Write another algorithm" in begun
    assert "# The program of candidate 1," in begun and "fake: fail=wrong.numerical n1" in begun
    assert "# This time: draft, try 2 of 3" in second and "fake: fail=wrong.numerical n2" in second
    assert "# This time: draft, try 3 of 3" in third and "which failed" not in third
    assert "the last correct candidate of this draft line, 3" in third and "fake: ms=1.01" in third


@pytest.mark.parametrize("name", [*ERRORS, *REJECTS])
async def test_a_campaign_goes_on_whatever_one_of_its_models_does(
    name: str, campaign: Any, server: Any, api: ModuleType
) -> None:
    """Every ending of the table, in a campaign of two agents: nothing is lost, every position is used.

    A model without replies is put aside and the healthy one stands in; one whose replies are useless costs the
    positions that it took.
    """
    await access.load()  # three seconds, which a deadline this short has no room for
    case = {**ERRORS, **REJECTS}[name]
    good = improving(api)
    odd = case.behave(api)
    server.default = lambda body: odd if body["model"] == "odd" and odd else good(body)
    base = case.base or server.base_url
    run = campaign(agents=2, candidates=4, model=[PRICED, f"openai/odd@{base}"], proposal_deadline_s=3.0)
    summary = await run.run()
    assert (summary.candidates, summary.stop_reason) == (4, StopReason.CANDIDATES)
    verdicts = {(v.agent, v.position): v.reason for v in run.events(ev.Verdict)}
    assert sorted(verdicts) == [("1", 1), ("1", 2), ("2", 1), ("2", 2)]
    errors = run.events(ev.CandidateError)
    if name in ERRORS:
        assert {e.agent for e in errors} == {"2"} and {e.reason for e in errors} == {case.reason}
        assert 1 <= len(errors) <= 3 and summary.agents["2"].paused == ""
        assert PRICED in {e.model for e in run.events(ev.ModelChosen)}
    else:
        assert not errors and verdicts["2", 1] == verdicts["2", 2] == case.reason
    assert not verdicts["1", 1].startswith("reply.")
    with run.reader() as reader:
        totals = reader.ledger_totals()
    assert totals.reserved_usd == totals.reserved_tokens == 0
    assert (summary.cost_usd, summary.tokens) == (pytest.approx(totals.charged_usd), totals.tokens)


async def test_a_reply_is_paid_for_once_though_the_bench_failed(
    problem: Problem, server: Any, api: ModuleType
) -> None:
    """A fault of the machine asks no model again: the same reply is judged once more, at no further cost."""
    from tests.llm.conftest import _fixture

    failures = 1

    class Failing(_fixture("fake_bench").FakeBench):  # type: ignore[misc]
        def _verdict(self, *args: Any) -> Any:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                return Evaluation(verdict="ERROR", reason="fault.device", detail="gone for a moment")
            return super()._verdict(*args)

    server.default = improving(api)
    run = Campaign(problem, Failing, server, {"agents": 1, "candidates": 2})
    summary = await run.run()
    assert (summary.candidates, summary.errors, len(server.requests)) == (2, 1, 2)
    with run.reader() as reader:
        assert summary.cost_usd == pytest.approx(reader.ledger_totals().charged_usd)
    assert not run.events(ev.ModelCharged), "and told with its verdict"


async def test_five_errors_pause_one_agent_and_the_other_goes_on(
    campaign: Any, server: Any, api: ModuleType
) -> None:
    good = improving(api)
    server.default = lambda body: api.Status(401, "bad key") if body["model"] == "broken" else good(body)
    run = campaign(agents=2, candidates=6, model=[PRICED, f"openai/broken@{server.base_url}"])
    # Without another healthy model nobody could stand in, so that the second agent really meets its own.
    from engine.proposers.llm import pool

    pool_choose = pool.ModelPool.choose

    async def own(self: Any, agent: str, model: str, turn: int) -> Any:
        return self.planned(model, turn)

    pool.ModelPool.choose = own  # type: ignore[method-assign]
    try:
        summary = await run.run()
    finally:
        pool.ModelPool.choose = pool_choose  # type: ignore[method-assign]
    one, two = summary.agents.values()
    assert (one.candidates, two.candidates) == (3, 0)
    assert (two.errors, two.r) == (5, 0) and "model.auth" in two.paused
    assert [e.streak for e in run.events(ev.CandidateError)] == [1, 2, 3, 4, 5]
    assert any("put aside" in note.text for note in summary.attention)


async def test_another_model_stands_in_for_one_that_fails(campaign: Any, server: Any, api: ModuleType) -> None:
    good = improving(api)
    server.default = lambda body: api.Status(404) if body["model"] == "gone" else good(body)
    run = campaign(agents=2, candidates=6, model=["openai/gone", PRICED])
    summary = await run.run()
    assert summary.candidates == 6 and 1 <= summary.errors <= 2
    chosen = run.events(ev.ModelChosen)
    assert chosen and chosen[0].model == PRICED and "put aside" in chosen[0].why


async def test_the_cost_cap_ends_the_campaign_and_is_never_passed(
    campaign: Any, server: Any, api: ModuleType
) -> None:
    server.default = improving(api)
    run = campaign(agents=4, candidates=100, max_cost=0.15)
    summary = await run.run()
    assert summary.stop_reason is StopReason.COST
    with run.reader() as reader:
        totals = reader.ledger_totals()
    assert 0.05 < totals.charged_usd <= 0.15 and totals.reserved_usd == 0
    assert summary.cost_usd == pytest.approx(totals.charged_usd)
    assert len(server.requests) == totals.calls


async def test_an_agent_that_waited_for_money_uses_what_comes_back(
    campaign: Any, server: Any, api: ModuleType
) -> None:
    """Of one agent, whose own call is still in flight: nobody else is there to have news."""
    await access.load()
    server.default = improving(api)
    run = campaign(agents=1, candidates=2, max_cost=1.0, proposal_deadline_s=1.0)
    held: list[asyncio.Task[int]] = []

    def hold(launcher: Any) -> None:
        held.append(asyncio.create_task(launcher.session.writer.reserve("1", PRICED, 0.999, 1000)))

    task = asyncio.create_task(run.run(hold))
    while not any(row.detail == IN_FLIGHT for row in live_rows(run)):
        await asyncio.sleep(0.05)
    await asyncio.sleep(2.0)  # more than a proposal's time
    assert not task.done() and not server.requests
    await run.launcher.session.writer.settle(await held[0], 0.0, 0, 0)
    summary = await asyncio.wait_for(task, 10)
    assert (summary.candidates, summary.stop_reason) == (2, StopReason.CANDIDATES)
    assert summary.errors == 0 and all(note.level == "info" for note in summary.attention)
    assert [(v.agent, v.position) for v in run.events(ev.Verdict)] == [("1", 1), ("1", 2)]


def live_rows(run: Campaign) -> list[Any]:
    with run.reader() as reader:
        return reader.live()


async def test_stopping_hangs_up_and_charges_what_was_in_flight(
    campaign: Any, server: Any, api: ModuleType
) -> None:
    server.default = api.HangMid("```python\ndef run")
    run = campaign(agents=2)
    task = asyncio.create_task(run.run())
    while server.open_now < 2:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    run.launcher.request_stop()
    summary = await asyncio.wait_for(task, 5)
    assert summary.stop_reason is StopReason.USER and summary.candidates == 0
    with run.reader() as reader:
        totals = reader.ledger_totals()
    assert totals.lost == 2 and totals.reserved_usd == 0
    assert summary.cost_usd == pytest.approx(totals.charged_usd), "money of no verdict is shown all the same"


async def test_an_unknown_price_is_shown_as_unknown(campaign: Any, server: Any, api: ModuleType) -> None:
    server.default = improving(api)
    run = campaign(agents=1, candidates=2, model=["openai/local"])
    summary = await run.run()
    assert summary.cost_unknown and summary.cost_usd == 0 and summary.tokens == 3000
    assert all(v.cost_usd is None for v in run.events(ev.Verdict))


async def test_the_three_configurations_differ_in_the_documented_settings_only(
    campaign: Any, server: Any, api: ModuleType
) -> None:
    """Proven on what the models were told and on what is stored."""
    told: dict[str, list[tuple[str, str]]] = {}
    stored: dict[str, dict[str, Any]] = {}
    wins: dict[str, int] = {}
    for config in PRESETS:
        server.default = improving(api, step=0.97)
        run = campaign(config=config, candidates=24, prompt_tokens=200_000)
        await run.run()
        with run.reader() as reader:
            rows = reader.candidates_after(0, 100)
            wins[config] = len(reader.memory(kind="win"))
            stored[config] = msgspec.to_builtins(reader.campaign().config)
        told[config] = [(row.agent, prompt) for row, prompt in zip(rows, run.prompts(), strict=True)]

    documented = {"config", "agents", "memory", "wins", "traps", "leaderboard"}
    differing = {key for key in stored["single"] if len({str(one[key]) for one in stored.values()}) > 1}
    assert differing <= documented
    assert [len({agent for agent, _ in told[config]}) for config in PRESETS] == [1, 2, 2]
    first = {next(prompt for agent, prompt in told[config] if agent == "1") for config in PRESETS}
    assert len(first) == 1, "before anything is known the three say the same, to the letter"

    headings = {config: {_kind(line) for _, p in told[config] for line in p.splitlines()} for config in PRESETS}
    assert headings["multi-bounded"] == headings["multi-unbounded"]
    assert headings["multi-bounded"] - headings["single"] == {"# Faster siblings"}

    shown = {config: max(p.count("before→after: ") for _, p in told[config]) for config in PRESETS}
    assert (wins["single"], wins["multi-bounded"]) == (16, 16) and wins["multi-unbounded"] > 16
    assert shown["single"] <= 16 and shown["multi-bounded"] <= 16 < shown["multi-unbounded"]


def _kind(line: str) -> str:
    """The heading that a line is, without what it names; empty for any other line."""
    return line.partition(":")[0] if line.startswith("# ") else ""


async def test_private_memory_holds_nothing_of_the_other_agent(
    campaign: Any, server: Any, api: ModuleType
) -> None:
    """Two agents, each with the wins of its own candidates only; shared, they see each other's."""
    foreign: dict[str, bool] = {}
    for memory in ("private", "shared"):
        server.default = improving(api, step=0.97)
        run = campaign(candidates=10, memory=memory, leaderboard=False)
        await run.run()
        with run.reader() as reader:
            rows = reader.candidates_after(0, 100)
        ideas = {agent: {row.hypothesis for row in rows if row.agent == agent} for agent in ("1", "2")}
        foreign[memory] = any(
            idea in prompt
            for row, prompt in zip(rows, run.prompts(), strict=True)
            for idea in ideas["2" if row.agent == "1" else "1"] - ideas[row.agent]
        )
    assert foreign == {"private": False, "shared": True}


async def test_a_recipe_agent_beside_an_llm_tunes_what_the_model_declared(
    campaign: Any, server: Any, api: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no recipe fits, the tuner waits for the model's KEEP, tries its numbers, and ends with the model."""

    async def none_fits(session: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setattr("engine.proposers.recipes.proposer.fitting", none_fits)
    tunable = answer(0.5, 1).replace("def run", "BLOCK = 64  # tune: 32, 64, 128\n\n\ndef run")
    server.default = lambda body: api.Reply(
        tunable if len(server.requests) == 1 else answer(2.0, len(server.requests)), before_s=0.3
    )
    run = campaign(agents=2, candidates=8, proposer=["llm", "recipes"])
    summary = await run.run()
    first, *_ = [prompt for prompt in run.prompts() if prompt]
    assert "`BLOCK = 128  # tune: 64, 128, 256`" in first
    tuned = [v for v in run.events(ev.Verdict) if v.agent == "2"]
    assert [v.family for v in tuned] == ["tuning", "tuning"], "32 and 128"
    with run.reader() as reader:
        sources = [reader.solution(v.number).entry_source for v in tuned]
    assert {re.search(r"BLOCK = (\d+)", source)[1] for source in sources} == {"32", "128"}  # type: ignore[index]
    tuner = summary.agents["2"]
    assert (tuner.stopped, tuner.errors) == (StopReason.CANDIDATES, 0)
    assert summary.agents["1"].candidates == 4 and summary.stop_reason is StopReason.CANDIDATES


async def test_a_skill_edited_meanwhile_is_in_the_next_prompt(
    campaign: Any, server: Any, api: ModuleType, private_home: Path
) -> None:
    folder = private_home / "config" / "kernelarc" / "skills" / "my-lens"
    folder.mkdir(parents=True)
    head = "---\nname: my-lens\ndescription: a user's own lens\n---\n"
    (folder / "SKILL.md").write_text(f"{head}Look at the first thing.\n")
    server.default = improving(api)
    run = campaign(agents=1, candidates=60, strategies=["my-lens"])
    task = asyncio.create_task(run.run())
    while len(server.requests) < 3:
        await asyncio.sleep(0.01)
    (folder / "SKILL.md").write_text(f"{head}Look at the second thing.\n")
    await asyncio.wait_for(task, 60)
    prompts = run.prompts()
    assert "the first thing" in prompts[0] and "the second thing" in prompts[-1]
    assert [(e.name, e.ok) for e in run.events(ev.SkillReloaded)] == [("my-lens", True)]
