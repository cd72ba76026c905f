"""``skills list|show``."""

from __future__ import annotations

from typing import Any

import click

from engine.errors import BadInput
from kernelarc_tui.cli.common import WIDE, emit_json, json_option, table, terminal_width


@click.group()
def skills() -> None:
    """Strategy skills and their eligibility for a problem."""


def _eligibility(problem: str | None, device: str | None) -> Any:
    """(skill) → (eligible, why) for the named problem, or ``None``."""
    if problem is None:
        return None
    from engine.hardware.facts import default_device, device_facts
    from engine.problems.library import find_problem
    from engine.skills import eligibility_for

    return eligibility_for(find_problem(problem), device_facts(device or default_device()))


@skills.command("list")
@click.option("--problem", help="Say which are eligible for this problem, and why not.")
@click.option("--device", help="cpu, cuda or cuda:i.")
@json_option
def list_(problem: str | None, device: str | None, as_json: bool) -> None:
    """List skills.

    \b
    Example: kernelarc skills list --problem masked_softmax_attention_fp32
    """
    from engine.skills import load_skills

    found = load_skills()
    judge = _eligibility(problem, device)
    documents: list[dict[str, object]] = []
    for skill in found.skills.values():
        ok, why = judge(skill) if judge else (None, "")
        documents.append(
            {
                "name": skill.name,
                "description": skill.description,
                "kernel_types": skill.kernel_types,
                "languages": skill.languages,
                "recipes": list(skill.recipes),
                "eligible": ok,
                "why": why,
            }
        )
    if as_json:
        emit_json({"skills": documents, "broken": found.broken})
        return
    mark = {True: "yes", False: "no", None: ""}
    rows = [(d["name"], mark[d["eligible"]], len(d["recipes"]), d["why"] or d["description"]) for d in documents]  # type: ignore[index,arg-type]
    click.echo(
        table(
            ("skill", "eligible", "recipes", "about"), rows, right=(2,), spare=(2,), width=terminal_width() or WIDE
        )
    )
    for broken in found.broken:
        click.echo(f"broken: {broken.name}: {broken.why}", err=True)


@skills.command()
@click.argument("name", required=False)
@click.option("--problem", help="Also say which recipes fit this problem, and why not.")
@click.option("--device", help="cpu, cuda or cuda:i.")
@json_option
def show(name: str | None, problem: str | None, device: str | None, as_json: bool) -> None:
    """Show a skill's text, and which of its recipes fit a problem.

    \b
    Example: kernelarc skills show operator-fusion --problem masked_softmax_attention_fp32
    """
    from engine.skills import load_skills

    found = load_skills()
    skill = found.skills.get(name or "")
    if skill is None:
        raise BadInput(
            f"no skill {name!r}" if name else "no skill named", fix=f"one of: {', '.join(found.skills)}"
        )
    judge = _eligibility(problem, device)
    eligible, why = judge(skill) if judge else (None, "")
    fits = []
    if problem is not None:
        from engine.hardware.facts import default_device, device_facts
        from engine.problems.library import find_problem
        from engine.recipes import match_report

        fits = match_report(skill, find_problem(problem), device_facts(device or default_device()))
    if as_json:
        emit_json({"name": skill.name, "body": skill.body, "eligible": eligible, "why": why, "recipes": fits})
        return
    click.echo(f"{skill.name}: {skill.description}\n")
    if eligible is not None:
        click.echo(f"eligible for {problem}: {'yes' if eligible else 'no'} ({why})")
    for fit in fits:
        click.echo(f"  recipe {fit.recipe}: {'fits' if fit.fits else 'does not fit'} ({fit.why})")
    click.echo(skill.body)
