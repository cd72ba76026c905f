"""``export`` and ``report``."""

from __future__ import annotations

from pathlib import Path

import click

from kernelarc_tui.cli.common import IDENTITY, campaign_argument, emit_json, json_option, resolve


@click.command()
@campaign_argument
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder.  [default: ./CAMPAIGN-best]"
)
@click.option("--agent", help="This agent's best instead of the campaign's.")
@click.option("--number", type=IDENTITY, help="This candidate instead of the best.")
@click.option("--force", is_flag=True, help="Overwrite files of an earlier export.")
@json_option
def export(
    campaign: str | None, out: Path | None, agent: str | None, number: int | None, force: bool, as_json: bool
) -> None:
    """Take the best kernel home: solution.json, source, evidence.

    \b
    Example: kernelarc export softmax-1 --out ./softmax-best
    """
    from engine.reports.export import export_best
    from engine.store.reader import StoreReader

    folder = resolve(campaign)
    target = out or Path.cwd() / f"{folder.name}-best"
    with StoreReader(folder) as reader:
        exported = export_best(reader, target, agent=agent, number=number, overwrite=force)
    if as_json:
        emit_json(exported)
    else:
        click.echo(exported.text)


@click.command()
@campaign_argument
@json_option
def report(campaign: str | None, as_json: bool) -> None:
    """A campaign's report: KEEPs, trajectory, best kernel, settings.

    \b
    Example: kernelarc report softmax-1
    """
    from engine.reports.report import build_report, report_text
    from engine.store.reader import StoreReader

    folder = resolve(campaign)
    with StoreReader(folder) as reader:
        built = build_report(reader, folder)
    if as_json:
        emit_json(built)
    else:
        click.echo(report_text(built))
