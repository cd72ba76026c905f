"""Index arithmetic of row programs: where an element of a tensor lies, seen from (row, column) of the domain.

The domain is R rows of C columns. A tensor of any shape is read through one :class:`Dim` per dimension, each a
small function of ``row``, ``col`` or ``lin = row · C + col``. Reshapes merge and split these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.recipes.sizes import Size, const, product
from engine.text import one_line


class Unsupported(ValueError):
    """The reference does something that this family of kernels cannot express. The message says what."""


MISREAD = (ArithmeticError, AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError)
"""What reading a trace of no form that was thought of ends in. Traces say what a foreign process wrote."""


def misread(error: BaseException) -> str:
    """``error``, which is one of :data:`MISREAD`, in a few words."""
    return one_line(f"{type(error).__name__}: {error}", 120)


@dataclass(frozen=True)
class Ix:
    """``(base // div) % mod + add``; ``base``: ``row``, ``col``, ``lin``, ``zero`` or ``at:<variable>``."""

    base: str
    div: Size
    mod: Size | None = None
    add: str = "0"
    clamp: Size | None = None  # keep the result inside 0..clamp-1: the other side of a concatenation
    after: str = "0"  # added after the clamp: a slice of one side

    @property
    def plain(self) -> bool:
        return self.div.constant == 1 and self.mod is None and self.add == "0"


@dataclass(frozen=True)
class Dim:
    size: Size
    ix: Ix


Dims = tuple[Dim, ...]


@dataclass(frozen=True)
class Domain:
    """R rows of C columns, in ``samples`` traced workloads."""

    rows: Size
    cols: Size

    @property
    def samples(self) -> int:
        return len(self.rows.values)

    @property
    def one(self) -> Size:
        return const(1, self.samples)

    @property
    def total(self) -> Size:
        return self.rows * self.cols

    def zero(self) -> Dim:
        return Dim(self.one, Ix("zero", self.one))

    def whole(self, shape: Sequence[Size]) -> Dims:
        """The dims of a tensor that covers the domain element by element."""
        return self.split(Dim(self.total, Ix("lin", self.one)), shape)

    def per_row(self, shape: Sequence[Size]) -> Dims:
        return self.split(Dim(self.rows, Ix("row", self.one)), shape)

    def per_col(self, shape: Sequence[Size]) -> Dims:
        return self.split(Dim(self.cols, Ix("col", self.one)), shape)

    def split(self, dim: Dim, shape: Sequence[Size]) -> Dims:
        """One dimension of size Π shape, seen as dimensions of ``shape``."""
        if not shape:
            return ()
        if len(shape) == 1:
            return (Dim(shape[0], dim.ix),)
        ix = dim.ix
        if ix.add != "0" or ix.clamp:
            raise Unsupported("a slice is reshaped")
        if ix.base == "lin" and ix.div.constant == 1:
            cut = self._column_cut(shape)
            if cut is not None:
                mod = product(shape[:cut], self.samples) if ix.mod is not None else None
                head = self.split(Dim(product(shape[:cut], self.samples), Ix("row", self.one, mod)), shape[:cut])
                return head + self.per_col(shape[cut:])
        found: list[Dim] = []
        for i, size in enumerate(shape):
            if size.constant == 1:
                found.append(self.zero())
                continue
            inner = product(shape[i + 1 :], self.samples)
            leading = not any(d.ix.base != "zero" for d in found)
            mod = (None if ix.mod is None else size) if leading else size
            found.append(Dim(size, Ix(ix.base, ix.div * inner, mod)))
        return tuple(found)

    def _column_cut(self, shape: Sequence[Size]) -> int | None:
        for cut in range(len(shape), 0, -1):
            if product(shape[cut - 1 :], self.samples).same(self.cols):
                return cut - 1
        return None

    def merge(self, dims: Sequence[Dim]) -> list[Dim]:
        """Join neighbours that together are one function; size-1 dimensions vanish."""
        merged: list[Dim] = []
        for dim in dims:
            if dim.size.constant == 1 and dim.ix.add == "0":
                continue
            if merged:
                joined = self._join(merged[-1], dim)
                if joined is not None:
                    merged[-1] = joined
                    continue
            merged.append(dim)
        return merged

    def _join(self, outer: Dim, inner: Dim) -> Dim | None:
        a, b = outer.ix, inner.ix
        if a.add != "0" or b.add != "0" or a.clamp or b.clamp:
            return None
        size = outer.size * inner.size
        if a.base == b.base and b.mod is not None and b.mod.same(inner.size) and a.div.same(b.div * inner.size):
            return Dim(size, Ix(a.base, b.div, None if a.mod is None else a.mod * inner.size))
        whole_column = b.base == "col" and b.plain and inner.size.same(self.cols)
        if a.base == "row" and a.div.constant == 1 and whole_column:
            return Dim(size, Ix("lin", self.one, None if a.mod is None else a.mod * self.cols))
        return None

    def reshape(self, dims: Sequence[Dim], shape: Sequence[Size]) -> Dims:
        """``dims`` of one shape as dims of another with the same elements in the same order."""
        old = [d for d in dims if d.size.constant != 1 or d.ix.add != "0"]
        wanted = [s for s in shape if s.constant != 1]
        found: list[Dim] = []
        i = j = 0
        while i < len(old) or j < len(wanted):
            block, target = [old[i]] if i < len(old) else [], [wanted[j]] if j < len(wanted) else []
            if not block or not target:
                raise Unsupported("a reshape whose sizes do not line up")
            i, j = i + 1, j + 1
            while not (left := product([d.size for d in block], self.samples)).same(
                right := product(target, self.samples)
            ):
                if left.values < right.values and i < len(old):
                    block.append(old[i])
                    i += 1
                elif j < len(wanted):
                    target.append(wanted[j])
                    j += 1
                else:
                    raise Unsupported("a reshape whose sizes do not line up")
            found += self._regroup(block, target)
        rest = iter(found)
        return tuple(self.zero() if s.constant == 1 else next(rest) for s in shape)

    def _regroup(self, block: list[Dim], target: list[Size]) -> Dims:
        if len(block) == 1 and len(target) == 1:
            return (block[0],)
        joined = self.merge(block)
        if len(joined) == 1:
            return self.split(joined[0], target)
        if len(target) == 2 and len(joined) == 2 and joined[1].size.same(target[1]):
            return (Dim(target[0], joined[0].ix), joined[1])
        raise Unsupported("a reshape across a transposed or sliced dimension")


@dataclass(frozen=True)
class Term:
    """``index · stride`` of an address."""

    ix: Ix
    stride: Size
    size: Size


def address(domain: Domain, dims: Dims) -> tuple[Term, ...]:
    """The element offset in a contiguous tensor, as a sum of terms, outermost first."""
    merged = domain.merge(dims)
    terms: list[Term] = []
    stride = domain.one
    for dim in reversed(merged):
        if dim.ix.base != "zero" or dim.ix.add != "0":
            terms.append(Term(dim.ix, stride, dim.size))
        stride = stride * dim.size
    return tuple(reversed(terms))


def lane(terms: Sequence[Term]) -> tuple[bool, bool]:
    """Whether an address depends on the row, and whether on the column."""
    bases = [t.ix.base for t in terms]
    row = any(b in ("row", "lin") or b.startswith("at:") for b in bases)
    return row, any(b in ("col", "lin") for b in bases)


def shifted(dim: Dim, add: str, size: Size) -> Dim:
    """The same dimension, ``add`` elements further, ``size`` long."""
    if dim.ix.clamp is not None:
        return Dim(size, replace(dim.ix, after=_total(dim.ix.after, add)))
    return Dim(size, replace(dim.ix, add=_total(dim.ix.add, add)))


def _total(before: str, add: str) -> str:
    if before == "0" or add == "0":
        return add if before == "0" else before
    if _whole(before) and _whole(add):
        return str(int(before) + int(add))
    return f"{before} + {add}"


def _whole(text: str) -> bool:
    return text.lstrip("-").isdigit()
