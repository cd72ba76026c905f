"""What went wrong with a model call, as stable ``model.*`` codes, and what to do about it. Pure.

The table in ``docs/replies.md`` is the contract; :data:`RULES` is that table's left half.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from engine.proposers.llm.window import said_limit
from engine.text import one_line

TRIES = 4
"""Calls per proposal for failures that may pass; a rate limit is waited out until the deadline instead."""
TOO_LONG = "model.context-too-long"
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
SHORTEST_CALL_S = 1.0
"""With less than this left after a pause there is no point in trying again."""


class Rule(msgspec.Struct, frozen=True):
    """``tries``: calls in one proposal (0: until the deadline). ``lasting``: waiting will not help."""

    tries: int
    lasting: bool = False


RULES: dict[str, Rule] = {
    "model.auth": Rule(1, lasting=True),
    "model.forbidden": Rule(1, lasting=True),
    "model.not-found": Rule(1, lasting=True),
    "model.quota": Rule(1, lasting=True),
    "model.misconfigured": Rule(1, lasting=True),
    "model.bad-request": Rule(1),
    TOO_LONG: Rule(1),
    "model.refused": Rule(1),
    "model.rate-limited": Rule(0),
    "model.server-error": Rule(TRIES),
    "model.unreachable": Rule(TRIES),
    "model.timeout": Rule(2),
    "model.cut-stream": Rule(TRIES),
    "model.malformed": Rule(TRIES),
    "model.looping": Rule(2),
    "model.deadline": Rule(1),
    "model.failed": Rule(1),
}


class ModelFailure(Exception):
    """No reply. ``billed``: the server may have worked on the request, so it is charged in full.

    ``context_tokens`` is the model's window, where a refusal of a long prompt names it.
    """

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        retry_after_s: float | None = None,
        billed: bool = False,
        context_tokens: int | None = None,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail
        self.retry_after_s = retry_after_s
        self.billed = billed
        self.context_tokens = context_tokens

    @property
    def rule(self) -> Rule:
        return RULES[self.reason]


def classify(error: Exception, *, started: bool = False) -> ModelFailure:
    """An exception of litellm or of the network as a failure. ``started``: some of the reply had arrived."""
    reason = _reason(error, started)
    answered = (bool(_headers(error)) or _is_told(error)) and not started
    gateway = _status(error) in (408, 502, 504)
    nothing_sent = bool(_names(error) & _CONNECTION) or _is_local(error)
    return ModelFailure(
        reason,
        _detail(error),
        retry_after_s=_retry_after(error),
        billed=not nothing_sent and (gateway or not answered),
        context_tokens=said_limit(str(error)) if reason == TOO_LONG else None,
    )


def pause_s(failure: ModelFailure, tries: int, left_s: float, rng: random.Random) -> float | None:
    """How long to wait before the next call, or ``None`` to give up.

    ``tries`` calls were made, ``left_s`` seconds remain of the proposal. ``Retry-After`` is taken at its word,
    else the pause doubles from :data:`FIRST_PAUSE_S` up to :data:`LONGEST_PAUSE_S`, jittered down by up to half.
    """
    limit = failure.rule.tries
    if limit and tries >= limit:
        return None
    if failure.retry_after_s is not None:
        pause = failure.retry_after_s
    else:
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (tries - 1)) * rng.uniform(0.5, 1.0)
    return pause if pause + SHORTEST_CALL_S <= left_s else None


_BY_NAME = {
    "AuthenticationError": "model.auth",
    "CallerCredentialAuthenticationError": "model.auth",
    "PermissionDeniedError": "model.forbidden",
    "NotFoundError": "model.not-found",
    "PaymentRequiredError": "model.quota",
    "BudgetExceededError": "model.quota",
    "RateLimitError": "model.rate-limited",
    "CallerCredentialRateLimitError": "model.rate-limited",
    "ContextWindowExceededError": TOO_LONG,
    "ContentPolicyViolationError": "model.refused",
    "Timeout": "model.timeout",
    "APITimeoutError": "model.timeout",
    "TimeoutError": "model.timeout",
}
_BY_STATUS = {
    400: "model.bad-request",
    401: "model.auth",
    402: "model.quota",
    403: "model.forbidden",
    404: "model.not-found",
    408: "model.timeout",
    413: TOO_LONG,
    422: "model.bad-request",
    429: "model.rate-limited",
}
_CONNECTION = frozenset({"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror", "SSLError"})
"""There never was a connection. One that was lost may have carried a request, which is paid for."""
_LONG = ("context length", "context window", "context size", "maximum context", "prompt is too long")
_CUT = ("stream ended", "connection error", "peer closed", "incomplete", "server disconnected")


def _reason(error: Exception, started: bool) -> str:
    text = str(error).lower()
    if type(error).__name__ == "MidStreamFallbackError" or started:
        if type(error).__name__ in ("Timeout", "APITimeoutError", "TimeoutError"):
            return "model.timeout"
        if "repeating the same chunk" in text:
            return "model.looping"
        if _is_told(error):
            return "model.server-error" if started else _by_status(_told_code(error), "model.server-error")
        return "model.cut-stream" if any(word in text for word in _CUT) else "model.malformed"
    if _is_local(error):
        return "model.misconfigured" if "llm provider" in text else "model.auth"
    if _names(error) & _CONNECTION or ("connection error" in text and not _headers(error)):
        return "model.unreachable"
    if "insufficient_quota" in text or "exceeded your current quota" in text:
        return "model.quota"
    named = _BY_NAME.get(type(error).__name__)
    if named == "model.timeout" and _headers(error):
        return "model.server-error"  # a gateway's answer, which litellm files under time-outs
    if named:
        return named
    if "content_policy" in text or "content management policy" in text:
        return "model.refused"
    if any(words in text for words in _LONG):
        return TOO_LONG
    return _by_status(_status(error), "model.failed")


def _by_status(status: int | None, otherwise: str) -> str:
    status = status or 0
    return _BY_STATUS.get(status) or ("model.server-error" if status >= 500 else otherwise)


def _is_told(error: Exception) -> bool:
    """An error that the server sent as a piece of its stream, under a status that said all is well."""
    return type(error).__name__ == "MidStreamFallbackError" and "APIError" in _names(error)


def _told_code(error: Exception) -> int | None:
    """The code that such an error names; the client library has its own idea of what it stands for."""
    codes = [str(getattr(one, "code", "")) for one in _chain(error) if type(one).__name__ == "APIError"]
    return next((int(code) for code in codes if code.isascii() and code.isdecimal()), None) or _status(error)


def _status(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    try:
        return int(status) if status is not None else None
    except (TypeError, ValueError):
        return None


def _headers(error: Exception) -> dict[str, str]:
    for holder in (getattr(error, "litellm_response_headers", None), getattr(error, "response", None)):
        headers = getattr(holder, "headers", holder)
        if headers:
            return {str(k).lower(): str(v) for k, v in headers.items()}
    return {}


def _retry_after(error: Exception) -> float | None:
    """Seconds of ``Retry-After`` (or ``retry-after-ms``); dates and nonsense count as not given."""
    headers = _headers(error)
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def _is_local(error: Exception) -> bool:
    """Raised by the client library before anything was sent: a missing key, an unknown provider."""
    text = str(error).lower()
    no_key = "missing" in text and any(word in text for word in ("api key", "api_key", "credentials"))
    return not _headers(error) and (no_key or "llm provider not provided" in text)


def _detail(error: Exception) -> str:
    text = str(error).partition("Traceback (most recent call last)")[0]
    for noise in ("litellm.", f"{type(error).__name__}: "):
        text = text.replace(noise, "")
    return one_line(text, 300) or type(error).__name__


def _names(error: Exception) -> set[str]:
    """What the error is called, and what it was called where it came from."""
    return {type(one).__name__ for one in _chain(error)}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
