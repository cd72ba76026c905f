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
from engine.store import edits
from engine.store import events as ev
from engine.store.create import open_database
from engine.store.database import store_error
from engine.store.edits import Edited
from engine.store.lock import EDIT, CampaignLock
from engine.store.tx import Tx, transaction

T = TypeVar("T")


def edit(folder: Path, change: Callable[[Tx], T]) -> T:
    """Run ``change`` on the campaign's database under its lock; another edit is waited for.

    Raises:
        BadInput: an engine runs it (send it a command instead), or the change is refused.
        StoreError: the database cannot be written.
    """
    path = folder / "campaign.db"
    if not path.is_file():
        raise StoreError(f"{path}: there is no campaign database")
    with CampaignLock(folder, purpose=EDIT):
        connection, summary = open_database(path)
        with closing(connection):
            try:
                with transaction(connection, summary, time.time()) as tx:
                    result = change(tx)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                raise store_error(error, path) from error
    return result


def carry_out(folder: Path, verb: str, number: int, text: str = "") -> Edited:
    """A verb of :mod:`engine.store.edits`, written down with its answer as an engine would.

    Raises :class:`BadInput` as the engine would, and what :func:`edit` raises.
    """

    def change(tx: Tx) -> Edited:
        done = edits.carry_out(tx, verb, number, text)
        asked = edits.arguments(text=text, number=number)
        tx.append(ev.CommandAnswered(id=uuid.uuid4().hex, verb=verb, args=asked, text=done.text))
        return done

    return edit(folder, change)


def delete_campaign(folder: Path) -> None:
    """Remove a campaign's folder. Raises :class:`BadInput` while an engine runs it or if it holds no campaign."""
    if not (folder / "campaign.db").exists():
        raise BadInput(f"{folder} holds no campaign", fix="nothing was deleted")
    with CampaignLock(folder, purpose=EDIT):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise StoreError(f"{folder}: cannot be deleted ({error.strerror})") from error
