"""``pause``, ``resume``, ``draft``, ``hint``, ``stop``, ``veto``, ``budget``: the screen's keys, for scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelarc_tui.cli.common import IDENTITY, Positive, campaign_argument, emit_json, json_option, resolve

if TYPE_CHECKING:
    from engine.control.protocol import Answer

agent_option: Callable[[Any], Any] = click.option("--agent", help="One agent; without it the whole campaign.")


def send(folder: Path, verb: str, *, as_json: bool = False, **fields: Any) -> None:
    """Send one command, print the engine's answer; exit 1 if the engine refused it."""
    from engine.control.client import command
    from engine.control.client import send as send_command

    _need_engine(folder)
    _say(send_command(folder, command(verb, **fields)), as_json=as_json)


def _need_engine(folder: Path) -> None:
    """Raises ``BadInput`` if there is no engine: whether the campaign has ended, or how to start one."""
    from engine.errors import BadInput
    from engine.host import refuse_ended
    from engine.store.campaigns import engine_alive
    from engine.store.reader import StoreReader

    if not engine_alive(folder):
        with StoreReader(folder) as reader:
            refuse_ended(folder, reader.summary())
        fix = f"`kernelarc resume {folder.name}` starts one"
        raise BadInput("no engine runs this campaign", where=folder.name, fix=fix)


def edit(folder: Path, verb: str, number: int, text: str = "") -> None:
    """Change the record, with or without an engine, and print the answer; exit 1 if the engine refused it."""
    from engine.control.client import edit as edit_record

    _say(edit_record(folder, verb, number, text))


def _say(answer: Answer, *, as_json: bool = False) -> None:
    if as_json:
        emit_json(answer)
    else:
        click.echo(answer.text)
    if not answer.ok:
        raise click.exceptions.Exit(1)


@click.command()
@campaign_argument
@agent_option
def pause(campaign: str | None, agent: str | None) -> None:
    """Pause a campaign, or one agent; the device is given back.

    \b
    Example: kernelarc pause
             kernelarc pause softmax-1 --agent 2
    """
    send(resolve(campaign), "pause", agent=agent)


@click.command()
@campaign_argument
@agent_option
@click.option("--headless", is_flag=True, help="Continue an interrupted campaign in the foreground.")
@json_option
def resume(campaign: str | None, agent: str | None, headless: bool, as_json: bool) -> None:
    """Continue a paused campaign, or an interrupted one from its store.

    \b
    Example: kernelarc resume
             kernelarc resume softmax-1 --headless
    """
    from engine.store.campaigns import engine_alive

    folder = resolve(campaign)
    if engine_alive(folder):
        send(folder, "resume", as_json=as_json, agent=agent)
        return
    from engine.launch import check_resumable, start_detached
    from kernelarc_tui.cli.campaigns import foreground

    check_resumable(folder)
    if headless or as_json:
        raise click.exceptions.Exit(foreground(folder, as_json=as_json))
    start_detached(folder)
    click.echo(f"{folder.name} continues; watch it with kernelarc attach {folder.name}")


@click.command()
@campaign_argument
@click.option("--agent", required=True, help="The agent.")
def draft(campaign: str | None, agent: str) -> None:
    """Make an agent draft another algorithm, DSL or layout next.

    \b
    Example: kernelarc draft softmax-1 --agent 1
    """
    send(resolve(campaign), "draft", agent=agent)


@click.command()
@click.argument("campaign")
@click.argument("text")
@click.option("--agent", help="One agent; without it every agent.")
def hint(campaign: str, text: str, agent: str | None) -> None:
    """Give an agent a hint for its next proposal.

    \b
    Example: kernelarc hint softmax-1 --agent 1 "try an online softmax in one pass"
    """
    send(resolve(campaign), "hint", agent=agent, text=text)


@click.command()
@campaign_argument
@agent_option
def stop(campaign: str | None, agent: str | None) -> None:
    """Stop a campaign, or one agent.

    \b
    Example: kernelarc stop softmax-1
    """
    send(resolve(campaign), "stop", agent=agent)


@click.command()
@click.argument("campaign")
@click.argument("number", type=IDENTITY)
@click.option("--why", default="", help="Said in the record.")
def veto(campaign: str, number: int, why: str) -> None:
    """Take a KEEP back; the best returns to the previous one.

    \b
    Example: kernelarc veto softmax-1 57 --why "wrong for denormals"
    """
    edit(resolve(campaign), "veto", number, why)


@click.command()
@click.argument("campaign")
@click.option("--candidates", type=click.IntRange(1), help="New candidate budget.")
@click.option("--minutes", type=Positive(), help="New time budget.")
@click.option("--max-cost", type=Positive(), help="New cost limit in US dollars.")
def budget(campaign: str, candidates: int | None, minutes: float | None, max_cost: float | None) -> None:
    """Change the budgets of a running campaign.

    \b
    Example: kernelarc budget softmax-1 --candidates 200
    """
    if candidates is None and minutes is None and max_cost is None:
        raise click.UsageError("name at least one of --candidates, --minutes, --max-cost")
    send(resolve(campaign), "budget", candidates=candidates, minutes=minutes, max_cost_usd=max_cost)
