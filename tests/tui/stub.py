"""An engine whose agents stand still: the real lock, writer, socket and answers, and no candidate at all."""

from __future__ import annotations

from pathlib import Path

from engine.control.protocol import Answer, Command
from engine.control.server import ControlServer
from engine.errors import KernelArcError
from engine.store import events as ev
from engine.store.lock import CampaignLock
from engine.store.writer import StoreWriter


class StubEngine:
    """Carries commands out on the store as the engine does, and remembers them in ``commands``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[Command] = []
        self.refuse = ""
        self._lock = CampaignLock(folder)

    async def start(self) -> None:
        self._lock.acquire()
        self.writer = await StoreWriter.open(self.folder / "campaign.db")
        self._server = ControlServer(self.folder, self._handle)
        await self._server.start()

    async def close(self) -> None:
        await self._server.close()
        await self.writer.close()
        self._lock.release()

    @property
    def last(self) -> Command:
        return self.commands[-1]

    async def _handle(self, command: Command) -> Answer:
        self.commands.append(command)
        ok, text = True, f"{command.verb} carried out"
        try:
            if self.refuse:
                ok, text = False, self.refuse
            else:
                await self._carry_out(command)
        except KernelArcError as error:
            ok, text = False, error.message
        args = {"agent": command.agent} if command.agent else {}
        stored = await self.writer.append(
            ev.CommandAnswered(id=command.id, verb=command.verb, args=args, ok=ok, text=text)
        )
        return Answer(id=command.id, ok=ok, text=text, seq=stored[0].seq)

    async def _carry_out(self, command: Command) -> None:
        agent, writer = command.agent, self.writer
        match command.verb:
            case "pause":
                await writer.append(ev.AgentPaused(agent=agent) if agent else ev.CampaignPaused())
            case "resume":
                await writer.append(ev.AgentResumed(agent=agent) if agent else ev.CampaignResumed())
            case "hint":
                await writer.append(ev.HintGiven(agent=agent or "1", text=command.text))
            case "stop" if agent:
                await writer.append(ev.AgentStopped(agent=agent, reason="user"))
            case "stop":
                await writer.append(ev.CampaignEnded(state="stopped", reason="user"))
            case "veto" | "memory.pin" | "memory.unpin" | "memory.expire" | "memory.note":
                await writer.edit(command.verb, command.number, command.text)
            case "budget":
                await writer.append(ev.BudgetChanged(candidates=command.candidates, minutes=command.minutes))
