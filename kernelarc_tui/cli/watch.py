"""``attach``, ``ls``, ``status``, ``replay``, ``serve``, ``delete``: look at campaigns."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from engine.errors import BadInput
from engine.paths import campaigns_dir
from kernelarc_tui.cli.common import (
    campaign_argument,
    emit_json,
    json_option,
    ms,
    no_screen,
    resolve,
    say_no_screen,
    table,
    terminal_width,
    times,
)

WATCH_S = 2.0


def open_screen(folder: Path | None, *, read_only: bool = False, replay: bool = False, **manners: bool) -> None:
    """Open the app, or print the plain status where there is no terminal for it."""
    if no_screen():
        say_no_screen("this is the plain text")
        if folder is None:
            _print_list()
        else:
            click.echo(_status_text(folder))
        return
    from kernelarc_tui.terminal import run_app

    message = run_app(folder, read_only=read_only, replay=replay, **manners)
    if message:
        click.echo(message)


@click.command()
@campaign_argument
@click.option("--read-only", is_flag=True, help="Look, with no controls.")
@click.option("--no-mouse", is_flag=True, help="Keyboard only.")
@click.option("--ascii", "ascii_only", is_flag=True, help="No box-drawing or braille characters.")
def attach(campaign: str | None, read_only: bool, no_mouse: bool, ascii_only: bool) -> None:
    """Open the screen on a campaign (default: the newest).

    \b
    Example: kernelarc attach
             kernelarc attach softmax-20261129-101500 --read-only
    """
    open_screen(resolve(campaign), read_only=read_only, mouse=not no_mouse, ascii=ascii_only)


@click.command()
@campaign_argument
def replay(campaign: str | None) -> None:
    """Watch a finished campaign again.

    \b
    Example: kernelarc replay demo-20261129-101500
    """
    open_screen(resolve(campaign), read_only=True, replay=True)


@click.command()
@json_option
def ls(as_json: bool) -> None:
    """List campaigns.

    \b
    Example: kernelarc ls --json
    """
    if not as_json:
        _print_list()
        return
    from engine.store.campaigns import list_campaigns

    emit_json(list_campaigns())


def _print_list() -> None:
    from engine.store.campaigns import list_campaigns

    entries = list_campaigns()
    if not entries:
        click.echo("no campaigns yet; start one with kernelarc demo or kernelarc run PROBLEM")
        return
    rows = []
    for e in entries:
        age = _age(time.time() - e.created_at)
        used = f"{e.candidates}/{e.budget}" if e.budget else str(e.candidates)
        used = "" if e.problem_note else used
        speedup = times(e.speedup if e.kept else None)  # the seed against the reference is noise
        rows.append((e.name, e.state, e.problem, e.device, used, ms(e.best_ms), speedup, age))
    head = ("campaign", "state", "problem", "device", "candidates", "best", "speed-up", "age")
    click.echo(table(head, rows, right=(4, 5, 6, 7), spare=(3, 2, 5), width=terminal_width()))
    for e in entries:
        if e.problem_note:
            click.echo(f"{e.name}: {e.problem_note}")


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


@click.command()
@campaign_argument
@click.option("--watch", is_flag=True, help="Again every two seconds, until the campaign ends.")
@json_option
def status(campaign: str | None, watch: bool, as_json: bool) -> None:
    """One screen of plain text, or JSON.

    With --watch and --json it waits for the end and prints the one document then.

    \b
    Example: kernelarc status --watch
             kernelarc status demo-20261129-101500 --json
    """
    from engine.reports.status import status_json
    from engine.store.campaigns import engine_alive
    from engine.store.reader import StoreReader

    folder = resolve(campaign)
    while True:
        last = not (watch and engine_alive(folder)) or getattr(sys.stdout, "gone", False)
        if not as_json:
            click.echo(("\x1b[H\x1b[2J" if watch and sys.stdout.isatty() else "") + _status_text(folder))
        elif last:
            with StoreReader(folder) as reader:
                emit_json(status_json(reader, folder))
        if last:
            return
        time.sleep(WATCH_S)


def _status_text(folder: Path) -> str:
    from engine.reports.status import status_text
    from engine.store.reader import StoreReader

    with StoreReader(folder) as reader:
        return status_text(reader, folder)


@click.command()
@click.option("--port", type=click.IntRange(1024, 65535), default=8642, show_default=True)
@click.option("--allow-control", is_flag=True, help="Let the browser steer; otherwise it only looks.")
@click.option("--campaign", default=None, help="Open this campaign (default: the home screen).")
def serve(port: int, allow_control: bool, campaign: str | None) -> None:
    """The same screen in a browser on this machine.

    Listens on localhost only; the address carries a random token. Needs the ``serve`` extra.

    \b
    Example: kernelarc serve
             ssh -L 8642:localhost:8642 box   then open the printed address
    """
    from kernelarc_tui.serve import serve_app

    serve_app(port=port, allow_control=allow_control, campaign=resolve(campaign) if campaign else None)


@click.command()
@click.argument("campaign")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(campaign: str, yes: bool) -> None:
    """Delete a campaign that is not running.

    \b
    Example: kernelarc delete demo-20261129-101500 --yes
    """
    from engine.store.offline import delete_campaign

    folder = resolve(campaign)
    if folder.parent.resolve() != campaigns_dir().resolve() or folder.is_symlink():
        raise BadInput("is not in the state folder", where=str(folder), fix="remove that folder yourself")
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput("deleting needs a yes", where=campaign, fix="pass --yes")
        click.confirm(f"Delete {folder.name} with its archive and memory? This cannot be undone", abort=True)
    delete_campaign(folder)
    click.echo(f"deleted {folder.name}")
