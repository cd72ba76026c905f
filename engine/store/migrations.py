"""Bringing a campaign database to this version's schema: ``schema/NNNN_*.sql`` in order, each whole or not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from engine.errors import StoreError
from engine.store.database import APPLICATION_ID

SCHEMA = Path(__file__).resolve().parent / "schema"


def scripts(folder: Path = SCHEMA) -> list[tuple[int, Path]]:
    """(version, file) in order; the number in a file's name is the ``user_version`` that it leads to."""
    return sorted((int(path.name.partition("_")[0]), path) for path in folder.glob("[0-9]*_*.sql"))


def latest(folder: Path = SCHEMA) -> int:
    return scripts(folder)[-1][0]


def check_version(connection: sqlite3.Connection, path: Path, known: int) -> int:
    """The database's schema version, 0 for an empty file.

    Raises:
        StoreError: another program's database, or one from a newer version.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if application != APPLICATION_ID:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application or version or tables:
            raise StoreError(f"{path}: is not a KernelArc campaign database; it was left as it is")
        return 0
    if version > known:
        raise StoreError(
            f"{path}: was written by a newer KernelArc (schema {version}, this one knows {known}); "
            "upgrade with `pip install -U kernelarc-tui`, the file was left as it is"
        )
    return version


def migrate(connection: sqlite3.Connection, path: Path, folder: Path = SCHEMA) -> int:
    """Run what is missing and return the version. An existing campaign is copied beside itself first.

    A step that fails is rolled back as a whole, ``user_version`` included: the file stays as it was.

    Raises:
        StoreError: see :func:`check_version`.
        sqlite3.Error: the disk or a script failed.
    """
    version = check_version(connection, path, latest(folder))
    pending = [(number, script) for number, script in scripts(folder) if number > version]
    if pending and version:
        backup(connection, path.with_name(f"{path.name}.v{version}.bak"))
    for number, script in pending:
        _apply(connection, number, script.read_text("utf-8"))
        version = number
    return version


def backup(connection: sqlite3.Connection, target: Path) -> None:
    """A consistent copy, whole or not at all."""
    partial = target.with_name(target.name + ".part")
    partial.unlink(missing_ok=True)
    copy = sqlite3.connect(partial)
    try:
        connection.backup(copy, pages=-1)
    finally:
        copy.close()
    partial.replace(target)


def statements(script: str) -> Iterator[str]:
    """The single statements of a script: ``executescript`` would commit an open transaction first."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending.strip()
            pending = ""
    if any(line.split("--")[0].strip() for line in pending.splitlines()):
        yield pending.strip()


def _apply(connection: sqlite3.Connection, number: int, script: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in statements(script):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
