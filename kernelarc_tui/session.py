"""One open campaign: its folder, a reader for the screens, and where its views come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.store.reader import StoreReader
from kernelarc_tui.feed import Feed, FeedFilter
from kernelarc_tui.follow import Follower
from kernelarc_tui.view import View

if TYPE_CHECKING:
    from kernelarc_tui.player import Player


class Session:
    """``publish`` is called, from another thread, with each new view of a followed campaign.

    Raises StoreError if the campaign cannot be read.
    """

    def __init__(
        self, folder: Path, publish: Callable[[View], None], *, read_only: bool = False, replay: bool = False
    ) -> None:
        self.folder = folder
        self.read_only = read_only or replay
        self.reader = StoreReader(folder)
        self.follower: Follower | None = None
        self.player: Player | None = None
        if replay:
            from kernelarc_tui.player import Player

            self.player = Player(folder, self.reader)
            self.view = self.player.view
        else:
            self.follower = Follower(folder, publish)
            self.view = self.follower.first()

    def start(self) -> None:
        if self.follower is not None:
            self.follower.start()

    def feed(self, chosen: FeedFilter) -> Feed:
        return Feed(self.reader, chosen, self.view.last_seq)

    def close(self) -> None:
        if self.follower is not None:
            self.follower.stop()
        self.reader.close()

    @property
    def name(self) -> str:
        return self.view.summary.name or self.folder.name

    @property
    def tag(self) -> str:
        """What the header says in front of the problem."""
        if self.player is not None:
            return "replay"
        return "read-only" if self.read_only else ""
