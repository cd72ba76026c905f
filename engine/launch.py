"""Creating a campaign and starting its engine: detached from the terminal, or in the foreground."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import engine
from engine import paths
from engine.agent_state import mailbox_from, model_of
from engine.config import CampaignConfig
from engine.control.client import command, send
from engine.errors import BadInput, Fault, KernelArcError
from engine.guard.stop import split_budget
from engine.model_keys import dotenv_file, missing_key
from engine.presets import absolute_sources, labelled, margin_of
from engine.problems.load import problem_to_json
from engine.problems.model import Problem
from engine.problems.solution import Solution
from engine.problems.solution_io import solution_from_source
from engine.records import StopReason
from engine.store.create import create_database
from engine.store.events import AgentSpec, CampaignStarted, Stored
from engine.store.lock import engine_alive
from engine.store.reader import StoreReader
from engine.store.rows import CampaignRow
from engine.store.summary import Summary

__all__ = [
    "check_resumable",
    "create_campaign",
    "run_foreground",
    "start_detached",
]

START_LIMIT_S = 20.0
FOLLOW_S = 0.2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def create_campaign(
    config: CampaignConfig, problem: Problem, seed_solution: Solution | None = None, name: str | None = None
) -> Path:
    """A new campaign's folder with its database, ready for an engine.

    Without a seed solution the search starts from the reference itself; without a name one is made from the
    problem and the time. Raises :class:`BadInput` for settings that cannot work or a name that is taken,
    :class:`Fault` if the device is not there or no engine could open its socket.
    """
    config = absolute_sources(labelled(config))
    _check_sources(config)
    if seed_solution is not None:
        _check_seed(seed_solution, problem)
    _check_needs(config)
    paths.runtime_dir(create=True)  # before anything is left behind that no engine can be started for
    seed = seed_solution or reference_solution(problem)
    folder = _new_folder(name, problem)
    try:
        _create(folder, config, problem, seed)
    except BaseException:
        _discard(folder)
        raise
    return folder


def reference_solution(problem: Problem) -> Solution:
    """The reference as a solution: where a campaign starts that was given nothing better."""
    return solution_from_source(problem.definition.reference, problem, name="reference", author="reference")


def agent_specs(config: CampaignConfig) -> list[AgentSpec]:
    """Agents ``1`` to ``N``: proposers and models take turns, the candidate budget is split evenly."""
    shares = split_budget(config.candidates, config.agents)
    specs = []
    models = 0
    for ordinal, share in enumerate(shares):
        proposer = config.proposer[ordinal % len(config.proposer)]
        model = None
        if proposer == "llm" and config.model:
            model = config.model[models % len(config.model)]
            models += 1
        specs.append(
            AgentSpec(name=str(ordinal + 1), ordinal=ordinal, proposer=proposer, model=model, budget=share)
        )
    return specs


def check_resumable(folder: Path) -> None:
    """Raises :class:`BadInput` if the campaign has ended, an engine runs it or a model's key is missing."""
    from engine.host import refuse_ended

    if engine_alive(folder):
        raise BadInput("its engine is running", where=folder.name, fix=f"`kernelarc attach {folder.name}`")
    with StoreReader(folder) as reader:
        refuse_ended(folder, reader.summary())
        config = reader.campaign().config
        check_keys(_models_in_use(reader, config), config.api_base)


def start_detached(folder: Path, arguments: list[str] | None = None) -> None:
    """Start the engine as a process of its own that outlives this terminal, and wait until it answers.

    ``arguments`` replace ``-m engine run FOLDER`` (for another engine main). Raises :class:`BadInput` if an
    engine runs the campaign, :class:`Fault` with the engine's last words if it ends instead. One that is merely
    silent is left alone, as it may be slow and has the campaign: the :class:`Fault` says that it lives.
    """
    if engine_alive(folder):
        raise BadInput("its engine is running", where=folder.name, fix=f"`kernelarc attach {folder.name}`")
    words = [sys.executable, *(arguments or ["-m", "engine", "run", str(folder)])]
    with (folder / "engine.log").open("ab") as out:
        before = out.tell()
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=_import_root(),
            start_new_session=True,
            close_fds=True,
        )
    threading.Thread(target=process.wait, name="engine reaper", daemon=True).start()
    _await_answer(folder, process, before)


def run_foreground(folder: Path, on_event: Callable[[Stored], None], **parts: Any) -> Summary:
    """Run (or resume) the campaign in this process until it ends; ``on_event`` sees every decision in order.

    A first SIGINT stops the campaign in order and raises ``KeyboardInterrupt`` when it has ended; a second one
    ends at once and leaves it interrupted. ``parts`` replace the engine's ``bench`` and ``proposers``.
    """
    from engine.host import with_signals

    asked: list[bool] = []

    async def run() -> Summary:
        follower = asyncio.create_task(_follow(folder, on_event))
        try:
            return await with_signals(folder, end_when_stuck=True, interrupted=lambda: asked.append(True), **parts)
        finally:
            follower.cancel()
            await asyncio.wait({follower})

    try:
        summary = asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if asked:
        raise KeyboardInterrupt
    return summary


def _check_needs(config: CampaignConfig) -> None:
    """What every campaign with these settings needs from this machine, before anything is created or measured.

    Raises :class:`BadInput` for a model without its key, :class:`Fault` for a GPU that is not there.
    """
    from engine.hardware.facts import device_facts

    check_keys(config.model, config.api_base)
    device_facts(config.device)


def _models_in_use(reader: StoreReader, config: CampaignConfig) -> list[str]:
    """The models of the agents that go on when the campaign does, those that a person chose among them."""
    models: dict[str, None] = {}
    for name, agent in reader.summary().agents.items():
        if agent.spec.proposer != "llm" or agent.stopped not in (None, StopReason.FAULT):
            continue
        model = model_of(agent.spec, mailbox_from(reader.memo(name).get("mailbox")), config)
        turns = config.rotate_models and model in config.model
        models.update(dict.fromkeys(config.model if turns else [model]))
    return list(models)


def check_keys(models: Iterable[str], api_base: str | None) -> None:
    """Raises :class:`BadInput` if the provider of a model needs a key that litellm would not find."""
    file = dotenv_file()
    for model in models:
        name = missing_key(model, api_base, dotenv=file)
        if name:
            raise BadInput(
                f"model {model} needs {name}, which is not set",
                fix=f"export {name}, or name a server of your own with --api-base",
            )


def _check_seed(seed: Solution, problem: Problem) -> None:
    """What the gate refuses of a candidate is no start either: nothing that is made from it would be judged."""
    from engine.guard.gate import must_pass

    must_pass(seed, problem, "cannot be the start of a campaign", where=seed.name)


def _check_sources(config: CampaignConfig) -> None:
    """What the settings point at must be there before a campaign is created."""
    from engine.proposers.inbox import check_folder
    from engine.proposers.replay import check_recording
    from engine.skills import load_skills
    from engine.store.campaigns import resolve_campaign

    if config.memory_from is not None:
        resolve_campaign(config.memory_from)
    if config.replay is not None:
        check_recording(config.replay)
    if config.inbox is not None:
        check_folder(Path(config.inbox))
    if config.strategies:
        skills = load_skills()
        known = {skill.name for skill in skills.skills.values() if not skill.meta}
        for name in config.strategies:
            if name not in known:
                raise BadInput(f"there is no strategy {name!r}", where="strategies", fix=f"known: {_list(known)}")


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _new_folder(name: str | None, problem: Problem) -> Path:
    root = paths.campaigns_dir()
    if name is not None:
        if not _NAME.fullmatch(name):
            raise BadInput(
                f"campaign name {name!r}", where="name", fix="use letters, digits, '.', '_' and '-', at most 64"
            )
        wanted = [name]
    else:
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", problem.name).strip("-._")[:40] or "campaign"
        stamp = f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}"
        wanted = [stamp, *(f"{stamp}-{number}" for number in range(2, 100))]
    for candidate in wanted:
        folder = root / candidate
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)  # sources, prompts and replies are nobody else's business
        except FileExistsError:
            continue
        except OSError as error:
            raise BadInput(
                f"cannot be created ({error.strerror})", where=str(folder), fix="set KERNELARC_HOME"
            ) from error
        return folder
    raise BadInput(f"there is a campaign {wanted[0]!r} already", where="name", fix="choose another name")


def _create(folder: Path, config: CampaignConfig, problem: Problem, seed: Solution) -> None:
    from engine.hardware.facts import cpu_name
    from engine.tracing.kernel_type import kernel_type_of

    kernel_type = kernel_type_of(problem.definition, None)
    row = CampaignRow(
        name=folder.name,
        problem_name=problem.name,
        problem=problem_to_json(problem).decode(),
        kernel_type=kernel_type,
        config=config,
        device=config.device,
        created_at=time.time(),
    )
    started = CampaignStarted(
        name=folder.name,
        problem=problem.name,
        device=config.device,
        device_name=cpu_name() if config.device == "cpu" else config.device,
        kernel_type=kernel_type,
        config=config.config,
        agents=agent_specs(config),
        budget=config.candidates,
        max_cost_usd=config.max_cost,
        minutes=config.minutes,
        target_speedup=config.target_speedup,
        r_draft=config.draft_after,
        r_stop=config.stop_after,
        margin=margin_of(config),
    )
    create_database(folder / "campaign.db", row, seed, started)


def _discard(folder: Path) -> None:
    """Take back a folder whose database could not be created."""
    for leftover in folder.glob("campaign.db*"):
        leftover.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        pass


def _import_root() -> Path:
    """Where ``engine`` is imported from: the checkout or site-packages, so that ``-m engine`` finds this one."""
    return Path(engine.__file__).resolve().parent.parent


def _await_answer(folder: Path, process: subprocess.Popen[bytes], log_start: int) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        code = process.poll()
        if code is not None:
            if code == 0:  # a campaign that had next to nothing left to do
                return
            raise Fault("fault.engine-start", _last_words(folder / "engine.log", log_start, code))
        try:
            if send(folder, command("ping"), timeout_s=2.0).ok:
                return
        except KernelArcError:
            time.sleep(0.05)
    raise Fault(
        "fault.engine-start",
        f"the engine (process {process.pid}) has not answered within {START_LIMIT_S:g} s, and runs on;"
        f" `kernelarc attach {folder.name}` shows it, {folder / 'engine.log'} may say why",
    )


def _last_words(path: Path, start: int, code: int) -> str:
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read()[-4000:].decode(errors="replace").strip().splitlines()
    words = lines[-1] if lines else f"exit status {code}"
    return f"the engine ended at once: {words} (see {path})"


async def _follow(folder: Path, on_event: Callable[[Stored], None]) -> None:
    """Hand every decision of this run to ``on_event``; on cancellation the rest that is stored, then end."""
    with StoreReader(folder) as reader:
        seen = reader.last_seq()
        if seen <= 1:  # nothing but its beginning: this is the first run
            seen = 0

        def hand_on() -> None:
            nonlocal seen
            while stored := reader.events(seen):
                for item in stored:
                    on_event(item)
                seen = stored[-1].seq

        try:
            while True:
                if reader.changed():
                    hand_on()
                await asyncio.sleep(FOLLOW_S)
        finally:
            hand_on()
