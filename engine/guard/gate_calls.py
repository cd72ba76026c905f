"""Calls that need a look at their arguments."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from engine.guard import gate_rules as rules
from engine.guard.gate_stores import store_item, store_named
from engine.guard.gate_tables import TABLES
from engine.guard.gate_text import Scope

if TYPE_CHECKING:
    from engine.guard.gate_scan import Scan

_LOOKUPS = frozenset({"__getattribute__", "__getattr__"})
_SETTERS = frozenset({"__setattr__", "__delattr__"})
_SPELLED = frozenset({"getattr", "setattr", "delattr"})
_FX_METHODS = frozenset({"placeholder", "create_node", "call_method", "call_module", "get_attr", "create_arg"})
_LOOKED_UP = frozenset(
    {"get_attr", "call_method", "fetch_attr", "get_submodule", "get_parameter", "get_buffer", "set_submodule"}
)
"""Methods of torch.fx and of modules whose text becomes attributes, part by part."""
_PATH_METHODS = frozenset({"unlink", "mkdir", "touch", "rmdir", "chmod", "makedirs"})


def check_call(scan: Scan, node: ast.Call, scope: Scope, branch: int) -> None:
    """Report what is refused about this call to ``scan``; the callee's name itself is judged elsewhere."""
    function = node.func
    if isinstance(function, ast.Name) and not (
        scope.is_local(function.id) or scan.names.certain(function.id, function)
    ):
        _builtin(scan, node, function.id, scope)
    if isinstance(function, ast.Attribute):
        _method(scan, node, function, scope)
    for target in scan.dotted(function, scope):
        if rules.is_opener(target):
            _opener(scan, node, scope)
        _known(scan, node, target, scope)
    if any(k.arg == "eval_str" for k in node.keywords):
        scan.add(node, ("gate.forbidden-call", "eval_str evaluates text"))


def _builtin(scan: Scan, node: ast.Call, name: str, scope: Scope) -> None:
    given = node.args
    if name in _SPELLED and any(isinstance(a, ast.Starred) for a in given):
        scan.add(node, ("gate.obfuscation", f"{name} is given unpacked arguments; write them out"))
    if name == "open":
        _opener(scan, node, scope)
    elif name in ("getattr", "hasattr") and len(given) >= 2:
        if name == "getattr" or scan.text(given[1], scope) is None:
            _lookup(scan, node, given[0], given[1], scope)
    elif name in ("setattr", "delattr") and len(given) >= 2:
        _assign(scan, node, given[0], given[1], scope)
    elif name in ("globals", "locals") or (name == "vars" and not given):
        if id(node) not in scan.handled:
            scan.add(node, ("gate.forbidden-call", f"{name}() hands out a namespace; use an ordinary dict"))
    elif name == "vars" and given and scan.dotted(given[0], scope):
        scan.add(node, ("gate.forbidden-call", "vars() of a module"))
    elif name in TABLES.exit_calls:
        scan.add(node, ("gate.forbidden-call", f"{name}() ends the process"))


def _opener(scan: Scan, node: ast.Call, scope: Scope) -> None:
    """``open``, by any name and from any module: what it opens, and how, is written out."""
    given = node.args
    _open(scan, node, given[1] if len(given) > 1 else None, scope)
    _path(scan, node, scope)
    if given and isinstance(given[0], ast.Constant) and isinstance(given[0].value, int):
        scan.add(node, ("gate.forbidden-call", "opens a file descriptor"))
    if any(k.arg == "opener" for k in node.keywords):
        scan.add(node, ("gate.forbidden-call", "opens a file with an opener"))
    if any(isinstance(a, ast.Starred) for a in given) or any(k.arg is None for k in node.keywords):
        scan.add(node, ("gate.forbidden-call", "opens a file with unpacked arguments; write them out"))


def _method(scan: Scan, node: ast.Call, function: ast.Attribute, scope: Scope) -> None:
    name, given = function.attr, node.args
    if name in _LOOKUPS | _SETTERS and any(isinstance(a, ast.Starred) for a in given):
        scan.add(node, ("gate.obfuscation", f".{name} is given unpacked arguments; write them out"))
    if name in _LOOKUPS and given:
        _lookup(scan, node, given[0] if len(given) > 1 else function.value, given[-1], scope)
    elif name in _SETTERS and given:
        of_class = len(given) > (2 if name == "__setattr__" else 1)  # the object itself is given first
        owner, key = (given[0], given[1]) if of_class else (function.value, given[0])
        _assign(scan, node, owner, key, scope)
    elif name == "open":
        _open(
            scan, node, given[0] if len(given) == 1 else given[1] if len(given) > 1 else None, scope, method=True
        )
    elif name == "system" and given:
        if not any(t == "platform.system" for t in scan.dotted(function, scope)):
            scan.add(node, ("gate.forbidden-call", ".system() runs a command"))
    elif name in _PATH_METHODS and scan.imported & {"pathlib", "pathlib.Path", "pathlib.PosixPath"}:
        scan.add(node, ("gate.forbidden-call", f".{name}() changes files"))
    elif name in _FX_METHODS | _LOOKED_UP:
        _fx_target(scan, node, scope, looked_up=name in _LOOKED_UP)
    elif name == "join" and given and isinstance(function.value, ast.Constant):
        scan.composed(node, scope)
    elif name in ("get", "setdefault", "pop") and given:
        scan.namespace_item(function.value, given[0], scope)
        text = scan.text(given[0], scope)
        if text is not None and text.startswith("__"):
            scan.add(node, rules.refuse_attribute_text(text))


def _fx_target(scan: Scan, node: ast.Call, scope: Scope, *, looked_up: bool) -> None:
    """torch.fx pastes targets and names into the source that it generates and runs."""
    for argument in (*node.args, *(k.value for k in node.keywords)):
        text = scan.text(argument, scope)
        if text is not None and looked_up:
            for part in text.split("."):
                scan.add(node, rules.refuse_attribute_text(part))
        if text is not None and not all(part.isidentifier() or part.isdigit() for part in text.split(".")):
            scan.add(node, ("gate.obfuscation", f"{text[:60]!r} becomes generated code; use a plain name"))


def _known(scan: Scan, node: ast.Call, target: str, scope: Scope) -> None:
    """Calls of resolved names."""
    given = node.args
    if target in ("os.environ.get", "os.getenv") and given:
        scan.add(node, rules.refuse_environment_read(scan.text(given[0], scope)))
    elif target == "os.environ.setdefault" and given:
        scan.add(node, rules.refuse_environment_write(scan.text(given[0], scope)))
    elif target == "torch.set_float32_matmul_precision":
        value = next(iter((*given, *(keyword.value for keyword in node.keywords))), None)
        scan.add(node, rules.refuse_precision(scan.text(value, scope) if value is not None else None))
    elif target in ("operator.attrgetter", "operator.methodcaller"):
        for name in given if target.endswith("attrgetter") else given[:1]:
            scan.attribute_name(node, name, scope)
    elif target in ("operator.setitem", "operator.delitem") and len(given) >= 2:
        store_item(scan, node, given[0], given[1], scope)
    elif target in ("functools.update_wrapper", "functools.wraps"):
        _copied_attributes(scan, node, target, scope)
    elif target == "os.path.expandvars" and given:
        for name in re.findall(r"\$\{?(\w+)", scan.text(given[0], scope) or ""):
            scan.add(node, rules.refuse_environment_read(name))
    elif target == "importlib.import_module":
        _import_module(scan, node, scope)
    elif target == "sys.modules.get" and given:
        scan.own_module(node, given[0], scope)
    elif target in ("torch.load", "numpy.load"):
        _load(scan, node, target)
        _path(scan, node, scope)
    elif target.startswith("torch.library."):
        texts = [t for t in (scan.text(a, scope) for a in given) if t is not None]
        scan.add(node, rules.refuse_library(texts))
        if target == "torch.library.Library" and given and scan.text(given[0], scope) is None:
            scan.add(node, ("gate.obfuscation", "the namespace of a torch.library.Library is computed"))
    elif target.startswith(("pathlib.", "os.path.", "numpy.")):
        _path(scan, node, scope)
    elif target in TABLES.exits:
        scan.add(node, ("gate.forbidden-call", f"{target} ends the process"))


def _copied_attributes(scan: Scan, node: ast.Call, target: str, scope: Scope) -> None:
    """``update_wrapper(mine, theirs, assigned=(…))`` copies these attributes of theirs."""
    if target.endswith("update_wrapper") and node.args:
        for found in scan.dotted(node.args[0], scope):
            scan.add(node, rules.refuse_store(found, "attributes"))
    at = 2 if target.endswith("update_wrapper") else 1
    named = [k.value for k in node.keywords if k.arg in ("assigned", "updated")]
    for names in (*node.args[at:], *named):
        for element in names.elts if isinstance(names, ast.Tuple | ast.List | ast.Set) else ():
            text = scan.text(element, scope)
            scan.add(node, rules.refuse_attribute_text(text) if text is not None else None)


def _open(scan: Scan, node: ast.Call, mode: ast.expr | None, scope: Scope, *, method: bool = False) -> None:
    mode = next((k.value for k in node.keywords if k.arg == "mode"), mode)
    text = scan.text(mode, scope) if mode is not None else None
    if method and text is None:  # some object's own open(): nothing is known of its arguments
        return
    if method and not set(text or "") <= set("rwaxbt+U"):
        return
    scan.add(node, rules.refuse_open_mode(text, given=mode is not None))


def _path(scan: Scan, node: ast.Call, scope: Scope) -> None:
    for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
        if scan.add(node, rules.refuse_path(scan.text(argument, scope))):
            return


def _lookup(scan: Scan, node: ast.Call, owner: ast.expr, name: ast.expr, scope: Scope) -> None:
    text = scan.text(name, scope)
    if text is None:
        scan.attribute_name(node, name, scope, owner)
        return
    if scan.add(node, rules.refuse_attribute_text(text)):
        return
    for target in scan.dotted(owner, scope):
        if scan.add(node, rules.refuse_dotted(f"{target}.{text}")):
            return
    if not isinstance(name, ast.Constant):
        scan.composed(name, scope)


def _assign(scan: Scan, node: ast.Call, owner: ast.expr, name: ast.expr, scope: Scope) -> None:
    text = scan.text(name, scope)
    if text in TABLES.unstorable or text in TABLES.forbidden_methods:
        scan.add(node, ("gate.monkey-patch", f"assigns .{text}"))
    store_named(scan, node, owner, text or "an attribute", scope)


def _load(scan: Scan, node: ast.Call, target: str) -> None:
    for keyword in node.keywords:
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
        if keyword.arg is None or keyword.arg == "pickle_module":
            scan.add(node, ("gate.forbidden-call", f"{target} with unpickling runs code from data"))
        if (keyword.arg == "weights_only" and value is not True) or (
            keyword.arg == "allow_pickle" and value is not False
        ):
            scan.add(node, ("gate.forbidden-call", f"{target} with {keyword.arg} runs code from data"))


def _import_module(scan: Scan, node: ast.Call, scope: Scope) -> None:
    name = scan.text(node.args[0], scope) if node.args else None
    if name is None:
        scan.add(node, ("gate.obfuscation", "imports a module whose name is computed"))
    elif name.partition(".")[0] not in scan.own and not name.startswith("."):
        scan.add(node, rules.refuse_import(name))
