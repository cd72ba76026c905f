"""What a name in a candidate's source can stand for: scopes, import aliases, constant strings. Pure, no recursion
deeper than a fixed bound.

Resolution is by possibility, not by flow: a name stands for everything that is ever assigned to it in its scope.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from engine.guard.gate_text import Scope, Texts

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
TYPE_OF = "<type>"  # what type(x) and x.__class__ stand for: somebody else's class

_DEPTH = 24
_PASSES = 24
_MAX_TARGETS = 64
_MAX_PARTS = 12
_ALIASES = (ast.Name, ast.Attribute, ast.IfExp, ast.BoolOp, ast.NamedExpr, ast.Subscript, ast.Call)


def attribute_chain(node: ast.expr) -> tuple[ast.expr, list[str]]:
    """(base, names) of ``base.a.b.c``; iterative, so its length does not matter."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.reverse()
    return node, names


class Resolver(Texts):
    """Answers for one module, whose scopes are complete.

    What names stand for is settled first, pass by pass over all assignments until nothing changes, so that long
    chains and cycles of aliases cost a pass and not a tree of look-ups. ``tangled``: they would not settle.
    """

    def __init__(self, scopes: Iterable[Scope]) -> None:
        super().__init__()
        self.tangled = False
        self._settle(scopes)

    def _settle(self, scopes: Iterable[Scope]) -> None:
        given = [
            (scope, name, aliases)
            for scope in scopes
            for name, values in scope.values.items()
            if (aliases := [value for value in values if isinstance(value, _ALIASES)])
        ]
        for scope, name, _ in given:  # in order, so that no chain is followed deeper than one step
            self._constant_name(name, scope, 0)
        for _ in range(_PASSES):
            changed = False
            for scope, name, aliases in given:
                found = frozenset[str]().union(*(self.dotted(value, scope) for value in aliases))
                if found != scope.targets.get(name, frozenset()):
                    scope.targets[name], changed = found, True
                    if len(found) > _MAX_TARGETS:
                        self.tangled = True
                        return
            if not changed:
                return
        self.tangled = True

    def dotted(self, node: ast.expr, scope: Scope, depth: int = 0) -> frozenset[str]:
        """Dotted names of modules or their members that ``node`` can stand for; empty when none is known."""
        if depth > _DEPTH:
            return frozenset()
        if isinstance(node, ast.Name):
            return self._name(node.id, scope)
        if isinstance(node, ast.Attribute):
            base, names = attribute_chain(node)
            found = self.dotted(base, scope, depth + 1)
            if "__class__" in names and not _is_own(base):
                found = found | {TYPE_OF}
                names = names[names.index("__class__") + 1 :]
            return frozenset(_extended(root, names) for root in found)
        if isinstance(node, ast.NamedExpr):
            return self.dotted(node.value, scope, depth + 1)
        if isinstance(node, ast.IfExp):
            return self.dotted(node.body, scope, depth + 1) | self.dotted(node.orelse, scope, depth + 1)
        if isinstance(node, ast.BoolOp):
            return frozenset[str]().union(*(self.dotted(v, scope, depth + 1) for v in node.values))
        if isinstance(node, ast.Subscript):
            return self._subscript(node, scope, depth)
        if isinstance(node, ast.Call):
            return self._call(node, scope, depth)
        return frozenset()

    def _name(self, name: str, scope: Scope) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for owner in scope.owners(name):
            imports = owner.imports.get(name)
            if imports:
                found = found | imports
            targets = owner.targets.get(name)
            if targets:
                found = found | targets
        return found

    def _subscript(self, node: ast.Subscript, scope: Scope, depth: int) -> frozenset[str]:
        if isinstance(node.value, ast.Tuple | ast.List):
            return frozenset[str]().union(*(self.dotted(e, scope, depth + 1) for e in node.value.elts))
        if "sys.modules" in self.dotted(node.value, scope, depth + 1):
            name = self.text(node.slice, scope)
            return frozenset({name}) if name else frozenset()
        return frozenset()

    def _call(self, node: ast.Call, scope: Scope, depth: int) -> frozenset[str]:
        function = node.func
        if isinstance(function, ast.Name) and node.args:
            if function.id == "getattr" and len(node.args) >= 2:
                name = self.text(node.args[1], scope)
                found = self.dotted(node.args[0], scope, depth + 1)
                if name == "__class__" and not _is_own(node.args[0]):
                    return frozenset({TYPE_OF})
                return frozenset(f"{root}.{name}" for root in found) if name else frozenset()
            if function.id == "type" and len(node.args) == 1 and not _is_own(node.args[0]):
                return frozenset({TYPE_OF})
        if not isinstance(function, ast.Name | ast.Attribute):
            return frozenset()
        if isinstance(function, ast.Attribute) and function.attr not in ("import_module", "get"):
            return frozenset()
        targets = self.dotted(function, scope, depth + 1)
        if "importlib.import_module" in targets and node.args:
            name = self.text(node.args[0], scope)
            return frozenset({name}) if name else frozenset()
        if targets & {"sys.modules.get"} and node.args:
            name = self.text(node.args[0], scope)
            return frozenset({name}) if name else frozenset()
        return frozenset()


def _extended(root: str, names: list[str]) -> str:
    """``root`` with further attributes, cut at a length that no real path has (``x = x.next`` grows for ever)."""
    return ".".join((*root.split("."), *names)[:_MAX_PARTS])


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


# -- building the scopes


def build_scopes(tree: ast.Module) -> dict[int, Scope]:
    """The scope that each scope-making node opens, by ``id(node)``; the module's is under ``id(tree)``."""
    module = Scope(None, "module")
    scopes = {id(tree): module}
    stack: list[tuple[ast.AST, Scope]] = [(child, module) for child in tree.body]
    late: list[tuple[str, ast.expr | None, Scope]] = []
    while stack:
        node, scope = stack.pop()
        inner = scope
        if isinstance(node, FUNCTIONS):
            inner = _open_function(node, scope, scopes, stack)
            if not isinstance(node, ast.Lambda):
                scope.bind(node.name)
            body = [node.body] if isinstance(node, ast.Lambda) else node.body
            stack.extend((child, inner) for child in body)
            continue
        if isinstance(node, ast.ClassDef):
            scope.bind(node.name)
            inner = scopes[id(node)] = Scope(scope, "class")
            stack.extend((c, scope) for c in (*node.decorator_list, *node.bases, *node.keywords))
            stack.extend((child, inner) for child in node.body)
            continue
        if isinstance(node, COMPREHENSIONS):
            inner = scopes[id(node)] = Scope(scope, "comprehension")
        elif isinstance(node, ast.Global | ast.Nonlocal):
            scope.outer.update(node.names)
        else:
            _collect(node, scope, late)
        stack.extend((child, inner) for child in ast.iter_child_nodes(node))
    for name, value, scope in reversed(late):  # in source order, after every ``global`` has been seen
        scope.bind(name, value)
    return scopes


def _open_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
    scope: Scope,
    scopes: dict[int, Scope],
    stack: list[tuple[ast.AST, Scope]],
) -> Scope:
    inner = scopes[id(node)] = Scope(scope)
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    for arg, default in zip(reversed(positional), reversed(given.defaults), strict=False):
        inner.bind(arg.arg, default)
    for arg, key_default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        inner.bind(arg.arg, key_default)
    every = [*positional, *given.kwonlyargs, *(a for a in (given.vararg, given.kwarg) if a is not None)]
    inner.parameters.update(arg.arg for arg in every)
    for arg in every:
        inner.bind(arg.arg)
        if arg.annotation is not None:
            stack.append((arg.annotation, scope))
    stack.extend((d, scope) for d in (*given.defaults, *(d for d in given.kw_defaults if d is not None)))
    if not isinstance(node, ast.Lambda):
        stack.extend((d, scope) for d in node.decorator_list)
        if node.returns is not None:
            stack.append((node.returns, scope))
    return inner


def _collect(node: ast.AST, scope: Scope, late: list[tuple[str, ast.expr | None, Scope]]) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            scope.bind_import(name, alias.name if alias.asname else name)
            scope.modules.add(alias.name if alias.asname else name)
    elif isinstance(node, ast.ImportFrom):
        origin = "" if node.level else f"{node.module or ''}."
        for alias in node.names:
            if node.level:
                scope.bind(alias.asname or alias.name)
            else:
                scope.bind_import(alias.asname or alias.name, f"{origin}{alias.name}")
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            late.extend((name, value, scope) for name, value in _pairs(target, node.value))
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        if isinstance(node.target, ast.Name):
            holder = scope
            while isinstance(node, ast.NamedExpr) and holder.kind == "comprehension" and holder.parent:
                holder = holder.parent  # a walrus in a comprehension binds outside it
            late.append((node.target.id, node.value, holder))
    elif isinstance(node, ast.Match):
        patterns = [case.pattern for case in node.cases]
        late.extend((p.name, node.subject, scope) for p in patterns if isinstance(p, ast.MatchAs) and p.name)
    elif isinstance(node, ast.AugAssign):
        if isinstance(node.target, ast.Name):
            before = ast.Name(id=node.target.id, ctx=ast.Load())
            late.append((node.target.id, ast.BinOp(left=before, op=node.op, right=node.value), scope))
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        late.extend((name, value, scope) for name, value in _elements(node.target, node.iter))
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        late.append((node.id, None, scope))
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        late.append((node.name, None, scope))


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr | None]]:
    """(name, value) for every name in an assignment target, matching tuples element by element."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Tuple | ast.List):
        found: list[tuple[str, ast.expr | None]] = []
        same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        for at, element in enumerate(target.elts):
            if isinstance(element, ast.Name):
                found.append(
                    (element.id, value.elts[at] if same and isinstance(value, ast.Tuple | ast.List) else None)
                )
        return found
    return []


def _elements(target: ast.expr, iterable: ast.expr) -> list[tuple[str, ast.expr | None]]:
    """(name, value) for a loop over a literal: the loop variable can be any of the elements.

    What a loop over ``dir(x)`` yields is no element that stands there, and comes out of that call all the same.
    """
    if isinstance(target, ast.Name) and any(_lists_names(part) for part in ast.walk(iterable)):
        return [(target.id, ast.Await(value=iterable))]
    if not isinstance(iterable, ast.Tuple | ast.List | ast.Set):
        return []
    found: list[tuple[str, ast.expr | None]] = []
    for element in iterable.elts:
        found.extend(_pairs(target, element))
    return found


def _lists_names(node: ast.AST) -> bool:
    """``dir`` or ``.__dir__``."""
    return (isinstance(node, ast.Name) and node.id == "dir") or (
        isinstance(node, ast.Attribute) and node.attr == "__dir__"
    )
