"""Untrusted text: what a candidate or model wrote cannot drive a terminal, leak a key or flood a log."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import text as t


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("plain", "plain"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;ZXZpbA==\x1b\\after", "after"),
        ("\x9b2Jcleared", "cleared"),
        ("\x9d0;title\x9cafter", "after"),
        ("\x1bPq#0~~\x1b\\sixel", "sixel"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", "link"),
        ("\x1b]never ends\nnext line", "never ends\nnext line"),
        ("a\x1b", "a"),
        ("back\x08space\x00nul\x7fdel", "backspacenuldel"),
        ("pass\u202edrow\u202c", "passdrow"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("iso\u2066lated\u2069", "isolated"),
        ("tag\U000e0041", "tag"),
        ("line\u2028sep", "linesep"),
        ("crlf\r\nend\rlone", "crlf\nend\nlone"),
        ("lone \udce9 surrogate", "lone \ufffd surrogate"),
        ("naïve Δx ≤ 3 µs → 中文", "naïve Δx ≤ 3 µs → 中文"),
    ],
)
def test_controls_go_and_words_stay(raw: str, seen: str) -> None:
    assert t.clean(raw) == seen


@given(st.text(alphabet=st.characters(), max_size=400), st.integers(0, 120))
@settings(max_examples=300, deadline=None)
def test_whatever_comes_in_what_goes_out_is_bounded_printable_and_encodable(raw: str, limit: int) -> None:
    out = t.clean(raw, limit)
    assert len(out) <= max(limit, 0)
    out.encode("utf-8")
    for ch in out:
        assert ch in "\n\t" or unicodedata.category(ch) not in ("Cc", "Cs"), repr(ch)
    assert t.clean(out, limit) == out


@given(st.text(max_size=400), st.integers(0, 80))
@settings(max_examples=200, deadline=None)
def test_one_line_is_one_bounded_line(raw: str, limit: int) -> None:
    out = t.one_line(raw, limit)
    assert len(out) <= limit and "\n" not in out and "\t" not in out


def test_truncation_keeps_head_and_tail_and_counts() -> None:
    out = t.clean("H" * 5000 + "T" * 5000, 300)
    assert len(out) <= 300
    assert out.startswith("HHH") and out.endswith("TTT")
    left = int(out.split("… ")[1].split()[0])
    assert left == 10000 - out.count("H") - out.count("T")


def test_secrets_of_the_environment_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELARC_CANARY_API_KEY", "zq-canary-991")
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "abcdef-ghijkl")
    monkeypatch.setenv("MONKEY_BUSINESS", "bananas-everywhere")
    out = t.clean("x zq-canary-991 y abcdef-ghijkl z bananas-everywhere")
    assert out == "x [redacted] y [redacted] z bananas-everywhere"


def test_a_secret_hidden_by_control_characters_or_a_cut_does_not_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "topsecretvalue")
    assert "secret" not in t.clean("a top\x1b[0msec\u200bret\x00value b")
    for limit in range(20, 120):
        assert "topsecret" not in t.clean("p" * 60 + "topsecretvalue" + "q" * 60, limit)


@pytest.mark.parametrize(
    "key",
    [
        "sk-ant-api03-abcdefghijkl",
        "sk-proj-AAAABBBBCCCCDDDD",
        "hf_abcdefghijklmnopqrst",
        "ghp_abcdefghijklmnopqrstuvwxyz",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA1234567890abcdefghijklmnopqrstu",
        "nvapi-abcdefghijklmnopqrstuvwxyz",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk",
    ],
)
def test_well_known_key_shapes_are_redacted(key: str) -> None:
    assert key not in t.redact(f"failed with {key}, try again", secrets=[])
    assert t.redact(f"Authorization: Bearer {key}", secrets=[]).endswith(t.REDACTED)


def test_headers_and_url_logins_are_redacted() -> None:
    assert t.redact("x-api-key: 0123456789", secrets=[]) == "x-api-key: [redacted]"
    assert t.redact("http://bob:hunter22@host/x", secrets=[]) == "http://[redacted]@host/x"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("OPENAI_API_KEY", True),
        ("HF_TOKEN", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("DB_PASSWORD", True),
        ("PATH", False),
        ("PWD", False),
        ("SSH_AUTH_SOCK", False),
        ("KEYBOARD", False),
        ("MONKEY", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("PASSIVE", False),
    ],
)
def test_which_names_look_like_secrets(name: str, secret: bool) -> None:
    assert t.is_secret_name(name) is secret


@pytest.mark.parametrize(
    "raw",
    [
        "\x1b]" * 500_000,
        "\x1b[" * 500_000,
        "sk-" * 400_000,
        "-----BEGIN PRIVATE KEY-----" * 40_000,
        "eyJ" + "a" * 1_000_000,
        "a://b:" * 200_000,
        "\x9b;" * 500_000,
        "x" * 6_000_000,
        "Bearer " * 150_000,
    ],
    ids=["osc", "csi", "sk", "pem", "jwt", "url", "c1", "long", "bearer"],
)
def test_a_megabyte_of_adversarial_text_takes_bounded_time(raw: str) -> None:
    start = time.process_time()
    assert len(t.clean(raw, 2000)) <= 2000
    assert time.process_time() - start < 10.0  # a quadratic pattern needs minutes here
