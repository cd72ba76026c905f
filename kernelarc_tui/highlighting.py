"""Source text as painted lines: Pygments tokens in the theme's colours. Imported when a source is shown."""

from __future__ import annotations

from functools import cache

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token, _TokenType
from pygments.util import ClassNotFound

from kernelarc_tui.paint import Line
from kernelarc_tui.safe import source_lines

_LEXERS = {
    "py": "python",
    "cu": "cuda",
    "cuh": "cuda",
    "cpp": "cpp",
    "cc": "cpp",
    "c": "c",
    "h": "cpp",
    "hpp": "cpp",
    "ptx": "ptx",
    "json": "json",
    "yaml": "yaml",
    "md": "markdown",
}
_STYLES: tuple[tuple[_TokenType, str], ...] = (
    (Token.Comment, "italic muted"),
    (Token.Keyword, "accent"),
    (Token.Operator.Word, "accent"),
    (Token.Literal.String, "success"),
    (Token.Literal.Number, "warning"),
    (Token.Name.Decorator, "secondary"),
    (Token.Name.Builtin, "secondary"),
    (Token.Name.Function, "bold primary"),
    (Token.Name.Class, "bold primary"),
    (Token.Generic.Heading, "bold primary"),
    (Token.Generic.Subheading, "bold primary"),
    (Token.Generic.Strong, "bold"),
    (Token.Error, ""),
)


def highlight(text: str, path: str = "") -> list[Line]:
    """``text`` as lines, cleaned for the screen, coloured by the lexer that ``path``'s suffix names."""
    cleaned = source_lines(text)
    lexer = _lexer(path.rpartition(".")[2].lower())
    if lexer is None:
        return [Line(line) for line in cleaned]
    lines = [Line()]
    for token, value in lexer.get_tokens("\n".join(cleaned)):
        style = _style(token)
        first, *rest = value.split("\n")
        lines[-1].add(first, style)
        for part in rest:
            lines.append(Line().add(part, style))
    if lines and not lines[-1].pieces:
        lines.pop()
    return lines[: len(cleaned)] + [Line() for _ in range(len(cleaned) - len(lines))]


@cache
def _lexer(suffix: str) -> Lexer | None:
    name = _LEXERS.get(suffix)
    if name is None:
        return None
    try:
        return get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@cache
def _style(token: _TokenType) -> str:
    return next((style for kind, style in _STYLES if token in kind), "")
