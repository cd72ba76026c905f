"""Spell a row program as PyTorch over blocks of rows: intermediates stay in cache and are written in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.recipes.index import Term, Unsupported
from engine.recipes.ops import POINTWISE
from engine.recipes.rows import Program, Statement, Var

OUT_FORMS = {
    "silu": "torch.ops.aten.silu.out({0}, out={out})",
    "gelu": "torch.ops.aten.gelu.out({0}, out={out})",
    "gelu_tanh": "torch.ops.aten.gelu.out({0}, approximate='tanh', out={out})",
    "relu": "torch.clamp({0}, min=0, out={out})",
    "softmax": "torch.softmax({0}, 1, out={out})",
    "log_softmax": "torch.log_softmax({0}, 1, out={out})",
    "addcmul": "torch.addcmul({0}, {1}, {2}, out={out})",
}
FUNCTIONAL = {
    "relu": "torch.relu({0})",
    "silu": "torch.nn.functional.silu({0})",
    "gelu": "torch.nn.functional.gelu({0})",
    "gelu_tanh": "torch.nn.functional.gelu({0}, approximate='tanh')",
    "softplus": "torch.nn.functional.softplus({0})",
    "layer_norm": "torch.layer_norm({0}, (_cols,), None, None, {1})",
    "softmax": "torch.softmax({0}, 1)",
    "log_softmax": "torch.log_softmax({0}, 1)",
    "pow3": "({0} * {0} * {0})",
    "pow": "torch.pow({0}, {1})",
    "rsub": "({1} - {0})",
    "where": "torch.where({0}, {1}, {2})",
}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
         "ne": "!="}  # fmt: skip


@dataclass
class Spelling:
    """``setup`` runs once per call, ``loop`` per block of rows (``n`` rows from ``i``), ``finish`` afterwards."""

    setup: list[str] = field(default_factory=list)
    loop: list[str] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)
    buffers: list[tuple[str, str]] = field(default_factory=list)  # name, dtype


class _Speller:
    def __init__(self, program: Program, prefix: str, squares: str, gelu: str, held: Mapping[str, str]) -> None:
        self.program, self.prefix, self.squares, self.gelu = program, prefix, squares, gelu
        self.out = Spelling()
        self.names: dict[str, str] = {name: f"{buffer}_n" for name, buffer in held.items()}  # → expression
        self._free: dict[str, list[str]] = {}
        self._held: dict[str, str] = dict(held)  # variable → buffer
        self._views: set[str] = set()
        self._last = _last_uses(program.statements)
        self._square = {
            s.var.name: s for s in program.statements if s.kind == "point" and s.op == "pow2" and squares != "mul"
        }

    def spell(self) -> Spelling:
        for position, statement in enumerate(self.program.statements):
            getattr(self, f"_{statement.kind}")(position, statement)
        for name, dtype in self.out.buffers:
            self.out.setup.append(f"{name} = torch.empty((_block, _cols), dtype=torch.{dtype}, device=_device)")
        return self.out

    # --- operands

    def _text(self, item: Var | str) -> str:
        return self.names[item.name] if isinstance(item, Var) else item

    def _load(self, position: int, s: Statement) -> None:
        view, expression = _view(s.source, s.terms, self.program, self.prefix)
        if view not in self._views:
            self._views.add(view)
            self.out.setup.append(view)
        if "<" in expression:
            where = expression[expression.index("<") + 1 : expression.index(">")]
            expression = expression.replace(f"<{where}>", self.names[where])
            self.out.loop.append(f"{self.prefix}{s.var.name} = {expression}")
            expression = f"{self.prefix}{s.var.name}"
        self.names[s.var.name] = expression

    def _index(self, position: int, s: Statement) -> None:
        (term,) = s.terms
        name = f"{self.prefix}{s.var.name}"
        if term.ix.base == "col" and term.ix.plain:
            self.out.setup.append(f"{name} = torch.arange(_cols, device=_device).view(1, -1)")
        elif term.ix.base == "row" and term.ix.plain:
            self.out.setup.append(f"{name}_all = torch.arange(_rows, device=_device).view(-1, 1)")
            self.out.loop.append(f"{name} = {name}_all[_i : _i + _n]")
        else:
            raise Unsupported("positions that PyTorch blocks cannot index")
        self.names[s.var.name] = name

    # --- element-wise

    def _point(self, position: int, s: Statement) -> None:
        if s.op == "layer_norm":  # PyTorch has no in-place form: it allocates a block, which the cache absorbs
            name = f"{self.prefix}{s.var.name}"
            self.out.loop.append(f"{name} = {FUNCTIONAL['layer_norm'].format(*[self._text(a) for a in s.args])}")
            self.names[s.var.name] = name
            self._free_dead(position, [a for a in s.args if isinstance(a, Var) and a.name in self._held], keep="")
            return
        if s.var.name in self._square and self._only_reduced(s):
            self.names[s.var.name] = f"<square of {self._text(s.args[0])}>"
            return
        args = [self._text(a) for a in s.args]
        if not (s.var.row and s.var.col):
            self.names[s.var.name] = f"{self.prefix}{s.var.name}"
            target = self.out.loop if s.var.row else self.out.setup
            target.append(f"{self.names[s.var.name]} = {self._functional(s, args)}")
            return
        held = [a for a in s.args if isinstance(a, Var) and a.name in self._held]
        store = self._stored_directly(position, s.var)
        if store is not None:
            buffer = store
        else:
            reuse = next((a for a in held if self._last[a.name] == position and self._fits(a, s)), None)
            buffer = self._held.pop(reuse.name) if reuse else self._take(s.var.dtype)
            self._held[s.var.name] = buffer
        self._free_dead(position, held, keep=buffer)
        name = buffer if store is not None else f"{buffer}_n"
        self.out.loop += self._into(s, args, name)
        self.names[s.var.name] = name

    def _only_reduced(self, s: Statement) -> bool:
        users = [u for u in self.program.statements if s.var in u.args]
        return bool(users) and all(u.kind == "reduce" and u.op in ("sum", "mean") for u in users)

    def _fits(self, arg: Var, s: Statement) -> bool:
        rereads = s.op == "where" or (s.op == "gelu_tanh" and self.gelu == "sigmoid")
        return arg.dtype == s.var.dtype and not rereads

    def _take(self, dtype: str) -> str:
        free = self._free.setdefault(dtype, [])
        if free:
            return free.pop()
        name = f"{self.prefix}_b{len(self.out.buffers)}"
        self.out.buffers.append((name, dtype))
        return name

    def _free_dead(self, position: int, held: Sequence[Var], keep: str) -> None:
        for var in held:
            if self._last[var.name] == position and var.name in self._held and self._held[var.name] != keep:
                self._free.setdefault(var.dtype, []).append(self._held.pop(var.name))

    def _stored_directly(self, position: int, var: Var) -> str | None:
        """The output block that this value is stored in: computed there, and read from there afterwards."""
        stores = [u for u in self.program.statements[position + 1 :] if u.kind == "store" and var in u.args]
        plain = next((u for u in stores if _plain(u.terms, self.program)), None)
        return f"{self.prefix}_o{plain.source}_n" if plain else None

    def _functional(self, s: Statement, args: Sequence[str]) -> str:
        if s.op == "cast":
            if isinstance(s.args[0], Var):
                return f"{args[0]}.to(torch.{s.var.dtype})"
            return f"torch.full((1, 1), {args[0]}, dtype=torch.{s.var.dtype}, device=_device)"
        if s.op in INFIX:
            return f"({args[0]} {INFIX[s.op]} {args[1]})"
        if s.op in ("maximum", "minimum") and not all(isinstance(a, Var) for a in s.args):
            tensor, number = (args[0], args[1]) if isinstance(s.args[0], Var) else (args[1], args[0])
            return f"torch.clamp({tensor}, {'min' if s.op == 'maximum' else 'max'}={number})"
        if s.op in FUNCTIONAL:
            return FUNCTIONAL[s.op].format(*args)
        return f"torch.{POINTWISE[s.op].torch}({', '.join(args)})"

    def _into(self, s: Statement, args: Sequence[str], out: str) -> list[str]:
        tensors = [isinstance(a, Var) for a in s.args]
        if s.op == "cast":
            return [f"{out}.copy_({args[0]})"] if tensors[0] else [f"{out}.fill_({args[0]})"]
        if s.op == "gelu_tanh" and self.gelu == "sigmoid" and out != args[0]:
            return [
                f"torch.square({args[0]}, out={out})",
                f"{out}.mul_(0.07135481282636498).add_(1.5957691216057308).mul_({args[0]}).sigmoid_().mul_({args[0]})",
            ]
        if s.op in OUT_FORMS:
            return [OUT_FORMS[s.op].format(*args, out=out)]
        if s.op in ("add", "mul") and tensors == [False, True]:
            args = [args[1], args[0]]
        elif s.op in ("sub", "rsub") and all(tensors):
            first, second = (args[0], args[1]) if s.op == "sub" else (args[1], args[0])
            return [f"torch.sub({first}, {second}, out={out})"]
        elif (s.op == "sub" and tensors == [False, True]) or s.op == "rsub":
            number, tensor = (args[0], args[1]) if s.op == "sub" else (args[1], args[0])
            return [f"torch.neg({tensor}, out={out})", f"{out}.add_({number})"]
        elif s.op == "div" and tensors == [False, True]:
            return [f"torch.reciprocal({args[1]}, out={out})", f"{out}.mul_({args[0]})"]
        elif s.op in ("maximum", "minimum") and not all(tensors):
            tensor, number = (args[0], args[1]) if tensors[0] else (args[1], args[0])
            return [f"torch.clamp({tensor}, {'min' if s.op == 'maximum' else 'max'}={number}, out={out})"]
        elif s.op == "where" or s.op in FUNCTIONAL:
            return [f"{out}.copy_({self._functional(s, args)})"]
        if s.op in INFIX and s.op not in ("add", "sub", "mul", "div") and not tensors[0]:
            return [f"{out}.copy_({self._functional(s, args)})"]
        return [f"torch.{POINTWISE[s.op].torch}({', '.join(args)}, out={out})"]

    # --- reductions and stores

    def _reduce(self, position: int, s: Statement) -> None:
        (arg,) = s.args
        name = f"{self.prefix}{s.var.name}"
        text = self._text(arg)
        if text.startswith("<square of "):
            self.out.loop += self._squares(name, text[len("<square of ") : -1], s.op)
        elif arg.row and not arg.col:
            scale = "" if s.op != "sum" else " * _cols"
            self.out.loop.append(f"{name} = {text}{scale}")
        else:
            self.out.loop.append(f"{name} = torch.{s.op}({text}, 1, keepdim=True)")
        self.names[s.var.name] = name
        for var in [arg] if arg.name in self._held and self._last[arg.name] == position else []:
            self._free.setdefault(var.dtype, []).append(self._held.pop(var.name))

    def _squares(self, name: str, tensor: str, op: str) -> list[str]:
        lines = [f"{name} = torch.linalg.vector_norm({tensor}, dim=1, keepdim=True).square_()"]
        return [*lines, f"{name}.div_(_cols)"] if op == "mean" else lines

    def _pick(self, position: int, s: Statement) -> None:
        whole, where = s.args
        name = f"{self.prefix}{s.var.name}"
        self.out.loop.append(f"{name} = {self.names[whole.name]}.gather(1, {self.names[where.name]})")
        self.names[s.var.name] = name
        if whole.name in self._held and self._last[whole.name] == position:
            self._free.setdefault(whole.dtype, []).append(self._held.pop(whole.name))

    def _store(self, position: int, s: Statement) -> None:
        (var,) = s.args
        target = f"{self.prefix}_o{s.source}_n"
        row_only = var.row and not var.col
        if not _plain(s.terms, self.program) and not row_only:
            raise Unsupported("an output in another order than its rows")
        if self.names[var.name] != target:
            self.out.loop.append(f"{target}.copy_({self.names[var.name]})")
        if var.name in self._held and self._last[var.name] == position:
            self._free.setdefault(var.dtype, []).append(self._held.pop(var.name))

    def _partial(self, position: int, s: Statement) -> None:
        (var,) = s.args
        self.out.setup.append(f"{self.prefix}{s.source} = torch.empty((_rows, 1), device=_device)")
        self.out.loop.append(f"{self.prefix}{s.source}[_i : _i + _n] = {self.names[var.name]}")


def spell(
    program: Program,
    prefix: str = "",
    squares: str = "mul",
    gelu: str = "native",
    held: Mapping[str, str] | None = None,
) -> Spelling:
    """``squares``: how a sum of squares is taken (``mul`` or ``norm``). ``gelu``: how the tanh form is computed
    (``native`` or through ``sigmoid``). ``held``: buffers that hold preset variables and may be overwritten.

    Raises :class:`Unsupported` for an address that blocks of rows cannot express as a view.
    """
    return _Speller(program, prefix, squares, gelu, held or {}).spell()


def _last_uses(statements: Sequence[Statement]) -> dict[str, int]:
    last: dict[str, int] = {}
    for position, statement in enumerate(statements):
        for arg in statement.args:
            if isinstance(arg, Var):
                last[arg.name] = position
    return last


def _plain(terms: Sequence[Term], program: Program) -> bool:
    if program.domain.total.constant == 1:
        return True
    return len(terms) == 1 and terms[0].ix.plain and terms[0].ix.base == "lin"


def _view(source: str, terms: Sequence[Term], program: Program, prefix: str) -> tuple[str, str]:
    """(set-up line, expression inside the loop) for reading input ``source`` at ``terms``."""
    domain = program.domain
    name = f"{prefix}_{source}_"
    kinds = [t.ix.base for t in terms]
    if len(kinds) == 2 and kinds[0] == "row" and kinds[1].startswith("at:") and terms[0].ix.plain:
        where = kinds[1].removeprefix("at:")
        return f"{name}full = {source}.view(_rows, {terms[0].stride.text})", (
            f"{name}full[_i : _i + _n].gather(1, <{where}>)"
        )
    if any(k.startswith("at:") for k in kinds) or any(t.ix.clamp for t in terms):
        raise Unsupported("a gather or a concatenation, which blocks of rows cannot view")
    if not terms:
        return f"{name}one = {source}.reshape(1, 1)", f"{name}one"
    if kinds == ["lin"] and terms[0].ix.plain:
        return f"{name}full = {source}.view(_rows, _cols)", f"{name}full[_i : _i + _n]"
    if kinds == ["row"] and terms[0].ix.plain and terms[0].stride.constant == 1:
        return f"{name}row = {source}.view(_rows, 1)", f"{name}row[_i : _i + _n]"
    if kinds == ["col"] and terms[0].ix.div.constant == 1 and terms[0].ix.mod is None:
        start = terms[0].ix.add
        if start == "0" and terms[0].size.same(domain.cols):
            return f"{name}col = {source}.view(1, _cols)", f"{name}col"
        return f"{name}col_{_slug(start)} = {source}.view(1, -1)[:, {start} : {start} + _cols]", (
            f"{name}col_{_slug(start)}"
        )
    if kinds == ["row", "col"] and terms[0].ix.plain and terms[1].stride.constant == 1:
        ix = terms[1].ix
        if ix.div.constant == 1 and ix.mod is None:
            width, tag = terms[0].stride.text, _slug(ix.add)
            line = f"{name}part_{tag} = {source}.view(_rows, {width})[:, {ix.add} : {ix.add} + _cols]"
            return line, f"{name}part_{tag}[_i : _i + _n]"
    if kinds == ["lin"] and terms[0].ix.div.constant == 1 and terms[0].ix.mod is not None:
        period = f"({terms[0].ix.mod.text}) // _cols"
        line = f"{name}cycle = {source}.view(-1, _cols).repeat(-(-_block // ({period})) + 1, 1)"
        return line, f"{name}cycle[_i % ({period}) : _i % ({period}) + _n]"
    raise Unsupported(f"reads {source} in an order that blocks of rows cannot view")


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)
