"""What all full screens share."""

from __future__ import annotations

from textual.screen import Screen


class SizedScreen(Screen[None]):
    """Knows its breakpoints before its first layout, so that no frame of another shape flashes by."""

    def on_compose(self) -> None:
        width, height = self.app.size
        for size, breakpoints in (
            (width, self.app.HORIZONTAL_BREAKPOINTS),
            (height, self.app.VERTICAL_BREAKPOINTS),
        ):
            fitting = [name for least, name in breakpoints or () if size >= least]
            if fitting:
                self.add_class(fitting[-1])
