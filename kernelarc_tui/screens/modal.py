"""Small questions over a screen: choose, type a line, fill in numbers. Escape always means no."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from kernelarc_tui.paint import Line
from kernelarc_tui.safe import one_line
from kernelarc_tui.screens.base import Dialog
from kernelarc_tui.widgets.row_list import RowList

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """``key`` picks it at once; ``value`` is what the screen returns."""

    key: str
    label: str
    value: str
    style: str = ""


class ChoiceList(RowList):
    DEFAULT_CSS: ClassVar[str] = "ChoiceList { height: auto; max-height: 14; }"

    def __init__(self, choices: Sequence[Choice]) -> None:
        super().__init__()
        self.choices = choices

    def row_count(self) -> int:
        return len(self.choices)

    def row_line(self, index: int, width: int, *, selected: bool) -> Line:
        choice = self.choices[index]
        line = Line("▸ " if selected else "  ", "rule-focus")
        if choice.key:
            line.add(choice.key, "bold rule-focus").add("  ")
        return line.fit(one_line(choice.label, 200), max(0, width - line.width), choice.style)


class Modal(Dialog, ModalScreen[T]):
    """A titled box in the middle of the screen."""

    DEFAULT_CSS: ClassVar[str] = """
    Modal { align: center middle; background: $background 60%; }
    Modal > .box {
        width: 64; max-width: 96%; height: auto; max-height: 94%; padding: 1 2;
        background: $surface; border: round $rule-focus; border-title-color: $foreground; border-title-style: bold;
        border-subtitle-color: $muted; border-subtitle-align: right;
    }
    Modal .detail { color: $muted; margin-bottom: 1; height: auto; }
    Modal .problem { color: $error; height: auto; }
    Modal Input { border: none; padding: 0 1; background: $panel; height: 1; }
    Modal Input:focus { border: none; background: $cursor; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]
    keys_text: ClassVar[str] = "enter chooses · esc: no"

    title_text: str = ""

    def action_cancel(self) -> None:
        self.dismiss(None)

    def boxed(self) -> Vertical:
        box = Vertical(classes="box")
        box.border_title = Content(one_line(self.title_text, 80))  # type: ignore[assignment]
        box.border_subtitle = Content(self.keys_text)  # type: ignore[assignment]
        return box


class Choose(Modal[str | None]):
    """Pick one of a few; returns its value, or ``None``. The first one is the safe one."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "cancel", "Cancel", show=False)]

    def __init__(self, title: str, detail: str, choices: Sequence[Choice]) -> None:
        super().__init__()
        self.title_text, self.detail, self.choices = title, detail, choices

    def compose(self) -> ComposeResult:
        with self.boxed():
            if self.detail:
                yield Static(Content(self.detail), classes="detail")
            yield ChoiceList(self.choices)

    def on_mount(self) -> None:
        self.take_keys(self.query_one(ChoiceList))

    def on_row_list_opened(self, event: RowList.Opened) -> None:
        event.stop()
        self.dismiss(self.choices[event.index].value or None)

    def on_key(self, event: object) -> None:
        key = getattr(event, "character", None)
        for choice in self.choices:
            if key and key == choice.key:
                event.stop()  # type: ignore[attr-defined]
                self.dismiss(choice.value or None)
                return


class Ask(Modal[str | None]):
    """One line of text; returns it, or ``None``."""

    keys_text = "enter sends · esc cancels"

    def __init__(self, title: str, detail: str = "", *, value: str = "", placeholder: str = "") -> None:
        super().__init__()
        self.title_text, self.detail, self.value, self.placeholder = title, detail, value, placeholder

    def compose(self) -> ComposeResult:
        with self.boxed():
            if self.detail:
                yield Static(Content(self.detail), classes="detail")
            yield Input(self.value, placeholder=self.placeholder, select_on_focus=False)

    def on_mount(self) -> None:
        self.take_keys(self.query_one(Input))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)


@dataclass(frozen=True)
class Field:
    name: str
    label: str
    value: str
    whole: bool = False


class Numbers(Modal[dict[str, float] | None]):
    """Several numbers at once; an empty field means: leave it as it is. Returns the filled ones."""

    keys_text = "tab next field · enter sends · esc cancels"
    DEFAULT_CSS: ClassVar[str] = """
    Numbers .label { color: $muted; height: 1; margin-top: 1; }
    """

    def __init__(self, title: str, detail: str, fields: Sequence[Field]) -> None:
        super().__init__()
        self.title_text, self.detail, self.fields = title, detail, fields

    def compose(self) -> ComposeResult:
        with self.boxed():
            yield Static(Content(self.detail), classes="detail")
            for field in self.fields:
                yield Static(Content(f"{field.label} (now {field.value or 'no limit'})"), classes="label")
                yield Input(placeholder="unchanged", id=f"field-{field.name}")
            yield Static("", classes="problem")

    def on_mount(self) -> None:
        self.take_keys(self.query(Input).first())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        inputs = list(self.query(Input))
        filled: dict[str, float] = {}
        for field, box in zip(self.fields, inputs, strict=True):
            text = box.value.strip().lstrip("$")
            if not text:
                continue
            try:
                number = float(text)
            except ValueError:
                number = -1.0
            if number <= 0 or (field.whole and number != int(number)):
                kind = "a whole number above zero" if field.whole else "a number above zero"
                self.query_one(".problem", Static).update(Content(f"{field.label} must be {kind}"))
                self.set_focus(box)  # at once: the next key may be waiting already
                return
            filled[field.name] = number
        self.dismiss(filled or None)
