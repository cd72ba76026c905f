"""Opening a campaign for writing: create, migrate, check, recover. Plain ``sqlite3``, no event loop."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

from engine.errors import StoreError
from engine.problems.solution import Solution
from engine.store import events as ev
from engine.store import ledger
from engine.store.database import connect_writable, damaged, store_error
from engine.store.migrations import migrate
from engine.store.rows import CampaignRow
from engine.store.summary import Summary
from engine.store.tx import Tx, load_summary, transaction
from engine.store.verdicts import solution_bytes

_encode = msgspec.json.Encoder().encode


def create_database(
    path: Path,
    row: CampaignRow,
    seed: Solution,
    started: ev.CampaignStarted,
    clock: Callable[[], float] = time.time,
) -> None:
    """A new campaign: its row, the seed's blob and its first event in one transaction.

    Raises:
        StoreError: the file exists, or the disk failed.
    """
    if path.exists():
        raise StoreError(f"{path}: exists already; choose another campaign name")
    try:
        with closing(connect_writable(path)) as connection:
            migrate(connection, path)
            with transaction(connection, Summary(), clock()) as tx:
                _insert_campaign(tx, row, tx.blob(solution_bytes(seed)))
                tx.append(started)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise store_error(error, path) from error


def open_database(path: Path, clock: Callable[[], float] = time.time) -> tuple[sqlite3.Connection, Summary]:
    """An existing campaign, migrated and checked; calls that a crashed engine left open are charged in full.

    The caller holds the campaign's lock and closes the connection.

    Raises:
        StoreError: missing, newer, damaged, read-only or full. The file is left as it is.
    """
    if not path.is_file():
        raise StoreError(f"{path}: there is no campaign database")
    try:
        connection = connect_writable(path)
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    try:
        migrate(connection, path)
        _check(connection, path)
        summary = load_summary(connection, path)
        with transaction(connection, summary, clock()) as tx:
            ledger.lose_open(tx)
            if tx.summary.seq:
                ledger.reconcile(tx, "charged in full: the engine ended before the call was settled")
        return connection, tx.summary
    except sqlite3.Error as error:
        connection.close()
        raise store_error(error, path) from error
    except StoreError:
        connection.close()
        raise


def _check(connection: sqlite3.Connection, path: Path) -> None:
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        first = str(verdict).splitlines()[-1]
        raise damaged(path, first)


def _insert_campaign(tx: Tx, row: CampaignRow, seed_sha: str) -> None:
    tx.connection.execute(
        """INSERT INTO campaign (id, name, created_at, problem_name, problem, kernel_type, config, device,
                                 device_facts, seed_solution, baselines)
           VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            row.name,
            row.created_at or tx.now,
            row.problem_name,
            row.problem,
            row.kernel_type,
            _encode(row.config).decode(),
            row.device,
            _encode(row.device_facts).decode() if row.device_facts else None,
            seed_sha,
            _encode(row.baselines).decode() if row.baselines else None,
        ),
    )
