"""One streamed call through litellm. litellm is imported at the first call, in a thread: it takes three seconds.

No network before the first call, no retries of litellm's own, nothing on standard output, no key of ours anywhere:
litellm finds keys in the environment by its own rules.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from engine.proposers.llm.failures import ModelFailure, classify
from engine.proposers.llm.money import Counted, Message, Price
from engine.proposers.llm.pool import Served
from engine.proposers.llm.reply import MAX_REPLY
from engine.proposers.llm.window import Window
from engine.text import one_line

ASKED_OVER_THE_NETWORK = frozenset({"ollama", "ollama_chat", "huggingface", "lemonade"})
"""Providers whose models litellm would look up at their server."""
MOST_TOKENS = 100_000_000
"""More is no count of one call's tokens: no model reads or writes nearly as many."""
UNUSED_KEY = "none"
"""Sent to a server of one's own when the environment has no key: its client insists on having one."""
NO_REPLY = "the server's answer holds no reply; is this the address of a model's API?"


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the reply. ``thinking``: the model works, but what it says is no part of the answer."""

    text: str = ""
    thinking: bool = False


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a reply. ``counted`` is ``None`` when the server said nothing about tokens that can be true."""

    finish_reason: str
    counted: Counted | None


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds to wait for the first piece, and between two."""

    first_s: float
    gap_s: float


log = logging.getLogger("kernelarc.engine")
_unlisted: set[str] = set()  # told once each
_loading: asyncio.Lock | None = None
_module: Any = None


async def load() -> Any:
    """litellm, imported once and in a thread. Raises :class:`ModelFailure` if it cannot be."""
    global _loading
    if _module is not None:
        return _module
    if _loading is None:
        _loading = asyncio.Lock()
    async with _loading:
        if _module is None:
            try:
                await asyncio.to_thread(_import)
            except ImportError as error:
                raise ModelFailure("model.misconfigured", f"litellm cannot be imported: {error}") from error
    return _module


def _import() -> None:
    global _module
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    for module in ("pydantic", "litellm"):  # notes on each other's deprecations, once per call
        warnings.filterwarnings("ignore", module=rf"{module}\b.*")
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "openai"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters comes back as a reason, without secrets
    litellm.drop_params = True
    litellm.num_retries = 0
    litellm.disable_streaming_logging = True
    litellm.disable_token_counter = True  # the server's count is the only one that is used
    asyncio.run(_rehearsal(litellm))
    _module = litellm


async def _rehearsal(litellm: Any) -> None:
    """A call that is answered inside litellm: what it loads at its first call is loaded here, in the thread."""
    said = [{"role": "user", "content": "x"}]
    stream = await litellm.acompletion(model="openai/gpt-4o", messages=said, stream=True, mock_response="y")
    async for _ in stream:
        pass


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What litellm's own table says of a model; ``None`` where it says nothing."""

    price: Price | None = None
    context: int | None = None  # tokens
    longest_reply: int | None = None  # tokens


async def facts_of(model: Served) -> ModelFacts:
    """Price and limits from litellm's local table, without a question to anybody's server."""
    litellm = await load()
    listed = _listed(litellm, _route(litellm, model))
    return ModelFacts(
        price=_price(listed),
        context=_tokens(listed.get("max_input_tokens")),
        longest_reply=_tokens(listed.get("max_output_tokens")),
    )


def _listed(litellm: Any, route: str) -> Mapping[str, Any]:
    """The table's row, empty if there is none.

    litellm's own look-up would ask some servers over the network, on the event loop, and take a price that is
    missing for nothing: only the row that it finds counts, as it stands.
    """
    table: Mapping[str, Any] = litellm.model_cost
    if route.partition("/")[0] in ASKED_OVER_THE_NETWORK:
        return table.get(route) or {}
    try:
        key = litellm.get_model_info(route).get("key")
    except Exception as error:  # noqa: BLE001 - border to litellm: whatever it raises, nothing is known
        if route not in _unlisted:
            _unlisted.add(route)
            log.info("model.not-listed: price and limits of %s are unknown: %s", route, one_line(str(error)))
        return {}
    return table.get(key) or {}


def _price(listed: Mapping[str, Any]) -> Price | None:
    """Thought is a part of the reply's tokens: where it costs more, the whole reply is taken to cost that."""
    prompt, reply = listed.get("input_cost_per_token"), listed.get("output_cost_per_token")
    if prompt is None or reply is None:
        return None
    cached = listed.get("cache_read_input_token_cost")
    thought = listed.get("output_cost_per_reasoning_token") or 0.0
    dearest = max(float(reply), float(thought))
    return Price(prompt=float(prompt), reply=dearest, cached=None if cached is None else float(cached))


def _tokens(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and value > 0 else None


async def stream(
    model: Served, messages: Sequence[Message], *, window: Window, patience: Patience, left_s: float
) -> AsyncGenerator[Chunk | End, None]:
    """Pieces of the reply and one :class:`End`. Raises :class:`ModelFailure`; close it to hang up.

    Reading stops past ``MAX_REPLY`` characters, with what has come so far and no count.
    """
    litellm = await load()
    started = False
    size = 0
    finish = ""
    try:
        async with _opened(litellm, model, messages, window, patience, left_s) as response:
            pieces = response.__aiter__()
            while True:
                wait = patience.gap_s if started else patience.first_s
                try:
                    async with asyncio.timeout(wait):
                        piece = await anext(pieces)
                except StopAsyncIteration:
                    break
                chunk, end = _read(piece)
                finish = end or finish
                if chunk is None:
                    continue
                started = True
                size += len(chunk.text)
                yield chunk
                if size > MAX_REPLY:
                    yield End(finish_reason="too-large", counted=None)
                    return
            counted = _counted(response, wrote=size > 0)
            if not getattr(response, "chunks", True):  # litellm ends a stream of nothing as if it had said "stop"
                raise ModelFailure("model.malformed", NO_REPLY, billed=True)
    except ModelFailure:
        raise
    except TimeoutError as error:
        what = "the stream stood still" if started else "no first token"
        wait = patience.gap_s if started else patience.first_s
        raise ModelFailure("model.timeout", f"{what} for {wait:g} s", billed=True) from error
    except Exception as error:  # the border to the model: everything becomes a reason code
        failure = classify(error, started=started)
        if failure.reason == "model.not-found" and model.api_base and "/v1" not in model.api_base:
            failure.detail += "; does the base URL lack its /v1?"
        raise failure from error
    yield End(finish_reason=finish or "stop", counted=counted)


@asynccontextmanager
async def _opened(
    litellm: Any,
    model: Served,
    messages: Sequence[Message],
    window: Window,
    patience: Patience,
    left_s: float,
) -> AsyncIterator[Any]:
    call = litellm.acompletion(
        model=_route(litellm, model),
        messages=[msgspec.to_builtins(message) for message in messages],
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=window.reply,
        num_retries=0,
        max_retries=0,
        timeout=left_s,
        **_server(litellm, model),
        **_asked_of_ollama(litellm, model, window),
    )
    async with asyncio.timeout(patience.first_s):
        response = await call
    try:
        yield response
    finally:
        close = getattr(response, "aclose", None)
        if close is not None:
            await close()


def _route(litellm: Any, model: Served) -> str:
    """``provider/model`` for litellm. Without a provider, a server of one's own speaks the OpenAI API."""
    provider = model.name.partition("/")[0]
    known = "/" in model.name and any(getattr(p, "value", p) == provider for p in litellm.provider_list)
    return model.name if known or model.api_base is None else f"openai/{model.name}"


def _server(litellm: Any, model: Served) -> dict[str, Any]:
    if model.api_base is None:
        return {}
    needs_key = _route(litellm, model).startswith("openai/") and not os.environ.get("OPENAI_API_KEY")
    return {"api_base": model.api_base, "api_key": UNUSED_KEY} if needs_key else {"api_base": model.api_base}


def _asked_of_ollama(litellm: Any, model: Served, window: Window) -> dict[str, Any]:
    """Ollama gives a model the window that a request asks for, and cuts what does not fit without a word."""
    ollama = _route(litellm, model).partition("/")[0] in ("ollama", "ollama_chat")
    return {"num_ctx": window.context} if ollama and window.context else {}


def _read(piece: Any) -> tuple[Chunk | None, str]:
    """Text and finish reason of one piece; servers leave any part out."""
    choices = getattr(piece, "choices", None) or ()
    if not choices:
        return None, ""
    delta = getattr(choices[0], "delta", None)
    finish = getattr(choices[0], "finish_reason", None) or ""
    text = getattr(delta, "content", None)
    if isinstance(text, str) and text:
        return Chunk(text=text), str(finish)
    if getattr(delta, "reasoning_content", None):
        return Chunk(thinking=True), str(finish)
    return None, str(finish)


def _counted(response: Any, *, wrote: bool) -> Counted | None:
    """Usage that the server itself reported; litellm's own estimate at the end of a stream is not one.

    A count that cannot be true says nothing: below zero it would give money back, and none of a reply that
    arrived (``wrote``) would make it free.
    """
    for piece in reversed(list(getattr(response, "chunks", None) or ())):
        usage = getattr(piece, "usage", None)
        if usage is not None:
            details = getattr(usage, "prompt_tokens_details", None)
            counts = [
                int(getattr(holder, name, 0) or 0)
                for holder, name in (
                    (usage, "prompt_tokens"),
                    (usage, "completion_tokens"),
                    (details, "cached_tokens"),
                )
            ]
            prompt, reply, cached = counts
            possible = (
                all(0 <= count <= MOST_TOKENS for count in counts) and prompt > 0 and (reply > 0 or not wrote)
            )
            return Counted(prompt=prompt, reply=reply, cached=cached) if possible else None
    return None
