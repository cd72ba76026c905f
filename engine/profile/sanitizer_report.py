"""What compute-sanitizer says: memcheck's errors, racecheck's hazards, or why it could not look. Pure."""

from __future__ import annotations

import re

import msgspec

TOOLS = ("memcheck", "racecheck")
_LONGEST = 1000
_PREFIX = re.compile(r"^=========[ \t]?(?P<text>.*)$")
_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) errors?")
_HAZARDS = re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, \d+ warnings?\)")
_RACE = re.compile(r"(?:Error|Warning|Info):? .*?(?:Race reported|hazard)", re.IGNORECASE)
_ACCESS = re.compile(
    r"(?:Invalid|Misaligned|Out-of-range) \S+ (?:read|write|atomic|address)|Barrier error|Malloc/Free"
)
_KERNEL = re.compile(r"\bat (?:0x[0-9a-f]+ in )?(?P<name>[^\n]{1,300}?)(?:\+0x[0-9a-f]+)?$")
_NO_WORK = re.compile(
    r"(?:Error: )?((?:Target application|No attachable process|Device not supported|Unable to|Failed to|"
    r"Internal (?:Sanitizer )?Error|Insufficient)[^\n]{0,200})"
)
# Kernels that torch brought along. A hazard in one of them is none of the candidate's.
_LIBRARY = re.compile(
    r"\bat::native\b|\bat_cuda_detail\b|\bcub::|\bthrust::|\bcublas|\bcudnn|\bcutlass_\d|\bnvjet"
)


class SanitizerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one tool. ``problem``: why it says nothing; then the counts mean nothing."""

    tool: str
    errors: int = 0
    first: str = ""  # the first error, in a line
    library: int = 0  # of the errors, those inside kernels of torch's own libraries
    problem: str = ""

    @property
    def own(self) -> int:
        return max(self.errors - self.library, 0)


def parse_report(tool: str, text: str) -> SanitizerReport:
    """``text``: all that the tool and the program wrote."""
    short = (line[:_LONGEST] for line in text.splitlines())  # a line of a megabyte is none of the tool's
    lines = [match["text"].rstrip() for line in short if (match := _PREFIX.match(line))]
    summary = _HAZARDS if tool == "racecheck" else _ERRORS
    found = [int(match[1]) for line in lines if (match := summary.search(line))]
    refused = next((match[1] for line in lines if (match := _NO_WORK.search(line))), "")
    if not found:
        return SanitizerReport(tool=tool, problem=refused or "it ended without a summary")
    errors = sum(found)
    if not errors and refused:
        return SanitizerReport(tool=tool, problem=refused)
    reports = _reports(tool, lines)
    library = sum(1 for report in reports if any(_LIBRARY.search(line) for line in report))
    own = [report for report in reports if not any(_LIBRARY.search(line) for line in report)]
    return SanitizerReport(tool=tool, errors=errors, first=_one_line(own[0]) if own else "", library=library)


def _reports(tool: str, lines: list[str]) -> list[list[str]]:
    """The lines of each reported error; they are indented below its first line."""
    starts = _RACE if tool == "racecheck" else _ACCESS
    found: list[list[str]] = []
    for line in lines:
        if starts.search(line) and not (
            tool == "racecheck" and line.lstrip().lower().startswith(("warning", "info"))
        ):
            found.append([line.strip()])
        elif found and line.startswith("    "):
            found[-1].append(line.strip())
    return found


def _one_line(report: list[str]) -> str:
    where = next((m["name"] for line in report[1:] if (m := _KERNEL.search(line))), "")
    return f"{report[0]}{f' in {where}' if where else ''}"[:300]
