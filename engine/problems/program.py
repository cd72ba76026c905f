"""When two solutions are the same program: sources without comments, blank lines, trailing space. Pure."""

from __future__ import annotations

import hashlib
import re

from engine.problems.solution import Solution

# Strings and comments in one pass, so that a comment sign inside a string (CUDA source in a Python string, say)
# is left alone. Unterminated strings end at the line's end, unterminated blocks at the text's: nothing is scanned
# twice, however it was written.
_PYTHON = re.compile(
    r'("""(?:[^\\]|\\.)*?(?:"""|\Z)|\'\'\'(?:[^\\]|\\.)*?(?:\'\'\'|\Z)|"(?:[^"\\\n]|\\.)*"?|\'(?:[^\'\\\n]|\\.)*\'?)|#[^\n]*',
    re.DOTALL,
)
_CPP = re.compile(r'("(?:[^"\\\n]|\\.)*"?|\'(?:[^\'\\\n]|\\.)*\'?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)


def normalised(source: str, path: str) -> str:
    """``source`` without comments, blank lines and trailing white space; line ends unified."""
    pattern = _PYTHON if path.endswith(".py") else _CPP
    text = source.replace("\r\n", "\n").replace("\r", "\n")
    text = pattern.sub(lambda found: found[1] or "", text)
    return "\n".join(stripped for line in text.split("\n") if (stripped := line.rstrip()))


def program_sha(solution: Solution) -> str:
    """SHA-256 over what the program is: normalised sources, entry point, calling style, build options."""
    digest = hashlib.sha256()
    options = solution.spec.compile_options
    digest.update(f"{solution.spec.entry_point}\0{solution.spec.destination_passing_style}\0{options}".encode())
    for source in sorted(solution.sources, key=lambda s: s.path):
        digest.update(f"\0{source.path}\0{normalised(source.content, source.path)}".encode(errors="replace"))
    return digest.hexdigest()
