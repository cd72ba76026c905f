"""Editing a campaign that has no engine: take its lock, change it in one transaction, let go."""

from __future__ import annotations

import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from engine.errors import BadInput, StoreError
from engine.store import events as ev
from engine.store import memories, verdicts
from engine.store.create import open_database
from engine.store.database import store_error
from engine.store.lock import CampaignLock
from engine.store.tx import Tx, transaction
from engine.text import clean, one_line

T = TypeVar("T")


def edit(folder: Path, change: Callable[[Tx], T]) -> T:
    """Run ``change`` on the campaign's database under its lock.

    Raises:
        BadInput: an engine runs it (send it a command instead), or the change is refused.
        StoreError: the database cannot be written.
    """
    path = folder / "campaign.db"
    if not path.is_file():
        raise StoreError(f"{path}: there is no campaign database")
    with CampaignLock(folder):
        connection, summary = open_database(path)
        with closing(connection):
            try:
                with transaction(connection, summary, time.time()) as tx:
                    result = change(tx)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                raise store_error(error, path) from error
    return result


def edit_memory(folder: Path, verb: str, identity: int, text: str = "") -> str:
    """Carry out ``memory.pin``, ``memory.unpin``, ``memory.expire`` or ``memory.note``; returns one line."""

    def change(tx: Tx) -> str:
        if verb == "memory.pin":
            memories.pin(tx, identity, True)
            return f"memory entry {identity} is pinned"
        if verb == "memory.unpin":
            memories.pin(tx, identity, False)
            return f"memory entry {identity} is no longer pinned"
        if verb == "memory.expire":
            done = memories.expire(tx, identity, text or "user", by="user")
            return f"memory entry {identity} {'is' if done else 'was already'} expired"
        if verb == "memory.note":
            words = clean(text, memories.NOTE_LIMIT).strip()
            memories.note(tx, identity, words)
            return f"memory entry {identity} {'has a note' if words else 'has no note'}"
        raise BadInput(f"{verb} cannot be done without an engine")

    return edit(folder, change)


def veto(folder: Path, number: int, why: str = "") -> ev.Vetoed:
    """Take a KEEP back; ``why`` is recorded with the command. Raises :class:`BadInput` as the engine would."""

    def change(tx: Tx) -> ev.Vetoed:
        vetoed = verdicts.veto(tx, number)
        args = {"number": str(number), **({"text": one_line(why, 300)} if why else {})}
        tx.append(ev.CommandAnswered(id=uuid.uuid4().hex, verb="veto", args=args, text=f"#{number} vetoed"))
        return vetoed

    return edit(folder, change)


def delete_campaign(folder: Path) -> None:
    """Remove a campaign's folder. Raises :class:`BadInput` while an engine runs it or if it holds no campaign."""
    if not (folder / "campaign.db").exists():
        raise BadInput(f"{folder} holds no campaign", fix="nothing was deleted")
    with CampaignLock(folder):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise StoreError(f"{folder}: cannot be deleted ({error.strerror})") from error
