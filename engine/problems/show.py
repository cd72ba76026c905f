"""A problem as text for a terminal."""

from __future__ import annotations

from engine.problems.axes import input_bytes, output_bytes, resolve_axes
from engine.problems.model import ConstAxis, Definition, ExprAxis, Problem, TensorSpec, Workload
from engine.text import clean

_REFERENCE_LIMIT = 20_000  # characters


def problem_text(problem: Problem) -> str:
    """Name, axes, inputs, outputs, workloads with their sizes, notes and the reference's source."""
    definition = problem.definition
    about = [("type", definition.op_type), ("model", definition.hf_id), ("about", definition.description)]
    lines = [definition.name]
    lines += [f"  {label}: {' '.join(text.split())}" for label, text in about if text]
    lines += ["", "axes", *_axes(definition), "", "inputs", *_specs(definition.inputs)]
    if definition.custom_inputs_entrypoint:
        lines.append(f"  from {definition.custom_inputs_entrypoint}() of the reference")
    lines += ["", "outputs", *_specs(definition.outputs), "", f"workloads ({len(problem.workloads)})"]
    lines += [_workload(definition, index, workload) for index, workload in enumerate(problem.workloads, start=1)]
    lines += [f"  note: {note}" for note in problem.notes]
    lines += ["", "reference", *(f"  {line}" for line in definition.reference.strip().splitlines())]
    return "\n".join(clean(line, _REFERENCE_LIMIT) for line in lines)


def _axes(definition: Definition) -> list[str]:
    lines = []
    for name, axis in definition.axes.items():
        if isinstance(axis, ConstAxis):
            value = f"= {axis.value}"
        else:
            value = f"= {axis.expression}" if isinstance(axis, ExprAxis) else "per workload"
        note = f"   {' '.join(axis.description.split())}" if axis.description else ""
        lines.append(f"  {name} {value}{note}")
    return lines


def _specs(specs: dict[str, TensorSpec]) -> list[str]:
    lines = []
    for name, spec in specs.items():
        shape = "number" if spec.shape is None else f"[{', '.join(spec.shape)}]"
        note = f"   {' '.join(spec.description.split())}" if spec.description else ""
        lines.append(f"  {name}: {spec.dtype} {shape}{note}")
    return lines


def _workload(definition: Definition, index: int, workload: Workload) -> str:
    axes = resolve_axes(definition, workload)
    own = ", ".join(f"{name}={value}" for name, value in workload.axes.items()) or "no axes"
    size = f"{_mib(input_bytes(definition, axes))} in, {_mib(output_bytes(definition, axes))} out"
    limits = workload.tolerance
    tolerance = f"atol {limits.max_atol:g} rtol {limits.max_rtol:g} ratio {limits.required_matched_ratio:g}"
    return f"  {index:3d}  {workload.uuid}  {own}  ({size}; {tolerance})"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**17 else f"{size} B"
