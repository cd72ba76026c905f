"""What every key does on the screen beneath, made from the bindings themselves."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen

from kernelarc_tui.keys import key_groups
from kernelarc_tui.paint import Line
from kernelarc_tui.settings import config_path
from kernelarc_tui.widgets.text_pane import TextPane

LEGEND = (
    ("K keep", "verdict-keep", "faster than the agent's best by the margin, confirmed"),
    ("A accept", "verdict-accept", "correct and near the best: the new working point"),
    ("R revert", "verdict-revert", "slower, wrong or crashed: back to the best"),
    ("x reject", "verdict-reject", "failed the gate before any benchmark"),
    ("E error", "verdict-error", "the machine's, the model's or our fault: no position taken"),
    ("▮▮▯▯▯", "", "benched tries without improvement: full means it must draft"),
)


class Help(ModalScreen[None]):
    DEFAULT_CSS: ClassVar[str] = """
    Help { align: center middle; background: $background 60%; }
    Help > Vertical {
        width: 78; max-width: 100%; height: 94%; padding: 0 1;
        background: $surface; border: round $rule-focus; border-title-style: bold;
    }
    Help TextPane { background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "dismiss(None)", "Close", show=False, id="help.close", tooltip="close")
    ]

    def __init__(self, about: Screen[Any]) -> None:
        super().__init__()
        self.about = about

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content("keys · q closes, j and k scroll")  # type: ignore[assignment]
            yield TextPane()

    def on_mount(self) -> None:
        pane = self.query_one(TextPane)
        pane.show(help_lines(self.about))
        pane.focus()


def help_lines(screen: Screen[Any]) -> list[Line]:
    lines: list[Line] = []
    for title, rows in key_groups(screen):
        lines.append(Line(title, "bold primary"))
        for keys, text, binding_id in rows:
            line = Line("  ").fit(keys, 13, "bold rule-focus").add(" ").fit(text, 40).add(" ")
            lines.append(line.add(binding_id, "faint"))
        lines.append(Line())
    lines.append(Line("Outcomes", "bold primary"))
    for name, style, text in LEGEND:
        lines.append(Line("  ").fit(name, 13, f"bold {style}").add(" ").add(text))
    lines += [
        Line(),
        Line("Leaving stops nothing: the engine is its own process. kernelarc attach comes back.", "muted"),
        Line("Keys can be changed by the id at the end of each row, in the configuration file:", "muted"),
        Line(f"  {config_path()}", "muted"),
        Line("  keys: {do.draft: ctrl+t}", "muted"),
    ]
    return lines
