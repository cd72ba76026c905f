"""Each agent's archive, fastest first: who leads, by how much, and what each best was made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from engine.store.summary import Summary
from kernelarc_tui import fmt
from kernelarc_tui.glyphs import short_strategy
from kernelarc_tui.paint import Line
from kernelarc_tui.safe import one_line
from kernelarc_tui.screens.campaign import CampaignScreen, Hint
from kernelarc_tui.view import View, label_of, style_of
from kernelarc_tui.widgets.keyline import KeyLine
from kernelarc_tui.widgets.painted import Painted, retitle
from kernelarc_tui.widgets.row_list import RowList

LINEAGE_LIMIT = 40


@dataclass(frozen=True)
class Entry:
    """One row: an agent's best (``rank`` ≥ 1), or an earlier KEEP of it (``rank`` 0)."""

    rank: int
    agent: str
    number: int
    latency_ms: float | None
    speedup: float | None
    score: float | None


def standings(summary: Summary, *, archive: bool) -> list[Entry]:
    """Agents by their best, the seed's holders last; with ``archive`` their earlier KEEPs beneath."""
    agents = sorted(
        summary.agents.values(),
        key=lambda agent: (agent.best_ms is None, agent.best_ms or 0.0, agent.spec.ordinal),
    )
    rows: list[Entry] = []
    for rank, agent in enumerate(agents, 1):
        score = agent.keeps[-1].sol_score if agent.keeps else None
        rows.append(Entry(rank, agent.spec.name, agent.best, agent.best_ms, agent.best_speedup, score))
        if archive:
            rows += [
                Entry(0, agent.spec.name, keep.number, keep.latency_ms, keep.speedup, keep.sol_score)
                for keep in reversed(agent.keeps[:-1])
            ]
    return rows


class LeaderTable(RowList):
    def __init__(self) -> None:
        super().__init__(id="table")
        self.rows: list[Entry] = []
        self.summary = Summary()

    def show(self, rows: list[Entry], summary: Summary) -> None:
        self.rows, self.summary = rows, summary
        self.rows_changed()

    @property
    def selected(self) -> Entry | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def row_count(self) -> int:
        return len(self.rows)

    def has_header(self, width: int) -> bool:
        return True

    def header_line(self, width: int) -> Line:
        line = Line("    ").fit("agent", 8, "faint").fit("#", 6, "faint").fit("best ms", 9, "faint", right=True)
        line.fit("behind", 10, "faint", right=True).fit("speed-up", 10, "faint", right=True)
        if width >= 70:
            line.fit("score", 8, "faint", right=True).fit("KEEPs", 7, "faint", right=True)
        return line.add("  strategy", "faint")

    def row_line(self, index: int, width: int, *, selected: bool) -> Line:
        entry = self.rows[index]
        agent = self.summary.agents[entry.agent]
        top = entry.rank > 0
        line = Line("▸" if selected else " ", "rule-focus")
        line.fit(f"{entry.rank}." if top else "", 3, "bold" if entry.rank == 1 else "muted")
        style = style_of(self.summary, entry.agent)
        line.fit(label_of(self.summary, entry.agent) if top else "  └", 8, f"bold {style}" if top else "faint")
        line.fit(f"#{entry.number}" if entry.number else "seed", 6, "" if top else "muted")
        line.fit(fmt.ms(entry.latency_ms), 9, "bold" if entry.rank == 1 else "" if top else "muted", right=True)
        line.fit(self._behind(entry), 10, "muted", right=True)
        line.fit(fmt.times(entry.speedup), 10, "verdict-keep" if entry.rank == 1 else "muted", right=True)
        if width >= 70:
            line.fit(fmt.NONE if entry.score is None else f"{entry.score:.2f}", 8, "muted", right=True)
            line.fit(str(len(agent.keeps)) if top else "", 7, "muted", right=True)
        room = width - line.width - 2
        strategy = agent.strategy if len(agent.strategy) <= room else short_strategy(agent.strategy)
        text = f"{strategy} · {agent.model or agent.spec.proposer}" if top else ""
        return line.add("  ").fit(one_line(text, 100), max(0, width - line.width), "muted")

    def _behind(self, entry: Entry) -> str:
        best = self.summary.best_ms
        if not best or entry.latency_ms is None or entry.latency_ms <= best:
            return ""
        return f"+{(entry.latency_ms / best - 1) * 100:.1f} %"


class Lineage(Painted):
    """What the selected candidate was made from, back to the seed."""

    DEFAULT_CSS: ClassVar[str] = "Lineage { height: 2; padding: 0 1; }"

    def __init__(self) -> None:
        super().__init__(id="lineage")
        self.numbers: list[int] = []

    def show(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.repaint()

    def paint(self, width: int, height: int) -> list[Line]:
        if not self.numbers:
            return []
        names = [f"#{number}" if number else "seed" for number in self.numbers]
        line = Line("made from  ", "faint")
        while len(names) > 3 and line.width + len(" → ".join(names)) > width:
            names = ["…", *names[2:]]
        return [
            line.add(" → ".join(names[:-1]) + (" → " if len(names) > 1 else ""), "muted").add(names[-1], "bold")
        ]


class LeadersScreen(CampaignScreen):
    AUTO_FOCUS = "#table"
    BINDING_GROUP_TITLE = "Leaderboard"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "e", "archive", "Archive", show=False, id="leaders.archive", tooltip="every KEEP, or the bests only"
        ),
        Binding(
            "equals_sign",
            "mark",
            "Compare",
            show=False,
            id="leaders.compare",
            tooltip="mark, then diff with another",
        ),
    ]
    hints: ClassVar[tuple[Hint, ...]] = (
        ("⏎", "open", "screen.open_row"),
        ("e", "all KEEPs", "screen.archive"),
        ("=", "compare", "screen.mark"),
        ("v", "veto", "screen.veto"),
        ("a", "agent", "screen.open_agent"),
        ("?", "help", "app.help"),
        ("q", "back", "screen.back"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._archive = False
        self._marked: int | None = None

    def compose(self) -> ComposeResult:
        yield LeaderTable()
        yield Lineage()
        yield KeyLine(id="keys")

    def on_mount(self) -> None:
        self.query_one(LeaderTable).add_class("pane")
        super().on_mount()
        self.show_view(self.view)

    def show_view(self, view: View) -> None:
        table = self.query_one(LeaderTable)
        table.show(standings(view.summary, archive=self._archive), view.summary)
        title = "leaderboard" + (" · every KEEP" if self._archive else "")
        retitle(table, title)
        self._show_lineage()

    def chosen_agent(self) -> str:
        selected = self.query_one(LeaderTable).selected
        return selected.agent if selected else super().chosen_agent()

    def chosen_candidate(self) -> int:
        selected = self.query_one(LeaderTable).selected
        return selected.number if selected else 0

    def _show_lineage(self) -> None:
        selected = self.query_one(LeaderTable).selected
        self.query_one(Lineage).show(self._parents(selected.number) if selected else [])

    def _parents(self, number: int) -> list[int]:
        found = [number]
        while found[0] and len(found) < LINEAGE_LIMIT:
            row = self.session.reader.candidate(found[0])
            parent = (row.parent or 0) if row is not None else 0
            found.insert(0, parent if parent < found[0] else 0)
        return found

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        event.stop()
        self._show_lineage()

    def on_row_list_opened(self, event: RowList.Opened) -> None:
        event.stop()
        self.action_open_row()

    def action_open_row(self) -> None:
        self.open_candidate(self.chosen_candidate())

    def action_archive(self) -> None:
        self._archive = not self._archive
        self.show_view(self.view)

    def action_mark(self) -> None:
        """First press marks a candidate, the second one opens the diff between the two."""
        from kernelarc_tui.screens.candidate import TABS, CandidateScreen

        selected = self.query_one(LeaderTable).selected
        if selected is None:
            return
        if self._marked is None or self._marked == selected.number:
            self._marked = selected.number
            name = f"#{selected.number}" if selected.number else "the seed"
            self.kernelarc.say(f"{name} marked; = on another row shows the difference", "muted", seconds=12)
            return
        marked, self._marked = self._marked, None
        number, other = (selected.number, marked) if selected.number else (marked, selected.number)
        self.app.push_screen(CandidateScreen(number, tab=TABS.index("diff"), other=other))
