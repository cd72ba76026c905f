"""The command palette: every action of the screen beneath in one row with its key, found by fuzzy search."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.app import SystemCommand
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from kernelarc_tui.keys import palette_rows
from kernelarc_tui.screens.base import Dialog

if TYPE_CHECKING:
    from textual.screen import Screen

    from kernelarc_tui.app import KernelArcApp

KEYS_WIDTH = 11
SWITCHES = (
    ("ring when something needs you", "bell"),
    ("desktop notifications (OSC 9 and 777)", "notify"),
    ("key hints in the last row", "footer"),
)


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


def system_commands(app: KernelArcApp, screen: Screen[Any]) -> Iterable[SystemCommand]:
    """Every action of ``screen`` by what it does, then themes and what has no key."""
    for title, keys, action, node in palette_rows(screen):
        yield SystemCommand(title, keys, partial(app.run_action, action, node))
    for name in app.own_themes():
        yield SystemCommand(f"theme {name}", "", partial(app.choose_theme, name))
    yield SystemCommand("save a screenshot, an SVG in the current folder", "", app.action_save_screen)
    for title, name in SWITCHES:
        state = "on" if getattr(app.settings, name) else "off"
        yield SystemCommand(f"{title}: now {state}", "", partial(app.toggle_setting, name))


class Palette(Dialog, CommandPalette):
    """Textual's palette over our actions."""

    def __init__(self) -> None:
        super().__init__(providers=[Actions], placeholder="what do you want to do?")

    def on_mount(self) -> None:
        self.take_keys(self.query_one("CommandInput"))
