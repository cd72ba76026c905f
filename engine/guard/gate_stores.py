"""Assignments: a candidate may change what is its own, and configuration flags that exist to be set."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from engine.guard import gate_rules as rules
from engine.guard.gate_tables import FORBIDDEN_NAMES, TABLES
from engine.guard.gate_text import Scope

if TYPE_CHECKING:
    from engine.guard.gate_scan import Scan


_OWN = frozenset({"self", "cls", "ctx"})


def store(scan: Scan, target: ast.AST, scope: Scope) -> None:
    """Judge an assignment target."""
    if isinstance(target, ast.Attribute):
        _store_attribute(scan, target, scope)
    elif isinstance(target, ast.Subscript):
        store_item(scan, target, target.value, target.slice, scope)
        scan.stack.append((target.slice, scope, 0, "value"))
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            store(scan, element, scope)
    elif isinstance(target, ast.Starred):
        store(scan, target.value, scope)
    elif isinstance(target, ast.Name):
        _store_name(scan, target, scope)


def _store_name(scan: Scan, target: ast.Name, scope: Scope) -> None:
    if target.id in FORBIDDEN_NAMES and target.id.startswith("__"):
        scan.add(target, ("gate.forbidden-name", f"{target.id} is assigned"))
    elif scope.kind == "class":  # a member, and for a dataclass what its patterns look up
        if target.id in TABLES.forbidden_methods | TABLES.unstorable:
            scan.add(target, ("gate.forbidden-name", f"defines {target.id}, which no kernel needs"))
        scan.add(target, rules.refuse_attribute(target.id))


def _store_attribute(scan: Scan, target: ast.Attribute, scope: Scope) -> None:
    if target.attr in TABLES.unstorable:
        scan.add(target, ("gate.monkey-patch", f"assigns .{target.attr}"))
    store_named(scan, target, target.value, target.attr, scope)
    scan.stack.append((target.value, scope, 0, "base"))


def store_named(scan: Scan, node: ast.AST, owner: ast.expr, attribute: str, scope: Scope) -> None:
    targets = scan.dotted(owner, scope)
    for found in targets:
        scan.add(node, rules.refuse_store(found, attribute))
    if not targets and isinstance(owner, ast.Name) and scope.is_given(owner.id) and owner.id not in _OWN:
        scan.foreign_stores.append(getattr(node, "lineno", 0))


def store_item(scan: Scan, node: ast.AST, owner: ast.expr, key: ast.expr, scope: Scope) -> None:
    for found in scan.dotted(owner, scope):
        if found == "os.environ":
            scan.add(node, rules.refuse_environment_write(scan.text(key, scope)))
        else:
            scan.add(node, ("gate.monkey-patch", f"changes an entry of {found}"))
    scan.namespace_item(owner, key, scope)
    scan.stack.append((owner, scope, 0, "subscripted"))
