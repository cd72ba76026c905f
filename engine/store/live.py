"""The mutable side of the store, coalesced: one row per agent at most four times a second, and telemetry."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from engine.records import Sample
from engine.store.rows import LiveRow

LIVE_INTERVAL_S = 0.25
REPLY_TAIL = 8000
SAMPLES_WAITING = 600
_TEXTS = ("state", "detail", "strategy", "mode", "hypothesis", "reply")
_TYPES: dict[str, tuple[type, ...]] = {**dict.fromkeys(_TEXTS, (str,)), "since": (int, float), "tokens": (int,)}


class LiveRows:
    """What agents are doing, and when each row may be written again. No I/O."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rows: dict[str, LiveRow] = {}
        self._dirty: set[str] = set()
        self._due: dict[str, float] = {}

    def update(self, agent: str, fields: dict[str, Any]) -> None:
        """Raises ``TypeError`` for a field that a live row does not have, or a value of another type."""
        now = self._clock()
        row = self._rows.get(agent) or LiveRow(agent=agent, since=now)
        if "state" in fields and fields["state"] != row.state:
            fields.setdefault("since", now)
        if "reply" in fields:
            fields["reply"] = str(fields["reply"])[-REPLY_TAIL:]
        for name, value in fields.items():
            if not isinstance(value, _TYPES.get(name, ())):
                raise TypeError(f"a live row has no field {name} that holds {value!r}")
        self._rows[agent] = msgspec.structs.replace(row, updated_at=now, **fields)
        self._dirty.add(agent)

    def next_due(self) -> float | None:
        """When the next row may be written, on the given clock; ``None`` if none waits."""
        return min((self._due.get(agent, 0.0) for agent in self._dirty), default=None)

    def take(self, *, everything: bool = False) -> list[LiveRow]:
        """The rows to write now. Put them back with :meth:`give_back` if they could not be written."""
        now = self._clock()
        agents = [a for a in sorted(self._dirty) if everything or self._due.get(a, 0.0) <= now]
        self._dirty.difference_update(agents)
        self._due.update((agent, now + LIVE_INTERVAL_S) for agent in agents)
        return [self._rows[agent] for agent in agents]

    def give_back(self, rows: list[LiveRow]) -> None:
        self._dirty.update(row.agent for row in rows)


class WaitingSamples:
    """Samples on their way to the store, bounded: telemetry is the first thing that may be dropped."""

    def __init__(self) -> None:
        self._waiting: deque[Sample] = deque(maxlen=SAMPLES_WAITING)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sample: Sample) -> None:
        self._waiting.append(sample)

    def take(self) -> list[Sample]:
        taken = list(self._waiting)
        self._waiting.clear()
        return taken
