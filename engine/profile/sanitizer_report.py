"""What compute-sanitizer says: memcheck's errors, racecheck's hazards, or why it could not look. Pure."""

from __future__ import annotations

import re

import msgspec

from engine.text import clean

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
_WORD = re.compile(r"[A-Za-z_]\w*")
_UNREAD = 12  # lines of the tool that are kept where an error could not be told apart


class SanitizerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one tool. ``problem``: why it says nothing; then the counts mean nothing."""

    tool: str
    errors: int = 0
    own: int = 0  # of the errors, those inside kernels that the candidate's sources name
    first: str = ""  # the first of its own, in a line
    unread: str = ""  # what the tool said where errors are not the candidate's own, or cannot be told apart
    problem: str = ""

    @property
    def others(self) -> int:
        """Errors inside kernels of libraries, or of nobody that could be told."""
        return self.errors - self.own


def parse_report(tool: str, text: str, sources: str) -> SanitizerReport:
    """``text``: all that the tool and the program wrote. ``sources``: the candidate's.

    Only an error in a kernel that the sources name is the candidate's: a library's kernels synchronize in ways
    that the tool does not follow (racecheck calls cuBLAS's own racy, H200), and they are not its work.
    """
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
    names = frozenset(_WORD.findall(sources))
    reports = _reports(tool, lines)
    own = [report for report in reports if _kernels(report) & names]
    # The tool shows the first few errors and counts them all.
    count = errors if own and len(own) == len(reports) else min(len(own), errors)
    return SanitizerReport(
        tool=tool,
        errors=errors,
        own=count,
        first=_one_line(own[0]) if own else "",
        unread=clean("\n".join(lines[:_UNREAD]), _LONGEST) if errors > count else "",
    )


def _kernels(report: list[str]) -> set[str]:
    """Names of the kernels that a report blames: the last word before template arguments and parameters."""
    found = [match["name"] for line in report if (match := _KERNEL.search(line))]
    words = [_WORD.findall(re.split(r"[<(]", name, maxsplit=1)[0]) for name in found]
    return {each[-1] for each in words if each}


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
