"""The reference's source: what can be told without running it, and running it where that is allowed.

A reference is foreign code. :func:`signature` and :func:`reference_errors` only parse it; :func:`load_reference`
executes it and belongs into a limited, scrubbed child process.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import sys
import warnings
from types import ModuleType
from typing import NamedTuple

from engine.errors import BadInput
from engine.problems.model import Definition, Problem
from engine.problems.solution import Solution


class Signature(NamedTuple):
    """Parameters of a top-level function. ``required_keywords`` have no default and cannot be passed."""

    positional: tuple[str, ...]
    required_keywords: tuple[str, ...]
    variadic: bool
    is_async: bool


def is_reference(solution: Solution, problem: Problem) -> bool:
    """Whether a solution is the problem's own reference, as a campaign starts from it."""
    return [source.content for source in solution.sources] == [problem.definition.reference]


def parse_source(source: str) -> ast.Module:
    """Parse Python without printing warnings. Raises ``SyntaxError`` with a line number where known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except SyntaxError:
            raise
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or type(error).__name__) from None


def signature(tree: ast.Module, function: str) -> Signature | None:
    """The signature of the last top-level definition of ``function``, or ``None`` if there is none."""
    found: Signature | None = None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            args = node.args
            positional = tuple(argument.arg for argument in (*args.posonlyargs, *args.args))
            required = tuple(
                argument.arg
                for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
                if not default
            )
            found = Signature(
                positional, required, args.vararg is not None, isinstance(node, ast.AsyncFunctionDef)
            )
    return found


def reference_errors(definition: Definition, where: str) -> list[BadInput]:
    """What is wrong with the reference and the custom entry point, from their text alone."""
    if not definition.reference.strip():
        return [BadInput("reference is empty", where=where, fix="give Python source with a top-level run()")]
    try:
        tree = parse_source(definition.reference)
    except SyntaxError as error:
        line = f" line {error.lineno}" if error.lineno else ""
        return [BadInput(f"reference{line}: {error.msg}", where=where, fix="it must be valid Python source")]
    return _run_errors(definition, tree, where) + _entrypoint_errors(definition, tree, where)


def _run_errors(definition: Definition, tree: ast.Module, where: str) -> list[BadInput]:
    inputs = list(definition.inputs)
    wanted = f"def run({', '.join(inputs)})"
    found = signature(tree, "run")
    if found is None:
        return [BadInput("reference has no top-level function run", where=where, fix=f"define {wanted}")]
    if found.is_async:
        return [BadInput("reference: run is async", where=where, fix=f"make it a plain {wanted}")]
    if found.positional != tuple(inputs):
        return [
            BadInput(
                f"reference: run({', '.join(found.positional)}) does not take the inputs in their order",
                where=where,
                fix=f"define {wanted}",
            )
        ]
    if found.required_keywords:
        return [
            BadInput(
                f"reference: run needs keyword-only {', '.join(found.required_keywords)}, which nothing passes",
                where=where,
                fix="give it a default or make it an input",
            )
        ]
    return []


def _entrypoint_errors(definition: Definition, tree: ast.Module, where: str) -> list[BadInput]:
    name = definition.custom_inputs_entrypoint
    if name is None:
        return []
    field = f"custom_inputs_entrypoint {name!r}"
    if not name.isidentifier():
        return [BadInput(f"{field} is not an identifier", where=where, fix="name a function of the reference")]
    found = signature(tree, name)
    if found is None:
        fix = f"define {name}(axes_and_scalars, device) in the reference"
        return [BadInput(f"{field} is not a top-level function of the reference", where=where, fix=fix)]
    if found.is_async or (len(found.positional) < 2 and not found.variadic):
        fix = f"define {name}(axes_and_scalars, device)"
        return [BadInput(f"{field} cannot be called with two arguments", where=where, fix=fix)]
    return []


def load_reference(definition: Definition) -> ModuleType:
    """Execute the reference and return it as a module (foreign code: only in a child process).

    The module is registered and its source is visible to ``inspect``, which Triton's JIT needs. Whatever the
    source raises when it is executed is passed on.
    """
    digest = hashlib.sha256(definition.reference.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    name = f"kernelarc_reference_{digest}"
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    filename = f"<reference {digest}>"
    lines = definition.reference.splitlines(keepends=True)
    linecache.cache[filename] = (len(definition.reference), None, lines, filename)
    module = ModuleType(name)
    module.__file__ = filename
    sys.modules[name] = module
    try:
        exec(compile(definition.reference, filename, "exec"), module.__dict__)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
