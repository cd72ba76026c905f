"""The base of every screen of an open campaign: the same controls under the same keys."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from textual import work
from textual.binding import Binding, BindingType

from engine.records import CampaignState
from engine.store.summary import AgentSummary
from kernelarc_tui import fmt
from kernelarc_tui.describe import EventRow
from kernelarc_tui.safe import one_line
from kernelarc_tui.screens.base import SizedScreen
from kernelarc_tui.view import ENDED, View, label_of
from kernelarc_tui.widgets.keyline import KeyLine

if TYPE_CHECKING:
    from kernelarc_tui.app import KernelArcApp
    from kernelarc_tui.session import Session

Hint = tuple[str, str, str]
ALL = "*"


class CampaignScreen(SizedScreen):
    """Subclasses implement :meth:`show_view` and, where they have one, :meth:`chosen_agent` and ``hints``."""

    BINDING_GROUP_TITLE = "Campaign"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause", show=False, id="do.pause", tooltip="pause or resume the campaign"),
        Binding(
            "P",
            "pause_agent",
            "Pause agent",
            show=False,
            id="do.pause-agent",
            tooltip="pause, resume or restart the agent",
        ),
        Binding("d", "draft", "Draft", show=False, id="do.draft", tooltip="the selected agent drafts next"),
        Binding("D", "draft_all", "Draft all", show=False, id="do.draft-all", tooltip="every agent drafts next"),
        Binding("h", "hint", "Hint", show=False, id="do.hint", tooltip="a hint for the selected agent"),
        Binding("H", "hint_all", "Hint all", show=False, id="do.hint-all", tooltip="a hint for every agent"),
        Binding("v", "veto", "Veto", show=False, id="do.veto", tooltip="take a KEEP back: selected, or the best"),
        Binding("s", "stop", "Stop", show=False, id="do.stop", tooltip="stop the agent or the campaign (asks)"),
        Binding("b", "budget", "Budgets", show=False, id="do.budget", tooltip="change the budgets"),
        Binding(
            "w", "switch", "Switch", show=False, id="do.switch", tooltip="switch the agent's strategy or model"
        ),
        Binding(
            "a", "open_agent", "Agent", show=False, id="go.agent", tooltip="the selected agent: reply, log, plot"
        ),
        Binding("m", "open_memory", "Memory", show=False, id="go.memory", tooltip="wins and traps"),
        Binding("l", "open_leaders", "Leaderboard", show=False, id="go.leaders", tooltip="each agent's archive"),
        Binding("i", "open_skills", "Skills", show=False, id="go.skills", tooltip="skills and their eligibility"),
        Binding("u", "open_home", "Campaigns", show=False, id="go.home", tooltip="all campaigns"),
        Binding("q", "back", "Back", show=False, id="go.back", tooltip="back; on the first screen: leave"),
        Binding("escape", "back_soft", "Back", show=False, id="go.escape", tooltip="back"),
    ]
    hints: ClassVar[tuple[Hint, ...]] = ()

    @property
    def kernelarc(self) -> KernelArcApp:
        return self.app  # type: ignore[return-value]

    @property
    def session(self) -> Session:
        session = self.kernelarc.session
        assert session is not None, "a campaign screen needs an open campaign"
        return session

    @property
    def view(self) -> View:
        return self.session.view

    @abstractmethod
    def show_view(self, view: View) -> None:
        """Show the campaign at another moment."""

    def chosen_agent(self) -> str:
        """The agent that a control goes to; empty when there is no agent at all."""
        agents = self.view.agents
        return agents[0].spec.name if agents else ""

    def chosen_candidate(self) -> int:
        """The candidate that a veto goes to when it is a KEEP; 0 for none."""
        return 0

    def on_mount(self) -> None:
        self.query_one(KeyLine).show(self.key_hints())

    def on_screen_resume(self) -> None:
        if self.kernelarc.session is not None:
            self.show_view(self.view)

    def key_hints(self) -> tuple[Hint, ...]:
        return self.hints

    # Leaving

    def action_back(self) -> None:
        """One screen back; from the first one out of the app, which stops nothing."""
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()
        else:
            self.kernelarc.action_leave()

    def action_back_soft(self) -> None:
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()

    # Controls

    def _refused_unsteered(self) -> bool:
        """True, and said so, when there is nothing to steer. The record can still be edited."""
        view = self.view
        if view.state is CampaignState.INTERRUPTED and not self.session.read_only:
            self.kernelarc.say("! no engine runs this campaign; p starts one", "bold warning")
            return True
        if view.state not in ENDED:
            return False
        why = f" ({view.summary.stop_reason})" if view.summary.stop_reason else ""
        self.kernelarc.say(f"! the campaign has ended{why}; u, then n starts a new one", "bold warning")
        return True

    def action_pause(self) -> None:
        state = self.view.state
        if state is CampaignState.INTERRUPTED:
            self._start_engine("The engine of this campaign is gone", "Continue from the store?")
        elif not self._refused_unsteered():
            self.kernelarc.command("resume" if state is CampaignState.PAUSED else "pause")

    def action_pause_agent(self) -> None:
        agent = self._agent()
        if agent is not None and not self._refused_unsteered():
            again = bool(agent.paused) or agent.stopped is not None
            self.kernelarc.command("resume" if again else "pause", agent=agent.spec.name)

    def action_draft(self) -> None:
        agent = self._agent()
        if agent is not None and not self._refused_unsteered():
            self.kernelarc.command("draft", agent=agent.spec.name)

    def action_draft_all(self) -> None:
        if not self._refused_unsteered():
            self.kernelarc.command("draft")

    def action_hint(self) -> None:
        agent = self._agent()
        if agent is not None:
            self._ask_hint(agent.spec.name, f"Hint for agent {label_of(self.view.summary, agent.spec.name)}")

    def action_hint_all(self) -> None:
        self._ask_hint(None, "Hint for every agent")

    @work(group="ask")
    async def _ask_hint(self, agent: str | None, title: str) -> None:
        from kernelarc_tui.screens.modal import Ask

        if self.kernelarc.refuse_if_read_only() or self._refused_unsteered():
            return
        agents = [found for found in self.view.agents if agent in (None, found.spec.name)]
        detail = "It goes into the next prompt as your words. Measurements still decide."
        if not any(found.spec.proposer == "llm" for found in agents):
            detail = "Only models read prompts, and none is asked here: it is kept on record, but not followed."
        text = await self.app.push_screen_wait(
            Ask(title, detail, placeholder="for instance: try a persistent kernel")
        )
        if text and text.strip():
            self.kernelarc.command("hint", agent=agent, text=text.strip())

    @work(group="ask")
    async def action_veto(self) -> None:
        from kernelarc_tui.screens.modal import Choice, Choose

        if self.kernelarc.refuse_if_read_only():
            return
        summary = self.view.summary
        number = self.chosen_candidate() or summary.best
        keeps = {keep.number: agent for agent in summary.agents.values() for keep in agent.keeps}
        if number not in keeps:
            self.kernelarc.say("nothing to veto: only a KEEP that still stands can be taken back", "bold warning")
            return
        agent = keeps[number]
        earlier = [keep.number for keep in agent.keeps if keep.number != number]
        back = f"#{earlier[-1]}" if earlier else "the seed"
        label = label_of(summary, agent.spec.name)
        detail = (
            f"#{number} of agent {label} stays in the archive but no longer counts. The agent's best goes back to "
            f"{back}, and wins from it leave the memory. This cannot be undone."
        )
        choices = (Choice("n", "no, leave it", ""), Choice("y", f"yes, veto #{number}", "yes", "verdict-reject"))
        if await self.app.push_screen_wait(Choose(f"Veto #{number}?", detail, choices)):
            self.kernelarc.edit("veto", number)

    @work(group="ask")
    async def action_stop(self) -> None:
        from kernelarc_tui.screens.modal import Choice, Choose

        if self.kernelarc.refuse_if_read_only() or self._refused_unsteered():
            return
        agent = self._agent()
        choices = [Choice("n", "nothing, go on", "")]
        if agent is not None and agent.stopped is None:
            label = label_of(self.view.summary, agent.spec.name)
            choices.append(
                Choice("a", f"agent {label} ({one_line(agent.strategy, 40)})", agent.spec.name, "warning")
            )
        choices.append(Choice("c", "the whole campaign", ALL, "verdict-reject"))
        detail = (
            "A stopped agent can be resumed (P). A stopped campaign has ended: it keeps its archive, memory and "
            "report and is not resumed; to go on later, pause it instead (p)."
        )
        picked = await self.app.push_screen_wait(Choose("Stop what?", detail, choices))
        if picked:
            self.kernelarc.command("stop", agent=None if picked == ALL else picked)

    @work(group="ask")
    async def action_budget(self) -> None:
        from kernelarc_tui.screens.modal import Field, Numbers

        if self.kernelarc.refuse_if_read_only() or self._refused_unsteered():
            return
        summary = self.view.summary
        fields = (
            Field("candidates", "candidates", str(summary.budget or ""), whole=True),
            Field("minutes", "minutes", f"{summary.minutes:g}" if summary.minutes else ""),
            Field("max_cost_usd", "US dollars", f"{summary.max_cost_usd:g}" if summary.max_cost_usd else ""),
        )
        detail = "New totals, not additions. An empty field leaves its limit as it is."
        filled = await self.app.push_screen_wait(Numbers("Budgets", detail, fields))
        if filled:
            given: dict[str, Any] = dict(filled)
            if "candidates" in given:
                given["candidates"] = int(given["candidates"])
            self.kernelarc.command("budget", **given)

    @work(group="ask")
    async def action_switch(self) -> None:
        from kernelarc_tui.screens.switch import ask_switch

        agent = self._agent()
        if agent is None or self.kernelarc.refuse_if_read_only() or self._refused_unsteered():
            return
        picked = await ask_switch(self, agent)
        if picked is not None:
            verb, name = picked
            self.kernelarc.command(verb, agent=agent.spec.name, text=name)

    @work(group="ask")
    async def _start_engine(self, title: str, detail: str) -> None:
        from kernelarc_tui.screens.modal import Choice, Choose

        if self.kernelarc.refuse_if_read_only():
            return
        choices = (Choice("y", "yes, continue the campaign", "yes"), Choice("n", "no, only look", ""))
        if await self.app.push_screen_wait(Choose(title, detail, choices)):
            self.kernelarc.start_engine(self.session.folder)

    # Other screens

    def action_open_agent(self) -> None:
        from kernelarc_tui.screens.agent import AgentScreen

        agent = self._agent()
        if agent is not None:
            self.app.push_screen(AgentScreen(agent.spec.name))

    def action_open_memory(self) -> None:
        from kernelarc_tui.screens.memory import MemoryScreen

        self.app.push_screen(MemoryScreen())

    def action_open_leaders(self) -> None:
        from kernelarc_tui.screens.leaders import LeadersScreen

        self.app.push_screen(LeadersScreen())

    def action_open_skills(self) -> None:
        from kernelarc_tui.screens.skills import SkillsScreen

        self.app.push_screen(SkillsScreen())

    def action_open_home(self) -> None:
        from kernelarc_tui.screens.home import Home

        for screen in self.app.screen_stack:
            if isinstance(screen, Home):
                while self.app.screen is not screen:
                    self.app.pop_screen()
                return
        self.app.push_screen(Home())

    def open_candidate(self, number: int) -> None:
        from kernelarc_tui.screens.candidate import CandidateScreen

        if number:
            self.app.push_screen(CandidateScreen(number))

    def tell(self, title: str, text: str) -> None:
        """A text in full, for what a row had no room for."""
        from kernelarc_tui.screens.modal import Choice, Choose

        self.kernelarc.hold_keys()
        self.app.push_screen(Choose(title, text, (Choice("", "close", ""),)))

    def tell_row(self, row: EventRow) -> None:
        """An event that is no candidate."""
        who = f" · agent {label_of(self.view.summary, row.agent)}" if row.agent else ""
        self.tell(f"{fmt.wall(row.at, seconds=True)} {row.word}{who}", row.text)

    def _agent(self) -> AgentSummary | None:
        return self.view.summary.agents.get(self.chosen_agent())
