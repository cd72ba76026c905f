"""The table of a shape-gated dispatch, read off its source: which file runs on which shape. Nothing is run."""

from __future__ import annotations

import ast
from typing import Any

from engine.problems.solution import Solution


def dispatch_table(solution: Solution) -> dict[str, Any] | None:
    """``{"axes", "fallback", "table": [{"shape": {axis: size}, "runs": file}]}``, or ``None`` for other solutions.

    A dispatch is an entry file with a literal ``TABLE`` from tuples of sizes to functions that each call one other
    source, and a ``run`` that looks the shape up in it.
    """
    if len(solution.sources) < 2:
        return None
    try:
        tree = ast.parse(solution.entry_source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    files = {source.path.removesuffix(".py"): source.path for source in solution.sources}
    runs = {node.name: found for node in _functions(tree) if (found := _called_file(node, files)) is not None}
    lookup = next(filter(None, map(_lookup, _functions(tree))), None)
    table = next((node.value for node in tree.body if isinstance(node, ast.Assign) and _is_table(node)), None)
    if lookup is None or not isinstance(table, ast.Dict) or lookup[1] not in runs:
        return None
    axes, fallback = lookup
    rows = []
    for key, value in zip(table.keys, table.values, strict=True):
        sizes = _literal(key)
        if not isinstance(value, ast.Name) or value.id not in runs or sizes is None or len(sizes) != len(axes):
            return None
        rows.append({"shape": dict(zip(axes, sizes, strict=True)), "runs": runs[value.id]})
    return {"axes": axes, "fallback": runs[fallback], "table": rows}


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def _is_table(node: ast.Assign) -> bool:
    return [ast.unparse(target) for target in node.targets] == ["TABLE"]


def _called_file(function: ast.FunctionDef, files: dict[str, str]) -> str | None:
    """The source whose function this one calls."""
    for node in ast.walk(function):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in files:
            return files[called.value.id]
    return None


def _lookup(function: ast.FunctionDef) -> tuple[list[str], str] | None:
    """Axis names and fallback of ``TABLE.get((rows, cols), _variant0)``."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "TABLE.get" and len(node.args) == 2:
            key, fallback = node.args
            if isinstance(key, ast.Tuple) and isinstance(fallback, ast.Name):
                names = [part.id for part in key.elts if isinstance(part, ast.Name)]
                return (names, fallback.id) if len(names) == len(key.elts) else None
    return None


def _literal(key: ast.expr | None) -> list[int] | None:
    try:
        sizes = ast.literal_eval(key) if key is not None else None
    except (ValueError, TypeError):
        return None
    if isinstance(sizes, tuple) and all(isinstance(size, int) for size in sizes):
        return list(sizes)
    return None
