"""What all full screens share."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.screen import Screen
from textual.widget import Widget

from kernelarc_tui.typeahead import TypeAheadApp


class Steady:
    """For every screen: forgets news of a size that the terminal no longer has.

    A Textual screen answers each resize by posting another to itself. When two sizes are under way at once (a
    terminal of 0×0 cells at the start, a window dragged over a slow line) they chase each other for ever.
    """

    async def _on_resize(self, event: events.Resize) -> None:
        if isinstance(self, Screen) and event.size != self.app.size:
            event.stop()
            event.prevent_default()


class Dialog(Steady):
    """A box over a screen: takes the focus at once, and the keys that were typed ahead of it."""

    def take_keys(self, widget: Widget) -> None:
        """Call in ``on_mount`` with the widget that is to have the focus."""
        assert isinstance(self, Screen)
        self.set_focus(widget)
        if isinstance(self.app, TypeAheadApp):
            self.app.release_keys()


class SizedScreen(Steady, Screen[None]):
    """Knows its breakpoints before its first layout, so that no frame of another shape flashes by."""

    def after_layout(self, call: Callable[[], None]) -> None:
        """Call once the new layout is known, if the screen is still there."""

        def guarded() -> None:
            if self.is_mounted and self.is_attached:
                call()

        self.call_after_refresh(guarded)

    def on_compose(self) -> None:
        width, height = self.app.size
        for size, breakpoints in (
            (width, self.app.HORIZONTAL_BREAKPOINTS),
            (height, self.app.VERTICAL_BREAKPOINTS),
        ):
            fitting = [name for least, name in breakpoints or () if size >= least]
            if fitting:
                self.add_class(fitting[-1])
