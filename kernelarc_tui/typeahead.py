"""Keys that are typed ahead of a dialog belong to the dialog.

A dialog opens a moment after its key: the action runs in a worker, the box has to be mounted. Over a slow line
several keys arrive in one piece, and without this the letters of a hint would be taken for commands.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from textual import events
from textual.app import App
from textual.dom import DOMNode
from textual.timer import Timer
from textual.worker import Worker

ASK = "ask"  # the group of workers that open a dialog
_AT_MOST_S = 2.0
_LOOK_S = 0.05


class TypeAheadApp(App[str]):
    """Holds keys back while a worker of the group ``ask`` has not opened its dialog yet."""

    def __init__(self, *, ansi_color: bool | None = None) -> None:
        super().__init__(ansi_color=ansi_color)
        self._held: list[events.Key] | None = None
        self._asking: set[Worker[object]] = set()
        self._held_since = 0.0
        self._hold_timer: Timer | None = None

    async def run_action(
        self,
        action: str | tuple[str, str, tuple[object, ...]],
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        done = await super().run_action(action, default_namespace, namespaces)
        asking = {worker for worker in self.workers if worker.group == ASK and not worker.is_finished}
        if asking - self._asking:
            self.hold_keys()
        self._asking = asking
        return done

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and self._held is not None:
            event.stop()
            self._held.append(event)
            return
        await super().on_event(event)

    def hold_keys(self) -> None:
        """Keep keys until a dialog takes them, for a short while at most."""
        if self._held is None:
            self._held = []
            self._held_since = time.monotonic()
            self._hold_timer = self.set_interval(_LOOK_S, self._still_asking)

    def _still_asking(self) -> None:
        """A worker that ended without a dialog (it was refused) holds nothing any more."""
        going = not self._asking or any(not worker.is_finished for worker in self._asking)
        if not going or time.monotonic() - self._held_since > _AT_MOST_S:
            self.release_keys()

    def release_keys(self) -> None:
        """Hand the held keys, in the order in which they were typed, to what has the focus now."""
        held, self._held = self._held, None
        if self._hold_timer is not None:
            self._hold_timer.stop()
        for event in sorted(held or (), key=lambda key: key.time):
            self.post_message(events.Key(event.key, event.character))
