"""Which model is asked, which is put aside, and how long to wait."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.proposers.llm.failures import RULES, ModelFailure, classify, pause_s
from engine.proposers.llm.pool import FIRST_REST_S, LONGEST_REST_S, Breaker, ModelPool, Served, served
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
    await pool.failed("a", failing("model.auth"))
    assert (await pool.choose("1", "a", 1)).name == "b"
    assert (await pool.choose("1", "a", 2)).name == "b"
    clock.now = FIRST_REST_S + 1
    assert (await pool.choose("1", "a", 3)).name == "a"
    await pool.succeeded("a")
    kinds = [(type(event), getattr(event, "clear", None)) for event in said]
    assert kinds == [(Attention, False), (ModelChosen, None), (ModelChosen, None), (Attention, True)]


async def test_without_a_healthy_model_the_agent_keeps_its_own() -> None:
    pool = ModelPool(["a"], clock=Clock())
    await pool.failed("a", failing("model.auth"))
    assert (await pool.choose("1", "a", 1)).name == "a"


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
