"""Untrusted text (candidates, models, problem files) made safe for logs, events, prompts and screens.

Every function is linear in its input: bounded patterns, no backtracking over the whole text.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping

_MAX_SCAN = 4_000_000  # characters looked at; the middle of anything longer is dropped before cleaning

# OSC, DCS, APC, PM and SOS strings end with BEL or ST; an unterminated one loses its introducer only, so that a
# stray ESC cannot swallow the rest of a log. The body is bounded, which keeps the search linear.
_ESCAPES = re.compile(
    r"(?:\x1b\]|\x9d|\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|\x1b[ -/]{0,8}[0-~]?"
)
_CONTROLS = {
    code: None
    for span in (
        range(0x09),
        range(0x0B, 0x20),
        range(0x7F, 0xA0),  # DEL and C1
        (0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180E, 0x3164, 0xFEFF, 0xFFA0),
        range(0x200B, 0x2010),  # zero width, LRM, RLM
        range(0x2028, 0x202F),  # line/paragraph separators, bidi embeddings and overrides
        range(0x2060, 0x2070),  # word joiner, invisible operators, bidi isolates, deprecated format characters
        range(0xFFF9, 0xFFFC),
        range(0xE0000, 0xE0080),  # tag characters
    )
    for code in span
}
_SURROGATE = re.compile("[\ud800-\udfff]")

_SECRET_NAME = re.compile(
    r"(?i)(?:^|_)(?:API_?KEYS?|KEYS?|TOKENS?|SECRETS?|PASSWORDS?|PASSWD|PASS|PWD|CREDENTIALS?|AUTH|COOKIES?)(?:_|$)"
    r"|APIKEY|ACCESS_?KEY|PRIVATE_?KEY|CANARY"
)
_NOT_SECRET = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY"})
_MIN_SECRET = 6  # a shorter value would black out ordinary words
_PATTERNS = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,256}"  # OpenAI, Anthropic and look-alikes
    r"|\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,256}|\bgithub_pat_[A-Za-z0-9_]{20,256}|\bglpat-[A-Za-z0-9_-]{16,256}"
    r"|\bhf_[A-Za-z0-9]{16,256}|\bnvapi-[A-Za-z0-9_-]{16,256}|\bgsk_[A-Za-z0-9]{16,256}|\bxai-[A-Za-z0-9_-]{16,256}"
    r"|\bAIza[A-Za-z0-9_-]{30,64}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bxox[abeprs]-[A-Za-z0-9-]{10,256}"
    r"|\beyJ[A-Za-z0-9_-]{10,2048}\.[A-Za-z0-9_-]{10,2048}\.[A-Za-z0-9_-]{0,2048}"
    r"|-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[^-]{0,8192}-----END [A-Z ]{0,32}PRIVATE KEY-----"
)
_BEARER = re.compile(r"(?i)\b(bearer|authorization:\s{0,4}\w{1,16}|x-api-key:)\s{1,4}([^\s\"',;]{6,1024})")
# What a text must hold for a pattern to match at all: looking for it first makes most texts cost next to nothing.
_MARKS = (
    *(
        "sk-",
        "pk-",
        "rk-",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "hf_",
        "nvapi-",
        "gsk_",
    ),
    *("xai-", "AIza", "AKIA", "ASIA", "xox", "eyJ", "-----BEGIN"),
)
_BEARER_MARKS = ("bearer", "authorization", "x-api-key")
_URL_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]{1,15}://)[^\s/@:]{1,128}:[^\s/@]{1,256}@")
REDACTED = "[redacted]"


def is_secret_name(name: str) -> bool:
    """Whether an environment variable's name says that its value is a key, token or password."""
    return name not in _NOT_SECRET and bool(_SECRET_NAME.search(name))


def environment_secrets(environ: Mapping[str, str] | None = None) -> list[str]:
    """Values of variables whose names look like keys or tokens, longest first."""
    if environ is None:
        return _own_secrets()
    values = {v.strip() for k, v in environ.items() if is_secret_name(k)}
    return sorted((v for v in values if len(v) >= _MIN_SECRET), key=lambda v: (-len(v), v))


_known: tuple[dict[object, object], list[str]] | None = None


def _own_secrets() -> list[str]:
    """This process's secrets, found anew only when its environment has changed: texts are cleaned very often."""
    global _known
    raw = getattr(os.environ, "_data", None)  # comparing CPython's own dictionary is cheap, decoding it is not
    if raw is None:
        return environment_secrets(dict(os.environ))
    if _known is None or _known[0] != raw:
        _known = (dict(raw), environment_secrets(dict(os.environ)))
    return _known[1]


def redact(text: str, secrets: Iterable[str] | None = None) -> str:
    """Replace secrets by ``[redacted]``: ``secrets`` (default: the environment's) and well-known key shapes."""
    values = environment_secrets() if secrets is None else sorted(secrets, key=len, reverse=True)
    for value in values:
        if len(value) >= _MIN_SECRET and value in text:
            text = text.replace(value, REDACTED)
    if any(mark in text for mark in _MARKS):
        text = _PATTERNS.sub(REDACTED, text)
    lower = text.lower()
    if any(mark in lower for mark in _BEARER_MARKS):
        text = _BEARER.sub(lambda m: f"{m[1]} {REDACTED}", text)
    if "://" in text and "@" in text:
        text = _URL_LOGIN.sub(lambda m: f"{m[1]}{REDACTED}@", text)
    return text


def strip_controls(text: str) -> str:
    """Without terminal escapes, control, bidi, zero-width and tag characters. Newlines and tabs stay."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii() or not text.replace("\n", "").replace("\t", "").isprintable():
        text = _ESCAPES.sub("", text)
        text = _SURROGATE.sub("\ufffd", text.translate(_CONTROLS))
    return text


def truncate(text: str, limit: int) -> str:
    """Head and tail of a text longer than ``limit`` characters, with the number left out between them."""
    if len(text) <= limit:
        return text
    mark = f"\n… {len(text)} characters left out …\n"
    room = limit - len(mark)
    if room < 16:
        return text[: max(0, limit - 1)] + "…" if limit > 0 else ""
    head = room * 2 // 3
    tail = room - head
    mark = f"\n… {len(text) - head - tail} characters left out …\n"
    return text[:head] + mark + text[len(text) - tail :]


def clean(text: str, limit: int = 2000) -> str:
    """Untrusted text for a person or a prompt: no control sequences, no secrets, at most ``limit`` characters.

    Secrets are looked for after the control characters have gone (they could be split by them) and before
    anything is cut, so that no half of a key survives at a cut.
    """
    if len(text) > _MAX_SCAN:
        half = _MAX_SCAN // 2
        text = text[:half] + "\n…\n" + text[-half:]
    return truncate(redact(strip_controls(text)), limit)


def one_line(text: str, limit: int = 200) -> str:
    """:func:`clean` on a single line: white space collapsed, cut at ``limit`` with an ellipsis."""
    if len(text) > _MAX_SCAN:
        text = text[:_MAX_SCAN]
    line = " ".join(redact(strip_controls(text)).split())
    return line if len(line) <= limit else line[: max(0, limit - 1)].rstrip() + "…" if limit > 0 else ""


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters, an ellipsis for what is left out at the end."""
    return text if len(text) <= limit else text[: max(0, limit - 1)].rstrip() + "…"[:limit]


def cut_middle(text: str, limit: int) -> str:
    """At most ``limit`` characters with the middle left out: names are told apart by their ends."""
    if len(text) <= limit:
        return text
    tail = limit * 2 // 3
    head = max(0, limit - tail - 1)
    return f"{text[:head]}…{text[len(text) - tail :]}" if tail else "…"[:limit]


def counted(number: int, word: str) -> str:
    """``1 win``, ``2 wins``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
