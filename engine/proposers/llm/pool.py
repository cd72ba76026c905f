"""Which model an agent asks next, and which models are put aside for a while because they keep failing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from engine.proposers.llm.failures import ModelFailure
from engine.store.events import Attention, Event, ModelChosen

FAILURES = 3
"""Failed proposals in a row after which a model is put aside; a lasting failure (401, 404 …) counts at once."""
FIRST_REST_S = 30.0
LONGEST_REST_S = 600.0

Notify = Callable[[Event], Awaitable[None]]


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """One model's health. ``until`` is on the caller's monotonic clock; after it one probe is let through."""

    failures: int = 0
    rests: int = 0
    until: float = 0.0
    why: str = ""

    def resting(self, now: float) -> bool:
        return now < self.until

    def after_failure(self, now: float, why: str, *, lasting: bool) -> Breaker:
        """Opens (again) at the third failure in a row, at a lasting one, or when a probe fails."""
        failures = self.failures + 1
        if not lasting and not self.rests and failures < FAILURES:
            return msgspec.structs.replace(self, failures=failures, why=why)
        rest = min(LONGEST_REST_S, FIRST_REST_S * 2.0**self.rests)
        return Breaker(failures=failures, rests=self.rests + 1, until=now + rest, why=why)


class Served(msgspec.Struct, frozen=True):
    """A model as litellm names it, and the server it is asked at (``None``: the provider's own)."""

    name: str
    api_base: str | None = None


def served(name: str, api_base: str | None) -> Served:
    """``provider/model`` or ``provider/model@http://host:port/v1``; the second names its own server."""
    model, at, base = name.partition("@http")
    return Served(model, f"http{base}") if at else Served(name, api_base)


class ModelPool:
    """The campaign's models, shared by its agents.

    Each agent has a model of its own; with ``rotate`` it changes the model with every proposal, from there on.
    A model that is put aside is replaced by the next healthy one; if none is healthy the agent keeps its own, so
    that the reason its calls fail stays the real one. After a rest one agent's proposal is the probe: its failure
    alone makes the rest longer. What was asked before the rest or beside the probe says nothing new when it fails.
    """

    def __init__(
        self,
        models: Sequence[str],
        *,
        api_base: str | None = None,
        rotate: bool = False,
        notify: Notify | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not models:
            raise ValueError("a pool needs a model")
        self._models = [served(name, api_base) for name in models]
        self._api_base = api_base
        self._rotate = rotate
        self._notify = notify
        self._clock = clock
        self._breakers: dict[Served, Breaker] = {}
        self._probes: dict[Served, str] = {}  # the agent whose proposal is the probe
        self._contexts: dict[Served, int] = {}
        self._last: dict[str, Served] = {}

    @property
    def models(self) -> list[str]:
        return [model.name for model in self._models]

    def context_of(self, model: Served) -> int | None:
        """Its context window in tokens, as far as refusals of long prompts told; ``None``: none did."""
        return self._contexts.get(model)

    def learn_context(self, model: Served, tokens: int) -> None:
        """What one agent's refused prompt tells holds for the others too."""
        self._contexts[model] = min(tokens, self._contexts.get(model, tokens))

    def planned(self, own: str, turn: int) -> Served:
        """The model whose turn it is, whatever its health. ``own`` may be one that is not in the pool."""
        plain = served(own, self._api_base)
        known = next((i for i, m in enumerate(self._models) if m == plain), None)
        if known is None and "@http" not in own:  # a name alone means the server that the campaign has for it
            known = next((i for i, m in enumerate(self._models) if m.name == own), None)
        if known is None:
            return plain
        return self._models[(known + turn) % len(self._models) if self._rotate else known]

    async def choose(self, agent: str, own: str, turn: int) -> Served:
        """The planned model, or the next healthy one while that is put aside; a replacement is said aloud.

        The agent's earlier proposal is over with it; call :meth:`release` when this one is.
        """
        self.release(agent)
        first = self.planned(own, turn)
        start = next((i for i, m in enumerate(self._models) if m == first), -1)
        order = [first, *self._models[start + 1 :], *self._models[: start + 1]]
        chosen = next((m for m in order if self._may_ask(m)), first)
        if self._may_ask(chosen) and self._breaker(chosen).rests:
            self._probes[chosen] = agent
        previous = self._last.get(agent)
        self._last[agent] = chosen
        if chosen != first and previous != chosen:
            why = f"{self._label(first)} is put aside: {self._breaker(first).why}"
            await self._say(ModelChosen(agent=agent, model=self._label(chosen), why=why))
        elif previous not in (None, chosen) and not self._rotate:
            await self._say(ModelChosen(agent=agent, model=self._label(chosen), why="its own model again"))
        return chosen

    async def succeeded(self, model: Served) -> None:
        before = self._breakers.pop(model, None)
        self._probes.pop(model, None)
        if before is not None and before.rests:
            await self._say(Attention(code=self._code(model), text="", clear=True))

    async def failed(self, agent: str, model: Served, failure: ModelFailure) -> None:
        """The proposal of ``agent`` failed; while the model is put aside that counts of the probe alone."""
        before = self._breaker(model)
        if before.rests and self._probes.get(model) != agent:
            return
        self._probes.pop(model, None)
        why = f"{failure.reason}: {failure.detail}"
        now = self._clock()
        after = before.after_failure(now, why, lasting=failure.rule.lasting)
        self._breakers[model] = after
        if after.rests > before.rests:
            text = f"model {self._label(model)} is put aside for {after.until - now:.0f} s: {why}"
            await self._say(Attention(code=self._code(model), text=text))

    def release(self, agent: str) -> None:
        """The proposal of ``agent`` is over: if it was a probe that came to nothing, another may be one."""
        self._probes = {model: prober for model, prober in self._probes.items() if prober != agent}

    def _may_ask(self, model: Served) -> bool:
        """Healthy, or rested and without a probe under way."""
        return not self._breaker(model).resting(self._clock()) and model not in self._probes

    def _breaker(self, model: Served) -> Breaker:
        return self._breakers.get(model) or Breaker()

    def _label(self, model: Served) -> str:
        """Its name; with the server where the campaign asks one model at several."""
        twins = sum(other.name == model.name for other in self._models)
        return f"{model.name}@{model.api_base}" if twins > 1 and model.api_base else model.name

    def _code(self, model: Served) -> str:
        return f"model.put-aside:{self._label(model)}"

    async def _say(self, event: Event) -> None:
        if self._notify is not None:
            await self._notify(event)
