"""What recipes are matched against: one problem, its merged trace, and the device. Computed once per campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from engine.problems.axes import names_in, resolve_axes
from engine.problems.dtypes import stored_shape
from engine.problems.model import ConstAxis, Definition, ExprAxis, Problem, Workload
from engine.recipes.dag import Graph, merge
from engine.recipes.graph import REDUCED, RawGraph
from engine.recipes.idioms import simplify
from engine.recipes.index import MISREAD, Unsupported, misread
from engine.recipes.rows import Program, compile_rows
from engine.recipes.sizes import NotGeneral, Size
from engine.records import DeviceFacts


@dataclass(frozen=True)
class Subject:
    """``why_no_graph`` says what stood in the way where ``graph`` is ``None``."""

    definition: Definition
    workloads: tuple[Workload, ...]
    device: DeviceFacts
    kernel_type: str
    graph: Graph | None
    why_no_graph: str = ""
    traces: tuple[RawGraph, ...] = ()

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The reference as row programs. Raises :class:`Unsupported` with the reason."""
        return tuple(simplify(p) for p in compile_rows(self.need_graph()))

    @cached_property
    def native_programs(self) -> tuple[Program, ...]:
        """The same for PyTorch: softmax, layer norm and fused multiply-add stay single steps."""
        return tuple(simplify(p, native=True) for p in compile_rows(self.need_graph(), native=True))

    def need_graph(self) -> Graph:
        if self.graph is None:
            raise Unsupported(self.why_no_graph or "the reference was not traced")
        return self.graph

    @cached_property
    def axes(self) -> tuple[dict[str, int], ...]:
        return tuple(resolve_axes(self.definition, w) for w in self.workloads)

    @property
    def inputs(self) -> list[str]:
        return list(self.definition.inputs)

    @property
    def outputs(self) -> list[str]:
        return list(self.definition.outputs)


def subject_of(problem: Problem, traces: Sequence[RawGraph], device: DeviceFacts, kernel_type: str) -> Subject:
    """Never raises for a reference that cannot be traced: the subject then says why."""
    graph, why = None, ""
    try:
        graph = merge([t for t in traces if t.label != REDUCED])
    except NotGeneral as error:
        why = str(error)
    except MISREAD as error:
        why = f"the trace cannot be read ({misread(error)})"
    return Subject(
        definition=problem.definition,
        workloads=tuple(problem.workloads),
        device=device,
        kernel_type=kernel_type,
        graph=graph,
        why_no_graph=why,
        traces=tuple(traces),
    )


def axis_lines(definition: Definition, texts: Sequence[str]) -> list[str]:
    """Assignments that give the axes named in ``texts`` their values, from the shapes of the inputs.

    Raises :class:`Unsupported` for an axis that no input's shape shows.
    """
    wanted = {name for text in texts for name in _names(text) if name in definition.axes}
    for name in list(wanted):
        axis = definition.axes[name]
        if isinstance(axis, ExprAxis) and _shown(definition, name) is None:
            wanted |= {n for n in names_in(axis.expression) if n in definition.axes}
    lines = []
    for name, axis in definition.axes.items():
        if name not in wanted:
            continue
        shown = _shown(definition, name)
        if shown is not None:
            lines.append(f"{name} = {shown}")
        elif isinstance(axis, ConstAxis):
            lines.append(f"{name} = {axis.value}")
        elif isinstance(axis, ExprAxis):
            lines.append(f"{name} = {axis.expression.replace('/', '//').replace('////', '//')}")
        else:
            raise Unsupported(f"no input's shape shows the axis {name}")
    return lines


def _shown(definition: Definition, axis: str) -> str | None:
    """An expression for it over the inputs' shapes, if one shows it: better one whose values are not packed."""
    packed = None
    for name, spec in definition.inputs.items():
        if not spec.shape or axis not in spec.shape:
            continue
        place = spec.shape.index(axis)
        if stored_shape(spec.dtype, [2] * len(spec.shape))[place] == 2:
            return f"{name}.shape[{place}]"
        packed = packed or f"2 * {name}.shape[{place}]"
    return packed


def _names(text: str) -> set[str]:
    import ast

    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def shape_text(shape: Sequence[Size]) -> str:
    return "(" + ", ".join(s.text for s in shape) + ("," if len(shape) == 1 else "") + ")"
