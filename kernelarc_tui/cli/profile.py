"""``profile``: what one candidate's kernels do on the GPU."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click

from engine.errors import BadInput, Fault
from engine.records import Profile
from kernelarc_tui.cli.common import IDENTITY, emit_json, json_option, resolve

WAIT_S = 400.0
LOOK_S = 0.3


@click.command()
@click.argument("campaign")
@click.argument("number", type=IDENTITY)
@click.option("--workload", default="", help="A uuid, or its 1-based number.  [default: the largest]")
@click.option("--again", is_flag=True, help="Also if there is a profile already.")
@json_option
def profile(campaign: str, number: int, workload: str, again: bool, as_json: bool) -> None:
    """What a candidate's kernels do on the GPU: Nsight Compute, or CUPTI.

    One call, in the sandbox of every candidate, with the device held. Counters where Nsight Compute is installed
    and permitted, else launch records and the compiler's figures. NUMBER 0 is the starting solution. The result is
    stored, shown with the candidate, and told to the agent that builds on it. Exits 1 if the candidate fails.

    \b
    Example: kernelarc profile softmax-1 57
             kernelarc profile softmax-1 57 --workload 3 --json
    """
    from engine.store.campaigns import engine_alive
    from engine.store.reader import StoreReader

    folder = resolve(campaign)
    with StoreReader(folder) as reader:
        found = reader.profile(number)
    if found is None or again or workload or found.reason:
        if engine_alive(folder):
            found = _by_engine(folder, number, workload)
        else:
            from engine.profile.campaign import profile_without_engine

            found = asyncio.run(profile_without_engine(folder, number, workload))
    _show(found, as_json=as_json)


def _by_engine(folder: Path, number: int, workload: str) -> Profile:
    """Ask the campaign's engine, then wait for what it stores."""
    from engine.control.client import command, send
    from engine.store import events as ev
    from engine.store.reader import StoreReader

    with StoreReader(folder) as reader:
        seen = reader.last_seq()
        answer = send(folder, command("profile", number=number, text=workload))
        if not answer.ok:
            reason, colon, detail = answer.text.partition(": ")
            if colon and reason.startswith(("needs.", "fault.")):
                raise Fault(reason, detail)
            raise BadInput(answer.text)
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            while stored := reader.events(seen):
                seen = stored[-1].seq
                events = [item.event for item in stored]
                if any(isinstance(event, ev.CandidateProfiled) and event.number == number for event in events):
                    found = reader.profile(number)
                    assert found is not None
                    return found
            time.sleep(LOOK_S)
    raise Fault("fault.profile", f"no profile of #{number} within {WAIT_S:.0f} s; it may still come")


def _show(found: Profile, *, as_json: bool) -> None:
    from engine.profile.text import profile_text

    if as_json:
        emit_json(found)
    else:
        click.echo(profile_text(found))
    if found.reason:
        raise click.exceptions.Exit(3 if found.reason.startswith(("needs.", "fault.")) else 1)
