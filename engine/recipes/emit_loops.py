"""Row programs as Triton loops over blocks of columns: rows too long for registers, or too few for a device."""

from __future__ import annotations

from collections.abc import Sequence

from engine.recipes.emit_triton import Kernel, Speller, Style, reduced
from engine.recipes.ops import REDUCTIONS
from engine.recipes.rows import Program, Statement, Var

LOWEST = "-3.0e38"  # finite, so that a difference of two of them is a number


def spell_looped(program: Program, style: Style, online: bool = False) -> Kernel:
    """Loops over blocks of columns, one per level of reductions and one for the stores.

    ``online``: a row maximum and the sum of exponentials that depends on it share one loop.
    """
    speller = _Looped(program, style, online)
    for reductions in speller.levels():
        speller.row_values([a for s in reductions for a in s.args])
        speller.kernel.body += speller.reducing(reductions)
        for s in reductions:
            speller.kernel.body += speller.whole(s)
    speller.finish()
    return speller.kernel


def spell_split(program: Program, style: Style, online: bool = False) -> list[Kernel]:
    """Several programs per row: one kernel per level of reductions leaves a part of each, the last one stores.

    Each kernel first puts the parts of the levels before it together. Parts lie in ``parts_ptr`` as float32
    [reductions, rows, SPLITS]; ``part`` is the program's own slice, ``SPAN`` columns long.
    """
    kernels: list[Kernel] = []
    before: list[Statement] = []
    for reductions in _Split(program, style, online).levels():
        speller = _Split(program, style, online)
        speller.gather(before)
        speller.row_values([a for s in reductions for a in s.args])
        speller.kernel.body += speller.reducing(reductions)
        for s in reductions:
            speller.leave(s)
        kernels.append(speller.kernel)
        before = [*before, *reductions]
    last = _Split(program, style, online)
    last.gather(before)
    last.finish()
    return [*kernels, last.kernel]


def parts(program: Program) -> int:
    """How many numbers per row and slice :func:`spell_split` leaves."""
    return len(program.reductions)


class _Looped(Speller):
    bounds, limit = "0, COLS", "COLS"

    def __init__(self, program: Program, style: Style, online: bool) -> None:
        super().__init__(program, style)
        self._made = {s.var.name: s for s in program.statements if s.kind not in ("store", "partial")}
        self._done: set[str] = set()
        self._fused = online_pairs(program) if online else {}

    def levels(self) -> list[list[Statement]]:
        """Reductions by what they wait for; a fused sum comes with its maximum."""
        skipped = {total.var.name for total in self._fused.values()}
        plain = [s for s in self.program.reductions if s.var.name not in skipped]
        return [[s for s in plain if s.var.level == level] for level in sorted({s.var.level for s in plain})]

    def finish(self) -> None:
        """Stores: what is per row once, the rest in a last loop."""
        stores = [s for s in self.program.statements if s.kind in ("store", "partial")]
        self.row_values([a for s in stores for a in s.args])
        wide = [s for s in stores if any(t.ix.base in ("col", "lin") for t in s.terms)]
        narrow = [line for s in stores if s not in wide for line in self.one(s)]
        self.kernel.body += self.once(narrow)
        if wide:
            self.kernel.body += self._loop(self._closure([a for s in wide for a in s.args]), wide, [])

    def once(self, lines: list[str]) -> list[str]:
        return lines

    def row_values(self, wanted: Sequence[Var | str]) -> None:
        """What does not depend on the column and is ready, outside the loops."""
        for statement in self._closure(wanted):
            if not statement.var.col and statement.kind != "reduce" and statement.var.name not in self._done:
                self.kernel.body += self.one(statement)
                self._done.add(statement.var.name)

    def _closure(self, wanted: Sequence[Var | str]) -> list[Statement]:
        """Statements that ``wanted`` needs and that are not done yet, in program order."""
        need: set[str] = set()
        stack = [w.name for w in wanted if isinstance(w, Var)]
        while stack:
            name = stack.pop()
            if name in need or name in self._done or name not in self._made:
                continue
            need.add(name)
            statement = self._made[name]
            stack += [a.name for a in statement.args if isinstance(a, Var)]
            stack += [t.ix.base.removeprefix("at:") for t in statement.terms if t.ix.base.startswith("at:")]
        return [s for s in self._made.values() if s.var.name in need]

    def reducing(self, reductions: list[Statement]) -> list[str]:
        """One loop that leaves a block ``…_acc`` (and a row's ``…_top``) for each reduction."""
        lines: list[str] = []
        for s in reductions:
            pair = self._fused.get(s.var.name)
            if pair:
                lines.append(f"{s.var.name}_top = tl.full([BLOCK_R, 1], {LOWEST}, tl.float32)")
                lines.append(f"{pair.var.name}_acc = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)")
            else:
                lines.append(f"{s.var.name}_acc = tl.full([BLOCK_R, BLOCK_C], {REDUCTIONS[s.op]}, tl.float32)")
        names = dict(self.names)
        lines += self._loop(self._closure([a for s in reductions for a in s.args]), [], reductions)
        self.names = names
        return lines

    def whole(self, s: Statement) -> list[str]:
        """A reduction's value from its block."""
        pair = self._fused.get(s.var.name)
        self._finished(s)
        if pair is None:
            return [f"{s.var.name} = {reduced(s.op, f'{s.var.name}_acc', self.cols)}"]
        return [
            f"{s.var.name} = {s.var.name}_top",
            f"{pair.var.name} = tl.sum({pair.var.name}_acc, 1, keep_dims=True)",
        ]

    def _finished(self, s: Statement) -> None:
        for statement in (s, self._fused.get(s.var.name)):
            if statement is not None:
                self.names[statement.var.name] = statement.var.name
                self._done.add(statement.var.name)

    def _loop(self, closure: list[Statement], stores: list[Statement], reductions: list[Statement]) -> list[str]:
        lines = [f"for start in tl.range({self.bounds}, BLOCK_C, num_stages=STAGES):"]
        body = ["col = start + tl.arange(0, BLOCK_C)[None, :]", f"col_ok = col < {self.limit}"]
        for statement in closure:
            if statement.var.name not in self._done and statement.kind != "reduce":
                body += self.one(statement)
        for s in reductions:
            body += self._update(s)
        for store in stores:
            body += self.one(store)
        return lines + [f"    {line}" for line in body]

    def _update(self, s: Statement) -> list[str]:
        (arg,) = s.args
        name, text, pair = s.var.name, self.text(arg), self._fused.get(s.var.name)
        if pair:
            # One maximum per block, so that every element costs one exponential and not two.
            total = f"{pair.var.name}_acc"
            return [
                f"{name}_x = tl.where(col_ok, {text}, float('-inf'))",
                f"{name}_new = tl.maximum({name}_top, tl.max({name}_x, 1, keep_dims=True))",
                f"{total} = {total} * tl.exp({name}_top - {name}_new) + tl.exp({name}_x - {name}_new)",
                f"{name}_top = {name}_new",
            ]
        value = f"tl.where(col_ok, {text}, {REDUCTIONS[s.op]})"
        update = {"amax": f"tl.maximum({name}_acc, {value})", "amin": f"tl.minimum({name}_acc, {value})"}
        return [f"{name}_acc = {update.get(s.op, f'{name}_acc + {value}')}"]


class _Split(_Looped):
    bounds, limit = "part * SPAN, high", "high"

    def __init__(self, program: Program, style: Style, online: bool) -> None:
        super().__init__(program, style, online)
        self._place = {s.var.name: i for i, s in enumerate(program.reductions)}

    def _parts(self, name: str) -> str:
        return f"parts_ptr + ({self._place[name]} * rows + row) * SPLITS"

    def gather(self, before: Sequence[Statement]) -> None:
        """Values of earlier reductions from the parts of all slices."""
        for s in before:
            name, pair = s.var.name, self._fused.get(s.var.name)
            read = "tl.load({} + tl.arange(0, SPLITS)[None, :], mask=row_ok, other=0.0)"
            self.kernel.body.append(f"{name}_all = {read.format(self._parts(name))}")
            self.kernel.body.append(f"{name} = {reduced(s.op, f'{name}_all', self.cols)}")
            if pair:
                other = pair.var.name
                self.kernel.body.append(f"{other}_all = {read.format(self._parts(other))}")
                scaled = f"{other}_all * tl.exp({name}_all - {name})"
                self.kernel.body.append(f"{other} = tl.sum({scaled}, 1, keep_dims=True)")
            self._finished(s)

    def leave(self, s: Statement) -> None:
        """The slice's own part of a reduction. A mean is divided where the parts come together."""
        pair = self._fused.get(s.var.name)
        op = "sum" if s.op == "mean" else s.op
        value = f"{s.var.name}_top" if pair else reduced(op, f"{s.var.name}_acc", self.cols)
        self.kernel.body.append(f"tl.store({self._parts(s.var.name)} + part, {value}, mask=row_ok)")
        if pair:
            total = f"tl.sum({pair.var.name}_acc, 1, keep_dims=True)"
            self.kernel.body.append(f"tl.store({self._parts(pair.var.name)} + part, {total}, mask=row_ok)")

    def once(self, lines: list[str]) -> list[str]:
        return ["if part == 0:", *(f"    {line}" for line in lines)] if lines else []


def online_pairs(program: Program) -> dict[str, Statement]:
    """Row maximum → the sum of exp(x − maximum) over the same x."""
    made = {s.var: s for s in program.statements}
    found: dict[str, Statement] = {}
    for total in program.reductions:
        exped = made.get(total.args[0])
        if total.op != "sum" or exped is None or exped.op != "exp":
            continue
        moved = made.get(exped.args[0])
        if moved is None or moved.op != "sub" or not isinstance(moved.args[1], Var):
            continue
        top = made.get(moved.args[1])
        if top is not None and top.op == "amax" and top.args[0] == moved.args[0]:
            found[top.var.name] = total
    return found


def has_online_pair(program: Program) -> bool:
    return bool(online_pairs(program))
