"""The one exception family that a person may see: a single clear line, never a traceback."""

from __future__ import annotations

_PART_LIMIT = 300  # characters: a line quotes what others wrote, which may be as long as a file
_FIX_LIMIT = 2000  # of our own words: they list all that can be chosen


def _cut(text: str, limit: int = _PART_LIMIT) -> str:
    """The middle left out: what is wrong stands before or after a quotation."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 3]} … {text[-tail:]}"


class KernelArcError(Exception):
    """Something a person can act on.

    ``message`` is one line that says what is wrong, where, and how to fix it. ``exit_code`` is what the
    command line exits with: 2 for wrong usage or bad input, 3 for a fault of the machine or of ours.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadInput(KernelArcError):
    """A file, flag, row or reply that cannot be used as it is. Long parts are cut in the middle."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = _cut(what), _cut(where), _cut(fix, _FIX_LIMIT)
        message = f"{self.where}: {self.what}" if where else self.what
        if fix:
            message = f"{message}; {self.fix}"
        super().__init__(" ".join(message.split()))


class Fault(KernelArcError):
    """The machine, the model server or our own fault: never an outcome of a candidate.

    ``reason`` is a stable code with prefix ``needs.`` or ``fault.`` (for instance ``needs.cuda``).
    """

    exit_code = 3

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class StoreError(KernelArcError):
    """The campaign database cannot be used: newer, corrupt, read-only, disk full. Nothing was lost."""


class StoreFault(StoreError):
    """The disk below the database is full or failed: a fault of the machine."""

    exit_code = 3
