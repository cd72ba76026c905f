"""What annotations that are text would evaluate to: torch evaluates some of them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

_PLAIN = frozenset({"Annotated", "Literal"})  # what stands in these is a value, and never evaluated


def annotation_expressions(node: ast.expr, resolve: Callable[[ast.expr], Iterable[str]]) -> Iterator[ast.AST]:
    """Every part of every expression that stands in ``node`` as text. Text that is no expression is a remark.

    ``resolve``: the dotted names that an expression can stand for.
    """
    parts: list[tuple[ast.AST, bool]] = [(node, False)]
    while parts:
        part, is_text = parts.pop()
        if is_text:
            yield part
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            for expression in _expressions(part.value):
                for inner in ast.walk(expression):
                    if hasattr(inner, "lineno"):
                        inner.lineno = part.lineno  # type: ignore[attr-defined]
                parts.append((expression, True))
        elif isinstance(part, ast.Subscript) and _is_plain(part.value, resolve):
            parts.append((part.value, is_text))
            given = part.slice
            if isinstance(given, ast.Tuple) and given.elts and _is_plain(part.value, resolve, "Annotated"):
                parts.append((given.elts[0], is_text))
        else:
            parts.extend((child, is_text) for child in ast.iter_child_nodes(part))


def _is_plain(node: ast.expr, resolve: Callable[[ast.expr], Iterable[str]], *names: str) -> bool:
    found = set(resolve(node))
    allowed = {f"{module}.{name}" for module in ("typing", "typing_extensions") for name in names or _PLAIN}
    return bool(found) and found <= allowed


def _expressions(text: str) -> list[ast.expr]:
    """``text`` as Python would evaluate it, or else its words: libraries of shapes evaluate those one by one."""
    stripped = text.strip()
    whole = _parsed(f"({stripped},)[0]" if stripped.startswith("*") else stripped)
    if whole is not None:
        return [whole]
    words = [_parsed(word) for word in stripped.split()[:256]]
    return [word for word in words if word is not None]


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
