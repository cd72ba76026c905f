"""What a name in a candidate's source can stand for: scopes, import aliases, constant strings. Pure, no recursion
deeper than a fixed bound.

Resolution is by possibility, not by flow: a name stands for everything that is ever assigned to it in its scope.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
TYPE_OF = "<type>"  # what type(x) and x.__class__ stand for: somebody else's class

_DEPTH = 24
_MAX_FOLD = 4096


class Scope:
    """A module, function, class or comprehension scope. ``values``: name → expressions assigned to it."""

    __slots__ = ("imports", "kind", "modules", "names", "outer", "parameters", "parent", "values")

    def __init__(self, parent: Scope | None, kind: str = "function") -> None:
        self.parent, self.kind = parent, kind  # module | function | class | comprehension
        self.names: set[str] = set()
        self.outer: set[str] = set()  # declared global or nonlocal here
        self.parameters: set[str] = set()
        self.modules: set[str] = set()  # imported by name as modules
        self.imports: dict[str, set[str]] = {}
        self.values: dict[str, list[ast.expr]] = {}

    @property
    def module(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def bind(self, name: str, value: ast.expr | None = None) -> None:
        scope = self.module if name in self.outer else self
        scope.names.add(name)
        if value is not None:
            scope.values.setdefault(name, []).append(value)

    def bind_import(self, name: str, target: str) -> None:
        scope = self.module if name in self.outer else self
        scope.names.add(name)
        scope.imports.setdefault(name, set()).add(target)

    def owners(self, name: str) -> Iterator[Scope]:
        """The scopes that can hold ``name`` as seen from here, innermost first.

        A function that binds a name owns it for all of its body; a class body, or the module, may also leave it
        unbound at the moment of use, so the search goes on.
        """
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and name not in scope.outer:
                yield scope
                if scope.kind in ("function", "comprehension"):
                    return
            scope = scope.parent

    def is_given(self, name: str) -> bool:
        """Whether ``name`` is a parameter: its value comes from outside."""
        return any(name in scope.parameters for scope in self.owners(name))

    def is_local(self, name: str) -> bool:
        """Whether ``name`` is certainly a function's own variable here, so never a builtin or an import."""
        return any(scope.kind in ("function", "comprehension") for scope in self.owners(name))


def attribute_chain(node: ast.expr) -> tuple[ast.expr, list[str]]:
    """(base, names) of ``base.a.b.c``; iterative, so its length does not matter."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.reverse()
    return node, names


class Resolver:
    """Answers for one module, whose scopes are complete."""

    def __init__(self) -> None:
        self._busy: set[tuple[int, str]] = set()

    def dotted(self, node: ast.expr, scope: Scope, depth: int = 0) -> frozenset[str]:
        """Dotted names of modules or their members that ``node`` can stand for; empty when none is known."""
        if depth > _DEPTH:
            return frozenset()
        if isinstance(node, ast.Name):
            return self._name(node.id, scope, depth)
        if isinstance(node, ast.Attribute):
            base, names = attribute_chain(node)
            found = self.dotted(base, scope, depth + 1)
            if "__class__" in names and not _is_own(base):
                found = found | {TYPE_OF}
                names = names[names.index("__class__") + 1 :]
            return frozenset(".".join((root, *names)) for root in found)
        if isinstance(node, ast.NamedExpr):
            return self.dotted(node.value, scope, depth + 1)
        if isinstance(node, ast.IfExp):
            return self.dotted(node.body, scope, depth + 1) | self.dotted(node.orelse, scope, depth + 1)
        if isinstance(node, ast.BoolOp):
            return frozenset().union(*(self.dotted(v, scope, depth + 1) for v in node.values[:8]))
        if isinstance(node, ast.Subscript):
            return self._subscript(node, scope, depth)
        if isinstance(node, ast.Call):
            return self._call(node, scope, depth)
        return frozenset()

    def _name(self, name: str, scope: Scope, depth: int) -> frozenset[str]:
        found: set[str] = set()
        for owner in scope.owners(name):
            found |= owner.imports.get(name, set())
            key = (id(owner), name)
            if key in self._busy or name not in owner.values:
                continue
            self._busy.add(key)
            for value in owner.values[name][:16]:
                found |= self.dotted(value, owner, depth + 1)
            self._busy.discard(key)
        return frozenset(found)

    def _subscript(self, node: ast.Subscript, scope: Scope, depth: int) -> frozenset[str]:
        if isinstance(node.value, ast.Tuple | ast.List):
            return frozenset().union(*(self.dotted(e, scope, depth + 1) for e in node.value.elts[:16]))
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
        base, names = attribute_chain(function)
        if not isinstance(base, ast.Name) or len(names) > 2:
            return frozenset()
        targets = self.dotted(function, scope, depth + 1)
        if "importlib.import_module" in targets and node.args:
            name = self.text(node.args[0], scope)
            return frozenset({name}) if name else frozenset()
        if targets & {"sys.modules.get"} and node.args:
            name = self.text(node.args[0], scope)
            return frozenset({name}) if name else frozenset()
        return frozenset()

    # -- constant text

    def text(self, node: ast.expr, scope: Scope, depth: int = 0) -> str | None:
        """The string that ``node`` certainly is, or ``None``."""
        if depth > _DEPTH:
            return None
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            return self._constant_name(node.id, scope, depth)
        if isinstance(node, ast.BinOp):
            return self._binary(node, scope, depth)
        if isinstance(node, ast.JoinedStr):
            parts = [self._formatted(v, scope, depth) for v in node.values[:256]]
            return _joined("", parts)
        if isinstance(node, ast.Subscript):
            return self._piece(node, scope, depth)
        if isinstance(node, ast.Call):
            return self._text_call(node, scope, depth)
        return None

    def _constant_name(self, name: str, scope: Scope, depth: int) -> str | None:
        owners = list(scope.owners(name))
        if len(owners) != 1 or len(owners[0].values.get(name, ())) != 1:
            return None
        key = (id(owners[0]), name)
        if key in self._busy:
            return None
        self._busy.add(key)
        found = self.text(owners[0].values[name][0], owners[0], depth + 1)
        self._busy.discard(key)
        return found

    def _binary(self, node: ast.BinOp, scope: Scope, depth: int) -> str | None:
        if isinstance(node.op, ast.Mult):
            left, right = node.left, node.right
            if isinstance(left, ast.Constant):
                left, right = right, left
            text = self.text(left, scope, depth + 1)
            count = right.value if isinstance(right, ast.Constant) else None
            if text is None and isinstance(right, ast.Constant):
                text = right.value if isinstance(right.value, str) else None
                count = left.value if isinstance(left, ast.Constant) else None
            if text is None or type(count) is not int or len(text) * count > _MAX_FOLD:
                return None
            return text * count
        if not isinstance(node.op, ast.Add):
            return None
        parts: list[str | None] = []
        current: ast.expr = node
        while isinstance(current, ast.BinOp) and isinstance(current.op, ast.Add) and len(parts) < 256:
            parts.append(self.text(current.right, scope, depth + 1))
            current = current.left
        parts.append(self.text(current, scope, depth + 1))
        return _joined("", parts[::-1])

    def _formatted(self, node: ast.expr, scope: Scope, depth: int) -> str | None:
        if isinstance(node, ast.FormattedValue):
            return self.text(node.value, scope, depth + 1) if node.format_spec is None else None
        return self.text(node, scope, depth + 1)

    def _piece(self, node: ast.Subscript, scope: Scope, depth: int) -> str | None:
        text = self.text(node.value, scope, depth + 1)
        if text is None:
            return None
        if isinstance(node.slice, ast.Slice):
            parts = (node.slice.lower, node.slice.upper, node.slice.step)
            ends = [_integer(part) for part in parts]
            if any(part is not None and end is None for part, end in zip(parts, ends, strict=True)):
                return None
            return None if ends[2] == 0 else text[slice(*ends)]
        at = _integer(node.slice)
        return text[at] if at is not None and -len(text) <= at < len(text) else None

    def _text_call(self, node: ast.Call, scope: Scope, depth: int) -> str | None:
        function = node.func
        if isinstance(function, ast.Name):
            if function.id == "chr" and len(node.args) == 1:
                code = _integer(node.args[0])
                return chr(code) if code is not None and 0 <= code < 0x110000 else None
            if function.id == "str" and len(node.args) == 1:
                return self.text(node.args[0], scope, depth + 1)
            return None
        if not isinstance(function, ast.Attribute):
            return None
        if function.attr == "decode" and isinstance(function.value, ast.Constant):
            raw = function.value.value
            return raw.decode("latin-1") if isinstance(raw, bytes) else None
        subject = self.text(function.value, scope, depth + 1)
        if subject is None:
            return None
        if function.attr in ("lower", "upper", "strip", "title", "swapcase", "casefold") and not node.args:
            return str(getattr(subject, function.attr)())
        given = [self.text(arg, scope, depth + 1) for arg in node.args]
        if function.attr == "join" and len(node.args) == 1 and isinstance(node.args[0], ast.List | ast.Tuple):
            return _joined(subject, [self.text(e, scope, depth + 1) for e in node.args[0].elts[:256]])
        if any(part is None for part in given):
            return None
        parts = [part for part in given if part is not None]
        if function.attr == "replace" and len(parts) == 2:
            return subject.replace(parts[0], parts[1])[:_MAX_FOLD]
        if function.attr in ("removeprefix", "removesuffix", "strip") and len(parts) == 1:
            return str(getattr(subject, function.attr)(parts[0]))
        if function.attr == "format" and not node.keywords and "!" not in subject and "." not in subject:
            try:
                return subject.format(*parts)[:_MAX_FOLD]
            except (IndexError, KeyError, ValueError):
                return None
        return None


def _integer(node: ast.expr | None) -> int | None:
    """A literal integer's value, negative ones included."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _integer(node.operand) if isinstance(node.operand, ast.Constant) else None
        return None if value is None else -value
    return None


def _joined(separator: str, parts: list[str | None]) -> str | None:
    known = [part for part in parts if part is not None]
    if len(known) != len(parts) or sum(map(len, known)) > _MAX_FOLD:
        return None
    return separator.join(known)


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
    for name, value, scope in late:  # after every ``global`` has been seen
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
    """(name, value) for a loop over a literal: the loop variable can be any of the elements."""
    if not isinstance(iterable, ast.Tuple | ast.List | ast.Set):
        return []
    found: list[tuple[str, ast.expr | None]] = []
    for element in iterable.elts[:64]:
        found.extend(_pairs(target, element))
    return found
