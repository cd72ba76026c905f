"""compute-sanitizer over one call of a candidate on its smallest workload, before a KEEP of it is archived.

Run behind all layers of a candidate, as a profile is, with deadlines. Importing goes on beside whatever is timed;
the device is held for the call alone: instrumented kernels are slow.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from engine.bench.sandbox import choose_sandbox
from engine.problems.model import Problem
from engine.problems.solution import CPP_LANGUAGES, Solution
from engine.profile.run import Failed, Run, workload_size
from engine.profile.sanitizer_report import TOOLS, SanitizerReport, parse_report
from engine.records import DeviceFacts
from engine.text import clean

CALL_S = 60.0  # of one tool: drawing inputs and one call, all of it instrumented, with the device held
_REASONS = {"memcheck": "wrong.memory-access", "racecheck": "wrong.race"}
_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
# Languages whose kernels are the candidate's own; what torch compiles itself is not looked at.
_OWN_KERNELS = frozenset({"triton", "cute_dsl", "cutile", *CPP_LANGUAGES})


class Sanitized(msgspec.Struct, frozen=True, kw_only=True):
    """``reason`` empty: nothing was found, or nothing could be looked for; ``notes`` say which."""

    reason: str = ""
    detail: str = ""
    notes: list[str] = []
    evidence: dict[str, object] = {}


def wants_sanitizer(solution: Solution, device: DeviceFacts) -> bool:
    return device.kind == "cuda" and any(language in _OWN_KERNELS for language in solution.spec.languages)


def find_sanitizer() -> str | None:
    return shutil.which("compute-sanitizer") or next((place for place in _PLACES if Path(place).is_file()), None)


def words(tool: str, check: str) -> list[str]:
    """The command line in front of the program. API calls that fail are how torch asks: they are no errors."""
    return [
        *(tool, "--tool", check, "--report-api-errors", "no", "--target-processes", "application-only"),
        *("--print-limit", "16", "--error-exitcode", "0"),
        *(("--racecheck-report", "analysis") if check == "racecheck" else ()),
    ]


async def sanitize(
    problem: Problem, solution: Solution, device: DeviceFacts, *, tool: str | None = None, place: str | None = None
) -> Sanitized:
    """Both checks, side by side but for the calls. ``tool``: the sanitizer's path (``None``: looked for).

    Never raises for what the candidate or the tool does: where the tool cannot look, a note says so.
    """
    found = find_sanitizer() if tool is None else tool
    if not found:
        return Sanitized(notes=["compute-sanitizer is not installed here: memory and races were not checked"])
    sandbox = choose_sandbox()
    if sandbox.kind == "none":
        return Sanitized(notes=["compute-sanitizer was not run: this machine allows no outer sandbox"])
    index = min(range(len(problem.workloads)), key=lambda i: workload_size(problem, i))
    where = place or f"cuda:{device.index or 0}"

    async def look(check: str) -> SanitizerReport:
        folder = Path(mkdtemp(prefix="kernelarc-sanitize-"))
        try:
            folder.chmod(0o755)
            return await _checked(_Watched(problem, solution, device, where, sandbox, folder, index), found, check)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    reports = await asyncio.gather(*map(look, TOOLS))
    return concluded(reports, problem.workloads[index].uuid)


async def _checked(run: _Watched, tool: str, check: str) -> SanitizerReport:
    try:
        await run.lay_out()
        _, text = await run.once(words(tool, check), counters=True, cold=True)
    except Failed as failed:
        report = parse_report(check, run.said)
        return report if report.own else SanitizerReport(tool=check, problem=failed.detail)
    return parse_report(check, text)


def concluded(reports: Sequence[SanitizerReport], workload: str) -> Sanitized:
    """One answer from both reports: the first error of the candidate's own kernels decides. Pure."""
    notes: list[str] = []
    reason = detail = ""
    for report in reports:
        if report.problem:
            notes.append(f"{report.tool} could not look: {clean(report.problem, 200)}")
        elif report.own:
            reason = reason or _REASONS[report.tool]
            detail = detail or f"{report.tool}: {report.own} errors, the first: {clean(report.first, 300)}"
        else:
            rest = f" ({report.library} reports in library kernels)" if report.library else ""
            notes.append(f"{report.tool}: nothing found on the smallest workload{rest}")
    evidence: dict[str, object] = {
        "sanitizer": {"workload": workload, "reports": [msgspec.to_builtins(report) for report in reports]}
    }
    return Sanitized(reason=reason, detail=detail, notes=notes, evidence=evidence)


class _Watched(Run):
    """Imported while others are timed, then the device is held for the one call that the tool instruments."""

    call_s = CALL_S

    def _environment(self, tool: Sequence[str]) -> dict[str, str]:
        # Each tensor an allocation of its own: what lies beyond it is out of bounds.
        return super()._environment(tool) | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
