"""What all full screens share."""

from __future__ import annotations

from collections.abc import Callable

from textual.screen import Screen


class SizedScreen(Screen[None]):
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
