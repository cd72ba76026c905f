"""What only a whole module shows."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from engine.guard import gate_rules as rules
from engine.guard.gate_tables import SENSITIVE
from engine.guard.gate_text import Scope

if TYPE_CHECKING:
    from engine.guard.gate_scan import Scan

_Judged = dict[tuple[int, tuple[str, ...]], bool]  # by the texts and what they are looked up on

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


class _Seen:
    """What was looked at for earlier names, so that many names cost one look: (scope, name) pairs by purpose."""

    def __init__(self) -> None:
        self.expressions: set[int] = set()
        self.names: set[tuple[int, str]] = set()
        self.dunder: dict[tuple[int, str], bool] = {}


def conclude(scan: Scan) -> None:
    """Add what no single statement shows: computed names beside telling text, modules handed on."""
    judged: _Judged = {}
    scan.dynamic = [found for found in scan.dynamic if found is None or not _is_settled(scan, found, judged)]
    seen = _Seen()
    looked_at: set[tuple[int, str]] = set()
    for found in scan.dynamic:
        if found is not None and _adds_underscores(scan, found, seen):
            why = "an attribute name is put together from '__' and a computed piece; write it out"
            scan.findings.append(Finding(found.line, "gate.obfuscation", why))
    if scan.resolver.tangled:
        scan.findings.append(Finding(1, "gate.obfuscation", "names are assigned to each other in too long chains"))
    if scan.dynamic and scan.telling:
        why = f"attribute names are computed and the text {scan.telling!r} is at hand"
        scan.findings.append(Finding(scan.dynamic_line, "gate.obfuscation", why))
    elif scan.decodes and any(_is_decoded(scan, name, looked_at) for name in scan.dynamic):
        why = "an attribute name is decoded or computed by a call; write it out"
        scan.findings.append(Finding(scan.dynamic_line, "gate.obfuscation", why))
    if scan.escaped and scan.foreign_stores:
        why = "a module is passed on as a value and attributes of an unknown object are assigned"
        scan.findings.append(Finding(scan.foreign_stores[0], "gate.monkey-patch", why))


def _is_settled(scan: Scan, found: Computed, judged: _Judged) -> bool:
    """Whether the name is a helper's parameter that is only ever given harmless constants.

    ``judged``: the answers so far, so that many look-ups in one helper do not judge its many calls again.
    """
    given = scan.names.looked_up(found.name, found.owner, scan.scopes, found.scope, scan.resolver)
    if given is None:
        return False
    held = tuple(sorted(scan.dotted(found.owner, found.scope))) if found.owner is not None else ()
    key = (id(given), held)  # the set is kept, so its id stays its own
    if key not in judged:
        judged[key] = _are_harmless(scan, found.line, given, held)
    return judged[key]


def _are_harmless(scan: Scan, line: int, given: set[tuple[str, str]], held: tuple[str, ...]) -> bool:
    """Report the texts that are refused as attributes; a telling one leaves the name as unknown as it was.

    For what it is looked up on may be the result of another call, and so unknown.
    """
    telling = ""
    for text, of in sorted(given):
        paths = [f"{target}.{text}" for target in (*held, of) if target]
        refusals = [rules.refuse_attribute_path(text), *map(rules.refuse_dotted, paths)]
        scan.findings.extend(Finding(line, *refusal) for refusal in refusals if refusal is not None)
        telling = telling or (text if rules.sensitive(text, SENSITIVE) else "")
    scan.telling = scan.telling or telling
    return not telling


def _is_decoded(scan: Scan, found: Computed | None, seen: set[tuple[int, str]]) -> bool:
    """Whether a computed name comes out of a call or is cut out of a text; ``None`` is an unknown name.

    ``seen``: (scope, name) of what was looked at for an earlier name.
    """
    if found is None:
        return True
    stack: list[tuple[ast.expr | None, Scope]] = [(found.name, found.scope)]
    while stack:
        candidate, scope = stack.pop()
        for part in ast.walk(candidate) if candidate is not None else ():
            if isinstance(part, ast.Call | ast.Slice):
                return True
            if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Attribute):
                return True
            if isinstance(part, ast.Name):
                stack += _sources(scan, part.id, scope, seen)
    return False


def _sources(
    scan: Scan, name: str, scope: Scope, seen: set[tuple[int, str]]
) -> list[tuple[ast.expr | None, Scope]]:
    """What ``name`` is assigned, or given as a parameter, each with the scope in which it stands."""
    found: list[tuple[ast.expr | None, Scope]] = []
    for owner in scope.owners(name):
        if (id(owner), name) in seen:
            continue
        seen.add((id(owner), name))
        found += [(value, owner) for value in owner.values.get(name, [])]
        if name in owner.parameters:
            outside = owner.parent or owner  # where a default is evaluated
            found += [(value, outside) for value in owner.values.get(name, [])]
            found += scan.names.given(name, owner, scan.scopes)
    return found


def _adds_underscores(scan: Scan, found: Computed, seen: _Seen) -> bool:
    """Whether ``"__"`` is joined to something unknown: what else would that spell than a name to hide?"""
    stack: list[tuple[ast.AST | None, Scope]] = [(found.name, found.scope)]
    while stack:
        part, scope = stack.pop()
        if part is None or id(part) in seen.expressions:
            continue
        seen.expressions.add(id(part))
        if isinstance(part, ast.BinOp | ast.JoinedStr) or _is_text_method(part):
            pieces = _pieces(part)
            known = [scan.text(piece, scope) if piece is not None else None for piece in pieces]
            runs = "".join("\0" if text is None else text for text in known)
            joined = "__" in runs or any(_can_be_dunder(scan, piece, scope, seen) for piece in pieces)
            if (joined and None in known) or len(pieces) >= _MAX_PIECES:
                return True
            stack.extend((piece, scope) for piece in pieces)
        elif isinstance(part, ast.Name):
            stack += _sources(scan, part.id, scope, seen.names)
        else:
            stack.extend((child, scope) for child in ast.iter_child_nodes(part))
    return False


def _can_be_dunder(scan: Scan, piece: ast.expr | None, scope: Scope, seen: _Seen) -> bool:
    """Whether ``piece`` is a name and one of the texts assigned to it has ``"__"``."""
    if not isinstance(piece, ast.Name):
        return False
    for owner in scope.owners(piece.id):
        key = (id(owner), piece.id)
        if key not in seen.dunder:
            texts = (scan.text(value, owner) for value in owner.values.get(piece.id, []))
            seen.dunder[key] = any("__" in text for text in texts if text is not None)
        if seen.dunder[key]:
            return True
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
