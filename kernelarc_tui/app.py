"""The Textual app: themes, the open campaign, commands to its engine. What is seen is in ``screens/``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from textual import events, on, work
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches

from engine.errors import BadInput, KernelArcError
from kernelarc_tui import themes
from kernelarc_tui.glyphs import AsciiFilter
from kernelarc_tui.messages import StoreDelta
from kernelarc_tui.notices import desktop_notification, write_crash
from kernelarc_tui.paint import Palette
from kernelarc_tui.settings import Settings, load_settings, remember
from kernelarc_tui.theming import ThemedApp
from kernelarc_tui.typeahead import TypeAheadApp
from kernelarc_tui.view import View

if TYPE_CHECKING:
    from textual.screen import Screen

    from engine.control.protocol import Answer
    from kernelarc_tui.session import Session


class KernelArcApp(ThemedApp, TypeAheadApp):
    """``campaign`` is opened at once; without one the app starts on the list of campaigns.

    Returns a line for the shell (how to come back to a campaign that goes on), or ``None``.
    """

    CSS_PATH = "styles/app.tcss"
    TITLE = "KernelArc"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-tiny"),
        (72, "-narrow"),
        (100, "-normal"),
        (150, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-low"), (30, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "help", "Help", show=False, id="app.help", tooltip="what every key does here"),
        Binding(
            "ctrl+q,ctrl+c",
            "leave",
            "Leave",
            show=False,
            id="app.leave",
            priority=True,
            tooltip="leave; nothing is stopped",
        ),
        Binding("ctrl+l", "redraw", "Redraw", show=False, id="app.redraw", tooltip="draw the screen again"),
        Binding("T", "next_theme", "Theme", show=False, id="app.theme", tooltip="the next colour theme"),
    ]

    def __init__(
        self,
        campaign: Path | None = None,
        read_only: bool = False,
        replay: bool = False,
        mouse: bool = True,
        ascii: bool = False,
        settings: Settings | None = None,
    ) -> None:
        import os

        no_color = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True if no_color else None)
        self.settings, self.startup_problem = (settings, "") if settings else _settings()
        self.campaign, self.read_only, self.replay = campaign, read_only, replay
        self.mouse = mouse and self.settings.mouse
        self.ascii = ascii or self.settings.ascii
        self.session: Session | None = None
        self.palette = Palette({})
        self.crash = ""
        self._noted: set[tuple[str, str]] = set()
        if self.ascii:
            self._filters.append(AsciiFilter())
        self._use_theme(themes.ANSI_THEME if no_color else self.settings.theme)

    # Starting and leaving

    def get_default_screen(self) -> Screen[Any]:
        if self.campaign is None:
            from kernelarc_tui.screens.home import Home

            return Home()
        self.open_session(self.campaign, replay=self.replay)
        if self.replay:
            from kernelarc_tui.screens.replay import Replay

            return Replay()
        from kernelarc_tui.screens.live import Live

        return Live()

    def on_mount(self) -> None:
        from kernelarc_tui.terminal import handle_signals

        if not self.is_headless:
            handle_signals(self)
        if self.startup_problem:
            self.notify(self.startup_problem, severity="warning", timeout=15, markup=False)
        keymap = dict(self.settings.keys)
        if keymap:
            from kernelarc_tui.keys import check_keymap

            usable, problems = check_keymap(keymap)
            self.set_keymap(usable)
            for problem in problems:
                self.notify(problem, severity="warning", timeout=15, markup=False)
        self.call_after_refresh(self._after_first_paint)

    def _after_first_paint(self) -> None:
        if self.session is not None:
            self.session.start()
        self.watch_themes()

    def open_session(self, folder: Path, *, replay: bool = False) -> Session:
        """Open a campaign in place of the one that is open. Raises StoreError."""
        from kernelarc_tui.session import Session

        opened = Session(folder, self._published, read_only=self.read_only, replay=replay)
        self.close_session()
        self.session = opened
        self._noted = {(note.code, note.text) for note in opened.view.summary.attention}
        if self.is_running:
            opened.start()
        return opened

    def close_session(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None

    def on_unmount(self) -> None:
        self.close_session()

    def action_leave(self) -> None:
        self.exit(self.farewell())

    def leave_on_signal(self) -> None:
        self.exit(self.farewell())

    def _handle_exception(self, error: Exception) -> None:
        """A defect of ours ends the screens, never a campaign: one line for the person, the rest in a file.

        Textual's own report prints local variables, which may hold what a model wrote or a key.
        """
        import traceback

        if self.is_headless:
            super()._handle_exception(error)
            return
        report = "".join(traceback.format_exception(error))
        where = write_crash(report)
        self.crash = f"kernelarc: the screen failed ({type(error).__name__}: {error}); the report is in {where}"
        if self.session is not None and self.session.view.running:
            self.crash += f"\nthe campaign goes on: kernelarc attach {self.session.folder.name}"
        self._return_code = 3
        self._close_messages_no_wait()

    def farewell(self) -> str | None:
        """What the shell shows after the app: whether a campaign goes on, and how to come back."""
        session = self.session
        if session is None or session.player is not None:
            return None
        name = session.folder.name
        view = session.view
        if view.running or view.state == "paused":
            word = "stays paused" if view.state == "paused" else "keeps running"
            return f"{name} {word}; come back with: kernelarc attach {name}"
        best = f", kernelarc export {name}" if view.summary.best else ""
        return f"{name} is {view.state}; kernelarc report {name}{best}"

    # The store's news

    def _published(self, view: View) -> None:
        """From the follower's thread."""
        self.post_message(StoreDelta(view))

    @on(StoreDelta)
    def _store_delta(self, message: StoreDelta) -> None:
        if self.session is None or self.session.player is not None:
            return
        self.session.view = message.view
        self.show_view(message.view)
        self._notify_attention(message.view)

    def show_view(self, view: View) -> None:
        """Hand a view to the screen on top, and to those that show through modals over them."""
        for screen in reversed(self.screen_stack):
            show = getattr(screen, "show_view", None)
            if show is not None and screen.is_mounted and screen.is_attached:
                with contextlib.suppress(NoMatches):  # the screen is being taken down, its panes are gone already
                    show(view)
            if not screen.is_modal:
                return

    def on_app_blur(self, event: events.AppBlur) -> None:
        if self.session is not None and self.session.follower is not None:
            self.session.follower.set_focused(False)

    def on_app_focus(self, event: events.AppFocus) -> None:
        if self.session is not None and self.session.follower is not None:
            self.session.follower.set_focused(True)

    def _notify_attention(self, view: View) -> None:
        """Ring or notify for what is new since the last view, if the person asked for that."""
        now = {(note.code, note.text) for note in view.summary.attention}
        known, self._noted = self._noted, now
        if not (self.settings.bell or self.settings.notify):
            return
        fresh = [note for note in view.summary.attention if (note.code, note.text) not in known]
        if fresh and self.settings.bell:
            self.bell()
        if fresh and self.settings.notify and self._driver is not None:
            self._driver.write(desktop_notification(self.session.name if self.session else "", fresh[-1]))

    # Commands

    @work(group="commands")
    async def command(self, verb: str, **fields: Any) -> None:
        """Send a command to the engine and show its answer."""
        from engine.control.client import asend
        from engine.control.client import command as make

        await self._asked(verb, lambda folder: asend(folder, make(verb, **fields)))

    @work(group="commands")
    async def edit(self, verb: str, number: int, text: str = "") -> None:
        """Change the campaign's record, by its engine or without one, and show the answer."""
        import asyncio

        from engine.control.client import edit

        await self._asked(verb, lambda folder: asyncio.to_thread(edit, folder, verb, number, text))

    async def _asked(self, verb: str, ask: Callable[[Path], Awaitable[Answer]]) -> None:
        session = self.session
        if session is None or self.refuse_if_read_only():
            return
        self.say(f"{verb} sent …", "muted", seconds=0)
        started = time.monotonic()
        try:
            answer = await ask(session.folder)
        except KernelArcError as error:
            self.say(f"! {error.message}", "bold warning")
            return
        self._say_answer(answer, verb, time.monotonic() - started)

    @work(group="commands")
    async def start_engine(self, folder: Path) -> None:
        """Start the engine of a campaign that has none: its store says where to go on."""
        import asyncio

        from engine.launch import start_detached

        self.say("starting the engine …", "muted", seconds=0)
        try:
            await asyncio.to_thread(start_detached, folder)
        except KernelArcError as error:
            self.say(f"! {error.message}", "bold warning")
            return
        self.say("✓ the engine is starting; it continues from the store", "verdict-keep")

    def _say_answer(self, answer: Answer, verb: str, took_s: float) -> None:
        sign, style = ("✓", "verdict-keep") if answer.ok else ("!", "bold warning")
        self.say(f"{sign} {answer.text or verb}  ({took_s:.1f} s)", style)

    def refuse_if_read_only(self) -> bool:
        """True, and said so, when this app must not change anything."""
        if self.session is None or not self.session.read_only:
            return False
        why = "this is a replay" if self.session.player is not None else "opened read-only"
        self.say(f"! {why}: nothing was sent", "bold warning")
        return True

    def say(self, text: str, style: str = "", *, seconds: float = 6.0) -> None:
        """One line at the bottom of the screen, where answers to commands appear."""
        from kernelarc_tui.widgets.keyline import KeyLine

        for screen in reversed(self.screen_stack):
            lines = screen.query(KeyLine)
            if lines:
                lines.first().say(text, style, seconds=seconds)
                return
        self.notify(text, markup=False)

    # Everywhere

    def action_next_theme(self) -> None:
        names = self.own_themes()
        index = names.index(self.theme) + 1 if self.theme in names else 0
        self.choose_theme(names[index % len(names)])

    def choose_theme(self, name: str) -> None:
        self.theme = name
        self.keep("theme", name)
        self.say(f"theme {name}", "muted")

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        from kernelarc_tui.palette import system_commands

        return system_commands(self, screen)

    def keep(self, name: str, value: Any) -> None:
        """Use a choice from now on, and in the next start."""
        self.settings = msgspec.structs.replace(self.settings, **{name: value})
        remember(name, value)

    def toggle_setting(self, name: str) -> None:
        value = not getattr(self.settings, name)
        self.keep(name, value)
        self.say(f"{name} is {'on' if value else 'off'}", "muted")

    def action_save_screen(self) -> None:
        path = Path(f"kernelarc-{time.strftime('%H%M%S')}.svg")
        try:
            path.write_text(self.export_screenshot(title=self.session.name if self.session else "kernelarc"))
        except OSError as error:
            self.say(f"! {path.absolute()}: {error.strerror}", "bold warning")
            return
        self.say(f"saved {path.absolute()}", "muted")

    def action_command_palette(self) -> None:
        from kernelarc_tui.palette import Palette

        if not isinstance(self.screen, Palette):
            self.hold_keys()
            self.push_screen(Palette())

    def action_help(self) -> None:
        from kernelarc_tui.screens.help import Help

        if not isinstance(self.screen, Help):
            self.push_screen(Help(self.screen))

    def action_redraw(self) -> None:
        self.refresh(layout=True)
        for screen in self.screen_stack:
            screen.refresh(layout=True)


def _settings() -> tuple[Settings, str]:
    try:
        return load_settings(), ""
    except BadInput as error:
        return Settings(), error.message
