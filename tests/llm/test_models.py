"""Which model is asked, which is put aside, and how long to wait."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.proposers.llm.failures import RULES, ModelFailure, classify, pause_s
from engine.proposers.llm.pool import FIRST_REST_S, LONGEST_REST_S, Breaker, ModelPool, Served, served
from engine.proposers.llm.window import Window, narrower, said_limit, window
from engine.store.events import Attention, ModelChosen


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def failing(reason: str = "model.server-error") -> ModelFailure:
    return ModelFailure(reason, "no")


def test_a_server_of_its_own_is_part_of_the_name() -> None:
    assert served("openai/gpt-5", None) == Served("openai/gpt-5", None)
    assert served("openai/q@http://box:8000/v1", "http://other") == Served("openai/q", "http://box:8000/v1")
    assert served("bedrock/a@v2", "http://other") == Served("bedrock/a@v2", "http://other")


def test_agents_keep_their_model_or_rotate() -> None:
    fixed = ModelPool(["a", "b", "c"])
    assert [fixed.planned("b", turn).name for turn in range(4)] == ["b"] * 4
    rotating = ModelPool(["a", "b", "c"], rotate=True)
    assert [rotating.planned("b", turn).name for turn in range(4)] == ["b", "c", "a", "b"]
    assert rotating.planned("mine", 3).name == "mine", "a person's choice is no part of the rotation"


def test_the_breaker_opens_at_the_third_failure_and_rests_longer_each_time() -> None:
    breaker = Breaker()
    for _ in range(2):
        breaker = breaker.after_failure(0.0, "500", lasting=False)
        assert not breaker.resting(0.0)
    rests = []
    now = 0.0
    for _ in range(8):
        breaker = breaker.after_failure(now, "500", lasting=False)
        rests.append(breaker.until - now)
        now = breaker.until
        assert breaker.resting(now - 1) and not breaker.resting(now), "then one probe is let through"
    assert rests[:3] == [FIRST_REST_S, 2 * FIRST_REST_S, 4 * FIRST_REST_S]
    assert rests[-1] == LONGEST_REST_S


def test_a_lasting_failure_opens_it_at_once() -> None:
    assert Breaker().after_failure(0.0, "401", lasting=True).resting(1.0)


async def test_a_model_put_aside_is_replaced_and_comes_back() -> None:
    clock, said = Clock(), []

    async def notify(event: Any) -> None:
        said.append(event)

    pool = ModelPool(["a", "b"], notify=notify, clock=clock)
    assert (await pool.choose("1", "a", 0)).name == "a"
    await pool.failed("1", Served("a"), failing("model.auth"))
    assert (await pool.choose("1", "a", 1)).name == "b"
    assert (await pool.choose("1", "a", 2)).name == "b"
    clock.now = FIRST_REST_S + 1
    assert (await pool.choose("1", "a", 3)).name == "a"
    await pool.succeeded(Served("a"))
    kinds = [(type(event), getattr(event, "clear", None)) for event in said]
    assert kinds == [(Attention, False), (ModelChosen, None), (ModelChosen, None), (Attention, True)]


def listening() -> tuple[list[Any], Any]:
    said: list[Any] = []

    async def notify(event: Any) -> None:
        said.append(event)

    return said, notify


AGENTS = ("1", "2", "3", "4", "5")


async def test_agents_that_fail_together_put_a_model_aside_once() -> None:
    clock, (said, notify) = Clock(), listening()
    pool = ModelPool(["a"], notify=notify, clock=clock)
    for agent in AGENTS:
        await pool.choose(agent, "a", 0)
    for agent in AGENTS:
        clock.now += 0.1
        await pool.failed(agent, Served("a"), failing("model.auth"))
    assert ["for 30 s" in event.text for event in said] == [True]
    for agent in AGENTS:  # there is no other model, so they ask it all the same while it rests
        await pool.choose(agent, "a", 1)
        await pool.failed(agent, Served("a"), failing("model.auth"))
    assert len(said) == 1, "nothing that was not known"


async def test_after_a_rest_one_agent_probes_and_the_others_ask_elsewhere() -> None:
    clock, (said, notify) = Clock(), listening()
    pool = ModelPool(["a", "b"], notify=notify, clock=clock)
    await pool.choose("1", "a", 0)
    await pool.failed("1", Served("a"), failing("model.auth"))
    clock.now = FIRST_REST_S + 1
    assert [(await pool.choose(agent, "a", 1)).name for agent in AGENTS] == ["a", "b", "b", "b", "b"]
    await pool.failed("2", Served("a"), failing("model.auth"))  # asked before the rest, answered only now
    assert (await pool.choose("3", "a", 2)).name == "b", "the probe is still under way"
    await pool.failed("1", Served("a"), failing("model.auth"))
    clock.now += FIRST_REST_S + 1
    assert (await pool.choose("1", "a", 2)).name == "b", "it rests twice as long now"
    texts = [event.text for event in said if isinstance(event, Attention)]
    assert ["for 30 s" in texts[0], "for 60 s" in texts[1]] == [True, True] and len(texts) == 2


@pytest.mark.parametrize("over", ["released", "chosen again"])
async def test_a_probe_that_comes_to_nothing_lets_another_one_through(over: str) -> None:
    clock = Clock()
    pool = ModelPool(["a", "b"], clock=clock)
    await pool.choose("1", "a", 0)
    await pool.failed("1", Served("a"), failing("model.auth"))
    clock.now = FIRST_REST_S + 1
    assert (await pool.choose("1", "a", 1)).name == "a"
    if over == "released":
        pool.release("1")
        assert (await pool.choose("2", "a", 1)).name == "a"
    else:
        assert (await pool.choose("1", "a", 1)).name == "a"


async def test_without_a_healthy_model_the_agent_keeps_its_own() -> None:
    pool = ModelPool(["a"], clock=Clock())
    await pool.failed("1", Served("a"), failing("model.auth"))
    assert (await pool.choose("1", "a", 1)).name == "a"


async def test_one_model_at_two_servers_is_two_models() -> None:
    """Each agent asks its own server, and only the one that fails is put aside."""
    said = []

    async def notify(event: Any) -> None:
        said.append(event)

    names = ["openai/q@http://one/v1", "openai/q@http://two/v1"]
    pool = ModelPool(names, notify=notify, clock=Clock())
    one, two = Served("openai/q", "http://one/v1"), Served("openai/q", "http://two/v1")
    assert [pool.planned(name, 0) for name in names] == [one, two]
    assert pool.planned("openai/q", 0) == one, "a name alone means a server that the campaign has for it"
    await pool.failed("2", two, failing("model.auth"))
    assert (await pool.choose("1", names[0], 1), await pool.choose("2", names[1], 1)) == (one, one)
    assert "openai/q@http://two/v1 is put aside" in said[0].text and said[1].model == names[0]


async def test_what_one_agent_learns_of_a_window_holds_for_all() -> None:
    pool = ModelPool(["a", "b"])
    assert pool.context_of(Served("a")) is None
    pool.learn_context(Served("a"), 8192)
    pool.learn_context(Served("a"), 16384)
    assert (pool.context_of(Served("a")), pool.context_of(Served("b"))) == (8192, None)


@pytest.mark.parametrize(
    ("context", "longest", "expected"),
    [
        (None, None, Window(prompt=24000, reply=16000)),
        (None, 4096, Window(prompt=24000, reply=4096)),
        (200_000, 64_000, Window(prompt=24000, reply=16000, context=200_000)),
        (32_768, None, Window(prompt=16_512, reply=16000, context=32_768)),
        (8192, 4096, Window(prompt=3840, reply=4096, context=8192)),
        (8192, 1000, Window(prompt=6936, reply=1000, context=8192)),
    ],
)
def test_prompt_and_reply_share_the_window(context: int | None, longest: int | None, expected: Window) -> None:
    assert window(prompt=24000, reply=16000, context=context, longest_reply=longest) == expected


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("This model's maximum context length is 8192 tokens. However, you requested 40000 tokens", 8192),
        ("the request exceeds the available context size (4096 tokens), try increasing it", 4096),
        ("Error code: 400 - {'error': {'code': 400, 'n_prompt_tokens': 9000, 'n_ctx': 8192}}", 8192),
        ("prompt is too long: 208310 tokens > 200000 maximum", 200_000),
        ("exceeds the maximum number of tokens allowed (1048576)", 1_048_576),
        ("your prompt is too long", None),
    ],
)
def test_the_window_that_a_refusal_names(text: str, limit: int | None) -> None:
    assert said_limit(text) == limit
    failure = classify(RuntimeError(f"{text} maximum context"))
    assert (failure.reason, failure.context_tokens) == ("model.context-too-long", limit)


def test_a_refused_prompt_gets_a_smaller_window_until_none_is_left() -> None:
    unknown = window(prompt=24000, reply=16000, context=None)
    assert narrower(unknown, 8192) == 8192
    assert narrower(unknown, None) == 20_000, "half of what was sent"
    kept_to = window(prompt=24000, reply=16000, context=8192)
    assert narrower(kept_to, 8192) == 6144, "the estimate was too low: less again"
    assert narrower(kept_to, 10) is None and narrower(window(prompt=900, reply=300, context=1200), None) is None


@pytest.mark.parametrize("reason", sorted(RULES))
def test_tries_are_bounded_or_the_deadline_is(reason: str) -> None:
    rng, tries, waited = random.Random(0), 0, 0.0
    while True:
        tries += 1
        pause = pause_s(failing(reason), tries, 600.0 - waited, rng)
        if pause is None:
            break
        assert 0.5 <= pause <= 30
        waited += pause
    assert waited <= 600
    assert tries == RULES[reason].tries or (RULES[reason].tries == 0 and waited > 500)


def test_retry_after_is_taken_at_its_word_unless_it_passes_the_deadline() -> None:
    asked = ModelFailure("model.rate-limited", "", retry_after_s=42.0)
    assert pause_s(asked, 1, 600.0, random.Random(0)) == 42.0
    assert pause_s(asked, 1, 42.0, random.Random(0)) is None


def test_an_error_that_nobody_foresaw_is_still_a_failure_with_a_reason() -> None:
    failure = classify(RuntimeError("boom\nsecond line sk-abcdefghijklmnop"))
    assert failure.reason == "model.failed" and failure.billed
    assert "\n" not in failure.detail and "sk-abc" not in failure.detail
