"""Terminal manners, settled before the app exists: colours, characters, signals, stray mouse reports.

The order matters: Textual reads the environment when it is imported, so :func:`prepare` comes first.
"""

from __future__ import annotations

import codecs
import locale
import os
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelarc_tui.app import KernelArcApp

RESET_HINT = "if the terminal looks wrong, type: reset"
_LEAVE_WITHIN_S = 2.0


def run_app(
    campaign: Path | None,
    read_only: bool = False,
    replay: bool = False,
    mouse: bool = True,
    ascii: bool = False,
) -> str | None:
    """Open the app on a campaign, or on the list of campaigns; returns a line for the shell.

    Raises StoreError if the campaign cannot be read.
    """
    ascii = prepare() or ascii
    for name in ("COLUMNS", "LINES"):  # exported by a shell they would freeze the size; the terminal knows it
        os.environ.pop(name, None)
    from kernelarc_tui.app import KernelArcApp

    if campaign is not None:
        from engine.store.reader import StoreReader

        StoreReader(campaign).close()  # a broken store is one clear line in the shell, not an empty screen
    app = KernelArcApp(campaign, read_only=read_only, replay=replay, mouse=mouse, ascii=ascii)
    guard_decoder()
    guard_writer()
    said = app.run(mouse=app.mouse)
    if app.crash:
        return f"{app.crash}\n{RESET_HINT}"
    return said


def usable() -> bool:
    """Whether there is a terminal that can show the app."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def prepare() -> bool:
    """Fit Textual's environment and our streams to this terminal. True if only ASCII can be shown."""
    if os.environ.get("SSH_TTY") or os.environ.get("SSH_CONNECTION"):
        os.environ.setdefault("TEXTUAL_FPS", "10")  # a thin line shows fewer, whole frames
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    # Pixel mouse reports turn every click into the top-left corner in some terminals after a resize.
    os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    if few_characters(os.environ):
        return True
    encoding = (getattr(sys.__stderr__, "encoding", None) or locale.getpreferredencoding()).lower()
    if "utf" in encoding:
        return False
    wanted = (os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or "").lower()
    for stream in (sys.__stderr__, sys.__stdout__):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="replace")
    return "utf" not in wanted


_COERCED = "C.UTF-8"
_FEW = ("linux", "vt100", "vt102", "vt220")  # the console's font has boxes at most, and no braille


def few_characters(env: Mapping[str, str]) -> bool:
    """Whether this terminal is known to show little more than ASCII, whatever Python makes of the locale.

    GNU screen drops what its locale lacks. Python sets ``LC_CTYPE`` by itself where the locale is C, so that one
    says nothing about the terminal.
    """
    chosen = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or ""
    if chosen == _COERCED and not env.get("LC_ALL"):
        chosen = env.get("LANG") or ""
    return env.get("TERM", "") in _FEW or (bool(env.get("STY")) and "utf" not in chosen.lower())


class _Decoder:
    """What Textual's input thread needs of an incremental decoder."""

    def __init__(self, encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")

    def decode(self, data: bytes, final: bool = False) -> str:
        if not data and not final:  # a terminal in raw mode gives nothing only when it is gone
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(_LEAVE_WITHIN_S / 4)
        return self._decoder.decode(data, final)


def guard_decoder() -> None:
    """Make Textual's input thread forgiving, and let it notice that the terminal is gone.

    A legacy X10 mouse report (``ESC [ M`` and bytes above 127, which tmux and screen send after a reattach) is
    not UTF-8; the strict decoder of Textual 8 ends the input thread and with it the app. At the end of its input
    the thread would read nothing for ever, at the cost of a whole core.
    """
    from textual.drivers import linux_driver

    linux_driver.getincrementaldecoder = lambda encoding: partial(_Decoder, encoding)  # type: ignore[attr-defined, assignment]


def guard_writer() -> None:
    """Make Textual survive a terminal that is gone long enough to end.

    Its writer thread dies of the first failed write, and the app then waits for ever for room in the thread's
    queue. Here the thread asks the app to leave and keeps emptying the queue until it does.
    """
    from textual.drivers._writer_thread import WriterThread

    write_all = WriterThread.run

    def run(thread: WriterThread) -> None:
        try:
            write_all(thread)
        except OSError:
            os.kill(os.getpid(), signal.SIGHUP)
            while thread._queue.get() is not None:
                pass

    WriterThread.run = run  # type: ignore[method-assign, assignment]


def handle_signals(app: KernelArcApp) -> None:
    """TERM, HUP, QUIT and INT leave a clean terminal: the app exits as if asked to.

    The handlers are Python's own, not the event loop's: a terminal that takes no output blocks the loop, and only
    a handler that runs in between can then start the last resort.
    """
    import asyncio
    import contextlib
    import threading
    from types import FrameType

    loop = asyncio.get_running_loop()

    def leave(number: int, frame: FrameType | None) -> None:
        # Nobody can press a key any more if leaving gets stuck, so the process then ends by itself.
        last_resort = threading.Timer(_LEAVE_WITHIN_S, os._exit, (128 + number,))
        last_resort.daemon = True
        last_resort.start()
        loop.call_soon_threadsafe(app.leave_on_signal)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(number, leave)
