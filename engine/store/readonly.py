"""A read-only connection to a campaign's database that its engine writes meanwhile."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from engine.errors import StoreError
from engine.store.database import BUSY_TIMEOUT_MS, is_trouble, store_error, wal_path
from engine.store.migrations import check_version, latest
from engine.text import one_line

T = TypeVar("T")
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, LookupError, RecursionError)
"""What decoding raises that meets a value of another form than the record's."""


class ReadOnly:
    """A campaign's database, or the folder that holds it. Use from one thread at a time.

    Raises:
        StoreError: missing, newer, damaged, or not readable by this user.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / "campaign.db" if path.is_dir() else path
        self._immutable = False
        self._data_version = -1
        self._stamp: tuple[int, int] | None = None
        self._known = latest()
        self._connection = self._open()

    def changed(self) -> bool:
        """Whether anything was committed since the last call; true the first time. Costs microseconds.

        Raises:
            StoreError: a newer engine has migrated the file meanwhile.
        """
        if self._immutable:
            return self._changed_file()
        version = self._one("PRAGMA data_version")[0]
        if version == self._data_version:
            return False
        self._data_version = version
        check_version(self._connection, self.path, self._known)
        return True

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> sqlite3.Connection:
        if not self.path.is_file():
            raise StoreError(f"{self.path}: there is no campaign database")
        try:
            connection = self._connect("mode=ro")
        except sqlite3.Error as error:
            if not self._may_be_immutable(error):
                raise store_error(error, self.path) from error
            try:
                connection = self._connect("mode=ro&immutable=1")
            except sqlite3.Error as second:
                raise store_error(second, self.path) from second
            self._immutable = True
        return connection

    def _connect(self, options: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self.path.resolve().as_uri()}?{options}",
            uri=True,
            timeout=BUSY_TIMEOUT_MS / 1000,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA query_only = ON")
            if check_version(connection, self.path, self._known) < self._known:
                raise StoreError(
                    f"{self.path}: was written by an older KernelArc; `kernelarc resume {self.path.parent.name}` "
                    "brings it up to date"
                    if check_version(connection, self.path, self._known)
                    else f"{self.path}: is empty; creating it was cut short, delete the folder"
                )
        except (sqlite3.Error, StoreError):
            connection.close()
            raise
        return connection

    def _may_be_immutable(self, error: sqlite3.Error) -> bool:
        """A closed database in a folder where we may not make a ``-shm``. With a ``-wal`` it would be a lie."""
        wal = wal_path(self.path)
        left_over = wal.exists() and wal.stat().st_size > 0
        return is_trouble(error) and not left_over and os.access(self.path, os.R_OK)

    def _changed_file(self) -> bool:
        """In immutable mode nothing is followed; when an engine comes, start over with a real connection."""
        try:
            info = self.path.stat()
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read ({error.strerror})") from error
        stamp = (info.st_mtime_ns, info.st_size)
        if stamp == self._stamp and not wal_path(self.path).exists():
            return False
        first = self._stamp is None
        self._stamp = stamp
        if not first:
            self._connection.close()
            self._immutable = False
            self._connection = self._open()
        return True

    def _asked(self, question: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return question(self._connection)
        except sqlite3.Error as error:
            raise store_error(error, self.path) from error

    def _all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._asked(lambda connection: connection.execute(sql, values).fetchall())

    def _row(self, sql: str, values: Sequence[Any] = ()) -> Any:
        rows = self._all(sql, values)
        return rows[0] if rows else None

    def _one(self, sql: str) -> Any:
        return self._all(sql)[0]

    def _read(self, what: str, read: Callable[[], T]) -> T:
        """The result of ``read``, or a :class:`StoreError` that says ``what`` could not be decoded and why."""
        try:
            return read()
        except UNREADABLE as error:
            why = one_line(str(error)) or type(error).__name__
            text = f"{self.path}: {what} cannot be read ({why}); a newer KernelArc may have written it"
            raise StoreError(text) from error

    def _decode(self, data: Any, kind: type[T], what: str) -> T:
        """Stored JSON as a record."""
        return self._read(what, lambda: msgspec.json.decode(data, type=kind))

    def _records(
        self, kind: type[T], table: str, rows: Sequence[Sequence[Any]], **columns: Callable[[Any], Any]
    ) -> list[T]:
        """Rows of a table as records of ``kind``, whose fields they are in order.

        ``columns`` holds a reader for each column that is stored in another form.
        """

        def record(row: Sequence[Any]) -> T:
            fields = dict(zip(kind.__struct_fields__, row, strict=True))  # type: ignore[attr-defined]
            for name, read in columns.items():
                fields[name] = read(fields[name])
            return msgspec.convert(fields, kind)

        return [self._read(f"{table} {row[0]}", lambda row=row: record(row)) for row in rows]  # type: ignore[misc]
