"""Work that a kernel starts and must have finished when it returns: every start needs an unconditional join.

Threads and pools as such are fine. What is refused is a module that starts work on a path with fewer branches than
anything that waits for it ("the first call waits, the timed ones do not"), or that never waits at all.
"""

from __future__ import annotations

import ast

_STARTS = frozenset({"submit", "apply_async", "map_async", "starmap_async", "start", "fork", "_fork"})
_JOINS = frozenset(
    {"result", "join", "wait", "_wait", "shutdown", "get", "as_completed", "map", "starmap", "close"}
)
_POOLS = frozenset({"ThreadPoolExecutor", "ThreadPool", "Pool", "TaskGroup"})
_NOT_A_START = frozenset({"profiler", "timer", "event", "span", "stack"})


class AsyncWork:
    """Starts and joins of one module, with the number of branches that lead to each."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, int]] = []  # (branch depth, line)
        self.joins: list[int] = []
        self.managed: set[str] = set()  # pools whose with-block joins them

    def enter(self, item: ast.withitem) -> None:
        """A ``with`` statement: its pool is joined when the block ends."""
        call = item.context_expr
        if isinstance(call, ast.Call) and _last(call.func) in _POOLS and isinstance(item.optional_vars, ast.Name):
            self.managed.add(item.optional_vars.id)

    def call(self, node: ast.Call, branch: int) -> None:
        name = _last(node.func)
        if name in _STARTS and not self._is_managed(node.func):
            base = _root(node.func)
            if name in ("fork", "_fork") and base != "torch":
                return
            if name == "start" and (node.args or base in _NOT_A_START):
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
