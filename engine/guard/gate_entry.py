"""The entry point of a Python source: is it there at top level, and can it be called with the problem's inputs?"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from engine.problems.model import Problem
from engine.problems.solution import Solution

_BLOCKS = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.Match)
_SAME_SIGNATURE = frozenset(
    {"no_grad", "inference_mode", "compile", "script", "jit", "lru_cache", "cache", "wraps", "enable_grad",
     "set_grad_enabled", "ignore", "unused", "disable", "custom_op", "allow_in_graph"}
)  # fmt: skip
_TRY_STAR = getattr(ast, "TryStar", None)

Refusal = tuple[str, str]


def check_entry(tree: ast.Module, solution: Solution, problem: Problem) -> Refusal | None:
    """(code, detail) if the entry function is missing or cannot take its arguments."""
    name, file = solution.entry_function, solution.entry_file
    bound = list(_bindings(tree, name))
    if not bound:
        near = [f for f in _functions(tree) if f.lower() == name.lower() or "run" in f.lower()][:3]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        return "gate.entry-point", f"{file}: no top-level {name}{hint}"
    functions = [node for node in bound if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if len(functions) < len(bound):  # an alias, an import, an instance: Python will tell
        return None
    if all(isinstance(node, ast.AsyncFunctionDef) for node in functions):
        return (
            "gate.entry-point",
            f"{file} line {functions[0].lineno}: {name} is async; make it an ordinary function",
        )
    inputs, outputs = list(problem.definition.inputs), list(problem.definition.outputs)
    arguments = inputs + outputs if solution.spec.destination_passing_style else inputs
    plain = [node for node in functions if isinstance(node, ast.FunctionDef)]
    if any(_changes_signature(node) or _takes(node.args, len(arguments)) for node in plain):
        return None
    wanted = f"{name}({', '.join(arguments)})"
    style = "destination-passing style" if solution.spec.destination_passing_style else "return style"
    return (
        "gate.signature",
        f"{file} line {plain[0].lineno}: {name} cannot be called with {len(arguments)} positional arguments; "
        f"{style} needs {wanted}",
    )


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run in the module's own scope, blocks opened, bounded by the tree's size."""
    stack: list[ast.stmt] = list(reversed(tree.body))
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, _BLOCKS) or (_TRY_STAR is not None and isinstance(node, _TRY_STAR)):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    stack.append(child)
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    stack.extend(child.body)


def _bindings(tree: ast.Module, name: str) -> Iterator[ast.AST]:
    """Everything at module level that can give ``name`` a value."""
    for node in _top_level(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == name:
                yield node
            elif not isinstance(node, ast.ClassDef) and _declares_global(node, name):
                yield ast.Name(id=name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*" or (alias.asname or alias.name.partition(".")[0]) == name:
                    yield node
        elif isinstance(node, ast.For | ast.With | ast.While | ast.If | ast.Match | ast.Try):
            if any(_stores(part, name) for part in ast.iter_child_nodes(node) if not isinstance(part, ast.stmt)):
                yield node
        elif _stores(node, name) or _sets_globals(node, name):
            yield node


def _stores(node: ast.AST, name: str) -> bool:
    return any(
        (isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and part.id == name)
        or (isinstance(part, ast.MatchAs | ast.MatchStar) and part.name == name)
        for part in ast.walk(node)
    )


def _sets_globals(node: ast.AST, name: str) -> bool:
    """``globals()["run"] = …`` and ``setattr(sys.modules[__name__], "run", …)``: the name as text will do."""
    return any(isinstance(part, ast.Constant) and part.value == name for part in ast.walk(node))


def _declares_global(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Global) and name in part.names for part in ast.walk(node))


def _functions(tree: ast.Module) -> list[str]:
    return [node.name for node in _top_level(tree) if isinstance(node, ast.FunctionDef)]


def _takes(given: ast.arguments, count: int) -> bool:
    """Whether a function can be called with exactly ``count`` positional arguments."""
    positional = len(given.posonlyargs) + len(given.args)
    required = positional - len(given.defaults)
    if any(default is None for default in given.kw_defaults):
        return False
    return required <= count and (given.vararg is not None or count <= positional)


def _changes_signature(node: ast.FunctionDef) -> bool:
    """Whether a decorator may have replaced the function by one that takes other arguments."""
    return any(_decorator_name(d) not in _SAME_SIGNATURE for d in node.decorator_list)


def _decorator_name(node: ast.expr) -> str:
    while isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
