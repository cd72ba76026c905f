"""Reading files whose names came with a problem, a solution, a dataset or an inbox: bounded, regular files only.

Such a name may be a link to a secret, a pipe that never ends or a device. A file is looked at before it is opened
for reading, and what is then read is that very file, whatever its name has come to mean meanwhile.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from engine.errors import BadInput

_OF_THE_SYSTEM = ("/proc", "/sys")  # regular files there hold a process's environment and the like


def read_file(path: Path, limit: int, *, inside: Path | None = None, fix: str = "") -> bytes:
    """The content of a regular file of at most ``limit`` bytes.

    ``inside``: the folder that the file must lie in once all links are followed. ``fix``: what to do about a file
    that is too large. Raises :class:`BadInput`, and ``FileNotFoundError`` if there is nothing of that name.
    """
    try:
        seen = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            _must_be_plain(seen, path, inside)
            reading = os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(seen)
        with os.fdopen(reading, "rb") as stream:
            data = stream.read(limit + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError:  # a NUL
        raise BadInput("not the name of a file", where=str(path)) from None
    if len(data) > limit:
        raise BadInput(f"larger than {limit >> 20} MiB", where=str(path), fix=fix)
    return data


def is_plain(path: Path, inside: Path | None = None) -> bool:
    """Whether :func:`read_file` would open it; false for names that cannot be a file's."""
    try:
        seen = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        _must_be_plain(seen, path, inside)
    except BadInput:
        return False
    finally:
        os.close(seen)
    return True


def is_folder(path: Path) -> bool:
    """``Path.is_dir``, also for names that are too long or hold a NUL."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_file(path: Path) -> bool:
    """``Path.is_file``, also for names that are too long or hold a NUL."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _must_be_plain(seen: int, path: Path, inside: Path | None) -> None:
    place = Path(f"/proc/self/fd/{seen}").readlink()
    if not stat.S_ISREG(os.fstat(seen).st_mode) or any(place.is_relative_to(top) for top in _OF_THE_SYSTEM):
        raise BadInput("not a regular file", where=str(path), fix="give a file with the text itself")
    if inside is not None and not place.is_relative_to(os.path.realpath(inside)):
        what = "a link that leads out of its folder"
        raise BadInput(
            what, where=str(path), fix="put a copy of the file in its place (`cp -rL` copies a folder so)"
        )
