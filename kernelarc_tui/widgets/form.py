"""Form rows of one line: a label with a text box, or with a few words to step through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from kernelarc_tui.paint import Line
from kernelarc_tui.widgets.painted import Painted


class Cycle(Painted, can_focus=True):
    """One of a few words; left, right, space or a click step through them."""

    DEFAULT_CSS: ClassVar[str] = """
    Cycle { height: 1; width: 1fr; }
    Cycle:focus { background: $cursor; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,space,l", "step(1)", "Next", show=False, id="form.next", tooltip="the next choice"),
        Binding("left,h", "step(-1)", "Before", show=False, id="form.prev", tooltip="the choice before"),
        Binding("down,enter", "screen.focus_next", "Down", show=False),
        Binding("up", "screen.focus_previous", "Up", show=False),
    ]

    class Changed(Message):
        def __init__(self, cycle: Cycle) -> None:
            super().__init__()
            self.cycle = cycle

    def __init__(self, words: Sequence[str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.words = list(words)
        self.index = 0

    @property
    def value(self) -> str:
        return self.words[self.index]

    def paint(self, width: int, height: int) -> list[Line]:
        line = Line()
        for index, word in enumerate(self.words):
            chosen = index == self.index
            line.add("●" if chosen else "○", "rule-focus" if chosen else "faint")
            line.add(f" {word}", "bold" if chosen else "muted").add("   ")
        return [line]

    def action_step(self, step: int) -> None:
        self.index = (self.index + step) % len(self.words)
        self.repaint()
        self.post_message(self.Changed(self))

    def on_focus(self) -> None:
        self.repaint()

    def on_blur(self) -> None:
        self.repaint()

    def on_click(self, event: events.Click) -> None:
        self.action_step(1)


class Box(Input):
    """A text box of one row. Up and down go to the neighbours."""

    DEFAULT_CSS: ClassVar[str] = """
    Box { height: 1; border: none; padding: 0; width: 1fr; background: $surface; }
    Box:focus { border: none; background: $cursor; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "screen.focus_next", "Down", show=False),
        Binding("up", "screen.focus_previous", "Up", show=False),
    ]


class FormRow(Horizontal):
    """A label and a field."""

    DEFAULT_CSS: ClassVar[str] = """
    FormRow { height: 1; }
    FormRow > .label { width: 16; color: $muted; }
    """

    def __init__(self, label: str, field: Cycle | Box) -> None:
        super().__init__()
        self.label, self.field = label, field

    def compose(self) -> ComposeResult:
        yield Static(Content(self.label), classes="label")
        yield self.field
