"""The one writer: a single task owns the connection and commits what producers queue, in batches.

Two coroutines must never run transactions on one connection, so nobody but the task touches it, on a thread that
does nothing else. A producer's
call returns after COMMIT. When the disk is full, accepted decisions stay queued in order and are tried again
before anything newer; the producers hear a :class:`StoreError` at once.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite

from engine.config import CampaignConfig
from engine.errors import StoreError
from engine.records import Baselines, DeviceFacts, Sample
from engine.store import edits, ledger, samples, verdicts
from engine.store import events as ev
from engine.store.create import open_database
from engine.store.database import is_trouble, store_error
from engine.store.edits import Edited
from engine.store.live import LiveRows, WaitingSamples
from engine.store.rows import Committed, LedgerTotals, LiveRow, VerdictRecord
from engine.store.summary import Summary
from engine.store.tx import Tx, transaction
from engine.text import counted

T = TypeVar("T")
BATCH = 256
RETRY_S = 2.0
DOWNSAMPLE_EVERY_S = 60.0


@dataclass
class _Work:
    """One producer's function, run inside a batch's transaction."""

    run: Callable[[Tx], Any]
    done: asyncio.Future[Any]
    durable: bool  # fsync with the commit: survives a power cut
    keep: bool  # survives a full disk in the queue


@dataclass
class _Batch:
    work: list[_Work]
    rows: list[LiveRow] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    downsample: tuple[float, float] | None = None


@dataclass
class _Done:
    results: list[Any]
    summary: Summary
    stored: list[ev.Stored]


class StoreWriter:
    """Comes from :meth:`open`; the caller holds the campaign's lock until :meth:`close`."""

    def __init__(
        self, path: Path, database: aiosqlite.Connection, summary: Summary, clock: Callable[[], float]
    ) -> None:
        self.path = path
        self.summary = summary
        self._cause: sqlite3.Error | None = None
        self.problem: StoreError | None = None  # why decisions are waiting, while they are
        self.on_commit: Callable[[list[ev.Stored]], None] | None = None
        self._database = database
        self._clock = clock
        self._queue: deque[_Work] = deque()
        self._live = LiveRows(clock)
        self._samples = WaitingSamples()
        self._thinned = samples.cut(clock()) - 2 * samples.FULL_RATE_S
        self._next_thinning = clock() + DOWNSAMPLE_EVERY_S
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._serve(), name=f"store {path.parent.name}")
        self._task.add_done_callback(self._ended)

    # Opening and closing

    @classmethod
    async def open(cls, path: Path, clock: Callable[[], float] = time.time) -> StoreWriter:
        """An existing campaign, recovered (:func:`open_database`). Raises :class:`StoreError`."""
        connection, summary = await asyncio.to_thread(open_database, path, clock)
        database = aiosqlite.Connection(lambda: connection, iter_chunk_size=64)
        # An engine that ends without closing must end all the same; SQLite takes it as any other crash.
        thread: Any = getattr(database, "_thread", database)
        thread.daemon = True
        return cls(path, await database, summary, clock)

    async def close(self) -> None:
        """Write what is queued, checkpoint, close. Raises :class:`StoreError` if decisions had to be given up."""
        if self._closing:
            return
        try:
            await self.reconcile()
        except StoreError:
            pass  # the disk: said below if a decision is lost, and the next engine does it again
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._task])
        lost = len(self._queue)
        try:
            await self._on_thread(_checkpoint)
        except sqlite3.Error as error:
            self.problem = self.problem or store_error(error, self.path)
        finally:
            await self._database.close()
        if lost:
            left = f"{counted(lost, 'decision')} could not be written and will be made anew when it is resumed"
            told = self.problem or StoreError(f"{self.path}: cannot be written")
            if self._cause is not None:
                told = store_error(self._cause, self.path, left=left)
            raise told if left in told.message else type(told)(f"{told.message}; {left}")

    async def __aenter__(self) -> StoreWriter:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # What producers call

    async def transact(self, run: Callable[[Tx], T], *, durable: bool = False, keep: bool = True) -> T:
        """Run ``run`` inside a transaction, on the connection's thread, and return its result after COMMIT.

        ``run`` uses nothing but its ``Tx`` and its own arguments and may run twice, each time from the start. What
        it raises rolls back its own work only and is raised here. ``durable`` syncs to disk before returning. With
        ``keep`` the work survives a full disk.

        Raises:
            StoreError: the disk failed. With ``keep`` the work stays queued, in order, and is written as soon as
                possible: do not submit it again (a verdict may be: it is idempotent).
        """
        if self._closing:
            raise StoreError(f"{self.path}: is closed")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_Work(run, done, durable, keep))
        self._wake.set()
        return await done

    async def append(self, *events: ev.Event) -> list[ev.Stored]:
        """Append events together, in order."""
        return await self.transact(lambda tx: [tx.append(event) for event in events])

    async def commit_verdict(self, record: VerdictRecord) -> Committed:
        """One verdict, durable and whole: see :func:`engine.store.verdicts.commit`."""
        return await self.transact(lambda tx: verdicts.commit(tx, record), durable=True)

    async def edit(self, verb: str, number: int | None, text: str = "") -> Edited:
        """A person's change of the record, :func:`engine.store.edits.carry_out`. Raises :class:`BadInput`."""
        return await self.transact(lambda tx: edits.carry_out(tx, verb, number, text), durable=True)

    async def set_campaign(
        self,
        *events: ev.Event,
        device_facts: DeviceFacts | None = None,
        baselines: Baselines | None = None,
        config: CampaignConfig | None = None,
        kernel_type: str | None = None,
    ) -> None:
        """Fill in the campaign's row and append ``events`` in the same transaction."""

        def run(tx: Tx) -> None:
            tx.set_campaign(device_facts=device_facts, baselines=baselines, config=config, kernel_type=kernel_type)
            for event in events:
                tx.append(event)

        await self.transact(run, durable=True)

    async def reserve(
        self,
        agent: str,
        model: str,
        usd: float | None,
        tokens: int,
        *,
        cap_usd: float | None = None,
        cap_tokens: int | None = None,
    ) -> int:
        """Put money aside before a call is sent; returns the reservation's id.

        Raises:
            OverBudget: charged + in flight + this would pass a cap.
            StoreError: not reserved, the call must not be sent.
        """

        def run(tx: Tx) -> int:
            return ledger.reserve(tx, agent, model, usd, tokens, cap_usd=cap_usd, cap_tokens=cap_tokens)

        return await self.transact(run, durable=True, keep=False)

    async def settle(self, reservation: int, usd: float | None, tokens_in: int, tokens_out: int) -> bool:
        """Charge what the call cost. False if the reservation was closed before."""
        return await self.transact(lambda tx: ledger.settle(tx, reservation, usd, tokens_in, tokens_out))

    async def lose(self, reservation: int) -> bool:
        """Usage is missing or the call was cancelled: charge the reservation in full."""
        return await self.transact(lambda tx: ledger.lose(tx, reservation))

    async def reconcile(self, why: str = "not part of any verdict") -> None:
        """Show money that the ledger charged and no event accounts for; closing does it too."""
        await self.transact(lambda tx: ledger.reconcile(tx, why), keep=False)

    async def ledger_totals(self) -> LedgerTotals:
        return await self.transact(lambda tx: ledger.totals(tx.connection), keep=False)

    async def answer_of(self, command: str) -> tuple[bool, str, int] | None:
        """(ok, text, seq) of a command that was answered before, by its id."""

        def run(tx: Tx) -> tuple[bool, str, int] | None:
            row = tx.connection.execute("SELECT ok, text, seq FROM commands WHERE id = ?", (command,)).fetchone()
            return (bool(row[0]), row[1], row[2]) if row else None

        return await self.transact(run, keep=False)

    async def flush(self) -> None:
        """Wait until everything queued before this is written. Raises :class:`StoreError` if it cannot be."""
        await self.transact(lambda tx: None, keep=False)

    def live(self, agent: str, **fields: Any) -> None:
        """What an agent does now (fields of ``LiveRow``); at most four writes a second reach the disk."""
        self._live.update(agent, fields)
        self._wake_up()

    def sample(self, sample: Sample) -> None:
        self._samples.add(sample)
        self._wake_up()

    def _wake_up(self) -> None:
        """For what may wait: while the disk fails it does not cut the pause between two tries short."""
        if self.problem is None:
            self._wake.set()

    @property
    def waiting(self) -> int:
        """Decisions that are not on disk yet."""
        return len(self._queue)

    # The task that owns the connection

    async def _serve(self) -> None:
        while not self._closing:
            await self._sleep()
            await self._write_batch(everything=False)
        while self._queue or self._live.next_due() is not None or len(self._samples):
            if not await self._write_batch(everything=True):
                return

    async def _sleep(self) -> None:
        """Until there is something to write: at once, when a live row falls due, or after a failure's pause."""
        now = self._clock()
        waits = [self._next_thinning - now]
        if self.problem is not None:
            waits.append(RETRY_S)
        elif (due := self._live.next_due()) is not None:
            waits.append(due - now)
        if not self._wake.is_set():
            try:
                await asyncio.wait_for(self._wake.wait(), timeout=max(0.0, min(waits)))
            except TimeoutError:
                pass
        self._wake.clear()

    async def _write_batch(self, *, everything: bool) -> bool:
        """One round. False if the disk failed: then nothing but new work, or the pause, brings the next round."""
        batch = self._take(everything=everything)
        if batch is None:
            return True
        done, error = await self._attempt(batch)
        if done is not None:
            self._settle(batch, done)
        elif is_trouble(error):
            self._hold(batch, error)
            return False
        elif not await self._one_by_one(batch):
            return False
        if self._queue:
            self._wake.set()
        return True

    def _take(self, *, everything: bool) -> _Batch | None:
        work = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
        batch = _Batch(work, self._live.take(everything=everything), self._samples.take())
        now = self._clock()
        if now >= self._next_thinning:
            self._next_thinning = now + DOWNSAMPLE_EVERY_S
            batch.downsample = (self._thinned, samples.cut(now))
        return batch if batch.work or batch.rows or batch.samples or batch.downsample else None

    async def _attempt(self, batch: _Batch) -> tuple[_Done | None, BaseException | None]:
        summary, now = self.summary, self._clock()
        durable = any(work.durable for work in batch.work)
        call = asyncio.ensure_future(self._on_thread(lambda c: _commit(c, summary, now, batch, durable)))
        await asyncio.wait([call])
        error = call.exception()
        return (None, error) if error is not None else (call.result(), None)

    async def _one_by_one(self, batch: _Batch) -> bool:
        """Something in the batch was wrong in itself: find it, let the rest through.

        Rows and samples are tried again without the decisions; what cannot be written even then is dropped.
        """
        if batch.work:
            self._live.give_back(batch.rows)
            for sample in batch.samples:
                self._samples.add(sample)
        rest = deque(batch.work)
        while rest:
            single = _Batch([rest.popleft()])
            done, error = await self._attempt(single)
            if done is not None:
                self._settle(single, done)
            elif is_trouble(error):
                self._hold(_Batch([*single.work, *rest]), error)
                return False
            elif error is not None and not single.work[0].done.done():
                single.work[0].done.set_exception(error)
        return True

    def _settle(self, batch: _Batch, done: _Done) -> None:
        self.problem = self._cause = None
        self.summary = done.summary
        if batch.downsample is not None:
            self._thinned = batch.downsample[1]
        for work, result in zip(batch.work, done.results, strict=True):
            if not work.done.done():
                work.done.set_result(result)
        if self.on_commit is not None and done.stored:
            asyncio.get_running_loop().call_soon(self.on_commit, done.stored)

    def _hold(self, batch: _Batch, error: BaseException | None) -> None:
        """The disk failed: tell everyone, also who waits behind this batch; keep the decisions in their order."""
        assert isinstance(error, sqlite3.Error)
        self._cause, self.problem = error, store_error(error, self.path)
        waiting = [*batch.work, *self._queue]
        for work in waiting:
            if not work.done.done():
                work.done.set_exception(type(self.problem)(self.problem.message))
        self._queue = deque(work for work in waiting if work.keep)
        self._live.give_back(batch.rows)
        for item in batch.samples:
            self._samples.add(item)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nobody may wait for a writer that is gone."""
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        self._closing = True
        self.problem = StoreError(f"{self.path}: the writer ended ({error or 'cancelled'})")
        for work in self._queue:
            if not work.done.done():
                work.done.set_exception(type(self.problem)(self.problem.message))

    async def _on_thread(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """``run`` on the connection's thread in one step: aiosqlite has no public call for a whole function."""
        execute: Callable[..., Awaitable[T]] = self._database._execute
        return await execute(run, self._database._conn)


def _commit(connection: sqlite3.Connection, summary: Summary, now: float, batch: _Batch, durable: bool) -> _Done:
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    with transaction(connection, summary, now) as tx:
        results = [work.run(tx) for work in batch.work]
        for row in batch.rows:
            tx.live(row)
        samples.write(tx, batch.samples)
        if batch.downsample is not None:
            samples.downsample(tx, *batch.downsample)
    return _Done(results, tx.summary, tx.stored)


def _checkpoint(connection: sqlite3.Connection) -> None:
    """An empty WAL lets others read the file later, even where they may not write. Not while it is unwritable."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
