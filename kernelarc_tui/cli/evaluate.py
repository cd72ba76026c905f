"""``evaluate``: the guard alone on one or more solutions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from engine.errors import BadInput, Fault
from engine.text import one_line
from kernelarc_tui.cli.common import Positive, emit_json, json_option, ms, table, times

_SHARES = {"roofline_ms": "of bound", "ceiling_ms": "of measured ceiling"}
DETAIL_LIMIT = 2000  # characters
EXIT_CODES = {"PASS": 0, "FAIL": 1, "REJECT": 1, "ERROR": 3}


@click.command()
@click.argument("problem")
@click.argument("solutions", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--workload", "workloads", multiple=True, help="A uuid, or its 1-based number; repeat.")
@click.option("--device", help="cpu, cuda or cuda:i.  [default: a GPU if there is one]")
@click.option("--rounds", type=click.IntRange(1, 100), default=10, show_default=True, help="Correctness rounds.")
@click.option("--calls", type=click.IntRange(1, 1000), default=50, show_default=True, help="Timed calls, at most.")
@click.option(
    "--against", type=click.Path(path_type=Path), help="Compare with this solution as well, in paired blocks."
)
@click.option("--no-timing", is_flag=True, help="Correctness only.")
@click.option("--deadline", type=Positive(), default=600.0, show_default=True, help="Seconds for one solution.")
@click.option(
    "--evidence", type=click.Path(file_okay=False, path_type=Path), help="Write an evidence bundle here."
)
@json_option
def evaluate(
    problem: str, solutions: tuple[Path, ...], workloads: tuple[str, ...], device: str | None, rounds: int,
    calls: int, against: Path | None, no_timing: bool, deadline: float, evidence: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """The guard alone on one or more solutions.

    A solution is a SOL-ExecBench solution.json, or a .py with a function run. Several share a warm process.
    Exit code: 0 PASS, 1 FAIL or REJECT, 2 bad input, 3 ERROR (the machine's fault or ours).

    \b
    Example: kernelarc evaluate masked_softmax_attention_fp32 kernel.py
             kernelarc evaluate ./problem a.json b.json --device cuda --json --evidence ./evidence
    """
    from engine.bench.api import EvaluationPlan
    from engine.problems.library import find_problem
    from engine.problems.solution_io import load_solution

    found = find_problem(problem)
    loaded = [load_solution(path, found) for path in solutions]
    rival = _rival(against, found, timing=not no_timing) if against is not None else None
    if device is None:
        from engine.hardware.facts import default_device

        device = default_device()
    plan = EvaluationPlan(
        rounds=rounds, calls=calls, workloads=_uuids(found, workloads), timing=not no_timing,
        against_reference=True, deadline_s=deadline,
    )  # fmt: skip
    documents = asyncio.run(_evaluate(found, loaded, device, plan, evidence, rival, quiet=as_json))
    if as_json:
        emit_json(documents[0] if len(documents) == 1 else documents)
    raise click.exceptions.Exit(max(EXIT_CODES[str(d["verdict"])] for d in documents))


def _rival(path: Path, problem: Any, *, timing: bool) -> Any:
    """The solution to compare with. Raises :class:`BadInput` if it could not be timed."""
    from engine.guard.gate import must_pass
    from engine.problems.solution_io import load_solution

    if not timing:
        raise click.UsageError("--against compares times, and --no-timing measures none")
    rival = load_solution(path, problem)
    must_pass(rival, problem, "cannot be compared with", where=str(path))
    return rival


async def _evaluate(
    problem: Any, solutions: list[Any], device: str, plan: Any, evidence: Path | None, rival: Any, *, quiet: bool
) -> list[dict[str, object]]:
    from engine.bench import evaluate_many
    from engine.records import Evaluation
    from engine.reports.evaluation import evaluation_json

    documents = []
    try:
        results = evaluate_many(problem, solutions, device, plan, evidence, rival)
        async for index, evaluation in _numbered(results):
            document = evaluation_json(problem, solutions[index], device, evaluation, rival)
            documents.append(document)
            if not quiet:
                click.echo(_text(document))
    except Fault as fault:
        for solution in solutions[len(documents) :]:
            failed = Evaluation(verdict="ERROR", reason=fault.reason, detail=fault.detail)
            documents.append(evaluation_json(problem, solution, device, failed))
            if not quiet:
                click.echo(_text(documents[-1]))
    return documents


async def _numbered(results: Any) -> Any:
    index = 0
    async for result in results:
        yield index, result
        index += 1


def _uuids(problem: Any, wanted: tuple[str, ...]) -> tuple[str, ...]:
    known = [w.uuid for w in problem.workloads]
    chosen = []
    for item in wanted:
        if item in known:
            chosen.append(item)
        elif item.isdigit() and 1 <= int(item) <= len(known):
            chosen.append(known[int(item) - 1])
        else:
            raise BadInput(
                f"no workload {item!r}", where=problem.name, fix=f"use a uuid or a number 1…{len(known)}"
            )
    return tuple(chosen)


def _text(document: dict[str, Any]) -> str:
    # Candidates choose names and details: each stays on its line, or it could write a verdict of its own.
    lines = [f"{document['verdict']}  {one_line(document['solution'])}  on {document['device']}"]
    if document["reason"]:
        lines.append(f"  {document['reason']}: {one_line(document['detail'], DETAIL_LIMIT)}")
    workloads = document["workloads"]
    shares = [(k, t) for k, t in _SHARES.items() if any(w[k] and w["latency_ms"] for w in workloads)]
    rows = [
        (
            *(str(i + 1), w["status"], ms(w["latency_ms"]), ms(w["reference_latency_ms"]), times(w["speedup"])),
            *(_share(w[key], w["latency_ms"]) for key, _ in shares),
        )
        for i, w in enumerate(workloads)
    ]
    if rows:
        head = ("#", "status", "latency", "reference", "speed-up", *(title for _, title in shares))
        lines.append(table(head, rows, right=(0, *range(2, len(head)))))
    if document["geomean_speedup"] is not None:
        lines.append(f"speed-up {times(document['geomean_speedup'])} (geometric mean), timer {document['timer']}")
    rival = document.get("against")
    if rival is not None:
        low, high = rival["speedup_ci"]
        beside = f"{times(rival['speedup'])} against {one_line(rival['solution'])}"
        lines.append(f"{beside} (95 %: {low:.3f} to {high:.3f})")
    lines += [f"note: {one_line(note, DETAIL_LIMIT)}" for note in document["notes"]]
    return "\n".join(lines)


def _share(least: float | None, latency: float | None) -> str:
    return f"{100 * least / latency:.0f} %" if least and latency else "–"
