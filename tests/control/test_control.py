"""The control socket: private, many clients, one answer a command, clear words when nobody is there."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from engine import paths
from engine.control import client
from engine.control.protocol import Answer, Command
from engine.control.server import LINE_LIMIT, ControlServer
from engine.errors import BadInput, Fault
from engine.launch import create_campaign
from engine.presets import resolve
from engine.problems.library import find_problem
from engine.store.lock import CampaignLock

Handler = Callable[[Command], Awaitable[Answer]]


@pytest.fixture
def folder() -> Path:
    path = paths.campaign_dir("c1")
    path.mkdir(parents=True)
    return path


class Engine:
    """Counts what it carries out; ``slow`` holds an answer back."""

    def __init__(self) -> None:
        self.done: list[Command] = []
        self.slow = asyncio.Event()
        self.slow.set()

    async def handle(self, command: Command) -> Answer:
        self.done.append(command)
        await self.slow.wait()
        if command.verb == "veto":
            raise BadInput("candidate 3 is not a KEEP")
        if command.verb == "profile":
            raise KeyError("2")
        if command.verb == "draft" and command.text == "cancelled":
            raise asyncio.CancelledError
        return Answer(id=command.id, ok=True, text=f"{command.verb} done", seq=len(self.done))


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[Engine]:
    with CampaignLock(folder):
        made = Engine()
        server = ControlServer(folder, made.handle)
        await server.start()
        yield made
        made.slow.set()
        await server.close()


async def raw(folder: Path, data: bytes) -> list[dict[str, object]]:
    """What the server answers to bytes."""
    reader, writer = await asyncio.open_unix_connection(str(paths.socket_path(folder)))
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return [json.loads(line) for line in answer.splitlines()]


async def test_a_command_is_carried_out_and_answered(engine: Engine, folder: Path) -> None:
    order = client.command("hint", agent="a1", text="try 8 warps")
    answer = await client.asend(folder, order)
    assert answer == Answer(id=order.id, ok=True, text="hint done", seq=1)
    assert engine.done == [order]


async def test_the_blocking_client_says_the_same(engine: Engine, folder: Path) -> None:
    answer = await asyncio.to_thread(client.send, folder, client.command("ping"))
    assert (answer.ok, answer.text) == (True, "ping done")


async def test_only_the_owner_can_reach_the_socket(engine: Engine, folder: Path) -> None:
    path = paths.socket_path(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(str(path)) < 108


async def test_a_repeated_command_is_carried_out_once(engine: Engine, folder: Path) -> None:
    order = client.command("draft", agent="a1")
    engine.slow.clear()
    sent = [asyncio.create_task(client.asend(folder, order)) for _ in range(3)]
    await asyncio.sleep(0.05)
    engine.slow.set()
    answers = await asyncio.gather(*sent)
    answers.append(await client.asend(folder, order))
    assert len({answer.seq for answer in answers}) == 1
    assert len(engine.done) == 1


async def test_a_command_that_an_earlier_engine_answered_is_answered_from_the_record(folder: Path) -> None:
    made = Engine()

    async def recall(identity: str) -> Answer | None:
        return Answer(id=identity, ok=True, text="paused before", seq=7) if identity == "old" else None

    with CampaignLock(folder):
        server = ControlServer(folder, made.handle, recall)
        await server.start()
        assert (await client.asend(folder, Command(id="old", verb="pause"))).text == "paused before"
        assert (await client.asend(folder, Command(id="new", verb="pause"))).text == "pause done"
        await server.close()
    assert [command.id for command in made.done] == ["new"]


async def test_a_refusal_is_an_answer(engine: Engine, folder: Path) -> None:
    answer = await client.asend(folder, client.command("veto", number=3))
    assert (answer.ok, answer.text) == (False, "candidate 3 is not a KEEP")


async def test_what_is_no_command_gets_one_clear_line(engine: Engine, folder: Path) -> None:
    for data, word in (
        (b"hello\n", "not a command"),
        (b'{"id": 3}\n', "not a command"),
        (b'{"id": "x", "verb": "explode"}\n', "unknown command 'explode'"),
        (b'{"id": "x", "verb": "veto", "number": 999999999999999999999999}\n', "not a command"),
        (b"\xff\xfe\x00\n", "not a command"),
        (
            b'{"id": "x", "verb": "hint", "text": "' + b"a" * 2 * LINE_LIMIT + b'"}\n',
            f"may have {LINE_LIMIT} bytes",
        ),
    ):
        answers = await raw(folder, data)
        assert len(answers) == 1, data[:40]
        assert (
            answers[0]["ok"] is False and word in str(answers[0]["text"]) and "\n" not in str(answers[0]["text"])
        )
    assert engine.done == []
    assert (await client.asend(folder, client.command("ping"))).ok


@pytest.mark.parametrize(
    ("verb", "text", "said"), [("profile", "", "KeyError: '2'"), ("draft", "cancelled", "given up")]
)
async def test_a_command_that_fails_in_a_way_nobody_thought_of_is_answered(
    engine: Engine, folder: Path, verb: str, text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    order = client.command(verb, text=text)
    answer = await client.asend(folder, order, timeout_s=2.0)
    assert not answer.ok and answer.text.startswith("fault.command: ") and said in answer.text
    assert await client.asend(folder, order, timeout_s=2.0) == answer and len(engine.done) == 1
    assert verb != "profile" or "Traceback" in caplog.text


async def test_one_connection_may_send_many_lines(engine: Engine, folder: Path) -> None:
    data = b"".join(b'{"id": "%d", "verb": "ping"}\n\n' % i for i in range(20))
    assert {answer["id"] for answer in await raw(folder, data)} == {str(i) for i in range(20)}


async def test_many_clients_and_one_that_says_nothing(engine: Engine, folder: Path) -> None:
    silent = [await asyncio.open_unix_connection(str(paths.socket_path(folder))) for _ in range(5)]
    answers = await asyncio.gather(*(client.asend(folder, client.command("ping")) for _ in range(50)))
    assert len({answer.id for answer in answers}) == 50
    for _, writer in silent:
        writer.close()


async def test_a_client_that_leaves_early_takes_nobody_along(engine: Engine, folder: Path) -> None:
    engine.slow.clear()
    _, writer = await asyncio.open_unix_connection(str(paths.socket_path(folder)))
    writer.write(b'{"id": "gone", "verb": "pause"}\n')
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.transport.abort()
    engine.slow.set()
    assert (await client.asend(folder, Command(id="gone", verb="pause"))).ok
    assert len(engine.done) == 1


async def test_closing_lets_a_running_command_answer(folder: Path) -> None:
    made = Engine()
    with CampaignLock(folder):
        server = ControlServer(folder, made.handle)
        await server.start()
        made.slow.clear()
        sent = asyncio.create_task(client.asend(folder, client.command("stop")))
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_later(0.05, made.slow.set)
        await server.close()
        assert (await sent).text == "stop done"
    assert not paths.socket_path(folder).exists()


async def test_without_an_engine_the_line_says_how_to_get_one(folder: Path) -> None:
    for attempt in (lambda: asyncio.to_thread(client.send, folder, client.command("ping")), None):
        with pytest.raises(BadInput, match="no engine runs this campaign; `kernelarc resume c1`"):
            await (attempt() if attempt else client.asend(folder, client.command("ping")))


async def test_an_engine_that_does_not_answer_is_not_waited_for_for_ever(engine: Engine, folder: Path) -> None:
    engine.slow.clear()
    with pytest.raises(Fault, match=r"not answered within 0\.1 s"):
        await client.asend(folder, client.command("pause"), timeout_s=0.1)
    with pytest.raises(Fault, match=r"not answered within 0\.1 s"):
        await asyncio.to_thread(client.send, folder, client.command("pause"), 0.1)


async def test_an_engine_that_is_just_starting_is_not_called_absent(folder: Path) -> None:
    with CampaignLock(folder), pytest.raises(Fault, match="starting or ending"):
        await client.asend(folder, client.command("ping"))


STALE = """
import asyncio, sys
from pathlib import Path
from engine.control.server import ControlServer
from engine.store.lock import CampaignLock
async def main():
    CampaignLock(Path(sys.argv[1])).acquire()
    await ControlServer(Path(sys.argv[1]), None).start()
    print("up", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_a_killed_engines_socket_is_replaced_under_the_lock_only(folder: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", STALE, str(folder)], stdout=subprocess.PIPE, env={**os.environ})
    assert dead.stdout is not None
    assert dead.stdout.readline() == b"up\n"
    made = Engine()
    server = ControlServer(folder, made.handle)
    with pytest.raises(Fault, match="not held by this process"):
        await server.start()
    dead.send_signal(signal.SIGKILL)
    dead.communicate()
    assert paths.socket_path(folder).exists()
    with pytest.raises(BadInput, match="no engine runs"):
        await client.asend(folder, client.command("ping"))
    with CampaignLock(folder):
        await server.start()
        assert (await client.asend(folder, client.command("ping"))).ok
        await server.close()


async def test_a_foreign_file_in_the_sockets_place_is_not_removed(folder: Path) -> None:
    path = paths.socket_path(folder)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text("mine")
    with CampaignLock(folder), pytest.raises(Fault, match="is not a socket"):
        await ControlServer(folder, Engine().handle).start()
    assert path.read_text() == "mine"


async def test_an_open_runtime_folder_is_refused_by_both_ends(folder: Path) -> None:
    runtime = paths.runtime_dir(create=True)
    runtime.chmod(0o755)
    with CampaignLock(folder), pytest.raises(Fault, match="mode 0700"):
        ControlServer(folder, Engine().handle)
    with pytest.raises(Fault, match="mode 0700"):
        client.send(folder, client.command("ping"))
    with pytest.raises(Fault, match="mode 0700"):
        await client.asend(folder, client.command("ping"))


def _folders_that_are_none(base: Path) -> dict[str, str]:
    (base / "file").write_text("")
    closed = base / "closed"
    closed.mkdir()
    closed.chmod(0o500)
    others = base / "others"
    others.mkdir()
    if os.getuid() == 0:
        os.chown(others, 12345, 12345)
    names = {"gone": str(base / "gone"), "a file": str(base / "file"), "relative": "run", "unset": ""}
    return names | ({"another user's": str(others)} if os.getuid() == 0 else {"read-only": str(closed)})


def test_a_runtime_folder_that_is_gone_or_not_ours_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for what, value in _folders_that_are_none(tmp_path).items():
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        assert paths.runtime_dir() == Path(f"/tmp/kernelarc-{os.getuid()}"), what
    assert not (tmp_path / "gone").exists()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert paths.runtime_dir(create=True) == tmp_path / "kernelarc"
    assert (tmp_path / "kernelarc").is_dir()


async def test_an_engine_starts_and_is_found_after_the_runtime_folder_is_gone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "logged-out" / "1000"))
    with CampaignLock(folder):
        server = ControlServer(folder, Engine().handle)
        await server.start()
        assert (await client.asend(folder, client.command("ping"))).ok
        await server.close()


def test_a_runtime_folder_that_cannot_be_made_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(Fault, match=r"cannot be used .*No space left.*set XDG_RUNTIME_DIR"):
        paths.runtime_dir(create=True)


def test_no_campaign_is_left_behind_where_no_engine_could_be_reached() -> None:
    runtime = paths.runtime_dir(create=True)
    runtime.chmod(0o755)
    with pytest.raises(Fault, match="mode 0700"):
        create_campaign(resolve({"device": "cpu"}), find_problem("scaled_softmax_bf16"), None, "left-behind")
    assert not paths.campaign_dir("left-behind").exists()


async def test_the_socket_of_a_later_engine_survives_an_earlier_ones_close(folder: Path) -> None:
    with CampaignLock(folder):
        first, second = (ControlServer(folder, Engine().handle) for _ in range(2))
        await first.start()
        await second.start()
        await first.close()
        assert (await client.asend(folder, client.command("ping"))).ok
        await second.close()


def test_the_answer_of_something_else_is_a_clear_line(folder: Path) -> None:
    path = paths.socket_path(folder)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    code = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\n"
        "s.bind(sys.argv[1])\ns.listen()\nprint(flush=True)\n"
        "c, _ = s.accept()\nc.recv(4096)\nc.sendall(b'HTTP/1.1 400\\n')\nc.close()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    with pytest.raises(Fault, match="cannot be read"):
        client.send(folder, client.command("ping"))
    other.communicate()
