"""What reaches the screens: typed messages, small enough to list on one page."""

from __future__ import annotations

from textual.message import Message

from kernelarc_tui.view import View


class StoreDelta(Message):
    """The store has news. Only the newest of several waiting ones is delivered."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, StoreDelta)
