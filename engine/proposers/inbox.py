"""The inbox proposer: a person, or a coding agent outside, edits a file; every save is a candidate.

The agent's folder holds ``kernel.py`` (the best to start from) or, if somebody puts one there, ``solution.json``
with several files. The outcome is written back beside it as ``outcome.txt`` and ``outcome.json``. Nothing is
remembered but the store: a file whose content was judged before is not a new save, an edit that was made while no
engine ran is.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import BadInput
from engine.problems.files import is_folder, read_file
from engine.problems.solution import Solution, solution_sha
from engine.problems.solution_io import MAX_SOURCE_BYTES, load_solution
from engine.proposers.base import Context, LiveSink, Proposal, UnusableReply
from engine.records import AgentState, Evaluation, Outcome
from engine.text import clean, redact

SOLUTION_FILE = "solution.json"
SOURCE_FILE = "kernel.py"
UNUSABLE = "reply.unusable"
SETTLE_S = 0.15
"""A file that did not change for this long has been written completely."""
LOOK_AGAIN_S = 1.0

Stat = tuple[str, int, int]
"""Name, time of change in nanoseconds and size of the file."""

log = logging.getLogger("kernelarc.engine")


class WrittenOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """``outcome.json``: latencies in milliseconds, ``null`` where nothing was measured."""

    file: str
    outcome: Outcome
    reason: str = ""
    detail: str = ""
    latency_ms: float | None = None
    speedup: float | None = None
    workloads: list[dict[str, object]] = []


class InboxProposer:
    """Waits for saves in ``folder``. Has no deadline of its own: a person takes the time it takes."""

    name = "inbox"
    model: str | None = None

    def __init__(self, folder: Path, stored_reply: Callable[[int], str | None]) -> None:
        """``stored_reply`` gives the text that was judged as a candidate, by its number."""
        self.folder = folder
        self._stored_reply = stored_reply

    async def propose(self, context: Context, live: LiveSink) -> Proposal | UnusableReply:
        self._offer_base(context)
        known = {past.source_sha for past in context.history}
        known.update({solution_sha(context.base.solution), solution_sha(context.best.solution)})
        refused = self._last_refused(context)
        live.state(AgentState.PROPOSING, f"waiting for a save in {self.folder}")
        seen = self._stat()
        reply = self._look(context, known, refused)
        if reply is None:
            reply = await self._next_save(context, known, refused, seen)
        return reply

    async def judged(
        self, proposal: Proposal, outcome: Outcome, evaluation: Evaluation | None, reason: str
    ) -> None:
        """Write the verdict beside the file."""
        results = evaluation.workloads if evaluation else []
        self._write_outcome(
            WrittenOutcome(
                file=self._file().name,
                outcome=outcome,
                reason=reason,
                detail=evaluation.detail if evaluation else "",
                latency_ms=evaluation.latency_ms if evaluation else None,
                speedup=evaluation.geomean_speedup if evaluation else None,
                workloads=[
                    {"uuid": w.uuid, "status": w.status, "reason": w.reason, "latency_ms": w.latency_ms}
                    for w in results
                ],
            )
        )

    async def close(self) -> None:
        return None

    def _file(self) -> Path:
        whole = self.folder / SOLUTION_FILE
        return whole if whole.is_file() else self.folder / SOURCE_FILE

    def _offer_base(self, context: Context) -> None:
        """A first ``kernel.py`` to edit; never over a file that is there.

        Raises :class:`BadInput` where it cannot be put, which pauses the agent: a person has to see to the folder.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(self._file()):  # a dangling link would be written through
                (self.folder / SOURCE_FILE).write_text(context.base.solution.entry_source, encoding="utf-8")
        except OSError as error:
            what, fix = f"cannot be an inbox ({error.strerror})", f"see to it, then resume agent {context.agent}"
            raise BadInput(what, where=str(self.folder), fix=fix) from None

    def _last_refused(self, context: Context) -> str:
        """The text of the last save that was no solution, as it is stored; empty if there was none."""
        number = next((past.number for past in reversed(context.history) if past.reason == UNUSABLE), 0)
        return self._stored_reply(number) or "" if number else ""

    async def _next_save(
        self, context: Context, known: set[str], refused: str, seen: Stat | None
    ) -> Proposal | UnusableReply:
        """``seen`` is the file as it was when it was last looked at: a save since then counts."""
        async for _ in self._moments():
            if self._stat() == seen or not await self._settled():
                continue
            seen = self._stat()
            reply = self._look(context, known, refused)
            if reply is not None:
                return reply
        raise asyncio.CancelledError

    async def _moments(self) -> AsyncIterator[None]:
        """When the folder may have changed: as the system tells, and every second for what it does not tell."""
        from watchfiles import awatch

        second_ms = int(1000 * LOOK_AGAIN_S)
        options: dict[str, Any] = {"recursive": False, "step": 50, "debounce": 400, "rust_timeout": second_ms}
        try:
            async for _ in awatch(self.folder, yield_on_timeout=True, **options):
                yield
        except (OSError, RuntimeError) as error:  # no watches left, or a file system without them
            log.warning("%s is looked at every %g s: %s", self.folder, LOOK_AGAIN_S, error)
            while True:
                await asyncio.sleep(LOOK_AGAIN_S)
                yield

    async def _settled(self) -> bool:
        """Whether the file stopped growing; an editor may still be writing it when the first event comes."""
        before = self._stat()
        for _ in range(20):
            await asyncio.sleep(SETTLE_S)
            after = self._stat()
            if after == before:
                return after is not None
            before = after
        return False

    def _stat(self) -> Stat | None:
        try:
            info = self._file().stat()
        except OSError:
            return None
        return self._file().name, info.st_mtime_ns, info.st_size

    def _look(self, context: Context, known: set[str], refused: str) -> Proposal | UnusableReply | None:
        """The file as a candidate, or ``None`` if this content was judged before."""
        path = self._file()
        try:
            solution = load_solution(path, context.problem, inside=self.folder)
        except BadInput as error:
            return self._refuse(path, error, context, refused)
        if solution_sha(solution) in known:
            return None
        return Proposal(
            solution=solution,
            strategy=context.strategy,
            family="inbox",
            hypothesis=_first_comment(solution),
            reply="",
        )

    def _refuse(self, path: Path, error: BadInput, context: Context, refused: str) -> UnusableReply | None:
        detail = clean(error.message)
        try:
            text = read_file(path, MAX_SOURCE_BYTES, inside=self.folder).decode("utf-8", "replace")
        except FileNotFoundError:
            return None
        except BadInput:  # a link that leads out of the folder, a pipe: nothing of it is kept
            text = detail
        if not text.strip() or redact(text) == refused:
            return None
        self._write_outcome(WrittenOutcome(file=path.name, outcome=Outcome.REJECT, reason=UNUSABLE, detail=detail))
        return UnusableReply(reason=UNUSABLE, detail=detail, strategy=context.strategy, reply=text)

    def _write_outcome(self, outcome: WrittenOutcome) -> None:
        """A copy of what the store holds: where it cannot be written the agent goes on."""
        document = msgspec.json.format(msgspec.json.encode(outcome), indent=1) + b"\n"
        try:
            _replace(self.folder / "outcome.json", document)
            _replace(self.folder / "outcome.txt", outcome_text(outcome).encode())
        except OSError as error:
            log.warning("%s: the outcome cannot be written: %s", self.folder, error.strerror)


def check_folder(folder: Path) -> None:
    """Raises :class:`BadInput` if candidates could not be put into ``folder``, or it could not be made."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place) or place == place.parent)
    if not is_folder(there):
        raise BadInput("not a folder", where=str(there), fix="give a folder in which candidates are saved")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInput("cannot be written to", where=str(there), fix="give a folder of yours")


def outcome_text(outcome: WrittenOutcome) -> str:
    """The verdict in a few lines for a person."""
    lines = [f"{outcome.file}: {outcome.outcome.value}" + (f"  {outcome.reason}" if outcome.reason else "")]
    if outcome.latency_ms is not None:
        speedup = f", {outcome.speedup:.3f}× of the reference" if outcome.speedup is not None else ""
        lines.append(f"{outcome.latency_ms:.4g} ms{speedup}")
    if outcome.detail:
        lines.append(outcome.detail)
    lines += [f"{w['uuid']}: {w['status']} {w['reason']}".rstrip() for w in outcome.workloads if w["reason"]]
    return "\n".join(lines) + "\n"


def _first_comment(solution: Solution) -> str:
    """The leading comment of the entry source: what its author says about it."""
    words = []
    for line in solution.entry_source.splitlines():
        if not line.startswith("#"):
            break
        words.append(line.lstrip("#! ").strip())
    return clean(" ".join(words), 300)


def _replace(path: Path, data: bytes) -> None:
    """Written beside and renamed, so that a watching agent never reads half an outcome."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(data)
    temporary.replace(path)
