"""What is said to a profiled process, and what it and the tool around it answer. Nothing of it is trusted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine.decoding import decode_json
from engine.errors import BadInput
from engine.profile.wire import GO, MARK, READY, Said
from engine.text import clean

READY_S = 240.0  # import, compile, warm up: the device is not held
CALL_S = 60.0  # one call, with the device held; under Nsight Compute it is replayed
OUTPUT = 16 << 20


class Failed(Exception):
    """The profiled process did not do its call: a stable reason and a line for a person."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class Talk:
    """What is said to the profiled process, in order: :meth:`ready`, :meth:`call`, :meth:`rest`.

    Each raises :class:`Failed`.
    """

    def __init__(self, stream: asyncio.StreamReader, folder: Path) -> None:
        self._stream, self._folder = stream, folder
        self.said = ""  # all that the process and the tool wrote so far

    async def ready(self) -> None:
        """Until it has imported, compiled and warmed up."""
        try:
            async with asyncio.timeout(READY_S):
                first = await self._next()
        except TimeoutError:
            raise Failed("resource.timeout", f"it was not ready for a profile within {READY_S:.0f} s") from None
        if first != READY:
            raise self._failure(first)

    async def call(self, limit_s: float | None = None) -> Said:
        """Its call, with the device held by whoever asks, for no longer than ``limit_s`` (:data:`CALL_S`)."""
        limit_s = CALL_S if limit_s is None else limit_s
        (self._folder / GO).touch()
        try:
            async with asyncio.timeout(limit_s):
                last = await self._next()
        except TimeoutError:
            raise Failed("resource.timeout", f"its call took longer than {limit_s:.0f} s") from None
        said = _decoded(last)
        if said is None or said.error:
            raise self._failure(last)
        return said

    async def rest(self) -> str:
        """Everything that process and tool wrote, once they have ended."""
        try:
            async with asyncio.timeout(CALL_S):
                while await self._next() is not None:
                    pass
        except TimeoutError:
            raise Failed("resource.timeout", f"it did not end within {CALL_S:.0f} s after its call") from None
        return self.said

    async def _next(self) -> str | None:
        """The next line for us; other lines are kept for ncu's parser. ``None`` at the end."""
        while line := await self._line():
            text = line.decode("utf-8", "replace")
            if text.startswith(MARK):
                return text.removeprefix(MARK).rstrip("\n")
            self.said += text
            if len(self.said) > OUTPUT:
                raise Failed("resource.output", "it wrote too much")
        return None

    async def _line(self) -> bytes:
        try:
            return await self._stream.readline()
        except ValueError:
            raise Failed("resource.output", "it wrote a line that is too long") from None

    def _failure(self, last: str | None) -> Failed:
        said = _decoded(last) if last is not None else None
        if said is not None and said.error:
            return Failed("wrong.exception", clean(said.error, 500))
        words = " ".join(self.said.split())[-300:]
        return Failed(
            "crash.exit", clean(f"the profiled process ended early: {words}" if words else "it ended early", 500)
        )


def _decoded(text: str | None) -> Said | None:
    try:
        return decode_json(text or "", where="the profiled process", kind=Said)  # type: ignore[no-any-return]
    except BadInput:
        return None
