"""A real engine process that is killed, hung up on and taken up again loses nothing and counts nothing twice."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from engine.agent_state import Mailbox
from engine.control.client import command, send
from engine.errors import BadInput, Fault, KernelArcError
from engine.launch import check_resumable, create_campaign, start_detached
from engine.presets import resolve
from engine.records import CampaignState, StopReason
from engine.store import events as ev
from engine.store.campaigns import campaign_state
from engine.store.lock import engine_alive
from engine.store.reader import StoreReader
from engine.store.tx import Tx
from engine.store.writer import StoreWriter

MAIN = Path(__file__).resolve().parent.parent / "fixtures" / "engine_main.py"
KILLS = 20


def start(folder: Path, delay_s: float, *more: str, **environ: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "FAKE_DELAY_S": str(delay_s), **environ}
    with (folder / "engine.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(MAIN), str(folder), *more],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(folder: Path) -> list[int]:
    with StoreReader(folder) as reader:
        return [s.event.pid for s in reader.events(0, 100_000) if isinstance(s.event, ev.EngineAttached)]


def wait_for(condition, timeout_s: float = 30.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def candidates(folder: Path) -> int:
    with StoreReader(folder) as reader:
        return reader.summary().candidates


def test_twenty_kills_at_random_moments_lose_nothing(problem) -> None:  # type: ignore[no-untyped-def]
    budget = 500
    config = resolve({"candidates": budget, "agents": 4, "draft_after": 3, "stop_after": 10_000})
    folder = create_campaign(config, problem, None, "survivor")
    rng = random.Random(11)
    while_working = 0
    for _ in range(KILLS):
        process = start(folder, delay_s=0.03)
        attached = len(pids(folder))
        if rng.random() < 0.8:  # mostly while it works, sometimes while it is still starting
            wait_for(lambda seen=attached: len(pids(folder)) > seen)
            while_working += 1
        time.sleep(rng.uniform(0.0, 0.35))
        process.kill()
        process.wait()
        with StoreReader(folder) as reader:
            assert campaign_state(folder, reader.summary()) is CampaignState.INTERRUPTED
    assert while_working >= 10 and candidates(folder) < budget, "the kills must have hit a working engine"

    last = start(folder, delay_s=0.0)
    assert last.wait(timeout=60) == 0

    with StoreReader(folder) as reader:
        summary = reader.summary()
        rows = reader.candidates_after(0, 10_000)
        verdicts = [s.event for s in reader.events(0, 100_000) if isinstance(s.event, ev.Verdict)]
        refolded = reader.summary_at(reader.last_seq())
    assert summary.candidates == len(rows) == len(verdicts) == budget
    assert [row.number for row in rows] == list(range(1, budget + 1))
    for name, agent in summary.agents.items():
        positions = [row.position for row in rows if row.agent == name]
        assert positions == list(range(1, (agent.budget or 0) + 1)), "every position once, none left out"
    assert [(v.number, v.agent, v.position, v.outcome) for v in verdicts] == [
        (row.number, row.agent, row.position, row.outcome) for row in rows
    ]
    assert refolded == summary
    assert summary.stop_reason is StopReason.CANDIDATES
    assert not any(alive(pid) for pid in pids(folder))
    assert not engine_alive(folder)


def test_what_was_proposed_depends_on_the_store_alone(problem) -> None:  # type: ignore[no-untyped-def]
    """An engine that was killed on the way proposes what an undisturbed one does."""
    sources = []
    for name, kills in (("straight", 0), ("broken", 4)):
        config = resolve({"config": "single", "candidates": 40, "draft_after": 3, "stop_after": 100})
        folder = create_campaign(config, problem, None, name)
        for _ in range(kills):
            process = start(folder, delay_s=0.02)
            attached = len(pids(folder))
            wait_for(lambda folder=folder, seen=attached: len(pids(folder)) > seen)
            time.sleep(0.15)
            process.kill()
            process.wait()
        assert start(folder, delay_s=0.0).wait(timeout=30) == 0
        with StoreReader(folder) as reader:
            rows = reader.candidates_after(0, 100)
            sources.append([(row.source_sha, row.mode, row.strategy, row.outcome, row.parent) for row in rows])
    assert sources[0] == sources[1]


def test_a_closed_terminal_does_not_stop_a_campaign(problem, tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = resolve({"candidates": 2000, "agents": 2, "draft_after": 3, "stop_after": 10_000})
    folder = create_campaign(config, problem, None, "hangup")
    start_detached(folder, [str(MAIN), str(folder)])
    pid = pids(folder)[-1]
    try:
        assert os.getsid(pid) == pid, "its own session: the terminal's end cannot reach it"
        os.kill(pid, signal.SIGHUP)
        before = candidates(folder)
        wait_for(lambda: candidates(folder) > before + 5)
        with pytest.raises(BadInput):
            check_resumable(folder)
        assert send(folder, command("stop")).ok
        wait_for(lambda: not alive(pid))
    finally:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    with StoreReader(folder) as reader:
        assert reader.summary().state is CampaignState.STOPPED
    with pytest.raises(BadInput, match="has ended"):
        check_resumable(folder)


def test_sigterm_leaves_the_campaign_to_be_resumed(problem) -> None:  # type: ignore[no-untyped-def]
    config = resolve({"candidates": 60, "agents": 2, "draft_after": 3, "stop_after": 1000})
    folder = create_campaign(config, problem, None, "shutdown")
    process = start(folder, delay_s=0.02)
    wait_for(lambda: candidates(folder) >= 3)
    process.terminate()
    assert process.wait(timeout=10) == 130
    with StoreReader(folder) as reader:
        assert campaign_state(folder, reader.summary()) is CampaignState.INTERRUPTED
    check_resumable(folder)
    assert start(folder, delay_s=0.0).wait(timeout=30) == 0
    assert candidates(folder) == 60


async def test_a_resume_needs_the_keys_of_the_models_that_are_still_asked(problem, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Not one of an agent that has stopped, and not one that a person has replaced."""
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GROQ_API_KEY")
    for key in keys:
        monkeypatch.setenv(key, "x")
    models = ["openai/gpt-5", "anthropic/claude-sonnet-4-5"]
    folder = create_campaign(resolve({"proposer": ["llm"], "model": models, "agents": 2}), problem, None, "keys")

    async def write(*events: ev.Event, model: str = "") -> None:
        def run(tx: Tx) -> None:
            for event in events:
                tx.append(event)
            if model:
                tx.memo("2", "mailbox", msgspec.to_builtins(Mailbox(model=model)))

        writer = await StoreWriter.open(folder / "campaign.db")
        await writer.transact(run)
        await writer.close()

    def missing() -> str:
        """The keys that a resume asks for, one after the other."""
        asked = []
        with pytest.MonkeyPatch.context() as environment:
            for key in keys:
                environment.delenv(key)
            while True:
                try:
                    check_resumable(folder)
                    return " ".join(asked)
                except BadInput as error:
                    asked.append(next(key for key in keys if f"needs {key}" in error.message))
                    environment.setenv(asked[-1], "x")

    assert missing() == "OPENAI_API_KEY ANTHROPIC_API_KEY"
    await write(ev.AgentStopped(agent="1", reason=StopReason.USER), model="groq/llama")
    assert missing() == "GROQ_API_KEY"
    await write(ev.AgentResumed(agent="1", by="user"), ev.AgentStopped(agent="1", reason=StopReason.FAULT))
    assert missing() == "OPENAI_API_KEY GROQ_API_KEY", "what a fault stopped goes on with the campaign"


def test_sigint_stops_in_order(problem) -> None:  # type: ignore[no-untyped-def]
    config = resolve({"candidates": 1000, "agents": 2, "draft_after": 3, "stop_after": 10_000})
    folder = create_campaign(config, problem, None, "interrupt")
    process = start(folder, delay_s=0.02)
    wait_for(lambda: candidates(folder) >= 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 0
    with StoreReader(folder) as reader:
        summary = reader.summary()
    assert (summary.state, summary.stop_reason) == (CampaignState.STOPPED, StopReason.USER)


def test_a_campaign_has_one_engine(problem) -> None:  # type: ignore[no-untyped-def]
    config = resolve({"candidates": 1000, "agents": 1, "draft_after": 3, "stop_after": 10_000})
    folder = create_campaign(config, problem, None, "twice")
    first = start(folder, delay_s=0.02)
    try:
        wait_for(lambda: candidates(folder) >= 1)
        with pytest.raises(KernelArcError, match="engine is running"):
            start_detached(folder, [str(MAIN), str(folder)])
        seen = candidates(folder)
        wait_for(lambda: candidates(folder) > seen)
    finally:
        first.kill()
        first.wait()


def test_an_engine_that_cannot_start_says_why(problem, tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = resolve({"candidates": 5, "agents": 1})
    folder = create_campaign(config, problem, None, "damaged")
    (folder / "campaign.db").write_bytes(b"not a database at all, " * 400)
    with pytest.raises(KernelArcError, match="not a KernelArc campaign database"):
        start_detached(folder)


def test_an_engine_that_is_silent_but_lives_is_not_called_dead(problem, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("engine.launch.START_LIMIT_S", 0.2)
    folder = create_campaign(resolve({"candidates": 5, "agents": 1}), problem, None, "slow-start")
    with pytest.raises(Fault, match=r"runs on; `kernelarc attach slow-start`") as told:
        start_detached(folder, ["-c", "import time; time.sleep(60)"])
    pid = int(re.search(r"process (\d+)", told.value.message)[1])  # type: ignore[index]
    try:
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid))


def test_a_bench_that_closes_slowly_does_not_change_the_exit_code(problem) -> None:  # type: ignore[no-untyped-def]
    folder = create_campaign(resolve({"candidates": 3, "agents": 1}), problem, None, "slow-close")
    assert start(folder, 0.0, FAKE_CLOSE_S="60", CLOSE_LIMIT_S="0.2").wait(timeout=30) == 0
    log = (folder / "engine.log").read_text()
    assert "not closed within 0.2 s" in log and "Traceback" not in log
    with StoreReader(folder) as reader:
        assert reader.summary().state is CampaignState.FINISHED


def lines_of(folder: Path) -> list[tuple[int, str]]:
    printed = [line.split() for line in (folder / "engine.log").read_text().splitlines()]
    return [(int(words[0]), words[1]) for words in printed if len(words) == 2 and words[0].isdigit()]


def test_in_the_foreground_every_decision_is_shown_once_and_in_order(problem) -> None:  # type: ignore[no-untyped-def]
    config = resolve({"candidates": 30, "agents": 2, "draft_after": 3, "stop_after": 1000})
    folder = create_campaign(config, problem, None, "foreground")
    assert start(folder, 0.0, "foreground").wait(timeout=30) == 0
    shown = lines_of(folder)
    with StoreReader(folder) as reader:
        stored = [(s.seq, type(s.event).__name__) for s in reader.events(0, 10_000)]
    assert shown == stored and shown[-1][1] == "CampaignEnded"
    assert "scale_rows" in (folder / "report.txt").read_text()


def test_an_interrupt_in_the_foreground_stops_in_order_and_a_second_one_at_once(problem) -> None:  # type: ignore[no-untyped-def]
    config = resolve({"candidates": 1000, "agents": 2, "draft_after": 3, "stop_after": 10_000})
    folder = create_campaign(config, problem, None, "interrupted-once")
    process = start(folder, 0.02, "foreground")
    wait_for(lambda: candidates(folder) >= 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    assert lines_of(folder)[-1][1] == "CampaignEnded"
    with StoreReader(folder) as reader:
        assert reader.summary().state is CampaignState.STOPPED

    folder = create_campaign(config, problem, None, "interrupted-before-it-began")
    process = start(folder, 5.0, "foreground")
    wait_for(lambda: bool(pids(folder)))
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    assert not alive(process.pid)


def test_resume_goes_on_with_a_campaign_that_was_paused_when_its_engine_died(problem) -> None:  # type: ignore[no-untyped-def]
    config = resolve({"candidates": 40, "agents": 2, "draft_after": 3, "stop_after": 1000})
    folder = create_campaign(config, problem, None, "paused")
    process = start(folder, 0.05)
    wait_for(lambda: candidates(folder) >= 2)
    assert send(folder, command("pause")).ok
    assert send(folder, command("hint", text="after the break", agent="1")).ok
    assert send(folder, command("draft", agent="2")).ok
    process.kill()
    process.wait()
    with StoreReader(folder) as reader:
        assert reader.summary().state is CampaignState.PAUSED
        before = {name: agent.candidates for name, agent in reader.summary().agents.items()}
    assert start(folder, 0.0).wait(timeout=30) == 0
    with StoreReader(folder) as reader:
        events = [s.event for s in reader.events(0, 10_000)]
        rows = reader.candidates_after(0, 100)
    assert len(rows) == 40
    delivered = [e for e in events if isinstance(e, ev.HintDelivered)]
    assert [(e.agent, e.text) for e in delivered] == [("1", "after the break")]
    opened = [e for e in events if isinstance(e, ev.DraftLineOpened) and e.agent == "2"]
    assert opened and any(e.forced for e in opened)
    drafted = next(row for row in rows if row.agent == "2" and row.mode == "draft")
    assert drafted.position <= before["2"] + 2, "what was asked for before the kill is not forgotten"
