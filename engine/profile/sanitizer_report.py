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
_ACCESS = re.compile(r"^\s*(?:Error: )?(?:Invalid|Misaligned|Out-of-range|Barrier error|Malloc/Free)\b")
# "at NAME+0x70", "at NAME+0x70 in file.py:12", "Write access at NAME+0x2f0", of old "at 0x70 in file.cu:12:NAME".
_KERNEL = re.compile(r"^(?:at|.*\baccess at) (?:0x[0-9a-f]+ in (?:\S+:\d+:)?)?(?P<name>[^\n]{1,400})$")
_UNNAMED = re.compile(r"<unnamed>::|\(anonymous namespace\)::")
_NO_WORK = re.compile(
    r"(?:Error: )?((?:Target application|No attachable process|Device not supported|Unable to|Failed to|"
    r"Internal (?:Sanitizer )?Error|Insufficient)[^\n]{0,200})"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
# CuTe's kernels are called after the function, between other words.
_CUTE = "kernel_cutlass_"
_LIBRARY = re.compile(r"\bat::native\b|\bat_cuda_detail\b|\bcub::|\bthrust::|cublas|cudnn|cutlass|nvjet|xmma")
_UNREAD = 12  # lines of the tool that are kept where an error could not be told apart


class SanitizerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one tool. ``problem``: why it says nothing; then the counts mean nothing."""

    tool: str
    errors: int = 0
    own: int = 0  # of the errors, those inside kernels that the candidate's sources name
    library: int = 0  # those inside kernels of libraries
    first: str = ""  # the first of its own, in a line
    unread: str = ""  # what the tool said of the rest
    problem: str = ""

    @property
    def unknown(self) -> int:
        """Errors of which could not be told whose they are."""
        return self.errors - self.own - self.library


def parse_report(tool: str, text: str, sources: str) -> SanitizerReport:
    """``text``: all that the tool and the program wrote. ``sources``: the candidate's.

    Only an error in a kernel that the sources name is the candidate's: a library's kernels synchronize in ways
    that the tool does not follow (racecheck ends in an error of its own under cuBLAS, H200).
    """
    short = (line[:_LONGEST] for line in text.splitlines())  # a line of a megabyte is none of the tool's
    lines = [match["text"].rstrip() for line in short if (match := _PREFIX.match(line))]
    summary = _HAZARDS if tool == "racecheck" else _ERRORS
    found = [int(match[1]) for line in lines if (match := summary.search(line))]
    refused = next((match[1] for line in lines if (match := _NO_WORK.search(line))), "")
    reports = _reports(tool, lines)
    if not found or (refused and not reports):
        return SanitizerReport(tool=tool, problem=refused or "it ended without a summary")
    names = frozenset(_WORD.findall(sources))
    own = [report for report in reports if any(_is_own(kernel, names) for kernel in kernels_of(report))]
    library = sum(1 for r in reports if r not in own and any(_LIBRARY.search(k) for k in kernels_of(r)))
    errors = sum(found)
    # The tool shows the first few errors and counts them all.
    count = errors if own and len(own) == len(reports) else min(len(own), errors)
    library = min(library, errors - count)
    return SanitizerReport(
        tool=tool,
        errors=errors,
        own=count,
        library=library,
        first=_one_line(own[0]) if own else "",
        unread=clean("\n".join(lines[:_UNREAD]), _LONGEST) if errors > count else "",
    )


def kernels_of(report: list[str]) -> list[str]:
    """The kernels that a report blames, with their namespaces, without types, arguments and offsets."""
    found = []
    for match in filter(None, map(_KERNEL.match, report)):
        name = _UNNAMED.sub("", match["name"]).split("+0x")[0].removeprefix("void ")
        found.append(re.split(r"[<(]", name, maxsplit=1)[0].strip())
    return found


def _is_own(kernel: str, names: frozenset[str]) -> bool:
    words = _WORD.findall(kernel)
    if not words:
        return False
    if kernel.startswith(_CUTE):
        return any(len(name) > 3 and f"_{name}_" in f"{kernel}_" for name in names)
    return words[-1] in names


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
    where = next(iter(kernels_of(report)), "")
    return f"{report[0]}{f' in {where}' if where and where not in report[0] else ''}"[:300]
