"""The command palette: every action of the screen beneath in one row with its key, found by fuzzy search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from kernelarc_tui.screens.base import Steady

if TYPE_CHECKING:
    from textual.app import SystemCommand

KEYS_WIDTH = 11


def row(keys: str, title: Content | str) -> Content:
    """``      d  the selected agent drafts next``."""
    shown = Content(f"{keys:>{KEYS_WIDTH}}  ").stylize("bold")
    return shown + (title if isinstance(title, Content) else Content(title))


class Actions(Provider):
    """What :meth:`KernelArcApp.get_system_commands` lists: help texts are keys."""

    def _commands(self) -> list[SystemCommand]:
        return list(self.app.get_system_commands(self.screen))

    async def discover(self) -> Hits:
        for title, keys, callback, _ in self._commands():
            yield DiscoveryHit(row(keys, title), callback, text=title)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for title, keys, callback, _ in self._commands():
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, row(keys, matcher.highlight(title)), callback, text=title)


class Palette(Steady, CommandPalette):
    """Textual's palette over our actions."""

    def __init__(self) -> None:
        super().__init__(providers=[Actions], placeholder="what do you want to do?")
