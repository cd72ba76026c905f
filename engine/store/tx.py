"""What one transaction may do. A ``Tx`` lives between BEGIN IMMEDIATE and COMMIT, on the connection's thread."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from engine.config import CampaignConfig
from engine.errors import BadInput, StoreError
from engine.records import Baselines, DeviceFacts
from engine.store import events as ev
from engine.store.database import store_error
from engine.store.fold import fold
from engine.store.rows import LiveRow
from engine.store.summary import Summary

SNAPSHOT_EVERY = 1000
_ZLIB_LEVEL = 6

_encode = msgspec.json.Encoder().encode
decode_summary = msgspec.json.Decoder(Summary).decode


class Tx:
    """Events are appended and folded together; ``finish`` stores the summary they lead to."""

    def __init__(self, connection: sqlite3.Connection, summary: Summary, now: float) -> None:
        self.connection = connection
        self.summary = summary
        self.now = max(now, summary.last_at)  # the log's times never run backwards
        self.stored: list[ev.Stored] = []

    def append(self, event: ev.Event) -> ev.Stored:
        """Write one event and fold it as a reader will find it. Sequence numbers count events: no gaps.

        Raises:
            BadInput: the event could not be read back (a required number that is not finite, a lone surrogate).
        """
        try:
            data = ev.encode(event)
            event = ev.decode(data)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise BadInput(str(error), where=f"event {type(event).__name__}") from error
        self.summary = fold(self.summary, self.now, event)
        seq = self.summary.seq
        self.connection.execute(
            "INSERT INTO events (seq, at, agent, data) VALUES (?, ?, ?, ?)",
            (seq, self.now, getattr(event, "agent", "") or "", data.decode()),
        )
        if isinstance(event, ev.CommandAnswered):
            self.connection.execute(
                "INSERT OR IGNORE INTO commands (id, seq, ok, text) VALUES (?, ?, ?, ?)",
                (event.id, seq, event.ok, event.text),
            )
        if seq % SNAPSHOT_EVERY == 0:
            self.connection.execute("INSERT INTO snapshots VALUES (?, ?)", (seq, _encode(self.summary).decode()))
        stored = ev.Stored(seq, self.now, event)
        self.stored.append(stored)
        return stored

    def finish(self) -> None:
        """Bring ``current`` up to the last event."""
        if self.stored:
            self.connection.execute(
                "INSERT OR REPLACE INTO current (id, seq, summary) VALUES (1, ?, ?)",
                (self.summary.seq, _encode(self.summary).decode()),
            )

    def blob(self, data: bytes) -> str:
        """Store bytes under their SHA-256, once."""
        sha = hashlib.sha256(data).hexdigest()
        known = self.connection.execute("SELECT 1 FROM blobs WHERE sha = ?", (sha,)).fetchone()
        if known is None:
            packed = zlib.compress(data, _ZLIB_LEVEL)
            self.connection.execute("INSERT INTO blobs VALUES (?, ?, ?)", (sha, len(data), packed))
        return sha

    def memo(self, agent: str, key: str, value: Any) -> None:
        """What a proposer or policy must find again after a crash. ``None`` forgets it."""
        if value is None:
            self.connection.execute("DELETE FROM agent_memo WHERE agent = ? AND key = ?", (agent, key))
            return
        self.connection.execute(
            "INSERT OR REPLACE INTO agent_memo VALUES (?, ?, ?)", (agent, key, json.dumps(value))
        )

    def set_campaign(
        self,
        *,
        device_facts: DeviceFacts | None = None,
        baselines: Baselines | None = None,
        config: CampaignConfig | None = None,
        kernel_type: str | None = None,
    ) -> None:
        """Fill in what became known after the campaign was created, or a changed budget."""
        values: dict[str, str] = {}
        if kernel_type is not None:
            values["kernel_type"] = kernel_type
        for name, record in (("device_facts", device_facts), ("baselines", baselines), ("config", config)):
            if record is not None:
                values[name] = _encode(record).decode()
        for name, text in values.items():
            self.connection.execute(f"UPDATE campaign SET {name} = ?", (text,))

    def live(self, row: LiveRow) -> None:
        values = msgspec.structs.astuple(row)
        marks = ", ".join("?" * len(values))
        self.connection.execute(f"INSERT OR REPLACE INTO live VALUES ({marks})", values)


@contextmanager
def transaction(connection: sqlite3.Connection, summary: Summary, now: float) -> Iterator[Tx]:
    """One ``BEGIN IMMEDIATE … COMMIT``; anything raised inside rolls all of it back."""
    connection.execute("BEGIN IMMEDIATE")
    done = False
    try:
        tx = Tx(connection, summary, now)
        yield tx
        tx.finish()
        connection.execute("COMMIT")
        done = True
    finally:
        if not done and connection.in_transaction:
            connection.execute("ROLLBACK")


def load_summary(connection: sqlite3.Connection, path: Path) -> Summary:
    """The summary of the last committed event, folded anew if ``current`` is missing or from another version."""
    try:
        last = connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]
        row = connection.execute("SELECT seq, summary FROM current").fetchone()
        if row is not None and row[0] == last:
            try:
                return decode_summary(row[1])
            except msgspec.MsgspecError:
                pass  # written by another version of the record: the events are the truth
        return refold(connection, last)
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    except msgspec.MsgspecError as error:
        raise StoreError(f"{path}: an event cannot be read ({error}); the file was left as it is") from error


def refold(connection: sqlite3.Connection, seq: int) -> Summary:
    """The summary after event ``seq`` from the nearest usable snapshot and its tail.

    Raises:
        msgspec.MsgspecError: an event is of an unknown kind.
    """
    snapshots = connection.execute(
        "SELECT summary FROM snapshots WHERE seq <= ? ORDER BY seq DESC LIMIT 1", (seq,)
    ).fetchall()
    summary = Summary()
    for (text,) in snapshots:
        try:
            summary = decode_summary(text)
        except msgspec.MsgspecError:
            pass
    rows = connection.execute(
        "SELECT at, data FROM events WHERE seq > ? AND seq <= ? ORDER BY seq", (summary.seq, seq)
    ).fetchall()
    for at, data in rows:
        summary = fold(summary, at, ev.decode(data))
    return summary
