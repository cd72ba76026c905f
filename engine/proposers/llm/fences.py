"""Fenced blocks of a reply, and the file that each one says it is. Pure, and linear in the reply's length."""

from __future__ import annotations

import re

import msgspec

PYTHON = frozenset({"python", "python3", "py", "triton", "pytorch"})
CPP = frozenset({"cuda", "cu", "cpp", "c++", "cc", "cxx", "c", "cuda_cpp", "cuda-cpp", "h", "hpp", "cuh"})
METADATA = frozenset({"yaml", "yml", "json", "meta", "metadata"})
SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp")

_OPEN = re.compile(r"^[ \t]{0,8}(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_LINE_END = re.compile(r"\r\n|\r|\n")
"""What ends a line of a program. ``str.splitlines`` knows more, which are characters of a comment or a text."""
_KEY = re.compile(r"""(?:path|file|filename|title|name)\s*=\s*["']?([^\s"']+)""", re.IGNORECASE)
_COMMENT = re.compile(
    r"^\s*(?:#|//|/\*)\s*(?:(?:file|filename|path)\s*[:=]\s*(\S+)|([\w./\\-]+))\s*(?:\*/)?\s*$", re.IGNORECASE
)
_ENTRY_PYTHON = re.compile(r"^(?:async[ \t]+)?def[ \t]+run[ \t]*\(|^run[ \t]*=[^=]", re.MULTILINE)
_ENTRY_CPP = re.compile(r"\bdef\s*\(\s*\"run\"|^[^\n;#/]*\brun\s*\([^;{}]*\)\s*\{", re.MULTILINE)


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One fenced block. ``closed`` is false when the reply ends inside it."""

    language: str  # python | cpp | metadata | other
    path: str  # as the reply names it, unchecked; empty if it names none
    text: str
    closed: bool = True

    @property
    def defines_entry(self) -> bool:
        if self.language == "cpp":
            return bool(_ENTRY_CPP.search(self.text))
        return self.language == "python" and bool(_ENTRY_PYTHON.search(self.text))


def blocks(text: str) -> list[Block]:
    """Every fenced block in order. A longer fence may contain shorter ones; an indented fence is dedented."""
    found: list[Block] = []
    opener: re.Match[str] | None = None
    lines: list[str] = []
    for line in _LINE_END.split(text):
        if opener is None:
            opener = _OPEN.match(line)
            lines = []
        elif _closes(line, opener[1]):
            found.append(_block(opener, lines, closed=True))
            opener = None
        else:
            lines.append(line)
    if opener is not None:
        found.append(_block(opener, lines, closed=False))
    return found


def longest_fence(text: str) -> int:
    """Length of the longest run of back-ticks at a line's start: a fence around ``text`` must be longer."""
    return max((len(run) for run in re.findall(r"^[ \t]*(`{3,})", text, re.MULTILINE)), default=0)


def _closes(line: str, fence: str) -> bool:
    bare = line.strip()
    return len(bare) >= len(fence) and not bare.strip(fence[0])


def _block(opener: re.Match[str], lines: list[str], *, closed: bool) -> Block:
    indent = len(opener[0]) - len(opener[0].lstrip())
    if indent:
        lines = [line[indent:] if not line[:indent].strip() else line for line in lines]
    info = opener[2].strip()
    text = "\n".join(lines) + "\n" if lines else ""
    path = _path_in_info(info) or _path_in_comment(lines[0] if lines else "")
    word = re.split(r"[\s:{,]", info, maxsplit=1)[0].lower()
    return Block(language=_language(word, path, text), path=path, text=text, closed=closed)


def _language(word: str, path: str, text: str) -> str:
    if path.endswith(".py"):
        return "python"
    if path.endswith(SUFFIXES):
        return "cpp"
    for language, words in (("python", PYTHON), ("cpp", CPP), ("metadata", METADATA)):
        if word in words:
            return language
    if not word and _ENTRY_PYTHON.search(text):
        return "python"
    return "other"


def _path_in_info(info: str) -> str:
    key = _KEY.search(info)
    if key:
        return key[1]
    words = re.split(r"[\s,{}]+", info)
    first, _, after = words[0].partition(":")
    for word in (after, *words[1:], first):
        if _looks_like_path(word):
            return word
    return ""


def _path_in_comment(line: str) -> str:
    found = _COMMENT.match(line)
    if not found:
        return ""
    return found[1] or (found[2] if _looks_like_path(found[2]) else "")


def _looks_like_path(word: str) -> bool:
    return word.lower().endswith(SUFFIXES) or word.startswith(("/", "~", "./", "../")) or "/../" in word
