"""Keys: every binding has an id, so a person can move it; help and palette are made from the bindings."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from textual.binding import Binding

if TYPE_CHECKING:
    from textual.dom import DOMNode
    from textual.screen import Screen

NAMES = {
    "question_mark": "?",
    "slash": "/",
    "enter": "⏎",
    "escape": "esc",
    "right_square_bracket": "]",
    "left_square_bracket": "[",
    "equals_sign": "=",
    "space": "space",
    "pagedown": "pgdn",
    "pageup": "pgup",
    "comma": ",",
    "full_stop": ".",
    "left": "←",
    "right": "→",
    "up": "↑",
    "down": "↓",
    "less_than_sign": "<",
    "greater_than_sign": ">",
}
_LIST_IDS = ("list.", "text.")
_CHANGES = ("do.", "memory.pin", "memory.expire", "memory.note", "home.new", "home.resume", "home.delete")
"""Ids of what changes a campaign: nothing of it works in a replay or where the app only looks."""


def shown_key(key: str) -> str:
    """A key as it is printed on a keyboard."""
    return NAMES.get(key, key)


Row = tuple[str, str, str]
"""(keys, what they do, binding id)"""


def key_groups(screen: Screen[Any]) -> list[tuple[str, list[Row]]]:
    """(title, rows) for a screen: its own bindings, moving about, and the app's."""
    own: list[Row] = []
    lists: list[Row] = []
    everywhere: list[Row] = []
    seen: set[str] = set()
    only_looks = read_only(screen)
    for node, binding_id, keys, text in _bindings(screen):
        if binding_id in seen or (only_looks and binding_id.startswith(_CHANGES)):
            continue
        seen.add(binding_id)
        row = (" ".join(shown_key(key) for key in keys), text, binding_id)
        if binding_id.startswith(_LIST_IDS):
            lists.append(row)
        elif node is screen.app or binding_id.startswith(("app.", "go.")):
            everywhere.append(row)
        else:
            own.append(row)
    everywhere.append(("ctrl+p", "command palette: all actions, themes", ""))
    everywhere.append(("tab", "to the next pane", ""))
    return [("On this screen", own), ("In lists and texts", lists), ("Everywhere", everywhere)]


def read_only(screen: Screen[Any]) -> bool:
    """Whether nothing may be changed from ``screen``: a replay, or an app that was opened to look."""
    session = getattr(screen.app, "session", None)
    return bool(session.read_only if session is not None else getattr(screen.app, "read_only", False))


def palette_rows(screen: Screen[Any]) -> list[tuple[str, str, str, DOMNode]]:
    """(what it does, its keys, action, where it lives) for the command palette; moving about is left out."""
    keymap = screen.app._keymap
    only_looks = read_only(screen)
    rows: list[tuple[str, str, str, DOMNode]] = []
    seen: set[str] = set()
    nodes: list[DOMNode] = [screen, screen.app]
    for node in nodes:
        for bindings in node._bindings.key_to_bindings.values():
            for binding in bindings:
                if only_looks and (binding.id or "").startswith(_CHANGES):
                    continue
                if binding.id and binding.id not in seen and not binding.id.startswith(_LIST_IDS):
                    seen.add(binding.id)
                    keys = keymap.get(binding.id, binding.key).split(",")
                    title = binding.tooltip or binding.description
                    rows.append((title, " ".join(shown_key(key) for key in keys), binding.action, node))
    return rows


def _bindings(screen: Screen[Any]) -> Iterator[tuple[DOMNode, str, list[str], str]]:
    """(where, id, keys, what) of each binding with an id that is in force now, a user's keymap applied."""
    keymap = screen.app._keymap
    nodes: list[DOMNode] = [screen, *screen.query("*"), screen.app]
    for node in nodes:
        grouped: dict[str, tuple[list[str], str]] = {}
        for key, bindings in node._bindings.key_to_bindings.items():
            for binding in bindings:
                if binding.id:
                    keys, _ = grouped.setdefault(binding.id, ([], binding.tooltip or binding.description))
                    keys.append(key)
        for binding_id, (keys, text) in grouped.items():
            yield node, binding_id, keymap[binding_id].split(",") if binding_id in keymap else keys, text


def known_ids() -> dict[str, Binding]:
    """Every binding with an id, over all screens and lists."""
    from textual.app import App
    from textual.dom import DOMNode

    import kernelarc_tui.screens.agent
    import kernelarc_tui.screens.candidate
    import kernelarc_tui.screens.home
    import kernelarc_tui.screens.leaders
    import kernelarc_tui.screens.live
    import kernelarc_tui.screens.memory
    import kernelarc_tui.screens.replay  # noqa: F401
    from kernelarc_tui.app import KernelArcApp

    found: dict[str, Binding] = {}
    classes: list[type[Any]] = [KernelArcApp]
    pending: list[type[Any]] = [DOMNode]
    while pending:
        for child in pending.pop().__subclasses__():
            if child.__module__.startswith("kernelarc_tui"):
                classes.append(child)
            if not issubclass(child, App):
                pending.append(child)
    for owner in classes:
        for binding in vars(owner).get("BINDINGS", ()):
            if isinstance(binding, Binding) and binding.id:
                found[binding.id] = binding
    return found


def check_keymap(keymap: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """The entries that can be used, and one line for each that cannot."""
    known = known_ids()
    usable: dict[str, str] = {}
    problems: list[str] = []
    for binding_id, keys in keymap.items():
        if binding_id in known:
            usable[binding_id] = keys
            continue
        near = difflib.get_close_matches(binding_id, known, 1)
        problems.append(f"keys: there is no {binding_id!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return usable, problems
