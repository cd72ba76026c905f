"""Choosing another strategy or model for an agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine.records import DeviceFacts
from engine.store.summary import AgentSummary
from kernelarc_tui.safe import one_line
from kernelarc_tui.screens.modal import Ask, Choice, Choose
from kernelarc_tui.view import label_of

if TYPE_CHECKING:
    from kernelarc_tui.screens.campaign import CampaignScreen

OTHER_MODEL = "model:*"


async def ask_switch(screen: CampaignScreen, agent: AgentSummary) -> tuple[str, str] | None:
    """(verb, name) for the engine, or ``None``."""
    from kernelarc_tui.screens.skills import skill_rows

    campaign = screen.session.reader.campaign()
    device = campaign.device_facts or DeviceFacts(kind=campaign.device.partition(":")[0], name=campaign.device)
    rows = await asyncio.to_thread(skill_rows, campaign.kernel_type, device)
    usable = [row for row in rows if row.usable]
    choices = [Choice("", f"{one_line(row.name, 60)}", f"strategy:{row.name}") for row in usable]
    models = sorted({name for item in screen.view.agents for name in (item.model, item.spec.model) if name})
    if agent.spec.proposer == "llm":
        choices += [Choice("", f"model {one_line(name, 60)}", f"model:{name}", "muted") for name in models]
        choices.append(Choice("", "another model …", OTHER_MODEL, "muted"))
    label = label_of(screen.view.summary, agent.spec.name)
    now = f"Now {one_line(agent.strategy, 60)}" + (f" with {one_line(agent.model, 60)}." if agent.model else ".")
    detail = f"{now} It takes effect with the next proposal."
    picked = await screen.app.push_screen_wait(Choose(f"Switch agent {label} to", detail, choices))
    if picked is None:
        return None
    if picked == OTHER_MODEL:
        name = await screen.app.push_screen_wait(Ask("Model", "A litellm name, as in openai/gpt-5.", value=""))
        return ("model", name.strip()) if name and name.strip() else None
    verb, _, name = picked.partition(":")
    return verb, name
