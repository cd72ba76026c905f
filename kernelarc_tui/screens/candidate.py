"""One candidate: its source, what changed, how each workload did, why it was judged so, prompt and reply."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import msgspec
from textual import work
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType

from engine.errors import KernelArcError, StoreError
from kernelarc_tui import fmt
from kernelarc_tui.candidate_text import Loaded, diff_lines, evidence_lines, source_lines_of, why_lines
from kernelarc_tui.glyphs import OUTCOMES
from kernelarc_tui.paint import Line
from kernelarc_tui.safe import one_line
from kernelarc_tui.screens.campaign import CampaignScreen, Hint
from kernelarc_tui.view import View, label_of, style_of
from kernelarc_tui.widgets.keyline import KeyLine
from kernelarc_tui.widgets.painted import Painted
from kernelarc_tui.widgets.tabs import TabRow
from kernelarc_tui.widgets.text_pane import TextPane
from kernelarc_tui.widgets.workloads import WorkloadTable

TABS = ("source", "diff", "workloads", "why", "prompt", "reply")
AGAINST = ("parent", "best", "reference")


class CandidateHead(Painted):
    """Number, agent, outcome and numbers in one line; the reason or hypothesis in the next two."""

    DEFAULT_CSS: ClassVar[str] = "CandidateHead { height: 3; padding: 0 1; }"

    def __init__(self) -> None:
        super().__init__(id="head")
        self.loaded: Loaded | None = None
        self.view = View()

    def show(self, loaded: Loaded | None, view: View) -> None:
        self.loaded, self.view = loaded, view
        self.repaint()

    def paint(self, width: int, height: int) -> list[Line]:
        if self.loaded is None:
            return [Line("there is no such candidate", "muted")]
        row, summary = self.loaded.row, self.view.summary
        letter, word, style = OUTCOMES.get(row.outcome, ("?", row.outcome, "muted"))
        line = Line(f"#{row.number} ", "bold").add(
            f"agent {label_of(summary, row.agent)}", style_of(summary, row.agent)
        )
        line.add("  ").add(f"{letter} {word}", f"bold {style}")
        if row.vetoed_at is not None:
            line.add(" vetoed", "bold warning")
        if row.latency_ms is not None:
            line.add("  ").add(f"{fmt.ms(row.latency_ms)} ms", "bold").add(f" {fmt.delta(row.log_ratio)}", "muted")
        if row.speedup is not None:
            line.add("  ").add(fmt.times(row.speedup)).add(" ref", "muted")
        if row.sol_score is not None:
            line.add(f"  {row.sol_score:.2f}").add(" score", "muted")
        parent = f"#{row.parent}" if row.parent else "the seed"
        words = (f"{row.mode} of {parent}", one_line(row.strategy, 30), one_line(row.family, 30), fmt.wall(row.at))
        line.end(Line(" · ".join(word for word in words if word), "muted"), width)
        return [
            line,
            *(Line().fit(text, width, "" if index == 0 else "muted") for index, text in enumerate(why_lines(row))),
        ]


class CandidateScreen(CampaignScreen):
    BINDING_GROUP_TITLE = "Candidate"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(index + 1), f"tab({index})", name, show=False, id=f"candidate.{name}", tooltip=f"{name}")
            for index, name in enumerate(TABS)
        ),
        Binding("tab", "next_tab(1)", "Next tab", show=False, id="candidate.next-tab", tooltip="the next tab"),
        Binding("shift+tab", "next_tab(-1)", "Tab", show=False, id="candidate.prev-tab", tooltip="the tab before"),
        Binding(
            "right_square_bracket", "step(1)", "Next", show=False, id="candidate.next", tooltip="next candidate"
        ),
        Binding(
            "left_square_bracket", "step(-1)", "Before", show=False, id="candidate.prev", tooltip="the one before"
        ),
        Binding(
            "c", "against", "Against", show=False, id="candidate.against", tooltip="diff: parent, best, reference"
        ),
        Binding(
            "t", "layout", "Layout", show=False, id="candidate.layout", tooltip="diff unified or side by side"
        ),
        Binding(
            "f", "whole", "Whole", show=False, id="candidate.whole", tooltip="diff: only changes, or whole files"
        ),
        Binding("slash", "search", "Search", show=False, id="candidate.search", tooltip="search in the text"),
        Binding("n", "search_again(True)", "Next", show=False, id="candidate.found", tooltip="next match"),
        Binding(
            "N", "search_again(False)", "Before", show=False, id="candidate.found-before", tooltip="match before"
        ),
        Binding("Y", "copy", "Copy", show=False, id="candidate.copy", tooltip="copy what is shown"),
        Binding("E", "edit", "Editor", show=False, id="candidate.edit", tooltip="open the source in $EDITOR"),
        Binding(
            "X", "export", "Export", show=False, id="candidate.export", tooltip="export solution and evidence"
        ),
    ]
    hints: ClassVar[tuple[Hint, ...]] = (
        ("1-6", "tabs", "screen.next_tab(1)"),
        ("c", "against", "screen.against"),
        ("t", "split", "screen.layout"),
        ("[ ]", "prev/next", "screen.step(1)"),
        ("v", "veto", "screen.veto"),
        ("Y", "copy", "screen.copy"),
        ("X", "export", "screen.export"),
        ("?", "help", "app.help"),
        ("q", "back", "screen.back"),
    )

    def __init__(self, number: int, *, tab: int = 0, against: str = "parent", other: int | None = None) -> None:
        super().__init__()
        self.number, self.tab = number, tab
        self.compare_with = against
        self.other = other  # a candidate to diff against, chosen elsewhere
        self.whole = False
        self.loaded: Loaded | None = None
        self._texts: dict[int, list[Line]] = {}
        self._painted_width = 0

    def compose(self) -> ComposeResult:
        yield CandidateHead()
        yield TabRow(TABS, id="tabs")
        yield TextPane(id="text", empty="nothing was stored")
        yield WorkloadTable(id="workloads")
        yield KeyLine(id="keys")

    def on_mount(self) -> None:
        super().on_mount()
        self.load(self.number)

    def show_view(self, view: View) -> None:
        self.query_one(CandidateHead).show(self.loaded, view)

    def chosen_agent(self) -> str:
        return self.loaded.row.agent if self.loaded else super().chosen_agent()

    def chosen_candidate(self) -> int:
        return self.number

    def load(self, number: int) -> None:
        """Read one candidate; an unreadable one says why."""
        reader = self.session.reader
        self.number, self.loaded = number, None
        self._texts.clear()
        try:
            row = reader.candidate(number)
            if row is not None:
                self.loaded = Loaded(
                    row, reader.solution(number), reader.evaluation(number), reader.profile(number)
                )
        except StoreError as error:
            self.kernelarc.say(f"! {error.message}", "bold warning")
        self.query_one(CandidateHead).show(self.loaded, self.view)
        self.action_tab(self.tab)

    def on_tab_row_picked(self, event: TabRow.Picked) -> None:
        self.action_tab(event.index)

    def on_resize(self) -> None:
        if TABS[self.tab] in ("diff", "why") and self._painted_width not in (0, self.size.width):
            self._texts.pop(self.tab, None)
            self.action_tab(self.tab)

    def action_tab(self, index: int) -> None:
        self.tab = index
        table = TABS[index] == "workloads"
        self.query_one("#text").display = not table
        self.query_one("#workloads").display = table
        if table:
            shown = self.query_one(WorkloadTable)
            results = self.loaded.evaluation.workloads if self.loaded and self.loaded.evaluation else []
            shown.show(results, self._shapes())
            self.set_focus(shown)
            self.query_one(TabRow).pick(index)
        else:
            self.set_focus(self.query_one("#text"))
            self.show_text(index)

    @work(group="text", exclusive=True)
    async def show_text(self, index: int) -> None:
        """Build a tab's lines, the slow ones in a thread, and show them."""
        self._painted_width = self.size.width
        note = self._diff_note() if TABS[index] == "diff" else ""
        self.query_one(TabRow).pick(index, note)
        lines = self._texts.get(index)
        if lines is None:
            lines = await self._build(TABS[index])
            self._texts[index] = lines
        if self.tab == index:
            self.query_one(TextPane).show(lines)

    async def _build(self, name: str) -> list[Line]:
        loaded = self.loaded
        if loaded is None:
            return []
        try:
            if name == "source":
                return await asyncio.to_thread(source_lines_of, loaded.solution)
            if name == "diff":
                return await self._diff(loaded)
            if name == "why":
                return evidence_lines(loaded, self.view, self._text_width())
            text = getattr(self.session.reader, name)(self.number)
        except StoreError as error:
            return [Line(error.message, "warning")]
        from kernelarc_tui.highlighting import highlight

        return await asyncio.to_thread(highlight, text or "", "x.md")

    async def _diff(self, loaded: Loaded) -> list[Line]:
        reader = self.session.reader
        other = self._other_number(loaded)
        old = reader.solution(other)
        if loaded.solution is None:
            return [Line("the reply held no solution", "muted")]
        if old is None:
            return [Line(f"#{other} holds no solution", "muted")]
        side = self.kernelarc.settings.diff == "split"
        width = self._text_width()
        return await asyncio.to_thread(diff_lines, old, loaded.solution, side=side, width=width, whole=self.whole)

    def _text_width(self) -> int:
        """Cells that a line of the text pane has, with its scrollbar there: folded text must not go beneath it."""
        pane = self.query_one(TextPane)
        return max(20, self.size.width - pane.gutter.width - pane.styles.scrollbar_size_vertical)

    def _other_number(self, loaded: Loaded) -> int:
        if self.other is not None:
            return self.other
        if self.compare_with == "parent":
            return loaded.row.parent or 0
        return self.view.summary.best if self.compare_with == "best" else 0

    def _diff_note(self) -> str:
        if self.loaded is None:
            return ""
        number = self._other_number(self.loaded)
        name = f"#{number}" if number else "the seed"
        return f"against {self.compare_with if self.other is None else 'chosen'} ({name})"

    def _shapes(self) -> dict[str, str]:
        """Workload uuid → its axes, from the campaign's frozen problem."""
        from engine.problems.load import problem_from_json

        try:
            problem = problem_from_json(self.session.reader.campaign().problem.encode())
        except KernelArcError:
            return {}
        shown: dict[str, str] = {}
        for workload in problem.workloads:
            shown[workload.uuid] = " ".join(f"{name}={size}" for name, size in workload.axes.items())
        return shown

    # Keys

    def action_next_tab(self, step: int) -> None:
        self.action_tab((self.tab + step) % len(TABS))

    def action_step(self, step: int) -> None:
        target = self.number + step
        if 1 <= target <= self.view.summary.candidates:
            self.load(target)

    def action_against(self) -> None:
        self.other = None
        self.compare_with = AGAINST[(AGAINST.index(self.compare_with) + 1) % len(AGAINST)]
        self._texts.pop(TABS.index("diff"), None)
        self.action_tab(TABS.index("diff"))

    def action_layout(self) -> None:
        settings = self.kernelarc.settings
        chosen = "unified" if settings.diff == "split" else "split"
        self.kernelarc.settings = msgspec.structs.replace(settings, diff=chosen)
        self.kernelarc.keep("diff", chosen)
        self._texts.pop(TABS.index("diff"), None)
        self.action_tab(TABS.index("diff"))

    def action_whole(self) -> None:
        self.whole = not self.whole
        self._texts.pop(TABS.index("diff"), None)
        self.action_tab(TABS.index("diff"))

    @work(group="ask")
    async def action_search(self) -> None:
        from kernelarc_tui.screens.modal import Ask

        text = await self.app.push_screen_wait(Ask("Search", placeholder="text"))
        if text and not self.query_one(TextPane).search(text):
            self.kernelarc.say(f"{text!r} is not in here", "muted")

    def action_search_again(self, forward: bool) -> None:
        self.query_one(TextPane).search_again(forward=forward)

    def action_copy(self) -> None:
        from kernelarc_tui.clipboard import copy

        if TABS[self.tab] == "source" and self.loaded and self.loaded.solution:
            text = self.loaded.solution.entry_source
        else:
            text = self.query_one(TextPane).text
        self.kernelarc.say(copy(self.app, text), "muted")

    def action_edit(self) -> None:
        from kernelarc_tui.editor import view_in_editor

        solution = self.loaded.solution if self.loaded else None
        if solution is None:
            self.kernelarc.say("there is no source to open", "muted")
            return
        try:
            with self.app.suspend():
                said = view_in_editor(f"{self.session.name}-{self.number}", solution)
        except SuspendNotSupported:
            said = "an editor cannot be opened from here; X exports the files"
        self.kernelarc.say(said, "muted")

    @work(group="export")
    async def action_export(self) -> None:
        from engine.reports.export import export_best
        from kernelarc_tui.screens.modal import Ask

        default = f"./{self.session.name}-{self.number}"
        target = await self.app.push_screen_wait(
            Ask(
                "Export to which folder?",
                "solution.json, its sources as files, evidence.json, trace.jsonl",
                value=default,
            )
        )
        if not target:
            return
        from pathlib import Path

        from engine.store.reader import StoreReader

        def write() -> str:
            with StoreReader(self.session.folder) as reader:
                return export_best(reader, Path(target).expanduser(), number=self.number).text

        try:
            self.kernelarc.say(f"✓ {await asyncio.to_thread(write)}", "verdict-keep", seconds=12)
        except KernelArcError as error:
            self.kernelarc.say(f"! {error.message}", "bold warning")
