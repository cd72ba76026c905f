"""Opening a campaign database and saying clearly what is wrong with it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from engine.errors import StoreError, StoreFault

APPLICATION_ID = 0x4B415243  # "KARC"
JOURNAL_LIMIT_BYTES = 64 << 20
BUSY_TIMEOUT_MS = 5000

_FULL = (
    "SQLITE_FULL",
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_SHMSIZE",
    "SQLITE_IOERR_FSYNC",
    "SQLITE_IOERR_TRUNCATE",
)
_READ_ONLY = ("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_CANTOPEN", "SQLITE_AUTH")


def error_name(error: sqlite3.Error) -> str:
    """The extended result code by name, for instance ``SQLITE_IOERR_WRITE``; empty when Python raised it."""
    return getattr(error, "sqlite_errorname", None) or ""


def is_trouble(error: BaseException | None) -> bool:
    """Whether the database or its disk failed, as opposed to a statement that was wrong in itself."""
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError):
        return False
    return error_name(error) != "SQLITE_ERROR"


def store_error(error: sqlite3.Error, path: Path, *, left: str = "nothing was lost") -> StoreError:
    """One line for a person: what, where, and what to do. Nothing is ever changed by the failure itself.

    ``left``: what a full disk leaves behind.
    """
    name = error_name(error)
    if name.startswith("SQLITE_CORRUPT"):
        return damaged(path, str(error))
    if name.startswith(_FULL):
        text = f"the disk is full or cannot be written ({error}); free space there, {left}"
    elif name.startswith(_READ_ONLY):
        text = f"cannot be opened ({error}); check that {_whose(path)}"
    elif name.startswith("SQLITE_NOTADB"):
        text = "is not a KernelArc campaign database; it was left as it is"
    elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        text = "is locked by another process for more than 5 s; try again"
    elif name.startswith("SQLITE_IOERR"):
        text = f"the disk failed ({error}); nothing that was acknowledged is lost"
    else:
        text = f"cannot be used ({error})"
    kind = StoreFault if name.startswith((*_FULL, "SQLITE_IOERR")) else StoreError
    return kind(f"{path}: {text}")


def damaged(path: Path, detail: str) -> StoreError:
    return StoreError(
        f"{path}: is damaged ({detail}); it was left as it is, "
        f"`sqlite3 {path.name} .recover` reads what can be saved"
    )


def connect_writable(path: Path) -> sqlite3.Connection:
    """A plain connection that may write; whoever opens it holds the campaign's lock. Raises ``sqlite3.Error``."""
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 1000")
        connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_LIMIT_BYTES}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def wal_path(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _whose(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {folder} exists"
    if not path.exists():
        return "the file exists"
    if not os.access(path, os.R_OK):
        return "you may read it"
    return f"you may write in {folder}"
