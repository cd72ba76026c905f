"""What every key does on the screen beneath, made from the bindings themselves."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen

from kernelarc_tui.keys import key_groups
from kernelarc_tui.paint import Line, wrap
from kernelarc_tui.screens.base import Steady
from kernelarc_tui.settings import config_path
from kernelarc_tui.widgets.text_pane import TextPane

LEGEND = (
    ("K keep", "verdict-keep", "faster than the agent's best by the margin, confirmed"),
    ("A accept", "verdict-accept", "correct and near the best: the new working point"),
    ("R revert", "verdict-revert", "slower, wrong or crashed: back to the best"),
    ("x reject", "verdict-reject", "failed the gate before any benchmark"),
    ("E error", "verdict-error", "the machine's, the model's or our fault: no position taken"),
    ("−2.1 %", "", "latency against the agent's best of that time: less is faster"),
    ("1.41×", "", "speed-up over the reference: more is faster"),
    ("▮▮▯▯▯", "", "stuck: benched tries in a row without a gain; full means it must draft something new"),
    ("★", "verdict-keep", "holds the best of the campaign"),
    ("+ win", "verdict-keep", "worked and was measured; − trap: tried, and why it is a dead end"),
)


class Help(Steady, ModalScreen[None]):
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
        pane.focus()
        self.call_after_refresh(self._fill)

    def on_resize(self) -> None:
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        pane = self.query_one(TextPane)
        pane.show(help_lines(self.about, pane.scrollable_content_region.width), top=False)


def help_lines(screen: Screen[Any], width: int) -> list[Line]:
    """Keys, what they do and, where there is room for it, the id to change them by."""
    groups = key_groups(screen)
    everything = [row for _, rows in groups for row in rows]
    keys_width = max((len(keys) for keys, _, _ in everything), default=0)
    id_width = max((len(binding_id) for _, _, binding_id in everything), default=0)
    room = max(20, width - 2 - keys_width - 2)
    text_width = min(room - id_width - 2, max((len(text) for _, text, _ in everything), default=0))
    lines: list[Line] = []
    for title, rows in groups:
        lines.append(Line(title, "bold primary"))
        for keys, text, binding_id in rows:
            line = Line("  ").fit(keys, keys_width, "bold rule-focus").add("  ")
            if text_width < 36:
                lines.append(line.fit(text, room))
            else:
                lines.append(line.fit(text, text_width).add("  ").add(binding_id, "faint"))
        lines.append(Line())
    lines.append(Line("Signs", "bold primary"))
    for name, style, text in LEGEND:
        first, *rest = wrap(text, max(20, width - 13))
        lines.append(Line("  ").fit(name, 9, f"bold {style}").add("  ").add(first))
        lines += [Line(" " * 13).add(part) for part in rest]
    notes = (
        "Leaving stops nothing: the engine is its own process. kernelarc attach comes back.",
        "Keys can be changed by their id (the last column) in the configuration file:",
    )
    told = [Line(part, "muted") for note in notes for part in wrap(note, max(20, width))]
    # A path is one line, however long: it is copied, not read.
    return [
        *lines,
        Line(),
        *told,
        Line(f"  {config_path()}", "muted"),
        Line("  keys: {do.draft: ctrl+t}", "muted"),
    ]
