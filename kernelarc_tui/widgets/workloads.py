"""One candidate's results, a row per workload: latency, interval, speed-up, errors, distance to the bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from engine.records import WorkloadResult
from engine.text import cut_middle
from kernelarc_tui import fmt
from kernelarc_tui.paint import Line
from kernelarc_tui.safe import one_line
from kernelarc_tui.widgets.row_list import RowList


class WorkloadTable(RowList):
    DEFAULT_CSS: ClassVar[str] = "WorkloadTable { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.results: Sequence[WorkloadResult] = ()
        self.shapes: Mapping[str, str] = {}

    def show(self, results: Sequence[WorkloadResult], shapes: Mapping[str, str]) -> None:
        self.results, self.shapes = results, shapes
        self.rows_changed()

    def row_count(self) -> int:
        return len(self.results)

    def empty_line(self, width: int) -> Line:
        return Line().fit("it was not benched", width, "muted")

    def has_header(self, width: int) -> bool:
        return True

    def header_line(self, width: int) -> Line:
        line = Line(" ").fit("workload", _shape_width(width), "faint").add("  ")
        for title, size, least in _NUMBERS:
            if width >= least:
                line.add(" ").fit(title, size, "faint", right=True)
        return line.add("  status", "faint")

    def row_line(self, index: int, width: int, *, selected: bool) -> Line:
        result = self.results[index]
        passed = result.status == "PASSED"
        line = Line("▸" if selected else " ", "rule-focus")
        room = _shape_width(width)
        line.fit(cut_middle(one_line(self.shapes.get(result.uuid) or result.uuid, 80), room), room)
        line.add(" ✓" if passed else " ✗", "verdict-keep" if passed else "verdict-reject")
        for (_, size, least), text in zip(_NUMBERS, _cells(result), strict=True):
            if width >= least:
                line.add(" ").fit(text, size, "muted" if text == fmt.NONE else "", right=True)
        why = one_line(result.detail or result.reason, 300)
        status = result.status if passed else f"{result.status}  {why}"
        return line.add("  ").fit(status, max(0, width - line.width), "muted" if passed else "verdict-reject")


_NUMBERS = (
    ("ms", 8, 0),
    ("95 % interval", 15, 92),
    ("reference", 9, 64),
    ("speed-up", 8, 0),
    ("max abs", 8, 108),
    ("max rel", 8, 74),
    ("of bound", 8, 84),
    ("score", 6, 118),
)


def _shape_width(width: int) -> int:
    return 16 if width < 90 else 24 if width < 130 else 36


def _cells(result: WorkloadResult) -> tuple[str, ...]:
    interval = fmt.NONE
    if result.latency_ci is not None:
        interval = f"{fmt.ms(result.latency_ci[0])}–{fmt.ms(result.latency_ci[1])}"
    share = None
    if result.roofline_ms is not None and result.latency_ms:
        share = result.roofline_ms / result.latency_ms
    return (
        fmt.ms(result.latency_ms),
        interval,
        fmt.ms(result.reference_latency_ms),
        fmt.times(result.speedup),
        fmt.error(result.max_abs_error),
        fmt.error(result.max_rel_error),
        fmt.percent(share),
        fmt.NONE if result.sol_score is None else f"{result.sol_score:.2f}",
    )
