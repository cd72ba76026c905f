"""From the store to the screens: a thread polls for commits, reads what changed, and hands over whole views.

The poll is ``PRAGMA data_version``, which costs microseconds; only after a commit are rows read. Views are handed
over at most four times a second and only the newest counts, so a busy engine never floods the screen.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.errors import StoreError
from engine.records import CampaignState, Sample
from engine.store.campaigns import campaign_state
from engine.store.reader import StoreReader
from engine.store.summary import Summary
from engine.text import one_line
from kernelarc_tui import clock
from kernelarc_tui.view import Point, View

POLL_S = 0.1
POLL_ENDED_S = 0.5  # while no engine runs
POLL_BLURRED_S = 1.0
PUBLISH_S = 0.25
ALIVE_S = 2.0  # how often a silent store is checked for an engine that went away
LOST_S = 2.0
PROBLEM_LIMIT = 500
HISTORY = 240  # samples kept a device
MEMORY_KINDS = ("MemoryAdded", "MemoryExpired", "MemoryPinned", "MemoryNoted", "Vetoed")


class ViewReader:
    """Builds views from one reader, reading only what is new. Use from one thread at a time."""

    def __init__(self, folder: Path, reader: StoreReader) -> None:
        self.folder, self.reader = folder, reader
        self._points: list[Point] = []
        self._samples: dict[str, deque[Sample]] = {}
        self._sampled_until = 0.0
        self._view = View()

    def read(self) -> View:
        """The view after the newest commit."""
        before = self._view
        last_seq = self.reader.last_seq()
        news = last_seq != before.last_seq
        summary = self.reader.summary() if news else before.summary
        if len(self._points) < summary.candidates:
            self._points.extend(self.reader.points(self._points[-1][0] if self._points else 0))
        memory = before.memory
        if news and (not before.last_seq or self._memory_changed(before.last_seq, last_seq)):
            memory = self.reader.memory()
        self._read_samples()
        state = campaign_state(self.folder, summary)
        self._view = View(
            summary=summary,
            state=state,
            now=_now(state, summary),
            live={row.agent: row for row in self.reader.live()},
            samples={device: tuple(series) for device, series in self._samples.items()},
            memory=memory,
            points=self._points,
            last_seq=last_seq,
        )
        return self._view

    @property
    def last(self) -> View:
        """The view that was read last."""
        return self._view

    @property
    def ended(self) -> bool:
        """No engine writes; one that comes is noticed a little later."""
        return not self._view.running and self._view.state is not CampaignState.PAUSED

    def again(self) -> View | None:
        """The last view if the campaign's state changed without a commit: its engine came or went."""
        state = campaign_state(self.folder, self._view.summary)
        if state is self._view.state:
            return None
        self._view = replace(self._view, state=state, now=_now(state, self._view.summary))
        return self._view

    def _memory_changed(self, after: int, upto: int) -> bool:
        if upto - after > 2000:
            return True
        return bool(self.reader.event_seqs(after, upto, kinds=MEMORY_KINDS))

    def _read_samples(self) -> None:
        for sample in self.reader.samples(after=self._sampled_until, limit=HISTORY):
            self._samples.setdefault(sample.device, deque(maxlen=HISTORY)).append(sample)
            self._sampled_until = max(self._sampled_until, sample.at)


def _now(state: CampaignState, summary: Summary) -> float:
    """The wall clock; an interrupted campaign's stopped with its last event."""
    return summary.last_at if state is CampaignState.INTERRUPTED else clock.now()


class Follower:
    """Follows one campaign in a thread of its own. ``publish`` is called in that thread with each new view."""

    def __init__(self, folder: Path, publish: Callable[[View], None]) -> None:
        self.folder = folder
        self._publish = publish
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._interval = POLL_S
        self._thread: threading.Thread | None = None
        self._views: ViewReader | None = None

    def first(self) -> View:
        """Open the store and read the first view, in the caller's thread. Raises StoreError."""
        self._views = ViewReader(self.folder, StoreReader(self.folder))
        self._views.reader.changed()
        return self._views.read()

    def start(self) -> None:
        """Start following; again does nothing."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)
        self._thread.start()

    def set_focused(self, focused: bool) -> None:
        """Poll slower while nobody looks."""
        self._interval = POLL_S if focused else POLL_BLURRED_S
        if focused:
            self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        if self._views is not None:
            self._views.reader.close()

    def _run(self) -> None:
        published = checked = 0.0
        pending = False
        while not self._stop.is_set():
            self._wake.wait(self._pause(published) if pending else self._idle())
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                pending = self._reader().reader.changed() or pending
                now = time.monotonic()
                if pending and now - published >= PUBLISH_S:
                    self._publish(self._reader().read())
                    published, pending = now, False
                elif now - checked >= ALIVE_S:
                    checked = now
                    again = self._reader().again()
                    if again is not None:
                        self._publish(again)
            except StoreError as error:
                self._lost(error.message)
            except Exception as error:  # noqa: BLE001 - the screen's worker: a view that stands still says why
                self._lost(f"fault.view: {type(error).__name__}: {error}")

    def _idle(self) -> float:
        """Until the store is looked at again."""
        ended = self._views is not None and self._views.ended
        return max(self._interval, POLL_ENDED_S) if ended else self._interval

    def _pause(self, published: float) -> float:
        """Until the next view may be handed over."""
        return max(0.005, min(self._interval, published + PUBLISH_S - time.monotonic()))

    def _reader(self) -> ViewReader:
        if self._views is None:
            self._views = ViewReader(self.folder, StoreReader(self.folder))
        return self._views

    def _lost(self, why: str) -> None:
        """The store went away, is a newer one or holds what cannot be read: say so, and try again slowly."""
        view = View(problem=one_line(why, PROBLEM_LIMIT), now=clock.now())
        if self._views is not None:
            view = replace(self._views.last, problem=view.problem, now=view.now)
            with contextlib.suppress(StoreError):
                self._views.reader.close()
        self._views = None
        self._publish(view)
        self._stop.wait(LOST_S)
