"""``problems list|show|check|bounds|import``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.text import one_line
from kernelarc_tui.cli.common import WIDE, emit_json, json_option, table, terminal_width

if TYPE_CHECKING:
    from engine.problems.library import ProblemEntry

LINE_LIMIT = 2000  # characters


@click.group()
def problems() -> None:
    """Bundled and user problems: list, show, check, bounds, import."""


@problems.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List bundled and user problems.

    \b
    Example: kernelarc problems list
    """
    from engine.problems.library import list_problems

    entries = list_problems()
    if as_json:
        emit_json(entries)
        return
    rows = [(e.name, e.op_type or "–", e.workloads, e.dtypes, e.origin, e.error or _about(e)) for e in entries]
    head = ("problem", "type", "workloads", "dtypes", "from", "about")
    click.echo(table(head, rows, right=(2,), spare=(4, 3, 5), width=terminal_width() or WIDE))


def _about(entry: ProblemEntry) -> str:
    """The description; a folder may be called otherwise than the problem, which campaigns and solutions name."""
    other = f"({entry.definition}) " if entry.definition != entry.name else ""
    return other + entry.description


@problems.command()
@click.argument("problem")
@json_option
def show(problem: str, as_json: bool) -> None:
    """Show a problem: axes, inputs, outputs, workloads, reference.

    \b
    Example: kernelarc problems show masked_softmax_attention_fp32
    """
    from engine.problems.library import find_problem
    from engine.problems.show import problem_text

    found = find_problem(problem)
    if as_json:
        emit_json(found)
    else:
        click.echo(problem_text(found))


@problems.command()
@click.argument("paths", nargs=-1, required=True)
@json_option
def check(paths: tuple[str, ...], as_json: bool) -> None:
    """Admission check of problem folders, or of library problems by name; exits 1 if one is refused.

    \b
    Example: kernelarc problems check ./problems/*
             kernelarc problems check rmsnorm_residual_fp32
    """
    from engine.problems.check import check_problem
    from engine.problems.library import problem_folder

    results = [check_problem(folder) for folder in [problem_folder(path) for path in paths]]
    if as_json:
        emit_json({"problems": results})
    else:
        for result in results:
            click.echo(f"{'ok ' if result.ok else 'bad'} {one_line(result.name or result.path)}")
            for line in result.errors:
                click.echo(f"    error: {one_line(line, LINE_LIMIT)}")
            for line in result.notes:
                click.echo(f"    note: {one_line(line, LINE_LIMIT)}")
    if not all(result.ok for result in results):
        raise click.exceptions.Exit(1)


@problems.command()
@click.argument("problem")
@click.option("--gpu", required=True, help="A GPU name, for instance B200 or H200; no GPU is needed.")
@json_option
def bounds(problem: str, gpu: str, as_json: bool) -> None:
    """Lower bound per workload on a named GPU, from the definition and the traced reference alone.

    \b
    Example: kernelarc problems bounds rmsnorm_residual_fp32 --gpu H200
    """
    from engine.hardware.roofline import bounds as compute
    from engine.problems.library import find_problem

    found = find_problem(problem)
    rows = compute(found, gpu)
    if as_json:
        emit_json({"problem": found.name, "gpu": gpu, "workloads": rows})
        return
    head = ("#", "FLOPs", "bytes", "bound", "limit", "launch floor")
    lines = [
        (i + 1, f"{b.flops:.3g}", f"{b.bytes:.3g}", f"{b.bound_ms:.4g} ms", b.limit, f"{b.launch_floor_ms:.4g} ms")
        for i, b in enumerate(rows)
    ]
    click.echo(table(head, lines, right=(0, 1, 2, 3, 5)))


@problems.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--format", "format_", type=click.Choice(["sol-execbench", "flashinfer", "kernelbench"]),
    help="What SOURCE is.  [default: told by its files]",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the problems.  [default: your own problems]"
)
@json_option
def import_(source: Path, format_: str | None, out: Path | None, as_json: bool) -> None:
    """Import problems from SOL-ExecBench, FlashInfer-Bench or KernelBench.

    \b
    Example: kernelarc problems import ./L1.parquet
             kernelarc problems import ./SOL-ExecBench/problems --format sol-execbench
    """
    from engine.problems.importing import import_problems

    results = import_problems(source, format_, out)
    if as_json:
        emit_json({"problems": results})
    else:
        for result in results:
            said = one_line(f"{result.name}: {result.path or result.errors[0]}", LINE_LIMIT)
            click.echo(f"{'imported' if result.ok else 'refused '} {said}")
    if not results or not all(result.ok for result in results):
        raise click.exceptions.Exit(1)
