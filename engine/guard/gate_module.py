"""What only a whole module shows."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from engine.guard.gate_text import Scope

if TYPE_CHECKING:
    from engine.guard.gate_scan import Scan


class Finding(NamedTuple):
    line: int
    code: str
    what: str


def conclude(scan: Scan) -> None:
    """Add what no single statement shows: computed names beside telling text, modules handed on, unjoined work."""
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
    scan.findings.extend(Finding(*found) for found in scan.work.unjoined())


def _is_decoded(name: tuple[ast.expr, Scope] | None) -> bool:
    """Whether a computed name comes out of a call, directly or by assignment; ``None`` is an unknown name."""
    if name is None:
        return True
    node, scope = name
    candidates = [node]
    for name_node in (part for part in ast.walk(node) if isinstance(part, ast.Name)):
        for owner in scope.owners(name_node.id):
            candidates += owner.values.get(name_node.id, [])
    return any(isinstance(part, ast.Call) for found in candidates for part in ast.walk(found))


def is_main_guard(test: ast.expr) -> bool:
    """Whether this is ``if __name__ == "__main__"``, whose body never runs in a module that is imported."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = (test.left, test.comparators[0])
    names = [s.id for s in sides if isinstance(s, ast.Name)]
    texts = [s.value for s in sides if isinstance(s, ast.Constant)]
    return names == ["__name__"] and texts == ["__main__"]
