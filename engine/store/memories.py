"""Wins and traps inside a transaction: add, merge, expire, pin, note, and add under a retention rule."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from engine.errors import BadInput
from engine.store import events as ev
from engine.store.rows import REFLECTION_LIMIT, STRATEGY_LIMIT, Addition, Compared, MemoryRow, MemoryWrite
from engine.store.tx import Tx

NOTE_LIMIT = 500
COLUMNS = ", ".join(MemoryRow.__struct_fields__)
_COMPARED = ", ".join(Compared.__struct_fields__)

Retention = Callable[[Sequence[Compared], Compared], Addition]
"""What adding the second to the first, the live entries of its kind and kernel type, newest first, does."""


def live(connection: sqlite3.Connection, kind: str | None = None, kernel_type: str | None = None) -> list[Any]:
    """The columns of every entry in recall, newest first."""
    return _live(connection, COLUMNS, kind, kernel_type)


def expired(connection: sqlite3.Connection, before: int | None, limit: int, kind: str | None = None) -> list[Any]:
    """The columns of entries out of recall with ids below ``before``, newest first."""
    where, values = _where(kind=kind)
    return connection.execute(
        f"SELECT {COLUMNS} FROM memory WHERE id < ? AND expired_at IS NOT NULL{where} ORDER BY id DESC LIMIT ?",
        (before if before is not None else 1 << 62, *values, limit),
    ).fetchall()


def remember(tx: Tx, entries: Iterable[MemoryWrite], retention: Retention) -> None:
    """Add entries one after the other, each under the campaign's retention, which may have no room for one."""
    rooms: dict[tuple[str, str], list[Compared]] = {}
    last = tx.connection.execute("SELECT coalesce(max(id), 0) FROM memory").fetchone()[0]
    for entry in entries:
        key = (entry.kind, entry.kernel_type)
        if key not in rooms:
            rooms[key] = [Compared(*(*row[:-1], bool(row[-1]))) for row in _live(tx.connection, _COMPARED, *key)]
        new = _compared(entry, last + 1)
        plan = retention(rooms[key], new)
        if plan.merge_into is not None:
            add(tx, msgspec.structs.replace(entry, merged_into=plan.merge_into))
        elif plan.store:
            last = add(tx, entry)
            for old in plan.expire:
                expire(tx, old, "retention")
            rooms[key] = [
                msgspec.structs.replace(new, id=last),
                *(other for other in rooms[key] if other.id not in plan.expire),
            ]


def _live(connection: sqlite3.Connection, columns: str, kind: str | None, kernel_type: str | None) -> list[Any]:
    where, values = _where(kind=kind, kernel_type=kernel_type)
    return connection.execute(
        f"SELECT {columns} FROM memory WHERE expired_at IS NULL{where} ORDER BY id DESC", values
    ).fetchall()


def _where(**columns: str | None) -> tuple[str, list[str]]:
    given = {name: value for name, value in columns.items() if value is not None}
    return "".join(f" AND {name} = ?" for name in given), list(given.values())


def _compared(entry: MemoryWrite, identity: int) -> Compared:
    fields = {name: getattr(entry, name) for name in Compared.__struct_fields__ if name not in ("id", "pinned")}
    return Compared(id=identity, pinned=False, **fields)


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
