"""The gate's walk over one Python source: an explicit stack, so that no source can overflow it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from engine.guard import gate_rules as rules
from engine.guard.gate_annotations import annotation_expressions
from engine.guard.gate_async import AsyncWork
from engine.guard.gate_calls import check_call
from engine.guard.gate_module import Computed, Finding, conclude, is_main_guard
from engine.guard.gate_names import Resolver, attribute_chain, build_scopes
from engine.guard.gate_own import OwnNames
from engine.guard.gate_stores import store
from engine.guard.gate_tables import SENSITIVE, TABLES
from engine.guard.gate_text import Scope
from engine.guard.gate_uses import NAMESPACES, use, use_attribute, use_name

_MAX_FINDINGS = 32


class Scan:
    """One module. ``own`` are the top-level names of the candidate's own modules; ``alone``: there is no other."""

    def __init__(self, tree: ast.Module, source: str, own: frozenset[str], *, alone: bool) -> None:
        self.own, self.findings = own, list[Finding]()
        self.scopes = build_scopes(tree)
        self.resolver = Resolver(self.scopes.values())
        self.work = AsyncWork()
        self.imported = {t for s in self.scopes.values() for given in s.imports.values() for t in given}
        self.modules = {t for s in self.scopes.values() for t in s.modules}
        self.names = OwnNames(tree, frozenset(self.imported), own, alone=alone)
        if self.names.exposed:  # what is imported can then be used from elsewhere
            for target in self.imported:
                if target.partition(".")[0] not in own:
                    self.work.use(target)
        self.work.possible |= self.names.modules_at_hand
        self.handled: set[int] = set()  # calls of globals() and the like that their parent has judged
        self.dynamic: list[Computed | None] = []  # computed attribute names
        self.dynamic_line = 0
        self.telling: str = ""  # a sensitive string constant
        self.decodes = False
        self.escaped = False  # a module was handed on as a value
        self.foreign_stores: list[int] = []  # attribute assignments on somebody's unknown object
        self.stack: list[tuple[ast.AST, Scope, int, str]] = []
        self._module = self.scopes[id(tree)]
        self._main_is_dead = "__name__" not in self._module.names and not any(
            quoted in source for quoted in ("'__name__'", '"__name__"')
        )
        self._tree = tree

    def run(self) -> list[Finding]:
        """What is refused, in order of line."""
        self.extend(self._tree.body, self._module, 0)
        visitors = _VISITORS
        while self.stack and len(self.findings) < _MAX_FINDINGS:
            node, scope, branch, role = self.stack.pop()
            visit = visitors.get(type(node))
            if visit is not None:
                visit(self, node, scope, branch, role)
            else:
                self.extend(ast.iter_child_nodes(node), self.scopes.get(id(node), scope), branch)
        conclude(self)
        return sorted(self.findings)

    # -- helpers for the rule modules

    def add(self, node: ast.AST, refusal: rules.Refusal | None) -> bool:
        if refusal is None:
            return False
        self.findings.append(Finding(getattr(node, "lineno", 0), *refusal))
        return True

    def extend(self, nodes: Iterable[ast.AST], scope: Scope, branch: int, role: str = "value") -> None:
        self.stack.extend((node, scope, branch, role) for node in nodes)

    def dotted(self, node: ast.expr, scope: Scope) -> list[str]:
        """What ``node`` can stand for, without the candidate's own modules."""
        found = self.resolver.dotted(node, scope)
        return [t for t in found if t.partition(".")[0] not in self.own]

    def text(self, node: ast.expr, scope: Scope) -> str | None:
        return self.resolver.text(node, scope)

    def attribute_name(self, node: ast.expr, name: ast.expr, scope: Scope, owner: ast.expr | None = None) -> None:
        """A name is looked up on something by a computed string."""
        text = self.text(name, scope)
        if text is not None:
            self.add(node, rules.refuse_attribute_path(text))
        else:
            self.dynamic.append(Computed(name, scope, node.lineno, owner))
            self.dynamic_line = self.dynamic_line or getattr(node, "lineno", 0)

    def namespace_item(self, owner: ast.expr, key: ast.expr | None, scope: Scope) -> None:
        """``globals()["name"]`` with a written-out, ordinary name is like naming it."""
        if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id in NAMESPACES:
            name = self.text(key, scope) if key is not None else ""
            if name is not None and not name.startswith("__") and not owner.args:
                self.handled.add(id(owner))

    # -- visitors

    def _name(self, node: ast.Name, scope: Scope, branch: int, role: str) -> None:
        if isinstance(node.ctx, ast.Load):
            use_name(self, node, scope, role)

    def _attribute(self, node: ast.Attribute, scope: Scope, branch: int, role: str) -> None:
        use_attribute(self, node, scope, branch, role)

    def _call(self, node: ast.Call, scope: Scope, branch: int, role: str) -> None:
        check_call(self, node, scope, branch)
        self.work.call(node, branch, self.dotted(node.func, scope))
        self.names.called(node, scope)
        for keyword in node.keywords:
            if keyword.arg in TABLES.forbidden_methods:
                self.add(node, ("gate.forbidden-name", f"names {keyword.arg} as a member"))
        self.stack.append((node.func, scope, branch, "callee"))
        self.extend(node.args, scope, branch, "argument")
        self.extend((k.value for k in node.keywords), scope, branch, "argument")

    def _assign(self, node: ast.Assign, scope: Scope, branch: int, role: str) -> None:
        for target in node.targets:
            store(self, target, scope)
        if isinstance(node.value, ast.Constant) and all(
            isinstance(t, ast.Name) and self.names.is_unused(t.id, scope) for t in node.targets
        ):
            return  # text that nothing ever reads
        named = all(isinstance(t, ast.Name | ast.Tuple | ast.List) for t in node.targets)
        self._value(node.value, scope, branch, named)

    def _value(self, value: ast.expr | None, scope: Scope, branch: int, named: bool) -> None:
        if value is None:
            return
        if named and isinstance(value, ast.Tuple | ast.List):
            self.extend(value.elts, scope, branch, "alias")
        elif named and isinstance(value, ast.IfExp | ast.BoolOp):
            self.extend(ast.iter_child_nodes(value), scope, branch, "alias")
        else:
            self.stack.append((value, scope, branch, "alias" if named else "value"))

    def _annotated(self, node: ast.AnnAssign, scope: Scope, branch: int, role: str) -> None:
        store(self, node.target, scope)
        self._annotation(node.annotation, scope)
        self._value(node.value, scope, branch, isinstance(node.target, ast.Name))

    def _augmented(self, node: ast.AugAssign, scope: Scope, branch: int, role: str) -> None:
        store(self, node.target, scope)
        self.stack.append((node.value, scope, branch, "value"))

    def _delete(self, node: ast.Delete, scope: Scope, branch: int, role: str) -> None:
        for target in node.targets:
            store(self, target, scope)

    def _walrus(self, node: ast.NamedExpr, scope: Scope, branch: int, role: str) -> None:
        store(self, node.target, scope)
        self.stack.append((node.value, scope, branch, "alias"))

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope, branch: int, role: str) -> None:
        store(self, node.target, scope)
        self._value(node.iter, scope, branch, True)
        self.extend((*node.body, *node.orelse), scope, branch)

    def _comprehension(self, node: ast.comprehension, scope: Scope, branch: int, role: str) -> None:
        store(self, node.target, scope)
        self._value(node.iter, scope, branch, True)
        self.extend(node.ifs, scope, branch)

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope, branch: int, role: str) -> None:
        for item in node.items:
            self.work.enter(item)
            if item.optional_vars is not None:
                store(self, item.optional_vars, scope)
            self.stack.append((item.context_expr, scope, branch, "value"))
        self.extend(node.body, scope, branch)

    def _if(self, node: ast.If, scope: Scope, branch: int, role: str) -> None:
        self.stack.append((node.test, scope, branch, "value"))
        if scope is self._module and self._main_is_dead and is_main_guard(node.test):
            self.extend(node.orelse, scope, branch)
            return
        self.extend((*node.body, *node.orelse), scope, branch + 1)

    def _branching(self, node: ast.AST, scope: Scope, branch: int, role: str) -> None:
        inner = role if isinstance(node, ast.IfExp) and role == "alias" else "value"
        self.extend(ast.iter_child_nodes(node), scope, branch + 1, inner)

    def _class_pattern(self, node: ast.MatchClass, scope: Scope, branch: int, role: str) -> None:
        """``case object(name=value)`` looks an attribute up."""
        for name in node.kwd_attrs:
            if not self.add(node, rules.refuse_attribute_path(name)) and rules.sensitive(name, SENSITIVE):
                self.add(node, ("gate.obfuscation", f"a pattern looks up {name}; name it where it is used"))
        self.extend(ast.iter_child_nodes(node), scope, branch)

    def _mapping_pattern(self, node: ast.MatchMapping, scope: Scope, branch: int, role: str) -> None:
        for key in node.keys:
            text = self.text(key, scope)
            self.add(node, rules.refuse_attribute_text(text) if text is not None else None)
        self.extend(ast.iter_child_nodes(node), scope, branch)

    def _handler(self, node: ast.ExceptHandler, scope: Scope, branch: int, role: str) -> None:
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type] if node.type else []
        self.extend(caught, scope, branch, "handler")
        self.extend(node.body, scope, branch + 1)

    def _compare(self, node: ast.Compare, scope: Scope, branch: int, role: str) -> None:
        self.stack.append((node.left, scope, branch, "value"))
        for operator, right in zip(node.ops, node.comparators, strict=True):
            member = isinstance(operator, ast.In | ast.NotIn)
            if member:
                self.namespace_item(right, None, scope)
            self.stack.append((right, scope, branch, "member" if member else "value"))

    def _subscript(self, node: ast.Subscript, scope: Scope, branch: int, role: str) -> None:
        if not isinstance(node.ctx, ast.Load):
            return
        targets = self.dotted(node.value, scope)
        if "os.environ" in targets:
            self.add(node, rules.refuse_environment_read(self.text(node.slice, scope)))
        if "sys.modules" in targets:
            self.own_module(node, node.slice, scope)
        self.namespace_item(node.value, node.slice, scope)
        key = self.text(node.slice, scope) if not isinstance(node.slice, ast.Slice) else None
        if key is not None:
            self.add(node, rules.refuse_attribute_text(key) if key.startswith("__") else None)
        use(self, node, scope, role)
        self.stack.append((node.value, scope, branch, "subscripted"))
        self.stack.append((node.slice, scope, branch, "value"))

    def own_module(self, node: ast.AST, key: ast.expr, scope: Scope) -> None:
        if isinstance(key, ast.Name) and key.id == "__name__":
            return
        name = self.text(key, scope)
        if name is None or rules.refuse_dotted(name) is not None:
            self.add(node, ("gate.forbidden-name", "looks up another module in sys.modules"))

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, branch: int, role: str
    ) -> None:
        if node.name in TABLES.forbidden_methods:
            self.add(node, ("gate.forbidden-name", f"defines {node.name}; return plain tensors"))
        self.extend(node.decorator_list, scope, branch, "callee")
        self._arguments(node.args, scope, branch)
        self._annotation(node.returns, scope)
        self.extend(node.body, self.scopes[id(node)], 0)

    def _lambda(self, node: ast.Lambda, scope: Scope, branch: int, role: str) -> None:
        self._arguments(node.args, scope, branch)
        self.stack.append((node.body, self.scopes[id(node)], branch, "value"))

    def _arguments(self, given: ast.arguments, scope: Scope, branch: int) -> None:
        self.extend((d for d in (*given.defaults, *given.kw_defaults) if d is not None), scope, branch, "alias")
        for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
            if arg is not None:
                self._annotation(arg.annotation, scope)

    def _imported_only(self, node: ast.expr, scope: Scope) -> list[str]:
        """What ``node`` stands for, if nothing but imports binds its name."""
        base, _ = attribute_chain(node)
        held = isinstance(base, ast.Name) and any(
            base.id in owner.bound or base.id in owner.values for owner in scope.owners(base.id)
        )
        return [] if held else self.dotted(node, scope)

    def _annotation(self, node: ast.expr | None, scope: Scope) -> None:
        """Annotations can be evaluated (torch.jit does), also when they are strings."""
        if node is None:
            return
        for part in annotation_expressions(node, lambda expr: self._imported_only(expr, scope)):
            if isinstance(part, ast.Call):
                self.add(node, ("gate.obfuscation", "an annotation string contains a call"))
            elif isinstance(part, ast.Name | ast.Attribute):
                self.stack.append((part, scope, 0, "value"))
        self.stack.append((node, scope, 0, "value"))

    def _class(self, node: ast.ClassDef, scope: Scope, branch: int, role: str) -> None:
        for base in node.bases:
            for target in self.dotted(base, scope):
                if target in TABLES.bases:
                    self.add(base, ("gate.forbidden-name", f"derives from {target}: {TABLES.bases[target]}"))
        for child in node.body:
            if isinstance(child, ast.Assign):
                for name in (t.id for t in child.targets if isinstance(t, ast.Name)):
                    if name in TABLES.forbidden_methods:
                        self.add(child, ("gate.forbidden-name", f"defines {name}; return plain tensors"))
        self.extend(node.decorator_list, scope, branch, "callee")
        self.extend((*node.bases, *(k.value for k in node.keywords)), scope, branch, "callee")
        self.extend(node.body, self.scopes[id(node)], branch)

    def _raise(self, node: ast.Raise, scope: Scope, branch: int, role: str) -> None:
        self.extend(ast.iter_child_nodes(node), scope, branch, "callee")

    def _bound_member(self, node: ast.AST, alias: ast.alias) -> None:
        if alias.asname in TABLES.forbidden_methods:
            self.add(node, ("gate.forbidden-name", f"defines {alias.asname}, which no kernel needs"))

    def _import(self, node: ast.Import, scope: Scope, branch: int, role: str) -> None:
        for alias in node.names:
            self._bound_member(node, alias)
            if alias.name.partition(".")[0] in self.own:
                continue
            self.add(node, rules.refuse_import(alias.name))

    def _import_from(self, node: ast.ImportFrom, scope: Scope, branch: int, role: str) -> None:
        module = node.module or ""
        for alias in node.names:
            self._bound_member(node, alias)
        if node.level or module.partition(".")[0] in self.own or module == "__future__":
            return
        for alias in node.names:
            if alias.name == "*":
                if module not in TABLES.star_imports:
                    why = f"from {module} import * hides what is used; name what you need"
                    self.add(node, ("gate.forbidden-import", why))
                continue
            self.add(node, rules.refuse_import(f"{module}.{alias.name}"))

    def _constant(self, node: ast.Constant, scope: Scope, branch: int, role: str) -> None:
        if isinstance(node.value, str) and node.value:
            self.add(node, rules.refuse_text(node.value))
            if rules.sensitive(node.value, SENSITIVE):
                self.telling = self.telling or node.value

    def _composed(self, node: ast.BinOp | ast.JoinedStr, scope: Scope, branch: int, role: str) -> None:
        """Text put together from pieces: why would anybody spell ``__import__`` in two halves?"""
        if role != "piece":
            self.composed(node, scope)
        self.extend(ast.iter_child_nodes(node), scope, branch, "piece" if isinstance(node, ast.BinOp) else "value")

    def composed(self, node: ast.expr, scope: Scope) -> None:
        text = self.text(node, scope)
        if text is not None and rules.sensitive(text, SENSITIVE):
            self.add(node, ("gate.obfuscation", f"the name {text!r} is put together from pieces"))

    def _expression(self, node: ast.Expr, scope: Scope, branch: int, role: str) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):  # not a docstring
            self.stack.append((node.value, scope, branch, "value"))

    def _dict(self, node: ast.Dict, scope: Scope, branch: int, role: str) -> None:
        for key in node.keys:
            if isinstance(key, ast.Constant) and key.value in TABLES.forbidden_methods:
                self.add(key, ("gate.forbidden-name", f"names {key.value} as a member"))
        self.extend(ast.iter_child_nodes(node), scope, branch)


_VISITORS: dict[type[ast.AST], Callable[[Scan, Any, Scope, int, str], None]] = {
    ast.Name: Scan._name,
    ast.Attribute: Scan._attribute,
    ast.Call: Scan._call,
    ast.Assign: Scan._assign,
    ast.AnnAssign: Scan._annotated,
    ast.AugAssign: Scan._augmented,
    ast.Delete: Scan._delete,
    ast.NamedExpr: Scan._walrus,
    ast.For: Scan._for,
    ast.AsyncFor: Scan._for,
    ast.comprehension: Scan._comprehension,
    ast.With: Scan._with,
    ast.AsyncWith: Scan._with,
    ast.If: Scan._if,
    ast.IfExp: Scan._branching,
    ast.ExceptHandler: Scan._handler,
    ast.match_case: Scan._branching,
    ast.MatchClass: Scan._class_pattern,
    ast.MatchMapping: Scan._mapping_pattern,
    ast.Compare: Scan._compare,
    ast.Subscript: Scan._subscript,
    ast.FunctionDef: Scan._function,
    ast.AsyncFunctionDef: Scan._function,
    ast.Lambda: Scan._lambda,
    ast.ClassDef: Scan._class,
    ast.Raise: Scan._raise,
    ast.Import: Scan._import,
    ast.ImportFrom: Scan._import_from,
    ast.Constant: Scan._constant,
    ast.BinOp: Scan._composed,
    ast.JoinedStr: Scan._composed,
    ast.Expr: Scan._expression,
    ast.Dict: Scan._dict,
}
