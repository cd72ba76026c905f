"""What certainly is a module's own: names that cannot mean a builtin, and all texts that a helper is given."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable

from engine.guard.gate_names import Resolver
from engine.guard.gate_text import Scope

_NAMESPACES = frozenset({"globals", "locals", "vars"})
_REACHING = frozenset(
    {"open", "getattr", "hasattr", "setattr", "delattr", "vars", "globals", "locals", "breakpoint"}
)  # what these do has equivalents that could be given their names
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class OwnNames:
    """Facts about one module, from one walk over its tree.

    ``exposed``: something can hold the module's namespace as an object (another file of the candidate,
    ``globals``, ``sys.modules``), and so take names out of it again; then nothing is certain.
    """

    def __init__(self, tree: ast.Module, imported: frozenset[str], own: frozenset[str], *, alone: bool) -> None:
        self._certain = _bound(tree.body)
        self._plain = _named_displays(tree.body)
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._lost: set[str] = set()
        self._bindings: Counter[str] = Counter()
        self._loads: Counter[str] = Counter()
        self._calls: dict[str, dict[int, tuple[ast.Call, Scope]]] = {}
        self._texts: dict[tuple[int, str, str], set[tuple[str, str]] | None] = {}
        self._helpers: dict[int, ast.FunctionDef] = {}
        roots = {name.partition(".")[0] for name in imported}
        self.modules_at_hand = "importlib" in roots or "sys.modules" in imported
        handles: list[ast.Name] = []
        relative = False
        for node in ast.walk(tree):
            self._bindings.update(_names_bound(node))
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    self._loads[node.id] += 1
                    handles += [node] if node.id in _NAMESPACES else []
                elif isinstance(node.ctx, ast.Del):
                    self._lost.add(node.id)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                self._lost.add(node.name)  # Python deletes it after the handler
            elif isinstance(node, ast.Attribute) and node.attr == "modules" and "sys" in roots:
                self.modules_at_hand = True
            elif isinstance(node, ast.ImportFrom) and node.level:
                relative = True
        self.exposed = not alone or relative or self.modules_at_hand or bool(roots & own)
        self.exposed = self.exposed or any(not self.certain(name.id, name) for name in handles)

    def certain(self, name: str, node: ast.expr) -> bool:
        """Whether ``name``, used at ``node`` and bound by the module, cannot be the builtin of that name.

        Only a statement that always runs counts, and only for what is written after it: before it, or where the
        name can be deleted, Python finds the builtin. What reaches objects and files keeps the builtin's rules
        whatever is bound to its name (``from tokenize import open``), unless that cannot be called at all.
        """
        end = self._certain.get(name)
        if end is None or self.exposed or name in self._lost or name.startswith("__"):
            return False
        if name in _REACHING and (name not in self._plain or self._bindings[name] != 1):
            return False
        return (node.lineno, node.col_offset) >= end

    def is_unused(self, name: str, scope: Scope) -> bool:
        """Whether nothing can read what is assigned to ``name`` here; a class hands its names out."""
        return not self.exposed and scope.kind != "class" and not self._loads[name]

    def called(self, node: ast.Call, scope: Scope) -> None:
        """Remember a call of a name, for ``given``."""
        if isinstance(node.func, ast.Name):
            self._calls.setdefault(node.func.id, {})[id(node)] = (node, scope)

    def looked_up(
        self, name: ast.expr, of: ast.expr | None, scopes: dict[int, Scope], scope: Scope, resolver: Resolver
    ) -> set[tuple[str, str]] | None:
        """All that ``name``, a parameter of a helper that is only ever called, can be: constants, or ``None``.

        Each with a dotted name that ``of``, what it is looked up on, can stand for in that call; empty if unknown.
        """
        if not isinstance(name, ast.Name) or self.exposed:
            return None
        owner = next(scope.owners(name.id), None)
        if owner is None or owner.kind != "function":
            return None
        beside = of.id if isinstance(of, ast.Name) and of.id in owner.parameters else ""
        key = (id(owner), name.id, beside)
        if key not in self._texts:
            self._texts[key] = self._all_looked_up(name.id, beside, owner, scopes, resolver)
        return self._texts[key]

    def _all_looked_up(
        self, name: str, beside: str, owner: Scope, scopes: dict[int, Scope], resolver: Resolver
    ) -> set[tuple[str, str]] | None:
        helper = self._helper(owner, scopes)
        if helper is None or helper.decorator_list or self._bindings[helper.name] != 1:
            return None
        inside = sum(_names_bound(node).count(name) for node in ast.walk(helper))
        names = self.given(name, owner, scopes)
        calls = len(self._calls.get(helper.name, {}))
        if inside != 1 or not calls or self._loads[helper.name] != calls:
            return None
        owners = self.given(beside, owner, scopes)
        found: set[tuple[str, str]] = set()
        for (text_node, where), (of, of_where) in zip(names, owners, strict=True):
            text = resolver.text(text_node, where) if text_node is not None else None
            if text is None:
                return None
            targets = resolver.dotted(of, of_where) if of is not None else ()
            found.update((text, target) for target in targets or ("",))
        return found

    def given(self, name: str, owner: Scope, scopes: dict[int, Scope]) -> list[tuple[ast.expr | None, Scope]]:
        """What each known call gives for a parameter of the helper with this scope, and where that stands."""
        helper = self._helper(owner, scopes)
        if helper is None:
            return []
        calls = self._calls.get(helper.name, {}).values()
        return [_argument(helper.args, name, call, where) for call, where in calls]

    def _helper(self, owner: Scope, scopes: dict[int, Scope]) -> ast.FunctionDef | None:
        if not self._helpers:
            self._helpers = {id(scopes[id(node)]): node for node in self._functions.values()}
        return self._helpers.get(id(owner))


def _bound(statements: Iterable[ast.stmt]) -> dict[str, tuple[int, int]]:
    """Names that these statements bind if they run to their end, with the place where the first such one ends."""
    found: dict[str, tuple[int, int]] = {}
    for node in statements:
        names: Iterable[str] = ()
        if isinstance(node, _DEFINITIONS):
            names = (node.name,)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.asname or a.name.partition(".")[0] for a in node.names]
        elif isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
            names = (node.target.id,)
        elif isinstance(node, ast.If):
            names = _bound(node.body).keys() & _bound(node.orelse).keys()
        elif isinstance(node, ast.Try):
            names = set(_bound(node.body)).intersection(*(_bound(h.body) for h in node.handlers))
        for name in names:
            found.setdefault(name, (node.end_lineno or 0, node.end_col_offset or 0))
    return found


def _named_displays(statements: Iterable[ast.stmt]) -> set[str]:
    """Names that these statements bind to a constant or a display, which nothing can call."""
    plain = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)
    assigned = (node for node in statements if isinstance(node, ast.Assign) and isinstance(node.value, plain))
    return {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}


def _names_bound(node: ast.AST) -> list[str]:
    """The names that this one node binds, or may bind elsewhere."""
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, _DEFINITIONS):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [a.asname or a.name.partition(".")[0] for a in node.names]
    if isinstance(node, ast.Global | ast.Nonlocal):
        return list(node.names)
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        return [node.name]
    return [node.rest] if isinstance(node, ast.MatchMapping) and node.rest else []


def _argument(parameters: ast.arguments, name: str, call: ast.Call, scope: Scope) -> tuple[ast.expr | None, Scope]:
    """What ``call`` gives for the parameter ``name``, and in which scope that stands; ``None`` if unknown.

    A default belongs to the module, where the helper is defined, whatever its names mean to the caller.
    """
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None, scope
    keyword = next((k.value for k in call.keywords if k.arg == name), None)
    positional = [arg.arg for arg in (*parameters.posonlyargs, *parameters.args)]
    if keyword is not None:
        return keyword, scope
    if name in positional:
        at = positional.index(name)
        if at < len(call.args):
            return call.args[at], scope
        default = at - len(positional) + len(parameters.defaults)
        return (parameters.defaults[default] if default >= 0 else None), scope.module
    keyed = [arg.arg for arg in parameters.kwonlyargs]
    return (parameters.kw_defaults[keyed.index(name)] if name in keyed else None), scope.module
