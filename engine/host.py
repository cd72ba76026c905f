"""The engine process around one campaign: lock, store, socket, signals, telemetry, and an orderly end.

SIGHUP is ignored: closing a terminal is no reason to stop. SIGTERM leaves the campaign as it is, to be resumed.
SIGINT asks the campaign to stop, a second one ends the process at once like SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from engine.bench.api import Bench, OpenBench
from engine.campaign import BuildProposer, Launcher
from engine.commands import Commands
from engine.control.server import ControlServer
from engine.errors import BadInput, KernelArcError, StoreError
from engine.problems.load import problem_from_json
from engine.proposers import build_proposer
from engine.records import CampaignState, StopReason
from engine.session import Session, log
from engine.skills import load_skills
from engine.store.lock import CampaignLock
from engine.store.reader import StoreReader
from engine.store.summary import Summary
from engine.store.writer import StoreWriter
from engine.watch import MachineWatch

REPORT_FILE = "report.txt"
INTERRUPTED = 130
CLOSE_LIMIT_S = 20.0
CANCEL_GRACE_S = 1.0

Started = Callable[[Launcher], None]


def product_bench(owner: str) -> OpenBench:
    """The bench that ships, under the campaign's name. Imported when an engine starts, not before."""
    from engine.bench import open_bench

    return partial(open_bench, owner=owner)


async def serve(
    folder: Path,
    *,
    bench: OpenBench | None = None,
    proposers: BuildProposer = build_proposer,
    end_when_stuck: bool = False,
    started: Started | None = None,
) -> Summary:
    """Run the campaign in ``folder`` until it ends or this is cancelled; returns its summary.

    Raises:
        BadInput: another engine runs it, or it has ended.
        StoreError: its database cannot be used.
    """
    with CampaignLock(folder):
        async with _opened(folder, bench or product_bench(folder.name)) as session:
            launcher = Launcher(session, proposers=proposers, end_when_stuck=end_when_stuck)
            commands = Commands(launcher)
            server = ControlServer(folder, commands.handle, commands.recall)
            await server.start()
            try:
                async with MachineWatch(session):
                    if started is not None:
                        started(launcher)
                    await launcher.run()
            finally:
                await server.close()
            write_report(session)
            return session.summary


def write_report(session: Session) -> None:
    """``report.txt`` in the campaign's folder: what the search came to, readable without this program."""
    from engine.reports.report import build_report, report_text

    try:
        text = report_text(build_report(session.reader, session.folder))
        (session.folder / REPORT_FILE).write_text(text + "\n", encoding="utf-8")
    except (OSError, StoreError) as error:
        log.error("the report was not written: %s", error)


@asynccontextmanager
async def _opened(folder: Path, bench: OpenBench) -> AsyncIterator[Session]:
    """The session of a stored campaign; everything it holds is closed again, the bench first."""
    writer = await StoreWriter.open(folder / "campaign.db")
    try:
        reader = StoreReader(folder)
        try:
            row = reader.campaign()
            refuse_ended(folder, writer.summary)
            problem = problem_from_json(row.problem.encode())
            scratch = folder / "scratch"
            scratch.mkdir(mode=0o700, exist_ok=True)
            session = Session(
                folder=folder,
                config=row.config,
                problem=problem,
                kernel_type=row.kernel_type,
                writer=writer,
                reader=reader,
                bench=bench(problem, row.device, scratch),
                skills=load_skills(),
            )
            try:
                yield session
            finally:
                await _close(session.bench)
        finally:
            reader.close()
    finally:
        await writer.close()


async def _close(bench: Bench) -> None:
    """Give the device back. A bench that is slow at it, or fails, changes nothing in how the campaign ended."""
    closing = asyncio.create_task(bench.close(), name="close the bench")
    try:
        await asyncio.wait({closing}, timeout=CLOSE_LIMIT_S)
        if not closing.done():
            log.error("the bench was not closed within %g s; processes of it may be left", CLOSE_LIMIT_S)
            closing.cancel()
            await asyncio.wait({closing}, timeout=CANCEL_GRACE_S)
    except asyncio.CancelledError:
        closing.cancel()
        raise
    if closing.done() and not closing.cancelled() and (error := closing.exception()) is not None:
        log.error("the bench was not closed in order", exc_info=error)


def refuse_ended(folder: Path, summary: Summary) -> None:
    """Only what was interrupted, paused or ended by a fault can be taken up again. Raises :class:`BadInput`."""
    ended = summary.state in (CampaignState.FINISHED, CampaignState.STOPPED)
    if ended and summary.stop_reason is not StopReason.FAULT:
        raise BadInput(
            f"the campaign has ended ({summary.stop_reason})",
            where=folder.name,
            fix="start a new one with `kernelarc run`, --seed-solution and --memory-from",
        )


def run_process(folder: Path, **options: object) -> int:
    """The whole life of an engine process that was started for ``folder``: returns its exit code.

    One clear line on standard error, no traceback, where a person can do something about it.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=[logging.StreamHandler()]
    )
    try:
        summary = asyncio.run(with_signals(folder, **options))  # type: ignore[arg-type]
    except KernelArcError as error:
        log.error("%s", error.message)
        return error.exit_code
    except asyncio.CancelledError:
        log.warning("interrupted; `kernelarc resume %s` goes on", folder.name)
        return INTERRUPTED
    return 3 if summary.stop_reason is StopReason.FAULT else 0


async def with_signals(
    folder: Path,
    *,
    bench: OpenBench | None = None,
    proposers: BuildProposer = build_proposer,
    end_when_stuck: bool = False,
    interrupted: Callable[[], None] | None = None,
) -> Summary:
    """:func:`serve` under the engine's signal manners. ``interrupted`` is told of the first SIGINT."""
    task = asyncio.current_task()
    assert task is not None
    launchers: list[Launcher] = []
    asked: list[int] = []

    def interrupt() -> None:
        asked.append(signal.SIGINT)
        if len(asked) > 1 or not launchers:
            task.cancel()
            return
        if interrupted is not None:
            interrupted()
        launchers[0].request_stop("interrupted from the terminal")

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    try:
        return await serve(
            folder, bench=bench, proposers=proposers, end_when_stuck=end_when_stuck, started=launchers.append
        )
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
