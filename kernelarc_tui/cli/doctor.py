"""``doctor``: what works on this box."""

from __future__ import annotations

import click

from kernelarc_tui.cli.common import emit_json, json_option

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "absent": "–   "}


@click.command()
@click.option("--api-base", help="Also probe this OpenAI-compatible server.")
@json_option
def doctor(api_base: str | None, as_json: bool) -> None:
    """What works here: device, compiler, sandbox, keys present, terminal.

    Keys are named, never shown. Exits 1 when something that a CPU campaign needs is broken.

    \b
    Example: kernelarc doctor
             kernelarc doctor --api-base http://localhost:8000/v1 --json
    """
    from engine.hardware.doctor import examine

    checks = examine(api_base=api_base)
    if as_json:
        emit_json({"checks": checks})
    else:
        for check in checks:
            click.echo(f"{MARKS[check.status]}  {check.name:<22} {check.detail}")
            if check.fix and check.status != "ok":
                click.echo(f"      {'':<22} fix: {check.fix}")
    if any(check.status == "fail" for check in checks):
        raise click.exceptions.Exit(1)
