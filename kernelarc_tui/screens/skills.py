"""The strategy skills: what each is for, and whether and why an agent may use it on this problem."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal

from engine.records import DeviceFacts
from engine.skills import Skill, eligible, load_skills
from kernelarc_tui.paint import Line, wrap
from kernelarc_tui.safe import one_line
from kernelarc_tui.screens.campaign import CampaignScreen, Hint
from kernelarc_tui.view import View
from kernelarc_tui.widgets.keyline import KeyLine
from kernelarc_tui.widgets.painted import retitle
from kernelarc_tui.widgets.row_list import RowList
from kernelarc_tui.widgets.text_pane import TextPane


@dataclass(frozen=True)
class Shown:
    name: str
    usable: bool
    why: str
    skill: Skill | None  # None: broken


class SkillList(RowList):
    def __init__(self) -> None:
        super().__init__(id="skills")
        self.rows: list[Shown] = []
        self.used: dict[str, int] = {}

    def show(self, rows: list[Shown], used: dict[str, int]) -> None:
        self.rows, self.used = rows, used
        self.rows_changed()

    @property
    def selected(self) -> Shown | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def row_count(self) -> int:
        return len(self.rows)

    def empty_line(self, width: int) -> Line:
        return Line("reading the skills …", "muted")

    def row_line(self, index: int, width: int, *, selected: bool) -> Line:
        row = self.rows[index]
        sign, style = (
            ("✓ ", "verdict-keep") if row.usable else ("· ", "faint") if row.skill else ("! ", "bold error")
        )
        line = Line(sign, style)
        count = self.used.get(row.name, 0)
        right = f"{count} agent{'s' if count != 1 else ''}" if count else ""
        line.fit(one_line(row.name, 60), max(0, width - line.width - len(right)), "" if row.usable else "muted")
        return line.add(right, "primary")


class SkillsScreen(CampaignScreen):
    AUTO_FOCUS = "#skills"
    BINDING_GROUP_TITLE = "Skills"
    hints: ClassVar[tuple[Hint, ...]] = (
        ("j k", "choose", ""),
        ("w", "switch the agent to one", "screen.switch"),
        ("?", "help", "app.help"),
        ("q", "back", "screen.back"),
    )

    def compose(self) -> ComposeResult:
        with Horizontal(id="body"):
            yield SkillList()
            yield TextPane(id="detail")
        yield KeyLine(id="keys")

    def on_mount(self) -> None:
        self.query_one("#skills").add_class("pane")
        self.query_one("#detail").add_class("pane")
        super().on_mount()
        self.read()

    def show_view(self, view: View) -> None:
        skills = self.query_one(SkillList)
        skills.show(skills.rows, _used(view))

    @work(group="skills", exclusive=True)
    async def read(self) -> None:
        campaign = self.session.reader.campaign()
        device = campaign.device_facts or DeviceFacts(kind=campaign.device.partition(":")[0], name=campaign.device)
        rows = await asyncio.to_thread(skill_rows, campaign.kernel_type, device)
        skills = self.query_one(SkillList)
        skills.show(rows, _used(self.view))
        usable = sum(row.usable for row in rows)
        title = f"skills · {usable} of {len(rows)} fit {one_line(campaign.kernel_type, 30)}"
        retitle(skills, title)
        self._show_detail()

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        event.stop()
        self._show_detail()

    def on_resize(self) -> None:
        self.after_layout(self._show_detail)

    def _show_detail(self) -> None:
        row = self.query_one(SkillList).selected
        pane = self.query_one("#detail", TextPane)
        if row is None:
            return
        retitle(pane, one_line(row.name, 60))
        pane.show(_detail(row, max(20, pane.size.width - 2)))


def skill_rows(kernel_type: str, device: DeviceFacts) -> list[Shown]:
    """Strategies in the order that suits the kernel type, then meta-skills, then broken ones."""
    found = load_skills()
    strategies = found.strategies(kernel_type)
    names = {skill.name for skill in strategies}
    others = [skill for name, skill in sorted(found.skills.items()) if name not in names]
    rows = []
    for skill in (*strategies, *others):
        usable, why = eligible(skill, kernel_type, device)
        rows.append(Shown(skill.name, usable, why, skill))
    rows.sort(key=lambda row: not row.usable)
    return rows + [Shown(broken.name, False, broken.why, None) for broken in found.broken]


def _used(view: View) -> dict[str, int]:
    used: dict[str, int] = {}
    for agent in view.agents:
        used[agent.strategy] = used.get(agent.strategy, 0) + 1
    return used


def _detail(row: Shown, width: int) -> list[Line]:
    from kernelarc_tui.highlighting import highlight

    head, style = ("may be used:", "bold verdict-keep") if row.usable else ("not here:", "bold warning")
    first, *rest = wrap(f"{head} {one_line(row.why, 300)}", width)
    lines = [Line(head, style).add(first[len(head) :]), *map(Line, rest)]
    if row.skill is None:
        return lines
    lines += [Line(part, "muted") for part in wrap(one_line(row.skill.description, 1000), width)]
    if row.skill.recipes:
        lines += [Line(part, "muted") for part in wrap(f"recipes: {', '.join(row.skill.recipes)}", width)]
    lines.append(Line())
    folded = "\n".join(part for line in _unwrapped(row.skill.body) for part in wrap(line, width))
    return lines + highlight(folded, "x.md")


def _unwrapped(body: str) -> list[str]:
    """Markdown with the lines of a paragraph or list item joined, so that they can be folded anew."""
    lines: list[str] = []
    fenced = False
    for line in body.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            lines.append(line)
            continue
        starts = not line.strip() or line.lstrip()[:1] in "#|>-*" or re.match(r"\s*\d+[.)] ", line) is not None
        goes_on = bool(lines and lines[-1].strip()) and not lines[-1].startswith(("#", "|", "```"))
        if fenced or starts or not goes_on:
            lines.append(line)
        else:
            lines[-1] = f"{lines[-1].rstrip()} {line.strip()}"
    return lines
