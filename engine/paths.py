"""Every place on disk that KernelArc uses. Nothing is written anywhere else unless the user asks.

State is under ``$KERNELARC_HOME`` (default: the XDG state directory), configuration under the XDG config
directory; sockets and device locks are the one exception (see :func:`socket_path`, :func:`lock_dir`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from engine.errors import BadInput, Fault


def home() -> Path:
    """State root. Not created here: readers must not create what they only look for."""
    override = os.environ.get("KERNELARC_HOME")
    if override:
        return expanded(override).resolve()
    return expanded(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "kernelarc"


def config_dir() -> Path:
    return expanded(os.environ.get("XDG_CONFIG_HOME") or "~/.config") / "kernelarc"


def expanded(path: str) -> Path:
    """``path`` with its ``~`` filled in. Raises :class:`BadInput` where nobody's home is known."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise BadInput("there is no such home directory", where=path, fix="set KERNELARC_HOME, or HOME") from error


def campaigns_dir() -> Path:
    return home() / "campaigns"


def campaign_dir(name: str) -> Path:
    return campaigns_dir() / name


def cache_dir() -> Path:
    """Compile caches and measured device ceilings, shared by campaigns, keyed by content."""
    return home() / "cache"


def runtime_dir(*, create: bool = False) -> Path:
    """Folder for control sockets: 0700 and ours, never under a campaign (socket paths hold 107 bytes).

    In ``$XDG_RUNTIME_DIR`` if that is a folder of ours, else ``/tmp/kernelarc-UID``: after ``su``, in a container
    or once the last login has ended the variable names a folder that is gone or another user's.

    Raises :class:`Fault` if it cannot be created, or is there and somebody else could have put a socket into it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "kernelarc" if base and _ours(Path(base)) else Path(f"/tmp/kernelarc-{os.getuid()}")
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        _require_private(folder)
    except OSError as error:
        detail = f"{folder} cannot be used ({error.strerror}); set XDG_RUNTIME_DIR to a folder of yours"
        raise Fault("fault.runtime-dir", detail) from None
    return folder


def _ours(folder: Path) -> bool:
    """Whether the engine and its clients, wherever they are started, can keep sockets in ``folder``."""
    try:
        info = folder.stat()
    except OSError:
        return False
    mine = stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()
    return mine and folder.is_absolute() and os.access(folder, os.W_OK | os.X_OK)


def socket_path(campaign: Path) -> Path:
    """The control socket of the campaign in folder ``campaign``: 16 hex digits of its resolved path."""
    digest = hashlib.sha256(str(campaign.resolve()).encode()).hexdigest()[:16]
    return runtime_dir() / f"{digest}.sock"


def lock_dir() -> Path:
    """Sticky folder for device locks, shared by all users of the box.

    ``/run/lock/kernelarc`` where ``/run/lock`` is writable, else ``/tmp/kernelarc-locks``. Created 1777 so
    that another user's campaign finds the same lock files. Symlinks are refused. A folder that somebody else made
    first becomes root's where we are root; otherwise it must be open to everybody, like ours. Whoever owns it can
    remove lock files, which :class:`engine.bench.device_lock.DeviceLock` notices.
    """
    base = Path("/run/lock")
    folder = base / "kernelarc" if base.is_dir() and os.access(base, os.W_OK) else Path("/tmp/kernelarc-locks")
    try:
        folder.mkdir(mode=0o1777)
        folder.chmod(0o1777)
    except FileExistsError:
        pass
    _require_shared(folder)
    return folder


def _require_shared(folder: Path) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(folder, flags)
    except OSError as error:
        raise Fault("fault.lock-dir", f"{folder} is not a directory ({error.strerror}); remove it") from None
    try:
        if os.geteuid() == 0 and os.fstat(fd).st_uid != 0:
            os.fchown(fd, 0, 0)
            os.fchmod(fd, 0o1777)
        info = os.fstat(fd)
    finally:
        os.close(fd)
    ours = info.st_uid in (0, os.getuid())
    if not info.st_mode & stat.S_ISVTX or (not ours and stat.S_IMODE(info.st_mode) != 0o1777):
        raise Fault("fault.lock-dir", f"{folder} is not a sticky directory; remove it or set its mode to 1777")


def _require_private(folder: Path) -> None:
    try:
        info = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise Fault("fault.runtime-dir", f"{folder} must be a directory of yours with mode 0700")
