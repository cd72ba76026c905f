"""What a name or an attribute may be used for: called, looked into, or handed on as a value."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from engine.guard import gate_rules as rules
from engine.guard.gate_names import TYPE_OF, attribute_chain
from engine.guard.gate_tables import FORBIDDEN_NAMES, TABLES
from engine.guard.gate_text import Scope

if TYPE_CHECKING:
    from engine.guard.gate_scan import Scan

NAMESPACES = frozenset({"globals", "locals", "vars"})
_CALL_ONLY = {"open": "gate.forbidden-call", "setattr": "gate.obfuscation", "delattr": "gate.obfuscation"}
_VALUES_RESTRICTED = frozenset(TABLES.allowed_only) - {"sys.stdout", "sys.stderr", "torch._decomp"}
_HANDLED_ROLES = frozenset({"alias", "base", "member", "subscripted"})


def use_name(scan: Scan, node: ast.Name, scope: Scope, role: str) -> None:
    """Judge a name that is read."""
    name = node.id
    local = scope.is_local(name) or scan.names.certain(name, node)
    if name in FORBIDDEN_NAMES and not local:
        code = "gate.forbidden-name" if name.startswith("__") and name != "__import__" else "gate.forbidden-call"
        scan.add(node, (code, f"{name}: {FORBIDDEN_NAMES[name]}"))
        return
    if name in TABLES.exits and role != "handler" and not local:
        scan.add(node, ("gate.forbidden-call", f"{name} would end the process; raise an ordinary exception"))
    if role != "callee" and not local:
        if name in _CALL_ONLY:
            scan.add(node, (_CALL_ONLY[name], f"{name} is used as a value; call it directly"))
        elif name in NAMESPACES:
            scan.add(node, ("gate.forbidden-name", f"{name} is used as a value"))
        elif name == "getattr":
            scan.dynamic.append(None)
            scan.dynamic_line = scan.dynamic_line or node.lineno
    if name in ("chr", "bytes", "bytearray", "dir"):
        scan.decodes = True
    use(scan, node, scope, role)


def use_attribute(scan: Scan, node: ast.Attribute, scope: Scope, branch: int, role: str) -> None:
    """Judge a chain of attributes that is read."""
    base, names = attribute_chain(node)
    for name in names:
        if name in TABLES.decoders or name.endswith(
            ("b64decode", "b32decode", "b16decode", "b85decode", "a85decode")
        ):
            scan.decodes = True
        if scan.add(node, rules.refuse_attribute(name)):
            return
    called = names if role != "callee" else names[:-1]
    if not rules.ACCESSORS.isdisjoint(called):  # under another name, nothing would judge what it is given
        found = next(name for name in called if name in rules.ACCESSORS)
        scan.add(node, ("gate.obfuscation", f".{found} is used as a value; call it directly"))
        return
    use(scan, node, scope, role)
    scan.stack.append((base, scope, branch, "base"))


def use(scan: Scan, node: ast.expr, scope: Scope, role: str) -> None:
    """Judge what ``node`` can stand for, in this ``role``."""
    for target in scan.dotted(node, scope):
        if target.partition(".")[0] != TYPE_OF:
            scan.work.use(target, as_base=role == "base" and target in scan.modules)
        if scan.add(node, rules.refuse_dotted(target)):
            return
        if rules.is_opener(target) and role not in ("callee", "base"):
            scan.add(node, ("gate.forbidden-call", f"{target} is used as a value; call it directly"))
            return
        if role in _HANDLED_ROLES:
            continue
        if target in _VALUES_RESTRICTED:
            scan.add(node, ("gate.forbidden-name", f"{target} is used as a value; name the member you need"))
            return
        if (target in scan.modules or target in TABLES.submodules) and role != "callee":
            scan.escaped = True
