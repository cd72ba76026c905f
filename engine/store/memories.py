"""Wins and traps inside a transaction: add, merge, expire, pin, note, and read back for a retention rule."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from engine.errors import BadInput
from engine.store import events as ev
from engine.store.rows import REFLECTION_LIMIT, STRATEGY_LIMIT, MemoryRow, MemoryWrite
from engine.store.tx import Tx

NOTE_LIMIT = 500
COLUMNS = (
    "id, kind, kernel_type, strategy, reflection, error, speedup, gain, before_ms, after_ms, shapes, agent, "
    "candidate, device, versions, at, merged, pinned, note, expired_at, expired_why, carried_from"
)


def row_of(values: tuple[Any, ...]) -> MemoryRow:
    fields = dict(zip(COLUMNS.split(", "), values, strict=True))
    fields["versions"] = json.loads(fields["versions"])
    fields["pinned"] = bool(fields["pinned"])
    return MemoryRow(**fields)


def select(
    connection: sqlite3.Connection,
    kind: str | None = None,
    kernel_type: str | None = None,
    *,
    include_expired: bool = False,
    limit: int = 1000,
) -> list[MemoryRow]:
    """Newest first."""
    where, values = ["1"], []
    for column, value in (("kind", kind), ("kernel_type", kernel_type)):
        if value is not None:
            where.append(f"{column} = ?")
            values.append(value)
    if not include_expired:
        where.append("expired_at IS NULL")
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM memory WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?", (*values, limit)
    ).fetchall()
    return [row_of(row) for row in rows]


def add(tx: Tx, entry: MemoryWrite) -> int:
    """Store an entry, or count it into the near-duplicate that stands for it. Returns the id that holds it.

    Raises:
        BadInput: a field is over its limit.
    """
    _check(entry)
    if entry.merged_into is not None:
        identity = entry.merged_into
        _require(tx, identity)
        tx.connection.execute("UPDATE memory SET merged = merged + 1 WHERE id = ?", (identity,))
    else:
        identity = _insert(tx, entry)
    tx.append(
        ev.MemoryAdded(
            id=identity,
            memory=entry.kind,
            kernel_type=entry.kernel_type,
            strategy=entry.strategy,
            agent=entry.agent,
            candidate=entry.candidate,
            speedup=entry.speedup,
            gain=entry.gain,
            reflection=entry.reflection,
            carried_from=entry.carried_from,
            merged_into=entry.merged_into,
        )
    )
    return identity


def expire(tx: Tx, identity: int, why: str, by: str = "policy") -> bool:
    """Take an entry out of recall; its row stays. False if it was out already."""
    kind = _require(tx, identity)
    if not _mark_expired(tx, identity, why):
        return False
    tx.append(ev.MemoryExpired(id=identity, why=why, by=by, memory=kind))
    return True


def expire_wins_of(tx: Tx, candidate: int, why: str) -> list[int]:
    """For a veto, whose own event names them."""
    rows = tx.connection.execute(
        "SELECT id FROM memory WHERE candidate = ? AND kind = 'win' AND expired_at IS NULL", (candidate,)
    ).fetchall()
    return [identity for (identity,) in rows if _mark_expired(tx, identity, why)]


def pin(tx: Tx, identity: int, pinned: bool) -> None:
    _require(tx, identity)
    tx.connection.execute("UPDATE memory SET pinned = ? WHERE id = ?", (pinned, identity))
    tx.append(ev.MemoryPinned(id=identity, pinned=pinned))


def note(tx: Tx, identity: int, text: str) -> None:
    """A person's own words on an entry; empty takes the note away."""
    _require(tx, identity)
    text = text[:NOTE_LIMIT]
    tx.connection.execute("UPDATE memory SET note = ? WHERE id = ?", (text, identity))
    tx.append(ev.MemoryNoted(id=identity, note=text))


def _check(entry: MemoryWrite) -> None:
    for name, text, limit in (
        ("strategy", entry.strategy, STRATEGY_LIMIT),
        ("reflection", entry.reflection, REFLECTION_LIMIT),
    ):
        if len(text) > limit:
            raise BadInput(f"{name} has {len(text)} characters, the limit is {limit}", where="memory entry")


def _insert(tx: Tx, entry: MemoryWrite) -> int:
    cursor = tx.connection.execute(
        """INSERT INTO memory (kind, kernel_type, strategy, reflection, error, speedup, gain, before_ms, after_ms,
                               shapes, agent, candidate, device, versions, at, carried_from)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            entry.kind,
            entry.kernel_type,
            entry.strategy,
            entry.reflection,
            entry.error,
            entry.speedup,
            entry.gain,
            entry.before_ms,
            entry.after_ms,
            entry.shapes,
            entry.agent,
            entry.candidate,
            entry.device,
            json.dumps(entry.versions),
            tx.now,
            entry.carried_from,
        ),
    )
    return int(cursor.lastrowid or 0)


def _mark_expired(tx: Tx, identity: int, why: str) -> bool:
    cursor = tx.connection.execute(
        "UPDATE memory SET expired_at = ?, expired_why = ? WHERE id = ? AND expired_at IS NULL",
        (tx.now, why, identity),
    )
    return cursor.rowcount == 1


def _require(tx: Tx, identity: int) -> str:
    """The kind of an entry that must exist."""
    row = tx.connection.execute("SELECT kind FROM memory WHERE id = ?", (identity,)).fetchone()
    if row is None:
        raise BadInput(f"there is no memory entry {identity}", fix="`kernelarc memory list` shows them")
    return str(row[0])
