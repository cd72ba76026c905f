"""Devices, one or two rows each: use with its history, memory, temperature, power; clocks where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from engine.records import CampaignState, Sample
from kernelarc_tui import fmt
from kernelarc_tui.glyphs import spark
from kernelarc_tui.paint import Line
from kernelarc_tui.safe import one_line
from kernelarc_tui.view import View
from kernelarc_tui.widgets.painted import Painted

STALE_S = 15.0  # samples stop while a block is timed; older ones say so


class DevicePanel(Painted):
    DEFAULT_CSS: ClassVar[str] = "DevicePanel { height: auto; min-height: 1; }"

    def __init__(self, *, id: str | None = None, ascii: bool = False) -> None:
        super().__init__(id=id)
        self.view = View()
        self.ascii = ascii
        self.rows_each = 1

    def show(self, view: View, rows_each: int = 1) -> None:
        layout = (len(view.samples), rows_each) != (len(self.view.samples), self.rows_each)
        self.view, self.rows_each = view, rows_each
        if layout:
            self.refresh(layout=True)
        self.repaint()

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return max(1, len(self.view.samples) * self.rows_each)

    @property
    def heading(self) -> str:
        names = [series[-1] for series in self.view.samples.values() if series]
        if not names:
            return "device"
        when = " · at the end" if self.over else ""
        if len(names) > 1:
            return f"{len(names)} devices{when}"
        only = names[0]
        name = "CPU" if only.device == "cpu" else f"GPU {only.index if only.index is not None else ''}".strip()
        return name + when

    @property
    def over(self) -> bool:
        """Whether nothing is sampled any more: what is shown are the last values."""
        return self.view.state in (CampaignState.FINISHED, CampaignState.STOPPED, CampaignState.INTERRUPTED)

    def paint(self, width: int, height: int) -> list[Line]:
        lines: list[Line] = []
        several = len(self.view.samples) > 1
        for series in self.view.samples.values():
            if series:
                stale = self.over or self.view.now - series[-1].at > STALE_S
                lines.append(_first_row(series, width, stale=stale, named=several, ascii=self.ascii))
                if self.rows_each > 1:
                    lines.append(_second_row(series[-1], width))
        return lines or [Line("no samples yet", "muted")]


def _first_row(series: Sequence[Sample], width: int, *, stale: bool, named: bool, ascii: bool) -> Line:
    last = series[-1]
    line = Line()
    if named:
        line.fit(
            "CPU" if last.device == "cpu" else f"GPU{last.index if last.index is not None else '?'}", 5, "muted"
        )
    if last.utilization is None and last.reason:
        return line.fit(one_line(last.reason, 200), width - line.width, "muted")
    facts = _facts(last, width)
    use = fmt.percent(last.utilization)
    cells = max(0, min(60, width - line.width - 6 - sum(len(fact) + 2 for fact in facts)))
    busy = (last.utilization or 0) > 0.5
    line.fit(use, 5, "muted" if stale else "bold" if busy else "", right=True).add(" ")
    history = [sample.utilization for sample in series[-cells:]] if cells else []
    line.add(" " * max(0, cells - len(history)))
    line.add(spark(history, ascii=ascii), "faint" if stale else "primary")
    for fact in facts:
        hot = fact.endswith("°C") and (last.temperature_c or 0) >= 85
        line.add("  ").add(fact, "bold warning" if hot else "muted" if stale else "")
    return line


def _facts(sample: Sample, width: int) -> list[str]:
    """What fits beside a history of at least six bars, the most telling first."""
    facts = []
    if sample.memory_used_bytes is not None:
        facts.append(fmt.gib_of(sample.memory_used_bytes, sample.memory_total_bytes))
    if sample.temperature_c is not None:
        facts.append(f"{sample.temperature_c:.0f} °C")
    if sample.power_w is not None:
        limit = f"/{sample.power_limit_w:.0f}" if sample.power_limit_w and width >= 70 else ""
        facts.append(f"{sample.power_w:.0f}{limit} W")
    if sample.load is not None:
        facts.append(f"load {sample.load:.1f}")
    while facts and 12 + sum(len(fact) + 2 for fact in facts) > width:
        facts.pop()
    return facts


def _second_row(sample: Sample, width: int) -> Line:
    line = Line("      ")
    if sample.cores:
        busy = sum(1 for core in sample.cores if core > 0.5)
        return line.fit(f"{busy} of {len(sample.cores)} cores busy", width - 6, "muted")
    facts = []
    if sample.sm_clock_mhz is not None:
        facts.append(f"SM {sample.sm_clock_mhz:.0f} MHz")
    if sample.memory_clock_mhz is not None:
        facts.append(f"memory {sample.memory_clock_mhz:.0f} MHz")
    if sample.processes:
        facts.append(f"{len(sample.processes)} process{'es' if len(sample.processes) != 1 else ''}")
    line.add("  ".join(facts), "muted")
    if sample.throttle:
        text = f"throttled: {', '.join(sample.throttle)}"
        line.add("  ").fit(one_line(text, 80), max(0, width - line.width - 2), "bold warning")
    return line
