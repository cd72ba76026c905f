"""``memory list|show|pin|unpin|expire``."""

from __future__ import annotations

import click

from engine.errors import BadInput
from engine.text import one_line
from kernelarc_tui.cli.common import IDENTITY, campaign_argument, emit_json, json_option, resolve, table, times


@click.group()
def memory() -> None:
    """Wins and traps: list, show, pin, expire."""


@memory.command("list")
@campaign_argument
@click.option("--kind", type=click.Choice(["win", "trap"]), help="Only wins, or only traps.")
@click.option("--all", "everything", is_flag=True, help="Expired entries too.")
@json_option
def list_(campaign: str | None, kind: str | None, everything: bool, as_json: bool) -> None:
    """List wins and traps of a campaign (default: the newest).

    \b
    Example: kernelarc memory list softmax-1 --kind trap
    """
    from engine.store.reader import StoreReader

    with StoreReader(resolve(campaign)) as reader:
        rows = reader.all_memory(kind) if everything else reader.memory(kind)
    if as_json:
        emit_json({"memory": rows})
        return
    lines = [
        (r.id, "+" if r.kind == "win" else "−", "pinned" if r.pinned else "", times(r.speedup), r.agent,
         f"#{r.candidate}" if r.candidate else "", one_line(r.strategy, 70))
        for r in rows
    ]  # fmt: skip
    click.echo(table(("id", "", "", "speed-up", "agent", "from", "what"), lines, right=(0, 3)))


@memory.command()
@click.argument("campaign")
@click.argument("id_", metavar="ID", type=IDENTITY)
@json_option
def show(campaign: str, id_: int, as_json: bool) -> None:
    """Show one entry in full.

    \b
    Example: kernelarc memory show softmax-1 3
    """
    from engine.store.reader import StoreReader

    with StoreReader(resolve(campaign)) as reader:
        row = reader.memory_entry(id_)
    if row is None:
        raise BadInput(f"no memory entry {id_}", where=campaign, fix="see kernelarc memory list")
    if as_json:
        emit_json(row)
        return
    click.echo(f"{row.kind} {row.id}  {row.kernel_type}  {row.strategy}")
    if row.error:
        click.echo(f"error: {row.error}")
    click.echo(row.reflection)
    shapes = row.shapes or "–"
    click.echo(f"by agent {row.agent}, candidate #{row.candidate}, speed-up {times(row.speedup)}, shapes {shapes}")
    if row.note:
        click.echo(f"note: {row.note}")


def _edit(campaign: str, id_: int, verb: str, text: str = "") -> None:
    from kernelarc_tui.cli.control import edit

    edit(resolve(campaign), verb, id_, text)


@memory.command()
@click.argument("campaign")
@click.argument("id_", metavar="ID", type=IDENTITY)
@click.option("--off", is_flag=True, help="Unpin: retention decides again.")
def pin(campaign: str, id_: int, off: bool) -> None:
    """Keep an entry whatever the retention.

    \b
    Example: kernelarc memory pin softmax-1 3
    """
    _edit(campaign, id_, "memory.unpin" if off else "memory.pin")


@memory.command()
@click.argument("campaign")
@click.argument("id_", metavar="ID", type=IDENTITY)
@click.option("--why", default="", help="Said in the record.")
def expire(campaign: str, id_: int, why: str) -> None:
    """Take an entry out of recall; the record stays.

    \b
    Example: kernelarc memory expire softmax-1 3 --why "wrong on small rows"
    """
    _edit(campaign, id_, "memory.expire", why)


@memory.command()
@click.argument("campaign")
@click.argument("id_", metavar="ID", type=IDENTITY)
@click.argument("text")
def note(campaign: str, id_: int, text: str) -> None:
    """Write a person's note on an entry.

    \b
    Example: kernelarc memory note softmax-1 3 "only for 4096 columns"
    """
    _edit(campaign, id_, "memory.note", text)
