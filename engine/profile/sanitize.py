"""compute-sanitizer over one call of a candidate on its smallest workload, before a KEEP of it is archived.

Run behind all layers of a candidate, as a profile is, with deadlines. Importing goes on beside whatever is timed;
the device is held for the call alone: instrumented kernels are slow. Nor is it held before anybody wants to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from engine.bench.sandbox import choose_sandbox
from engine.errors import Fault
from engine.problems.model import Problem
from engine.problems.solution import CPP_LANGUAGES, Solution
from engine.profile.run import Run, workload_size
from engine.profile.sanitizer_report import TOOLS, SanitizerReport, parse_report
from engine.profile.talk import Failed, Talk
from engine.records import DeviceFacts
from engine.text import clean

CALL_S = 20.0  # at most, of both tools together: others wait for the device meanwhile
_REASONS = {"memcheck": "wrong.memory-access", "racecheck": "wrong.race"}
_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
# Instrumenting a library's large kernels takes minutes, and what is in them is none of the candidate's.
_LIBRARIES = ("at::native", "2at6native", "cublas", "cutlass", "nvjet", "xmma", "cudnn")
# Languages whose kernels are the candidate's own; what torch compiles itself is not looked at.
_OWN_KERNELS = frozenset({"triton", "cute_dsl", "cutile", *CPP_LANGUAGES})

# Whose own kernels are called after CUTLASS.
_CUTLASS = frozenset({"cute_dsl", "cutlass"})


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


def words(tool: str, check: str, languages: Sequence[str] = ()) -> list[str]:
    """The command line in front of the program. API calls that fail are how torch asks: they are no errors."""
    left_out = [part for part in _LIBRARIES if part != "cutlass" or not _CUTLASS.intersection(languages)]
    return [
        *(tool, "--tool", check, "--report-api-errors", "no", "--target-processes", "application-only"),
        *(word for part in left_out for word in ("--kernel-name-exclude", f"kns={part}")),
        *("--print-limit", "64", "--error-exitcode", "0"),
        *(("--racecheck-report", "analysis") if check == "racecheck" else ()),
    ]


async def sanitize(
    problem: Problem,
    solution: Solution,
    device: DeviceFacts,
    *,
    call_s: float = CALL_S,
    wanted: asyncio.Event | None = None,
    tool: str | None = None,
    place: str | None = None,
) -> Sanitized:
    """Both checks, side by side. ``tool``: the sanitizer's path (``None``: looked for).

    ``call_s``: what the calls may take, with the device held. ``wanted``: their processes start at once, and wait
    with their calls, which need the device, until it is set.

    Never raises for what the candidate, the tool or the machine does: where the tool cannot look, a note says so.
    """
    found = find_sanitizer() if tool is None else tool
    if not found:
        return Sanitized(notes=["compute-sanitizer is not installed here: memory and races were not checked"])
    sandbox = choose_sandbox()
    if sandbox.kind == "none":
        return Sanitized(notes=["compute-sanitizer was not run: this machine allows no outer sandbox"])
    index = min(range(len(problem.workloads)), key=lambda i: workload_size(problem, i))
    where = place or f"cuda:{device.index or 0}"
    runs: dict[str, Run] = {}
    try:
        for check in TOOLS:
            folder = Path(mkdtemp(prefix="kernelarc-sanitize-"))
            runs[check] = _Watched(problem, solution, device, where, sandbox, folder, index)
        reports = await _looked(runs, found, call_s, wanted)
    except (Fault, OSError) as error:  # a full disk, a lock that cannot be used
        why = error.detail if isinstance(error, Fault) else error.strerror
        return Sanitized(notes=[f"compute-sanitizer could not look: {clean(why or 'the machine refused', 200)}"])
    finally:
        for run in runs.values():
            shutil.rmtree(run.folder, ignore_errors=True)
    return concluded(reports, problem.workloads[index].uuid)


async def _looked(
    runs: Mapping[str, Run], tool: str, call_s: float, wanted: asyncio.Event | None
) -> list[SanitizerReport]:
    """Both checks side by side, their calls under one hold of the device."""
    failed: dict[str, Failed] = {}

    async def step(check: str, action: Awaitable[object]) -> None:
        try:
            await action
        except Failed as failure:
            failed.setdefault(check, failure)

    async with contextlib.AsyncExitStack() as stack:
        talks: dict[str, Talk] = {}
        for check, run in runs.items():
            run.folder.chmod(0o755)
            await step(check, run.lay_out())
            if check not in failed:
                languages = run.solution.spec.languages
                talk = run.talk(words(tool, check, languages), counters=True, cold=True)
                talks[check] = await stack.enter_async_context(talk)
        await asyncio.gather(*(step(check, talk.ready()) for check, talk in talks.items()))
        if wanted is not None:
            await wanted.wait()
        async with next(iter(runs.values())).lock().held(urgent=True):
            await asyncio.gather(*(step(c, talk.call(call_s)) for c, talk in talks.items() if c not in failed))
        # A stray access ends the call with an error; the tool reports it when the process has ended.
        gone = {check for check, failure in failed.items() if failure.reason == "resource.timeout"}
        await asyncio.gather(*(step(c, talk.rest()) for c, talk in talks.items() if c not in gone))
    return [_report(check, run, failed.get(check)) for check, run in runs.items()]


def _report(check: str, run: Run, failed: Failed | None) -> SanitizerReport:
    """A call that fails may well have been stopped by what the tool found."""
    report = parse_report(check, run.said, "\n".join(source.content for source in run.solution.sources))
    if failed is None or report.own:
        return report
    return SanitizerReport(tool=check, problem=failed.detail)


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
        elif report.unknown:
            what = clean(report.unread, 200)
            notes.append(f"{report.tool}: {report.unknown} errors that nobody could be blamed for: {what}")
        else:
            rest = f" ({report.library} in library kernels)" if report.library else ""
            notes.append(f"{report.tool}: nothing found on the smallest workload{rest}")
    evidence: dict[str, object] = {
        "sanitizer": {"workload": workload, "reports": [msgspec.to_builtins(report) for report in reports]}
    }
    return Sanitized(reason=reason, detail=detail, notes=notes, evidence=evidence)


class _Watched(Run):
    """A process whose one call the tool instruments."""

    def _environment(self, tool: Sequence[str]) -> dict[str, str]:
        # Each tensor an allocation of its own: what lies beyond it is out of bounds.
        return super()._environment(tool) | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
