"""Starting a campaign from a form: the same settings and the same checks as ``kernelarc run``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from engine.config import PRESETS, CampaignConfig
from engine.errors import BadInput, KernelArcError
from engine.text import counted
from kernelarc_tui.paint import Line
from kernelarc_tui.safe import one_line
from kernelarc_tui.screens.base import Dialog
from kernelarc_tui.widgets.form import Box, Cycle, FormRow
from kernelarc_tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from engine.problems.library import ProblemEntry

PROPOSERS = ("recipes", "llm", "inbox")


class ProblemList(RowList):
    DEFAULT_CSS: ClassVar[str] = "ProblemList { height: 6; }"

    def __init__(self) -> None:
        super().__init__(id="problems")
        self.entries: list[ProblemEntry] = []
        self.shown: list[ProblemEntry] = []

    def narrow(self, text: str) -> None:
        """Only problems with every word of ``text`` in name, type or description."""
        words = text.lower().split()
        self.shown = [
            entry
            for entry in self.entries
            if all(word in f"{entry.name} {entry.op_type or ''} {entry.description}".lower() for word in words)
        ]
        self.cursor = 0
        self.rows_changed()

    @property
    def selected(self) -> ProblemEntry | None:
        return self.shown[self.cursor] if self.cursor < len(self.shown) else None

    def row_count(self) -> int:
        return len(self.shown)

    def empty_line(self, width: int) -> Line:
        return Line("no such problem in the library; a path works too", "muted")

    def row_line(self, index: int, width: int, *, selected: bool) -> Line:
        entry = self.shown[index]
        line = Line("▸ " if selected else "  ", "rule-focus").fit(
            one_line(entry.name, 60), 30, "bold" if selected else ""
        )
        if entry.error:
            return line.add(" ").fit(one_line(entry.error, 200), max(0, width - line.width), "error")
        about = f"{entry.op_type or ''}  {counted(entry.workloads, 'workload')}  {entry.dtypes}"
        return line.add(" ").fit(one_line(about, 120), max(0, width - line.width), "muted")


class StartForm(Dialog, ModalScreen[Path | None]):
    """Returns the folder of the campaign that was started, or ``None``."""

    DEFAULT_CSS: ClassVar[str] = """
    StartForm { align: center middle; background: $background 60%; }
    StartForm > Vertical {
        width: 76; max-width: 100%; height: auto; max-height: 100%; padding: 0 1;
        background: $surface; border: round $rule-focus; border-title-style: bold;
    }
    StartForm ProblemList { background: $surface; margin-bottom: 1; }
    StartForm .problem { color: $error; height: auto; min-height: 1; }
    StartForm .keys { color: $muted; height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", show=False, id="form.cancel", tooltip="cancel"),
        Binding("ctrl+g,f5", "start", "Start", show=False, priority=True, id="form.start", tooltip="start it"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content("new campaign")  # type: ignore[assignment]
            yield FormRow("problem", Box(placeholder="search, or a path", id="problem"))
            yield ProblemList()
            yield FormRow("configuration", Cycle(("multi-bounded", "multi-unbounded", "single"), id="config"))
            yield FormRow("proposer", Cycle(PROPOSERS, id="proposer"))
            yield FormRow("model", Box(placeholder="for llm, as in openai/gpt-5", id="model"))
            yield FormRow("device", Box(placeholder="cpu or cuda:0", id="device"))
            yield FormRow("agents", Box(placeholder="2, or 1 for single", id="agents"))
            yield FormRow("candidates", Box(placeholder="100", id="candidates"))
            yield FormRow("minutes", Box(placeholder="no limit", id="minutes"))
            yield FormRow("US dollars", Box(placeholder="no limit", id="max_cost"))
            yield FormRow("name", Box(placeholder="made from problem and time", id="name"))
            yield Static("", classes="problem", id="complaint")
            yield Static(Content("ctrl+g starts it · tab next field · ← → choose · esc cancels"), classes="keys")

    def on_mount(self) -> None:
        assert set(PRESETS) == {"multi-bounded", "multi-unbounded", "single"}
        self.take_keys(self.query_one("#problem"))
        self.read_library()

    @work(group="library", exclusive=True)
    async def read_library(self) -> None:
        from engine.hardware.facts import default_device
        from engine.problems.library import list_problems

        problems = self.query_one(ProblemList)
        problems.entries = await asyncio.to_thread(list_problems)
        problems.narrow(self.query_one("#problem", Box).value)
        box = self.query_one("#device", Box)
        box.placeholder = await asyncio.to_thread(default_device)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "problem":
            self.query_one(ProblemList).narrow(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.focus_next()

    def on_row_list_opened(self, event: RowList.Opened) -> None:
        event.stop()
        selected = self.query_one(ProblemList).selected
        if selected is not None:
            self.query_one("#problem", Box).value = selected.name
            self.set_focus(self.query_one("#config"))

    def action_start(self) -> None:
        values = {box.id or "": box.value.strip() for box in self.query(Box)}
        values |= {cycle.id or "": cycle.value for cycle in self.query(Cycle)}
        selected = self.query_one(ProblemList).selected
        problem = values.pop("problem")
        if selected is not None and not Path(problem).expanduser().exists():
            problem = selected.name
        if not values["device"]:
            values["device"] = self.query_one("#device", Box).placeholder
        try:
            config = config_of(values)
        except BadInput as error:
            self._complain(error.message)
            return
        self.start(problem, config, values["name"] or None)

    @work(group="start", exclusive=True)
    async def start(self, problem: str, config: CampaignConfig, name: str | None) -> None:
        self._complain("starting …")
        try:
            folder = await asyncio.to_thread(_create_and_start, problem, config, name)
        except KernelArcError as error:
            self._complain(error.message)
            return
        self.dismiss(folder)

    def _complain(self, text: str) -> None:
        self.query_one("#complaint", Static).update(Content(one_line(text, 500)))


def config_of(values: Mapping[str, str]) -> CampaignConfig:
    """A checked configuration from what the fields hold; empty ones keep their defaults. Raises BadInput."""
    from engine.presets import resolve

    explicit: dict[str, Any] = {"config": values["config"], "proposer": [values["proposer"]]}
    for key, kind in (("agents", int), ("candidates", int), ("minutes", float), ("max_cost", float)):
        text = values.get(key, "").lstrip("$")
        if text:
            try:
                explicit[key] = kind(text)
            except ValueError:
                word = "a whole number" if kind is int else "a number"
                raise BadInput(f"{key} is {text!r}", where="form", fix=f"use {word}") from None
    if values.get("model"):
        explicit["model"] = values["model"].split()
    if values.get("device"):
        explicit["device"] = values["device"]
    return resolve(explicit, where="form")


def _create_and_start(problem: str, config: CampaignConfig, name: str | None) -> Path:
    from engine.launch import create_campaign, start_detached
    from engine.problems.library import find_problem

    folder = create_campaign(config, find_problem(problem), None, name)
    start_detached(folder)
    return folder
