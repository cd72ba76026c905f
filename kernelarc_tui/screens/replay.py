"""A finished campaign as it happened: the live screen with a time line, read-only."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from kernelarc_tui import fmt
from kernelarc_tui.feed import Feed
from kernelarc_tui.paint import Line
from kernelarc_tui.player import Player
from kernelarc_tui.screens.campaign import Hint
from kernelarc_tui.screens.live import Live
from kernelarc_tui.view import View
from kernelarc_tui.widgets.painted import Painted
from kernelarc_tui.widgets.stream import OutcomeStream

FRAME_S = 0.25


class Scrubber(Painted):
    """Where the replay is; a click goes there."""

    DEFAULT_CSS: ClassVar[str] = "Scrubber { height: 1; padding: 0 1; dock: bottom; margin-bottom: 1; }"

    class Sought(Message):
        def __init__(self, fraction: float) -> None:
            super().__init__()
            self.fraction = fraction

    def __init__(self) -> None:
        super().__init__(id="scrubber")
        self.player: Player | None = None
        self._bar = (0, 1)

    def show(self, player: Player) -> None:
        self.player = player
        self.repaint()

    def paint(self, width: int, height: int) -> list[Line]:
        player = self.player
        if player is None:
            return []
        summary = player.summary
        line = Line("▶ " if player.playing else "‖ ", "bold verdict-keep" if player.playing else "bold warning")
        line.add(f"{player.speed}×", "bold").add(f"  {fmt.clock(summary.elapsed_s(player.view.now))}  ", "muted")
        right = Line(f"  #{summary.candidates}  event {player.seq:,} of {player.last_seq:,}", "muted")
        cells = max(4, width - line.width - right.width)
        done = round(player.fraction * (cells - 1))
        self._bar = (line.width, cells)
        line.add("━" * done, "rule-focus").add("●", "bold rule-focus").add("─" * (cells - 1 - done), "faint")
        return [line.extend(right)]

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        start, cells = self._bar
        if offset is not None and start <= offset.x < start + cells:
            self.post_message(self.Sought((offset.x - start) / max(1, cells - 1)))


class Replay(Live):
    BINDING_GROUP_TITLE = "Replay"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "play", "Play", show=False, id="replay.play", tooltip="play or pause"),
        Binding("right,full_stop", "step(1)", "Next", show=False, id="replay.next", tooltip="the next outcome"),
        Binding("left,comma", "step(-1)", "Before", show=False, id="replay.prev", tooltip="the outcome before"),
        Binding("greater_than_sign", "jump(0.1)", "On", show=False, id="replay.on", tooltip="a tenth on"),
        Binding("less_than_sign", "jump(-0.1)", "Back", show=False, id="replay.back", tooltip="a tenth back"),
        Binding("plus,equals_sign", "speed(1)", "Faster", show=False, id="replay.faster", tooltip="faster"),
        Binding("minus", "speed(-1)", "Slower", show=False, id="replay.slower", tooltip="slower"),
        Binding("0", "seek(0.0)", "Start", show=False, id="replay.start", tooltip="to the start"),
        Binding("9", "seek(1.0)", "End", show=False, id="replay.end", tooltip="to the end"),
    ]
    hints: ClassVar[tuple[Hint, ...]] = (
        ("space", "play", "screen.play"),
        ("← →", "step", "screen.step(1)"),
        ("< >", "jump", "screen.jump(0.1)"),
        ("+ −", "speed", "screen.speed(1)"),
        ("⏎", "open", "screen.open_row"),
        ("/", "filter", "screen.filter"),
        ("?", "help", "app.help"),
        ("q", "leave", "screen.back"),
    )

    @property
    def player(self) -> Player:
        player = self.session.player
        assert player is not None, "the replay screen needs a replay session"
        return player

    def compose(self) -> ComposeResult:
        yield Scrubber()  # first: an answer of several rows lies over it
        yield from super().compose()

    def on_mount(self) -> None:
        super().on_mount()
        self._last = time.monotonic()
        self.set_interval(FRAME_S, self._frame)

    def key_hints(self) -> tuple[Hint, ...]:
        words = {"space": "pause" if self.player.playing else "play"}
        words["q"] = "back" if len(self.app.screen_stack) > 1 else "leave"
        return tuple((key, words.get(key, word), action) for key, word, action in self.hints)

    def show_view(self, view: View) -> None:
        stream = self.query_one(OutcomeStream)
        if stream.feed is not None and view.last_seq < stream.feed.newest:
            feed = Feed(self.session.reader, stream.filter, view.last_seq)  # going back: rows must disappear
            stream.attach(feed, view.summary)
        super().show_view(view)
        self.query_one(Scrubber).show(self.player)

    def _frame(self) -> None:
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        if self.is_current:
            view = self.player.advance(elapsed)
            if view is not None:
                self._moved(view)

    def _moved(self, view: View) -> None:
        self.session.view = view
        self.show_view(view)

    def on_scrubber_sought(self, event: Scrubber.Sought) -> None:
        self.action_seek(event.fraction)

    def action_play(self) -> None:
        self.player.toggle()
        self._moved(self.player.view)

    def action_step(self, step: int) -> None:
        self.player.playing = False
        self._moved(self.player.step(step))

    def action_jump(self, fraction: float) -> None:
        self.action_seek(self.player.fraction + fraction)

    def action_seek(self, fraction: float) -> None:
        self._moved(self.player.seek(round(max(0.0, min(1.0, fraction)) * self.player.last_seq)))

    def action_speed(self, direction: int) -> None:
        speed = self.player.faster(direction)
        self._moved(self.player.view)
        self.kernelarc.say(f"{speed} seconds of the campaign a second; quiet stretches are cut short", "muted")
