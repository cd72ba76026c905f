"""Taking a kernel home: ``solution.json``, its sources as files, and the evidence that it is right and faster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import BadInput, StoreError
from engine.problems.load import problem_from_json
from engine.problems.solution import C_BINDING, Solution, solution_sha
from engine.problems.solution_io import solution_errors, solution_json, write_solution
from engine.problems.trace import traces
from engine.records import DeviceFacts, Evaluation
from engine.reports.dispatch_table import dispatch_table
from engine.store.reader import StoreReader
from engine.store.rows import CampaignRow, CandidateRow

_PLAIN_ENTRY = (
    "Its plain C entry (binding c) is KernelArc's own form: SOL-ExecBench and flashinfer-bench need a torch "
    "binding around it"
)
OWN_FILES = ("solution.json", "evidence.json", "trace.jsonl", "dispatch.json")


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written. ``number`` 0 is the seed."""

    campaign: str
    number: int
    agent: str
    folder: str
    files: list[str]
    text: str


def export_best(
    reader: StoreReader,
    out_dir: Path,
    agent: str | None = None,
    number: int | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write the campaign's best kernel, an agent's best, or candidate ``number`` into ``out_dir``.

    Raises:
        BadInput: unknown agent or candidate, one without a solution, or files that are there already.
        StoreError: the files cannot be written.
    """
    campaign = reader.campaign()
    chosen = _choose(reader, agent, number)
    solution = reader.solution(chosen)
    if solution is None:
        raise BadInput(f"candidate {chosen} holds no solution", where=campaign.name, fix="choose another number")
    unsafe = solution_errors(solution, f"candidate {chosen}")
    if unsafe:
        raise unsafe[0]
    row = reader.candidate(chosen) if chosen else None
    evaluation = reader.evaluation(chosen) if chosen else None
    targets = [out_dir / name for name in OWN_FILES] + [out_dir / source.path for source in solution.sources]
    _refuse_overwrite(targets, overwrite)
    try:
        files = write_solution(solution, out_dir)
        files += _write_table(out_dir, solution)
        files += _write_evidence(out_dir, campaign, solution, row, evaluation)
    except OSError as error:
        raise StoreError(f"{out_dir}: cannot be written ({error.strerror})") from error
    owner = f"candidate #{chosen} by agent {row.agent}" if row else "the seed (no KEEP yet)"
    speed = f", {row.speedup:.2f}x the reference" if row and row.speedup else ""
    own = f". {_PLAIN_ENTRY}" if solution.spec.binding == C_BINDING else ""
    return Exported(
        campaign=campaign.name,
        number=chosen,
        agent=row.agent if row else "",
        folder=str(out_dir),
        files=[str(file) for file in files],
        text=f"{owner}{speed}: {len(files)} files in {out_dir}{own}",
    )


def _choose(reader: StoreReader, agent: str | None, number: int | None) -> int:
    summary = reader.summary()
    if number is not None:
        if number != 0 and reader.candidate(number) is None:
            raise BadInput(
                f"there is no candidate {number}", where=summary.name, fix="`kernelarc report` lists them"
            )
        return number
    if agent is None:
        return summary.best
    if agent not in summary.agents:
        raise BadInput(
            f"there is no agent {agent!r}", where=summary.name, fix=f"agents: {', '.join(summary.agents)}"
        )
    return summary.agents[agent].best


def _refuse_overwrite(targets: list[Path], overwrite: bool) -> None:
    there = [target for target in targets if target.exists() or target.is_symlink()]
    if there and not overwrite:
        raise BadInput("exists already", where=str(there[0]), fix="choose another --out folder, or pass --force")
    linked = [target for target in there if target.is_symlink()]
    if linked:
        raise BadInput("is a symbolic link; nothing is written through it", where=str(linked[0]))


def _write_table(out_dir: Path, solution: Solution) -> list[Path]:
    """Which file runs on which shape, where the kernel is a dispatch; an older export's table does not stay."""
    file, table = out_dir / "dispatch.json", dispatch_table(solution)
    if table is None:
        file.unlink(missing_ok=True)
        return []
    file.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    return [file]


def _write_evidence(
    out_dir: Path,
    campaign: CampaignRow,
    solution: Solution,
    row: CandidateRow | None,
    evaluation: Evaluation | None,
) -> list[Path]:
    evidence = out_dir / "evidence.json"
    document = evidence_document(campaign, solution, row, evaluation)
    evidence.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if evaluation is None:
        return [evidence]
    facts = campaign.device_facts or DeviceFacts(kind="", name=campaign.device)
    lines = traces(
        problem_from_json(campaign.problem.encode()),
        solution,
        evaluation,
        hardware=facts.name,
        libs=facts.versions,
    )
    trace = out_dir / "trace.jsonl"
    trace.write_bytes(b"\n".join(lines) + b"\n")
    return [evidence, trace]


def evidence_document(
    campaign: CampaignRow, solution: Solution, row: CandidateRow | None, evaluation: Evaluation | None
) -> dict[str, Any]:
    """What was measured of the kernel, how, on what: enough to doubt it properly."""
    return {
        "campaign": campaign.name,
        "problem": campaign.problem_name,
        "solution_sha": solution_sha(solution),
        "solution_json_bytes": len(solution_json(solution)),
        "candidate": _builtins(row),
        "evaluation": _builtins(evaluation),
        "baselines": _builtins(campaign.baselines),
        "device": _builtins(campaign.device_facts),
        "settings": _builtins(campaign.config),
    }


def _builtins(record: object) -> Any:
    """JSON values; a number that is not finite has no JSON form and becomes ``null``."""
    return json.loads(msgspec.json.encode(record)) if record is not None else None
