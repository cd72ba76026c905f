"""What only a whole module shows."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from engine.guard import gate_rules as rules
from engine.guard.gate_text import Scope

if TYPE_CHECKING:
    from engine.guard.gate_scan import Scan

_MAX_PIECES = 256  # no honest name is made of more


class Finding(NamedTuple):
    line: int
    code: str
    what: str


class Computed(NamedTuple):
    """An attribute name that no constant text is, where it is looked up, and on what."""

    name: ast.expr
    scope: Scope
    line: int
    owner: ast.expr | None


def conclude(scan: Scan) -> None:
    """Add what no single statement shows: computed names beside telling text, modules handed on."""
    scan.dynamic = [found for found in scan.dynamic if found is None or not _is_settled(scan, found)]
    seen: set[int] = set()
    for found in scan.dynamic:
        if found is not None and _adds_underscores(scan, found, seen):
            why = "an attribute name is put together from '__' and a computed piece; write it out"
            scan.findings.append(Finding(found.line, "gate.obfuscation", why))
    if scan.resolver.tangled:
        scan.findings.append(Finding(1, "gate.obfuscation", "names are assigned to each other in too long chains"))
    if scan.dynamic and scan.telling:
        why = f"attribute names are computed and the text {scan.telling!r} is at hand"
        scan.findings.append(Finding(scan.dynamic_line, "gate.obfuscation", why))
    elif scan.decodes and any(_is_decoded(name) for name in scan.dynamic):
        why = "an attribute name is decoded or computed by a call; write it out"
        scan.findings.append(Finding(scan.dynamic_line, "gate.obfuscation", why))
    if scan.escaped and scan.foreign_stores:
        why = "a module is passed on as a value and attributes of an unknown object are assigned"
        scan.findings.append(Finding(scan.foreign_stores[0], "gate.monkey-patch", why))


def _is_settled(scan: Scan, found: Computed) -> bool:
    """Whether the name is a helper's parameter that is only ever given constants; those are judged instead."""
    texts = scan.names.argument_texts(found.name, scan.scopes, found.scope, scan.resolver)
    targets = scan.dotted(found.owner, found.scope) if found.owner is not None else []
    for text in texts or ():
        refusals = [rules.refuse_attribute_path(text), *(rules.refuse_dotted(f"{t}.{text}") for t in targets)]
        scan.findings.extend(Finding(found.line, *refusal) for refusal in refusals if refusal is not None)
    return texts is not None


def _is_decoded(found: Computed | None) -> bool:
    """Whether a computed name comes out of a call or is cut out of a text; ``None`` is an unknown name."""
    if found is None:
        return True
    return any(
        isinstance(part, ast.Call | ast.Slice)
        or (isinstance(part, ast.Subscript) and isinstance(part.value, ast.Attribute))
        for candidate in _candidates(found.name, found.scope)
        for part in ast.walk(candidate)
    )


def _candidates(node: ast.expr, scope: Scope) -> list[ast.expr]:
    """``node`` and what is assigned to the names in it."""
    found = [node]
    for name in (part for part in ast.walk(node) if isinstance(part, ast.Name)):
        for owner in scope.owners(name.id):
            found += owner.values.get(name.id, [])
    return found


def _adds_underscores(scan: Scan, found: Computed, seen: set[int]) -> bool:
    """Whether ``"__"`` is joined to something unknown: what else would that spell than a name to hide?

    ``seen``: expressions that were looked at for an earlier name.
    """
    stack: list[ast.AST] = list(_candidates(found.name, found.scope))
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, ast.BinOp | ast.JoinedStr) or _is_text_method(part):
            pieces = _pieces(part)
            known = [scan.text(piece, found.scope) if piece is not None else None for piece in pieces]
            runs = "".join("\0" if text is None else text for text in known)
            if ("__" in runs and None in known) or len(pieces) >= _MAX_PIECES:
                return True
            stack.extend(piece for piece in pieces if piece is not None)
        else:
            stack.extend(ast.iter_child_nodes(part))
    return False


def _is_text_method(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("format", "join", "replace", "ljust", "rjust", "center")
    )


def _pieces(node: ast.AST) -> list[ast.expr | None]:
    """What a composed text is made of, in order; ``None`` stands between pieces that are no neighbours."""
    found: list[ast.expr | None] = []
    stack: list[ast.AST | None] = [node]
    while stack and len(found) < _MAX_PIECES:
        part = stack.pop()
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add):
            stack += [part.right, part.left]
        elif isinstance(part, ast.JoinedStr):
            stack += part.values[::-1]
        elif isinstance(part, ast.FormattedValue):
            stack += [None, part.value] if part.format_spec is None else [None, part.value, part.format_spec]
        elif isinstance(part, ast.BinOp):
            found += [part.left, None, part.right]
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            found += [part.func.value, None, *part.args]
        elif part is None or isinstance(part, ast.expr):
            found.append(part)
    return found


def is_main_guard(test: ast.expr) -> bool:
    """Whether this is ``if __name__ == "__main__"``, whose body never runs in a module that is imported."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = (test.left, test.comparators[0])
    names = [s.id for s in sides if isinstance(s, ast.Name)]
    texts = [s.value for s in sides if isinstance(s, ast.Constant)]
    return names == ["__name__"] and texts == ["__main__"]
