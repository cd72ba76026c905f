"""Scopes, and what text an expression certainly is: constants, and constants put together to hide a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_DEPTH = 24
_MAX_FOLD = 4096


class Scope:
    """A module, function, class or comprehension scope. ``values``: name → expressions assigned to it."""

    __slots__ = (
        "bound",
        "imports",
        "kind",
        "modules",
        "names",
        "outer",
        "parameters",
        "parent",
        "targets",
        "values",
    )

    def __init__(self, parent: Scope | None, kind: str = "function") -> None:
        self.parent, self.kind = parent, kind  # module | function | class | comprehension
        self.names: set[str] = set()
        self.bound: dict[str, int] = {}  # how many places bind the name
        self.outer: set[str] = set()  # declared global or nonlocal here
        self.parameters: set[str] = set()
        self.modules: set[str] = set()  # imported by name as modules
        self.imports: dict[str, set[str]] = {}
        self.values: dict[str, list[ast.expr]] = {}
        self.targets: dict[str, frozenset[str]] = {}  # what the values resolve to, filled in by the resolver

    @property
    def module(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def bind(self, name: str, value: ast.expr | None = None) -> None:
        scope = self.module if name in self.outer else self
        scope.names.add(name)
        if value is None:
            scope.bound[name] = scope.bound.get(name, 0) + 1
        else:
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


class Texts:
    """Folds constant text; no recursion deeper than a fixed bound."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], str | None] = {}  # constant text by scope and name

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
        if name in owners[0].parameters or owners[0].bound.get(name, 0) > 1:  # a default, or bound elsewhere too
            return None
        key = (id(owners[0]), name)
        if key not in self._known:
            self._known[key] = None  # a name that is defined by itself has no constant value
            self._known[key] = self.text(owners[0].values[name][0], owners[0], depth + 1)
        return self._known[key]

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
