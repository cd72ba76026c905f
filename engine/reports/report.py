"""The report of a campaign: what was found, how, with which settings, where. Text and JSON from one record."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

import msgspec

from engine.profile.text import profile_text
from engine.reports.status import duration, status_json
from engine.reports.textplot import Level, Series, step_plot
from engine.store.reader import StoreReader
from engine.store.rows import CampaignRow, CandidateRow, LedgerTotals, MemoryRow
from engine.store.summary import Summary, TrajectoryPoint
from engine.text import clean, cut, cut_middle

WIDTH = 79
KEEPS_SHOWN = 40
SOURCE_LIMIT = 200_000
NAME_WIDTH = 36  # of a workload: a UUID in full


class KeepLine(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    agent: str
    position: int
    at_s: float  # since the campaign began
    latency_ms: float | None
    speedup: float | None
    gain: float | None  # fraction faster than the agent's best of its time
    gain_ci: tuple[float, float] | None
    strategy: str
    family: str
    hypothesis: str
    vetoed: bool


class BestKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Number 0 is the seed: no KEEP yet."""

    number: int
    agent: str
    name: str
    languages: list[str]
    entry_point: str
    sources: list[dict[str, str]]
    workloads: list[dict[str, Any]]
    profile: str = ""  # what a profiler saw of it, where somebody asked


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """``status`` is the ``status --json`` object."""

    status: dict[str, Any]
    keeps: list[KeepLine]
    best: BestKernel | None
    outcomes: dict[str, dict[str, int]]  # agent → outcome → count, ERRORs included
    reasons: dict[str, int]  # why candidates failed
    trajectories: dict[str, list[TrajectoryPoint]]
    roofline_ms: float | None
    ceiling_ms: float | None  # measured, beside the bound
    compile_ms: float | None  # the reference under torch.compile
    wins: list[MemoryRow]
    traps: list[MemoryRow]
    settings: dict[str, Any]
    environment: dict[str, Any]
    ledger: LedgerTotals
    cost_per_keep_usd: float | None
    cost_unknown: bool  # some call had no known price: the cost is at least what is said
    notes: list[str]


def build_report(reader: StoreReader, folder: Path) -> Report:
    """Read everything that the report says. Raises :class:`StoreError`."""
    campaign, summary = reader.campaign(), reader.summary()
    keeps = _all_keeps(reader)
    return Report(
        status=status_json(reader, folder),
        keeps=[_keep_line(row, summary) for row in keeps],
        best=_best(reader, summary),
        outcomes={name: {**a.outcomes, "ERROR": a.errors} for name, a in summary.agents.items()},
        reasons=reader.reasons(),
        trajectories={name: agent.trajectory for name, agent in summary.agents.items()},
        roofline_ms=summary.roofline_ms,
        ceiling_ms=summary.ceiling_ms,
        compile_ms=summary.compile_ms,
        wins=reader.memory(kind="win"),
        traps=reader.memory(kind="trap"),
        settings=msgspec.to_builtins(campaign.config),
        environment=_environment(campaign, summary),
        ledger=reader.ledger_totals(),
        cost_per_keep_usd=summary.cost_per_keep_usd,
        cost_unknown=summary.cost_unknown,
        notes=list(campaign.baselines.notes) if campaign.baselines else [],
    )


def report_text(report: Report, *, ascii_only: bool = False) -> str:
    """For a terminal or a file: at most 79 columns, but for the kernel's own source."""
    status = report.status
    title = f"Campaign {status['campaign']}"
    parts = [
        title,
        "=" * len(title),
        *_overview(report),
        *_section("Best so far, ms over candidates", [_plot(report, ascii_only)]),
        *_section("KEEPs", _keeps_table(report)),
        *_section("Outcomes", _outcome_table(report)),
        *_section("Wins", [_memory_line("+", row) for row in report.wins]),
        *_section("Traps", [_memory_line("-", row) for row in report.traps]),
        *_section("Best kernel", _best_lines(report)),
        *_section("Settings", _settings(report.settings)),
        *_section("Environment", [f"{key}: {value}" for key, value in report.environment.items()]),
    ]
    return "\n".join(parts)


def _all_keeps(reader: StoreReader) -> list[CandidateRow]:
    rows: list[CandidateRow] = []
    while page := reader.candidates_after(rows[-1].number if rows else 0, limit=500, outcome="KEEP"):
        rows.extend(page)
    return rows


def _keep_line(row: CandidateRow, summary: Summary) -> KeepLine:
    interval = None
    if row.log_ratio_lo is not None and row.log_ratio_hi is not None:
        interval = (_gain(row.log_ratio_lo), _gain(row.log_ratio_hi))
    return KeepLine(
        number=row.number,
        agent=row.agent,
        position=row.position,
        at_s=row.at - summary.created_at,
        latency_ms=row.latency_ms,
        speedup=row.speedup,
        gain=_gain(row.log_ratio) if row.log_ratio is not None else None,
        gain_ci=interval,
        strategy=row.strategy,
        family=row.family,
        hypothesis=row.hypothesis,
        vetoed=row.vetoed_at is not None,
    )


def latency_change(gain: float) -> float:
    """A gain in speed as a change of latency, which is what screens and reports speak of: 1.0 becomes -0.5."""
    return 1 / (1 + gain) - 1


def _gain(log_ratio: float) -> float:
    return math.expm1(log_ratio)


def _best(reader: StoreReader, summary: Summary) -> BestKernel | None:
    solution = reader.solution(summary.best)
    if solution is None:
        return None
    return BestKernel(
        number=summary.best,
        agent=summary.best_agent,
        name=solution.name,
        languages=solution.spec.languages,
        entry_point=solution.spec.entry_point,
        sources=[{"path": source.path, "content": source.content} for source in solution.sources],
        workloads=[msgspec.to_builtins(result) for result in reader.workloads(summary.best)],
        profile=profile_text(profile) if (profile := reader.profile(summary.best)) is not None else "",
    )


def _environment(campaign: CampaignRow, summary: Summary) -> dict[str, Any]:
    facts = campaign.device_facts
    found: dict[str, Any] = {"device": summary.device_name or campaign.device, "timer": summary.timer}
    if summary.noise is not None:
        found["noise"] = f"{summary.noise:.2%}"
    if facts is not None:
        found["driver"] = facts.driver
        found["compute_capability"] = ".".join(map(str, facts.compute_capability or ()))
        found["memory_bytes"] = facts.memory_bytes
        found |= facts.versions
    return {key: value for key, value in found.items() if value not in (None, "")}


def _overview(report: Report) -> list[str]:
    s = report.status
    why = f" ({s['stop_reason']})" if s["stop_reason"] else ""
    lines = [
        f"problem     {s['problem']} on {report.environment.get('device', s['device'])}",
        f"state       {s['state']}{why} after {duration(s['elapsed_s'])}",
        f"candidates  {s['candidates']} of {s['budget'] if s['budget'] is not None else 'any number'}",
        f"reference   {_ms(s['reference_ms'])}   seed {_ms(s['seed_ms'])}" + _compiled(report),
        f"best        {_ms(s['best_ms'])}   {_times(s['speedup'])} reference   {_times(s['seed_speedup'])} seed",
    ]
    shares = [
        f"{least / s['best_ms']:.0%} of the {what}"
        for least, what in ((report.roofline_ms, "bound"), (report.ceiling_ms, "measured ceiling"))
        if least and s["best_ms"]
    ]
    if shares:
        lines.append(f"reached     {', '.join(shares)}")
    if s["sol_score"] is not None and s["sol_basis"]:
        basis = s["sol_basis"]
        lines.append(f"SOL score   {s['sol_score']:.3f} (bound: {basis['bound']}, baseline: {basis['baseline']})")
    if s["cost_usd"] or s["tokens"]:
        per_keep = f", ${report.cost_per_keep_usd:.2f} per KEEP" if report.cost_per_keep_usd else ""
        least = "at least " if report.cost_unknown else ""
        unknown = " (some prices are unknown)" if report.cost_unknown else ""
        lines.append(f"cost        {least}${s['cost_usd']:.2f}{per_keep}, {s['tokens']} tokens{unknown}")
    return lines


def _compiled(report: Report) -> str:
    return f"   torch.compile {_ms(report.compile_ms)}" if report.compile_ms else ""


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title, "-" * len(title), *(lines or ["none"])]


def _plot(report: Report, ascii_only: bool) -> str:
    total = report.status["candidates"]
    series = []
    for i, (name, points) in enumerate(report.trajectories.items()):
        steps = [(float(point.number), point.latency_ms) for point in points]
        if steps:
            steps.append((float(max(total, steps[-1][0])), steps[-1][1]))
        series.append(Series(label=f"agent {name}", mark=_MARKS[i % len(_MARKS)], points=steps))
    levels = []
    if report.status["reference_ms"] is not None:
        levels.append(Level(label="reference", y=report.status["reference_ms"]))
    if report.roofline_ms is not None:
        levels.append(Level(label="bound", y=report.roofline_ms))
    return step_plot(series, levels, width=WIDTH - 3, x_label="candidates", ascii_only=ascii_only)


def _keeps_table(report: Report) -> list[str]:
    if not report.keeps:
        return []
    lines = ["    #  agent  after      best ms  speed-up  latency  strategy"]
    for keep in report.keeps[-KEEPS_SHOWN:]:
        latency = f"{keep.latency_ms:.4f}" if keep.latency_ms is not None else "-"
        change = f"{latency_change(keep.gain):+.1%}" if keep.gain is not None else "-"
        veto = "  vetoed" if keep.vetoed else ""
        line = f"{keep.number:>5}  {keep.agent:<5}  {duration(keep.at_s)}  {latency:>8}  {_times(keep.speedup):>8}"
        lines.append(cut(f"{line}  {change:>7}  {keep.strategy}{veto}", WIDTH))
    hidden = len(report.keeps) - KEEPS_SHOWN
    return [*lines, f"({hidden} earlier ones are in the JSON report)"] if hidden > 0 else lines


def _outcome_table(report: Report) -> list[str]:
    kinds = ("KEEP", "ACCEPT", "REVERT", "REJECT", "ERROR")
    lines = ["agent   " + "".join(f"{kind:>8}" for kind in kinds)]
    for name, counts in report.outcomes.items():
        lines.append(f"{name:<8}" + "".join(f"{counts.get(kind, 0):>8}" for kind in kinds))
    common = sorted(report.reasons.items(), key=lambda item: (-item[1], item[0]))[:8]
    if common:
        lines += ["", "why candidates failed: ", *(f"  {count:>4}  {_said(reason)}" for reason, count in common)]
    return lines


def _said(reason: str) -> str:
    """A reason's code, but for comparisons, which are plain words: ``slower`` (than the agent's best)."""
    return reason.removeprefix("keep.").replace("-", " ") if reason.startswith("keep.") else reason


def _memory_line(sign: str, row: MemoryRow) -> str:
    measure = f"  {row.speedup:.2f}x" if row.speedup else ""
    pinned = " (pinned)" if row.pinned else ""
    source = f"{row.agent} #{row.candidate}" if row.candidate else row.carried_from or row.agent
    label, _, told = row.strategy.partition(": ")
    again = told and row.reflection.startswith(told.rstrip("…"))  # the text follows in full
    head = _wrap(f"{sign} {label if again else row.strategy}{measure}  {source}{pinned}", "  ")
    return f"{head}\n{_wrap(f'    {row.reflection}', '    ')}"


def _wrap(text: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=True)


def _settings(settings: dict[str, Any]) -> list[str]:
    """One setting a line; what was left open is left out."""
    given = {key: value for key, value in settings.items() if value is not None and value != []}
    return [
        f"{key}: {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in given.items()
    ]


def _best_lines(report: Report) -> list[str]:
    best = report.best
    if best is None:
        return []
    owner = f"#{best.number} by agent {best.agent}" if best.number else "the seed: nothing was faster"
    lines = [f"{owner}, {', '.join(best.languages)}, entry {best.entry_point}"]
    names = [cut_middle(result["uuid"], NAME_WIDTH) for result in best.workloads]
    room = max(map(len, names), default=0)
    for number, (name, result) in enumerate(zip(names, best.workloads, strict=True), 1):
        status = "" if result["status"] == "PASSED" else f"  {result['status']}"
        numbers = f"{_ms(result['latency_ms'])}  {_times(result['speedup'])}"
        lines.append(f"{number:>4}  {name:<{room}}  {numbers}{status}")
    lines += [line for part in best.profile.splitlines() for line in textwrap.wrap(f"profile: {part}", WIDTH)]
    for source in best.sources:
        lines += ["", f"--- {source['path']}", clean(source["content"], SOURCE_LIMIT).rstrip()]
    return lines


def _ms(value: float | None) -> str:
    return f"{value:.4f} ms" if value is not None else "-"


def _times(value: float | None) -> str:
    return f"{value:.2f}x" if value is not None else "-"


_MARKS = "123456789abcdefgh"
