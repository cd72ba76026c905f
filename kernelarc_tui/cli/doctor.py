"""``doctor``: what works on this box."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from kernelarc_tui.cli.common import emit_json, json_option, table

if TYPE_CHECKING:
    from engine.hardware.ceilings import Ceilings

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "absent": "–   "}


@click.command()
@click.option("--api-base", help="Also probe this OpenAI-compatible server.")
@click.option("--measure", is_flag=True, help="Measure what the device reaches in a copy and in products.")
@click.option("--device", help="With --measure: cpu, cuda or cuda:i.  [default: a GPU if there is one]")
@json_option
def doctor(api_base: str | None, measure: bool, device: str | None, as_json: bool) -> None:
    """What works here: device, compiler, sandbox, keys present, terminal.

    Keys are named, never shown. Exits 1 when something that a CPU campaign needs is broken. Measured ceilings are
    kept for this device, driver and torch, and shown by evaluate, status and report beside the bound.

    \b
    Example: kernelarc doctor
             kernelarc doctor --measure
             kernelarc doctor --api-base http://localhost:8000/v1 --json
    """
    from engine.hardware.doctor import examine

    if device is not None and not measure:
        raise click.UsageError("--device goes with --measure")
    if measure:
        _measure(device, as_json=as_json)
        return
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


def _measure(device: str | None, *, as_json: bool) -> None:
    """Measured ceilings beside the datasheet's peaks, both always labelled."""
    from engine.bench.ceilings import measure_ceilings
    from engine.hardware.facts import default_device
    from engine.hardware.peaks import find_peaks

    ceilings = asyncio.run(measure_ceilings(device or default_device()))
    peaks = find_peaks(ceilings.device)
    if as_json:
        emit_json({"ceilings": ceilings, "datasheet": peaks})
        return
    sheet = {} if peaks is None else {"float32": peaks.vector.get("float32"), **peaks.tensor}
    memory = _peak(None if peaks is None else peaks.memory_gb_s, "GB/s")
    rows = [("copy, both directions", f"{ceilings.copy_gb_s:.4g} GB/s", memory)]
    rows += [
        (f"{dtype} product", f"{rate:.4g} TFLOP/s", _peak(sheet.get(dtype), "TFLOP/s"))
        for dtype, rate in ceilings.matrix_tflop_s.items()
    ]
    click.echo(_title(ceilings))
    click.echo(table(("", "measured", "datasheet peak"), rows, right=(1, 2)))
    for note in ceilings.notes:
        click.echo(f"note: {note}")


def _title(ceilings: Ceilings) -> str:
    if not ceilings.all_cores:
        return f"{ceilings.device} (torch {ceilings.torch})"
    whole = f"all cores {ceilings.all_cores['copy']:.4g} GB/s, {ceilings.all_cores['float32']:.4g} TFLOP/s"
    return f"{ceilings.device} (torch {ceilings.torch}), the one core that timed candidates get; {whole}"


def _peak(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.4g} {unit}"
