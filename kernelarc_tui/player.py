"""A finished campaign as it happened: a position in the event log, and the view at that position."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path

from engine.records import Sample
from engine.store.fold import fold
from engine.store.reader import StoreReader
from engine.store.rows import MemoryRow
from engine.store.summary import Summary
from kernelarc_tui.follow import HISTORY
from kernelarc_tui.replayed import Doings
from kernelarc_tui.view import Point, View

SPEEDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
LONG_GAP_S = 30.0  # nothing happened: at most this long is waited out, in campaign time


class Player:
    """``seek`` and ``step`` move in the log; ``advance`` plays on by wall time at the chosen speed."""

    def __init__(self, folder: Path, reader: StoreReader) -> None:
        self.folder, self.reader = folder, reader
        self.last_seq = reader.last_seq()
        self._points: list[Point] = list(reader.points())
        self._memory = reader.all_memory()
        self._samples: dict[str, list[Sample]] = {}
        for sample in reader.samples(limit=100_000):
            self._samples.setdefault(sample.device, []).append(sample)
        self._verdicts: list[int] = []
        self._doings = Doings(reader)
        self.speed = 60
        self.playing = False
        self._clock = 0.0
        self.summary = Summary()
        self.view = View()
        self.seek(self.last_seq)

    @property
    def seq(self) -> int:
        return self.summary.seq

    @property
    def fraction(self) -> float:
        return self.seq / self.last_seq if self.last_seq else 1.0

    def seek(self, seq: int) -> View:
        """Go to just after event ``seq``."""
        target = max(1, min(self.last_seq, seq)) if self.last_seq else 0
        if 0 <= target - self.seq <= 200 and self.seq:
            for stored in self.reader.events(self.seq, target - self.seq):
                self.summary = fold(self.summary, stored.at, stored.event)
        else:
            self.summary = self.reader.summary_at(target)
        self._clock = self.summary.last_at
        return self._show()

    def step(self, candidates: int) -> View:
        """Go forward or back to the next outcome."""
        wanted = max(0, self.summary.candidates + candidates)
        number = min(len(self._points), wanted)
        if number == self.summary.candidates:
            return self.seek(self.last_seq if candidates > 0 else 1)
        return self.seek(self._seq_of(number))

    def advance(self, wall_s: float) -> View | None:
        """Play on by ``wall_s`` seconds of the viewer's time; ``None`` if nothing happened meanwhile."""
        if not self.playing:
            return None
        if self.seq >= self.last_seq:
            self.playing = False
            return self.view
        self._clock += wall_s * self.speed
        ahead = self.reader.events(self.seq, 200)
        if ahead and ahead[0].at - self._clock > LONG_GAP_S:
            self._clock = ahead[0].at - LONG_GAP_S
        due = [stored for stored in ahead if stored.at <= self._clock]
        for stored in due:
            self.summary = fold(self.summary, stored.at, stored.event)
        return self._show()

    def faster(self, direction: int) -> int:
        index = SPEEDS.index(self.speed) + direction
        self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, index))]
        return self.speed

    def toggle(self) -> bool:
        """Play or pause; at the end, play again from the start."""
        if not self.playing and self.seq >= self.last_seq:
            self.seek(1)
        self.playing = not self.playing
        return self.playing

    def _show(self) -> View:
        at = max(self._clock, self.summary.last_at)
        self.view = View(
            summary=self.summary,
            state=self.summary.state,
            now=at,
            live=self._doings.at(self.summary, at),
            samples=self._samples_at(at),
            memory=self._memory_at(at),
            points=self._points[: bisect.bisect_right(self._points, self.summary.candidates, key=lambda p: p[0])],
            last_seq=self.seq,
        )
        return self.view

    def _memory_at(self, at: float) -> list[MemoryRow]:
        return [
            entry
            for entry in self._memory
            if entry.at <= at and (entry.expired_at is None or entry.expired_at > at)
        ]

    def _samples_at(self, at: float) -> dict[str, Sequence[Sample]]:
        shown: dict[str, Sequence[Sample]] = {}
        for device, series in self._samples.items():
            end = bisect.bisect_right(series, at, key=lambda sample: sample.at)
            if end:
                shown[device] = series[max(0, end - HISTORY) : end]
        return shown

    def _seq_of(self, number: int) -> int:
        """The event of candidate ``number``."""
        if not self._verdicts:
            self._verdicts = self.reader.event_seqs(0, self.last_seq, kinds=("Verdict",))
        return self._verdicts[number - 1] if number > 0 else 1
