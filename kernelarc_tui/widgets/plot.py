"""Best-so-far trajectories: a step line per agent, the reference and the bound, outcomes along the axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

from engine.store.summary import AgentSummary, TrajectoryPoint
from kernelarc_tui import fmt
from kernelarc_tui.paint import Line
from kernelarc_tui.plotting import MARKERS, Attempt, Level, Picture, Series, draw, nice, visible_levels
from kernelarc_tui.view import View, label_of, style_of
from kernelarc_tui.widgets.painted import Painted

AXES = ("candidates", "time", "dollars")


class TrajectoryPlot(Painted):
    """``axis`` is one of :data:`AXES`. ``only`` limits the lines to one agent."""

    DEFAULT_CSS: ClassVar[str] = "TrajectoryPlot { height: 1fr; }"

    def __init__(self, *, id: str | None = None, ascii: bool = False, only: str = "") -> None:
        super().__init__(id=id)
        self.view = View()
        self.axis = "candidates"
        self.log_scale = False
        self.ascii = ascii
        self.only = only
        self._content: tuple[object, ...] = ()

    def show(self, view: View) -> None:
        self.view = view
        key = self._content_key()
        if key != self._content:
            self._content = key
            self.repaint()

    def _content_key(self) -> tuple[object, ...]:
        """What the picture depends on; the ends of lines over time move by whole dots only."""
        summary = self.view.summary
        x_max = _extent(self.view, self.axis)
        dots = round(_now(self.view, self.axis) / x_max * 2 * max(1, self.size.width))
        levels = (summary.reference_ms, summary.roofline_ms, summary.best_agent, summary.best_ms)
        lines = tuple(len(agent.trajectory) for agent in summary.agents.values())
        return (self.axis, self.log_scale, self.only, x_max, dots, levels, lines, len(self.view.points))

    def cycle_axis(self) -> str:
        costs = self.view.summary.cost_usd > 0
        axes = AXES if costs else AXES[:2]
        self.axis = axes[(axes.index(self.axis) + 1) % len(axes)] if self.axis in axes else axes[0]
        self.repaint()
        return self.axis

    def toggle_log(self) -> bool:
        self.log_scale = not self.log_scale
        self.repaint()
        return self.log_scale

    def paint(self, width: int, height: int) -> list[Line]:
        if self.view.summary.best_ms is None:
            return [Line(), Line("  no measurement yet", "muted")]
        return draw(
            picture(self.view, self.axis, log=self.log_scale, ascii=self.ascii, only=self.only), width, height
        )


def picture(view: View, axis: str, *, log: bool, ascii: bool, only: str = "") -> Picture:
    """The plot of a view: pure, for the widget, the report and tests."""
    summary = view.summary
    x_max = _extent(view, axis)
    agents = [agent for agent in view.agents if not only or agent.spec.name == only]
    agents.sort(key=lambda agent: agent.spec.name == summary.best_agent)  # the leader is drawn last, on top
    series = [_series(view, agent, axis) for agent in agents if agent.trajectory]
    levels = []
    if summary.reference_ms:
        levels.append(Level("reference", summary.reference_ms, "muted"))
    if summary.roofline_ms:
        levels.append(Level("bound", summary.roofline_ms, "secondary"))
    shown = visible_levels(levels, series, log=log)
    attempts: Sequence[Attempt] = ()
    if axis == "candidates":
        attempts = [point for point in view.points if point[1] == only] if only else view.points
    return Picture(
        series=series,
        levels=shown,
        attempts=attempts,
        x_max=x_max,
        x_format=_x_format(axis, x_max),
        x_least=_APART[axis],
        log=log,
        ascii=ascii,
    )


def _series(view: View, agent: AgentSummary, axis: str) -> Series:
    points = [(_x(point, axis), point.latency_ms) for point in agent.trajectory]
    return Series(
        label=label_of(view.summary, agent.spec.name),
        style=style_of(view.summary, agent.spec.name),
        points=points,
        end=_now(view, axis),
        marker=MARKERS[agent.spec.ordinal % len(MARKERS)],
    )


def _x(point: TrajectoryPoint, axis: str) -> float:
    if axis == "candidates":
        return float(point.number)
    return point.at / 60 if axis == "time" else point.cost_usd


_LEAST = {"candidates": 4.0, "time": 0.5, "dollars": 0.01}  # the axis' extent
_APART = {"candidates": 1.0, "time": 0.0, "dollars": 0.01}  # labels that read differently


def _now(view: View, axis: str) -> float:
    """Where the lines end."""
    summary = view.summary
    if axis == "candidates":
        return float(summary.candidates)
    return summary.elapsed_s(view.now) / 60 if axis == "time" else summary.cost_usd


def _rounded(extent: float) -> float:
    """A little more than ``extent``: the axis is redrawn now and then, not with every candidate."""
    step = nice(extent / 40)
    return math.ceil(extent / step) * step


def _extent(view: View, axis: str) -> float:
    return _rounded(max(_LEAST[axis], _now(view, axis)))


def _x_format(axis: str, x_max: float) -> Callable[[float], str]:
    if axis == "candidates":
        return lambda value: f"{value:.0f}"
    if axis == "time":
        return (lambda value: f"{value / 60:g}h") if x_max >= 300 else (lambda value: f"{value:g}m")
    return fmt.money
