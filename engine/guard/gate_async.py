"""Work that a kernel starts and must have finished when it returns: every start needs an unconditional join.

Threads and pools as such are fine. What is refused is a module that starts work on a path with fewer branches than
anything that waits for it ("the first call waits, the timed ones do not"), or that never waits at all. A method
named ``start`` or ``submit`` says nothing where no file of the candidate can make a thread, a process or a pool.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable

_STARTS = frozenset({"submit", "apply_async", "map_async", "starmap_async", "start"})
_FORKS = frozenset({"torch.jit.fork", "torch.jit._fork", "torch._C.fork"})
_JOINS = frozenset(
    {"result", "join", "wait", "_wait", "shutdown", "get", "as_completed", "map", "starmap", "close"}
)
_POOLS = frozenset({"ThreadPoolExecutor", "ThreadPool", "Pool", "TaskGroup"})
_NOT_A_START = frozenset({"profiler", "timer", "event", "span", "stack"})
_MAKERS = frozenset({"threading", "_thread", "concurrent", "multiprocessing", "asyncio"})
_MAKE_NONE = frozenset(
    {"threading." + name for name in ("Lock", "RLock", "local", "Event", "Condition", "Semaphore", "Barrier",
     "BoundedSemaphore", "get_ident", "get_native_id", "active_count")}
    | {"multiprocessing.cpu_count"}
)  # fmt: skip
_KNOWN = frozenset(sys.stdlib_module_names) | {"torch", "triton", "numpy", "einops"}
_WORKERS = ("Thread", "Process", "Pool", "Executor", "Worker", "MapWrapper")


class AsyncWork:
    """Starts and joins of one module, with the number of branches that lead to each.

    ``possible``: the module can make, or hand to another file, something that runs work beside the caller.
    """

    def __init__(self) -> None:
        self.starts: list[tuple[int, int]] = []  # (branch depth, line)
        self.joins: list[int] = []
        self.managed: set[str] = set()  # pools whose with-block joins them
        self.possible = False

    def enter(self, item: ast.withitem) -> None:
        """A ``with`` statement: its pool is joined when the block ends."""
        call = item.context_expr
        if isinstance(call, ast.Call) and _last(call.func) in _POOLS and isinstance(item.optional_vars, ast.Name):
            self.managed.add(item.optional_vars.id)

    def use(self, target: str, *, as_base: bool = False) -> None:
        """``target``, a resolved name, is used; ``as_base``: only to look up what follows, itself seen as well."""
        parts = target.split(".")
        if ".".join(parts[:2]) in _MAKE_NONE or as_base:
            return
        self.possible |= parts[0] in _MAKERS or parts[0] not in _KNOWN or any(p.endswith(_WORKERS) for p in parts)

    def call(self, node: ast.Call, branch: int, targets: Iterable[str]) -> None:
        name = _last(node.func)
        if not _FORKS.isdisjoint(targets):
            self.possible = True
            self.starts.append((branch, node.lineno))
        elif name in _STARTS and not self._is_managed(node.func):
            if name == "start" and (node.args or _root(node.func) in _NOT_A_START):
                return
            self.starts.append((branch, node.lineno))
        if name in _JOINS and not (name == "join" and _joins_text(node)):
            self.joins.append(branch)

    def _is_managed(self, function: ast.expr) -> bool:
        return isinstance(function, ast.Attribute) and _root(function) in self.managed

    def unjoined(self) -> list[tuple[int, str, str]]:
        """(line, code, what) of the first start that nothing certainly waits for."""
        if not self.starts:
            return []
        depth, line = min(self.starts)
        if self.joins and min(self.joins) <= depth:
            return []
        how = "only sometimes waited for" if self.joins else "never waited for"
        return [(line, "gate.unjoined-work", f"work started here is {how}; join it before run returns")]


def _last(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _root(function: ast.expr) -> str:
    while isinstance(function, ast.Attribute):
        function = function.value
    return function.id if isinstance(function, ast.Name) else ""


def _joins_text(node: ast.Call) -> bool:
    """``", ".join(parts)``: text has one positional argument that is not a number; a thread's time-out is one."""
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant | ast.JoinedStr):
        return True
    return len(node.args) == 1 and not (
        isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, int | float)
    )
