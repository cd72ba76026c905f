"""Spell a row program as a Triton kernel: a whole row in registers, or loops over blocks of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.recipes.index import Ix, Term, Unsupported
from engine.recipes.ops import POINTWISE, REDUCTIONS
from engine.recipes.rows import Program, Statement, Var
from engine.recipes.sizes import const

HALF = ("float16", "bfloat16")
TYPES = {
    "float32": "tl.float32", "float16": "tl.float16", "bfloat16": "tl.bfloat16", "float64": "tl.float64",
    "int64": "tl.int64", "int32": "tl.int32", "int16": "tl.int16", "int8": "tl.int8", "uint8": "tl.uint8",
    "bool": "tl.int1", "float8_e4m3fn": "tl.float8e4nv", "float8_e5m2": "tl.float8e5",
}  # fmt: skip
FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclass
class Kernel:
    """``body`` of the kernel, and what the host passes: pointers, numbers, sizes, in this order."""

    body: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    partials: list[str] = field(default_factory=list)
    scalars: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)  # kernel argument → host expression
    result: str = ""  # the value that a caller goes on with, where there is one

    @property
    def parameters(self) -> str:
        pointers = [f"{n}_ptr" for n in self.inputs] + [f"out{n}_ptr" for n in self.outputs]
        names = [*pointers, *(f"{t}_ptr" for t in self.partials), *self.scalars, *self.sizes]
        return ", ".join(names)


@dataclass(frozen=True)
class Style:
    """``wide``: keep intermediates in float32 where the reference rounds. ``stream``: cache hints for one pass.

    ``int64``: addresses may exceed 31 bits.
    """

    wide: bool = False
    stream: bool = False
    int64: bool = False


class Speller:
    """Statements to Triton text. ``names``: expressions of preset variables."""

    def __init__(self, program: Program, style: Style, names: dict[str, str] | None = None) -> None:
        self.program, self.style = program, style
        self.kernel = Kernel(scalars=dict(program.scalars))
        self.names = dict(names or {})
        self.cols = "COLS"
        self.row, self.col = "row", "col"

    # --- numbers and addresses

    def size(self, text: str) -> str:
        """A size in kernel terms: numbers stay, anything else becomes an argument."""
        if text.lstrip("-").isdigit():
            return text
        if text == self.program.domain.cols.text:
            return self.cols
        for name, known in self.kernel.sizes.items():
            if known == text:
                return name
        name = f"_d{len(self.kernel.sizes)}"
        self.kernel.sizes[name] = text
        return name

    def index(self, ix: Ix) -> str:
        if ix.base.startswith("at:"):
            text = self.names[ix.base.removeprefix("at:")]
        else:
            ix = self._by_rows(ix)
            whole = f"({self.row} * {self.cols} + {self.col})"
            repeated = f"({self.row} % {ix.mod.text} * {self.cols} + {self.col})" if ix.mod else whole
            text = {"row": self.row, "col": self.col, "lin": whole, "zero": "0", "rows": repeated}[ix.base]
        if ix.div.constant != 1:
            text = f"({text} // {self.size(ix.div.text)})"
        if ix.mod is not None and ix.base != "rows":
            text = f"({text} % {self.size(ix.mod.text)})"
        if ix.add != "0":
            text = f"({text} + {self._signed(ix.add)})"
        if ix.clamp is not None:
            text = f"tl.minimum(tl.maximum({text}, 0), {self.size(ix.clamp.text)} - 1)"
        if ix.after != "0":
            text = f"({text} + {self._signed(ix.after)})"
        return text

    def _by_rows(self, ix: Ix) -> Ix:
        """Whole rows at a time, where that is what an index means: the columns stay visibly contiguous.

        ``lin // (k·C)`` is ``row // k``, and ``lin % (k·C)`` is ``row % k`` rows and the column (base ``rows``).
        """
        cols, div, mod = self.program.domain.cols.constant, ix.div.constant, ix.mod.constant if ix.mod else None
        samples = len(ix.div.values)
        if ix.base != "lin" or cols is None or div is None:
            return ix
        if div % cols == 0:
            return replace(ix, base="row", div=const(div // cols, samples))
        if div == 1 and mod is not None and mod % cols == 0:
            base = "rows" if mod > cols else "col"
            return replace(ix, base=base, mod=const(mod // cols, samples) if mod > cols else None)
        return ix

    def _signed(self, text: str) -> str:
        if text.startswith("-(") and text.endswith(")"):
            return f"-{self.size(text[2:-1])}" if "(" not in text[2:-1] else f"-({self.size(text[2:-1])})"
        return self.size(text)

    def offset(self, terms: Sequence[Term]) -> str:
        parts = []
        for term in terms:
            text = self.index(term.ix)
            if self.style.int64 and term.ix.base != "col":
                text = f"{text}.to(tl.int64)" if term.ix.base != "zero" else text
            parts.append(text if term.stride.constant == 1 else f"{text} * {self.size(term.stride.text)}")
        return " + ".join(parts) or "0"

    def mask(self, row: bool, col: bool) -> str:
        known = [text for wanted, text in ((row, "row_ok"), (col, "col_ok")) if wanted]
        return " & ".join(known)

    # --- statements

    def load(self, s: Statement) -> list[str]:
        if s.source not in self.kernel.inputs:
            self.kernel.inputs.append(s.source)
        mask = self.mask(s.var.row, s.var.col)
        nothing = "0.0" if s.var.dtype in FLOATS else "0"
        extras = f", mask={mask}, other={nothing}" if mask else ""
        if self.style.stream and mask:
            policy = "evict_first" if s.var.row and s.var.col else "evict_last"
            extras += f', eviction_policy="{policy}"'
        text = f"tl.load({s.source}_ptr + {self.offset(s.terms)}{extras})"
        if s.var.dtype in FLOATS and s.var.dtype != "float32":
            text += ".to(tl.float32)"
        self.names[s.var.name] = s.var.name
        return [f"{s.var.name} = {text}"]

    def position(self, s: Statement) -> list[str]:
        self.names[s.var.name] = s.var.name
        return [f"{s.var.name} = {self.index(s.terms[0].ix)}"]

    def point(self, s: Statement) -> list[str]:
        args = [self.text(a) for a in s.args]
        if s.op == "cast":
            text = self._cast(s, args[0])
        elif s.op in POINTWISE:
            text = POINTWISE[s.op].triton.format(*self._floats(s, args))
            text = self._rounded(text, s.var.dtype)
        else:
            raise Unsupported(f"{s.op} has no Triton spelling")
        self.names[s.var.name] = s.var.name
        return [f"{s.var.name} = {text}"]

    def _floats(self, s: Statement, args: list[str]) -> list[str]:
        """Whole-number operands of a floating-point step are converted first."""
        if s.var.dtype not in FLOATS or s.op == "where":
            return args
        return [
            f"{text}.to(tl.float32)" if isinstance(arg, Var) and arg.dtype not in FLOATS else text
            for arg, text in zip(s.args, args, strict=True)
        ]

    def _cast(self, s: Statement, text: str) -> str:
        (arg,) = s.args
        if not isinstance(arg, Var):
            return f"tl.full([1, 1], {text}, {TYPES['float32' if s.var.dtype in HALF else s.var.dtype]})"
        if s.var.dtype in FLOATS:
            if arg.dtype not in FLOATS:
                text = f"{text}.to(tl.float32)"
            return self._rounded(text, s.var.dtype)
        if s.var.dtype == "bool":
            return f"({text} != 0)"
        return f"{text}.to({TYPES[s.var.dtype]})"

    def _rounded(self, text: str, dtype: str) -> str:
        if dtype in HALF and not self.style.wide:
            return f"({text}).to({TYPES[dtype]}).to(tl.float32)"
        return text

    def store(self, s: Statement) -> list[str]:
        (var,) = s.args
        position = int(s.source)
        if position not in self.kernel.outputs:
            self.kernel.outputs.append(position)
        row = any(t.ix.base in ("row", "lin") for t in s.terms)
        col = any(t.ix.base in ("col", "lin") for t in s.terms)
        mask = self.mask(row, col)
        where = f", mask={mask}" if mask else ""
        value = self.text(var)
        if (row and not var.row) or (col and not var.col):
            value = f"{value} + tl.zeros([BLOCK_R, BLOCK_C], tl.float32)"
        target = TYPES[var.dtype]
        return [f"tl.store(out{position}_ptr + {self.offset(s.terms)}, ({value}).to({target}){where})"]

    def partial(self, s: Statement) -> list[str]:
        (var,) = s.args
        self.kernel.partials.append(s.source)
        return [f"tl.store({s.source}_ptr + {self.row}, {self.text(var)}, mask=row_ok)"]

    def reduce(self, s: Statement) -> list[str]:
        (arg,) = s.args
        value = f"tl.where(col_ok, {self.text(arg)}, {REDUCTIONS[s.op]})"
        self.names[s.var.name] = s.var.name
        return [f"{s.var.name} = {reduced(s.op, value, self.cols)}"]

    def text(self, item: Var | str) -> str:
        return self.names[item.name] if isinstance(item, Var) else item

    def one(self, s: Statement) -> list[str]:
        handlers = {
            "load": self.load, "index": self.position, "point": self.point, "store": self.store,
            "partial": self.partial, "reduce": self.reduce,
        }  # fmt: skip
        if s.kind not in handlers:
            raise Unsupported(f"a {s.kind} in a Triton kernel")
        return handlers[s.kind](s)


def reduced(op: str, value: str, cols: str) -> str:
    """A block reduced along its columns."""
    if op == "mean":
        return f"tl.sum({value}, 1, keep_dims=True) / {cols}"
    function = {"sum": "tl.sum", "amax": "tl.max", "amin": "tl.min"}[op]
    return f"{function}({value}, 1, keep_dims=True)"


def spell_row(program: Program, style: Style) -> Kernel:
    """One block holds whole rows: every element is read once."""
    speller = Speller(program, style)
    for statement in program.statements:
        speller.kernel.body += speller.one(statement)
    return speller.kernel
