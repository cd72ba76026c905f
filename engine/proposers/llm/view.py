"""What a prompt says, as plain values for the templates. Pure: a context in, words out, no cut unsaid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.hardware.peaks import find_peaks
from engine.problems.model import ConstAxis, ExprAxis, Problem, TensorSpec, Tolerance, Workload
from engine.problems.reference import is_reference
from engine.problems.solution import CPP_LANGUAGES, PYTHON_LANGUAGES, Solution
from engine.proposers.base import Context, Incumbent, MemoryEntry, PastCandidate
from engine.proposers.llm.fences import longest_fence
from engine.records import DeviceFacts, WorkloadResult
from engine.skills import Skill
from engine.text import clean, one_line, strip_controls, truncate

SOURCE_LIMIT = 60_000
NAMES = {"pytorch": "PyTorch", "triton": "Triton", "cute_dsl": "CuTe DSL", "cutile": "cuTile"}


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each part a prompt may show. ``None`` is everything."""

    sibling_sources: int = 2
    siblings: int = 4
    wins: int | None = None
    traps: int | None = None
    history: int = 10
    detail: int = 800  # characters of a verdict's detail
    protocols: bool = True
    failed: bool = True
    skill: int | None = None  # characters
    workloads: int | None = None
    reference: int | None = None  # characters


def fence(text: str, info: str = "") -> str:
    """``text`` between back-ticks, more of them than any run inside it."""
    body = strip_controls(text).rstrip("\n")
    ticks = "`" * max(3, longest_fence(body) + 1)
    return f"{ticks}{info}\n{body}\n{ticks}"


def values(context: Context, skill: Skill | None, protocols: Sequence[Skill], room: Room) -> dict[str, Any]:
    """Everything the templates name."""
    rows = _workload_rows(context)
    shown = rows if room.workloads is None else _slowest(rows, room.workloads)
    allowed = languages(context.device, skill)
    return {
        "problem": _problem(context.problem, room),
        "kernel_type": context.kernel_type,
        "device": {"name": one_line(context.device.name), "facts": device_facts(context.device)},
        "base": _base(context, room),
        "workloads": shown,
        "workloads_left_out": len(rows) - len(shown),
        "profile": clean(context.profile, 2000),
        "history": _history(context.history, room),
        "wins": _memory(context.wins, room.wins),
        "traps": _memory(context.traps, room.traps),
        "siblings": _siblings(context.siblings, room),
        "skill": _skill(skill, room),
        "hints": [clean(hint, 4000) for hint in context.hints],
        "forced": context.forced_draft,
        "line_tries": context.line_tries,
        "failed": _failed(context) if room.failed else None,
        "families": "\n".join(f"- {one_line(family, 80)}" for family in context.tried_families) or "- none yet",
        "protocols": [{"name": p.name, "body": p.body} for p in protocols] if room.protocols else [],
        **_format(context.problem, allowed),
    }


def languages(device: DeviceFacts, skill: Skill | None) -> list[str]:
    """SOL-ExecBench language names that this device and skill allow, Python ones first."""
    if device.kind != "cuda":
        return ["pytorch"]
    present = [name for name in PYTHON_LANGUAGES if name == "pytorch" or _installed(name, device)]
    if "nvcc" in device.versions or not device.versions:
        present += ["cuda_cpp"]
    wanted = [name for name in present if skill is None or name in skill.languages or name == "pytorch"]
    return wanted or ["pytorch"]


def device_facts(device: DeviceFacts) -> str:
    """What is known, in a sentence or two; what is unknown is left out, not guessed."""
    facts = []
    if device.compute_capability:
        facts.append("compute capability {}.{}".format(*device.compute_capability))
    if device.sm_count:
        facts.append(f"{device.sm_count} SMs")
    if device.memory_bytes:
        facts.append(f"{device.memory_bytes / 2**30:.0f} GiB memory")
    if device.l2_bytes:
        facts.append(f"{device.l2_bytes / 2**20:.0f} MiB L2")
    if device.cores:
        facts.append(f"{device.cores} cores")
    facts += [f"{name} {one_line(version, 40)}" for name, version in sorted(device.versions.items())]
    return (", ".join(facts) or "nothing more is known") + "." + _peaks(device)


def _peaks(device: DeviceFacts) -> str:
    """What the bounds are computed from, as a second sentence; nothing for a device of unknown peaks."""
    peaks = find_peaks(device.name) if device.kind == "cuda" else None
    if peaks is None:
        return ""
    rates = [("matrix units", peaks.tensor), ("ordinary units", peaks.vector)]
    told = [f"{what} {', '.join(f'{t} {rate:g}' for t, rate in by_type.items())}" for what, by_type in rates]
    return f" Datasheet peaks: {peaks.memory_gb_s:g} GB/s; dense TFLOP/s of the {'; of the '.join(told)}."


def digits(value: float | None) -> str:
    """Four significant digits: two would hide a gain of one per cent."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _installed(language: str, device: DeviceFacts) -> bool:
    module = {"cute_dsl": "cutlass", "cudnn_frontend": "cudnn"}.get(language, language)
    return (
        language in device.versions or module in device.versions or (language == "triton" and not device.versions)
    )


def _problem(problem: Problem, room: Room) -> dict[str, Any]:
    definition = problem.definition
    reference = strip_controls(definition.reference)
    constants = [f"{name} = {axis.value}" for name, axis in definition.axes.items() if isinstance(axis, ConstAxis)]
    derived = [
        f"{name} = {axis.expression}" for name, axis in definition.axes.items() if isinstance(axis, ExprAxis)
    ]
    return {
        "name": one_line(definition.name),
        "description": clean(definition.description or "", 1500),
        "reference": reference if room.reference is None else truncate(reference, room.reference),
        "inputs": [{"name": name, "type": _tensor(spec)} for name, spec in definition.inputs.items()],
        "outputs": [{"name": name, "type": _tensor(spec)} for name, spec in definition.outputs.items()],
        "constants": ", ".join(constants + derived),
        "tolerance": _tolerances([workload.tolerance for workload in problem.workloads]),
    }


def _tensor(spec: TensorSpec) -> str:
    if spec.shape is None:
        what = f"a Python number ({spec.dtype})"
    else:
        what = f"{spec.dtype}[{', '.join(spec.shape)}]"
    return f"{what}, {one_line(spec.description, 120)}" if spec.description else what


def _tolerances(found: Sequence[Tolerance]) -> str:
    distinct = list(dict.fromkeys(found))
    if not distinct:
        return "unknown"
    more = f" (and {len(distinct) - 3} others)" if len(distinct) > 3 else ""
    return "; or ".join(map(_tolerance, distinct[:3])) + more + (", by workload" if len(distinct) > 1 else "")


def _tolerance(one: Tolerance) -> str:
    share = f"{100 * one.required_matched_ratio:g} % of the elements"
    cap = f", none above {one.max_error_cap:g}" if one.max_error_cap is not None else ""
    return f"|out − ref| ≤ {one.max_atol:g} + {one.max_rtol:g}·|ref| for {share}{cap}"


def shape_label(workload: Workload, problem: Problem) -> str:
    """The axes that vary: ``rows=64 cols=128``."""
    fixed = {name for name, axis in problem.definition.axes.items() if isinstance(axis, ConstAxis)}
    return " ".join(f"{name}={size}" for name, size in workload.axes.items() if name not in fixed) or "fixed sizes"


def _workload_rows(context: Context) -> list[dict[str, Any]]:
    results: dict[str, WorkloadResult] = {}
    if context.base.evaluation:
        results = {result.uuid: result for result in context.base.evaluation.workloads}
    rows = []
    for workload in context.problem.workloads:
        result = results.get(workload.uuid)
        base = result.latency_ms if result else None
        bound = context.roofline_ms.get(workload.uuid) or (result.roofline_ms if result else None)
        reference = result.reference_latency_ms if result else None
        share = f"{100 * bound / base:.0f} %" if base and bound else "–"
        if result and base is None and result.reason:
            share = one_line(result.reason, 60)
        rows.append(
            {
                "shape": shape_label(workload, context.problem),
                "base": digits(base),
                "reference": digits(reference or context.reference_by_workload_ms.get(workload.uuid)),
                "bound": f"{digits(bound)} {context.limits.get(workload.uuid, '')}".strip(),
                "share": share,
                "size": base or 0.0,
            }
        )
    return rows


def _slowest(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    kept = sorted(range(len(rows)), key=lambda i: -float(rows[i]["size"]))[:count]
    return [rows[i] for i in sorted(kept)]


def _base(context: Context, room: Room) -> dict[str, Any]:
    """The solution to start from; the reference is not shown twice, unless only a part of it is shown above."""
    base, best = context.base, context.best
    shown = room.reference is None and is_reference(base.solution, context.problem)
    if base.number == 0:
        title = "the reference, as it is above" if shown else "the starting solution"
    elif base.number == best.number:
        title = f"your best, candidate {base.number}"
    elif context.line_tries:
        title = f"the last correct candidate of this draft line, {base.number}"
    else:
        title = f"your working point, candidate {base.number}"
    standing = []
    if base.latency_ms is not None:
        standing.append(f"It takes {digits(base.latency_ms)} ms (geometric mean over the workloads)")
        if base.speedup is not None:
            standing.append(f"{base.speedup:.3f}× the reference")
    line = ", ".join(standing) + "." if standing else "It has not been measured."
    if best.number != base.number and best.latency_ms is not None:
        line += f" Your best, candidate {best.number}, takes {digits(best.latency_ms)} ms."
    if context.reference_ms is not None:
        line += f" The reference takes {digits(context.reference_ms)} ms."
    measured = base.evaluation is not None and bool(base.evaluation.workloads)
    files = [] if shown else _files(base.solution)
    return {"title": title, "files": files, "standing": line, "measured": measured}


def _failed(context: Context) -> dict[str, Any] | None:
    failed = context.failed
    if failed is None or failed.number == context.base.number:
        return None
    return {"number": failed.number, "files": _files(failed.solution)}


def _files(solution: Solution) -> list[dict[str, str]]:
    return [
        {"info": f"{_word(source.path)} {source.path}", "text": truncate(source.content, SOURCE_LIMIT)}
        for source in solution.sources
    ]


def _word(path: str) -> str:
    return "python" if path.endswith(".py") else "cuda"


def _history(history: Sequence[PastCandidate], room: Room) -> str:
    lines = []
    for past in list(reversed(history))[: room.history]:
        head = f"position {past.position}, candidate {past.number}: {past.outcome} ({past.mode}, {past.strategy}"
        head += f", family {one_line(past.family, 80)!r})" if past.family else ")"
        if past.latency_ms is not None:
            head += f", {digits(past.latency_ms)} ms"
        if past.log_ratio is not None:
            head += f", {100 * math.expm1(past.log_ratio):+.2f} % speed against the best of its time"
        lines.append(head)
        if past.hypothesis:
            lines.append(f"  hypothesis: {one_line(past.hypothesis, 300)}")
        if past.reason:
            detail = clean(past.detail, room.detail)
            lines.append(f"  {past.reason}" + (f": {detail}" if detail else ""))
    left = len(history) - room.history
    if left > 0:
        lines.append(f"({left} earlier tries are not shown)")
    return "\n".join(lines)


def _memory(entries: Sequence[MemoryEntry], limit: int | None) -> str:
    lines = []
    for entry in entries if limit is None else entries[:limit]:
        marks = ["pinned by a person"] if entry.pinned else []
        if entry.carried_from:
            marks.append(f"carried over from campaign {one_line(entry.carried_from, 60)}")
        speed = f", {entry.speedup:.3f}× the reference" if entry.speedup is not None else ""
        change = ""
        if entry.before_ms is not None and entry.after_ms is not None:
            change = f", {digits(entry.before_ms)} → {digits(entry.after_ms)} ms"
        mark = f" [{'; '.join(marks)}]" if marks else ""
        lines.append(f"- {one_line(entry.strategy, 160)}{speed}{change}{mark}")
        if entry.error:
            lines.append(f"  failed: {one_line(entry.error, 300)}")
        lines.append(f"  {one_line(entry.reflection, 1200)}")
        if entry.note:
            lines.append(f"  a person's note: {one_line(entry.note, 400)}")
    return "\n".join(lines)


def _siblings(siblings: Sequence[Incumbent], room: Room) -> list[dict[str, Any]]:
    shown = []
    for index, sibling in enumerate(siblings[: room.siblings]):
        speed = f", {sibling.speedup:.3f}× the reference" if sibling.speedup is not None else ""
        title = f"Agent {one_line(sibling.agent, 40)}, {digits(sibling.latency_ms)} ms{speed}, {sibling.strategy}."
        files = _files(sibling.solution) if index < room.sibling_sources else []
        shown.append({"title": title, "files": files})
    return shown


def _skill(skill: Skill | None, room: Room) -> dict[str, str]:
    if skill is None:
        return {"name": "", "body": ""}
    body = skill.body if room.skill is None else skill.body[: room.skill].rpartition("\n")[0]
    first, _, rest = body.partition("\n")
    return {"name": skill.name, "body": (rest if first.startswith("# ") else body).strip()}


def _format(problem: Problem, allowed: Sequence[str]) -> dict[str, Any]:
    inputs, outputs = list(problem.definition.inputs), list(problem.definition.outputs)
    cpp = any(name in CPP_LANGUAGES for name in allowed)
    named = [NAMES.get(name, name) for name in allowed if name not in CPP_LANGUAGES]
    words = f"Python ({', '.join(named)})" + (", C++/CUDA" if cpp else "")
    returns = f"`{outputs[0]}`" if len(outputs) == 1 else f"({', '.join(outputs)}) in this order"
    return {
        "languages": words,
        "cpp": cpp,
        "arguments": ", ".join(inputs),
        "outputs": ", ".join(outputs),
        "returns": returns,
        "example": {
            "info": "python kernel.py",
            "text": f"import torch\n\n\ndef run({', '.join(inputs)}):\n    ...",
        },
    }
