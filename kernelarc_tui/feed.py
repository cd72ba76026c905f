"""The rows of the outcome stream: an index of matching events, content paged in from the store.

Only sequence numbers are held (eight bytes a row); a row is read and described when it comes into view. The
newest part of the log is indexed at once, older parts on demand in chunks.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Protocol

from engine.store.events import Stored
from kernelarc_tui.describe import MAIN_KINDS, EventRow, describe

TAIL = 2_000  # events indexed before the first paint
CHUNK = 10_000
CACHE = 2_000


class EventReader(Protocol):
    """What the feed needs of :class:`engine.store.reader.StoreReader`."""

    def event_seqs(
        self, after: int, upto: int, *, kinds: tuple[str, ...], agent: str, outcome: str, text: str
    ) -> list[int]: ...

    def events(self, after: int, limit: int = 500) -> list[Stored]: ...


@dataclass(frozen=True)
class FeedFilter:
    """Which events are shown. Empty fields match everything; ``text`` is looked for anywhere in an event."""

    everything: bool = False
    agent: str = ""
    outcome: str = ""
    text: str = ""

    @property
    def kinds(self) -> tuple[str, ...]:
        if self.outcome:
            return ("CandidateError",) if self.outcome == "ERROR" else ("Verdict",)
        return () if self.everything else MAIN_KINDS

    @property
    def words(self) -> str:
        """For the panel's title."""
        parts = [self.outcome.lower(), f"agent {self.agent}" if self.agent else ""]
        parts += [f"“{self.text}”" if self.text else "", "all events" if self.everything else ""]
        return " · ".join(part for part in parts if part)

    def with_agent(self, agent: str) -> FeedFilter:
        return replace(self, agent=agent)


class Feed:
    """Rows are counted from the newest, 0. Not thread-safe: it belongs to the thread that owns its reader."""

    def __init__(self, reader: EventReader, chosen: FeedFilter, last_seq: int) -> None:
        self.reader, self.filter = reader, chosen
        self._newer: array[int] = array("q")  # rising
        self._older: array[int] = array("q")  # falling, older than everything in ``_newer``
        self._low = max(0, last_seq - TAIL)  # events up to here are not indexed yet
        self._high = self._low
        self._rows: OrderedDict[int, EventRow] = OrderedDict()
        self.catch_up(last_seq)
        while not len(self) and not self.complete:  # a rare filter: look further back for something to show
            self.backfill()

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    @property
    def complete(self) -> bool:
        return self._low == 0

    @property
    def newest(self) -> int:
        """The sequence number up to which events are indexed."""
        return self._high

    def catch_up(self, last_seq: int) -> int:
        """Index events up to ``last_seq``; how many rows that added on top."""
        if last_seq <= self._high:
            return 0
        found = self._seqs(self._high, last_seq)
        self._high = last_seq
        self._newer.extend(found)
        return len(found)

    def backfill(self) -> int:
        """Index one more chunk of older events; how many rows that added below."""
        if self.complete:
            return 0
        low = max(0, self._low - CHUNK)
        found = self._seqs(low, self._low)
        self._low = low
        self._older.extend(reversed(found))
        return len(found)

    def seq_at(self, index: int) -> int:
        newer = len(self._newer)
        return self._newer[newer - 1 - index] if index < newer else self._older[index - newer]

    def row(self, index: int) -> EventRow | None:
        seq = self.seq_at(index)
        found = self._rows.get(seq)
        if found is None:
            stored = self.reader.events(seq - 1, 1)
            if not stored or stored[0].seq != seq:
                return None
            found = self._rows[seq] = describe(stored[0])
            if len(self._rows) > CACHE:
                self._rows.popitem(last=False)
        return found

    def _seqs(self, after: int, upto: int) -> list[int]:
        chosen = self.filter
        outcome = "" if chosen.outcome == "ERROR" else chosen.outcome  # an event kind of its own
        return self.reader.event_seqs(
            after, upto, kinds=chosen.kinds, agent=chosen.agent, outcome=outcome, text=chosen.text
        )
