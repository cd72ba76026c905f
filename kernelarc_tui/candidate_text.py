"""What a candidate's tabs say, as painted lines: sources, differences, the reason in full. Pure but for speed."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.problems.solution import Solution
from engine.profile.text import profile_text
from engine.records import Evaluation, Outcome, Profile
from engine.store.rows import CandidateRow
from kernelarc_tui import fmt
from kernelarc_tui.describe import judged
from kernelarc_tui.paint import Line, wrap
from kernelarc_tui.safe import one_line, source_lines
from kernelarc_tui.view import View


@dataclass(frozen=True)
class Loaded:
    """What the store holds of one candidate."""

    row: CandidateRow
    solution: Solution | None
    evaluation: Evaluation | None
    profile: Profile | None = None


def why_lines(row: CandidateRow) -> list[str]:
    """Two rows: the reason where there is one, then what was tried."""
    reason = judged(row.reason, row.detail, row.log_ratio, row.log_ratio_lo, row.log_ratio_hi)
    tried = row.hypothesis + (f"  (predicted {row.predicted_change})" if row.predicted_change else "")
    failed = row.outcome not in (Outcome.KEEP, Outcome.ACCEPT)
    return [one_line(text, 400) for text in ((reason, tried) if failed else (tried, reason))]


def source_lines_of(solution: Solution | None) -> list[Line]:
    """Every source file, with line numbers; the entry file first."""
    from kernelarc_tui.highlighting import highlight

    if solution is None:
        return []
    files = sorted(solution.sources, key=lambda source: (source.path != solution.entry_file, source.path))
    lines: list[Line] = []
    for source in files:
        if len(files) > 1:
            lines += [Line(one_line(source.path, 120), "bold primary")]
        for number, line in enumerate(highlight(source.content, source.path), 1):
            lines.append(Line().fit(str(number), 4, "faint", right=True).add("  ").extend(line))
    return lines


def diff_lines(old: Solution, new: Solution, *, side: bool, width: int, whole: bool) -> list[Line]:
    from kernelarc_tui import diffing
    from kernelarc_tui.highlighting import highlight

    before = {source.path: source.content for source in old.sources}
    after = {source.path: source.content for source in new.sources}
    if len(before) == len(after) == 1 and before.keys() != after.keys():
        before = {next(iter(after)): next(iter(before.values()))}  # one file renamed is still one file
    lines: list[Line] = []
    for path in sorted({*before, *after}):
        left, right = highlight(before.get(path, ""), path), highlight(after.get(path, ""), path)
        found = diffing.rows(
            [line.text for line in left], [line.text for line in right], None if whole else diffing.CONTEXT
        )
        added, removed = diffing.changes(found)
        head = (
            Line(one_line(path, 120), "bold")
            .add(f"  +{added}", "verdict-keep")
            .add(f" −{removed}", "verdict-reject")
        )
        if not added and not removed:
            head.add("  no difference", "muted")
        lines.append(head)
        if added or removed or whole:
            lines += diffing.split(found, left, right, width) if side else diffing.unified(found, left, right)
    return lines


def evidence_lines(loaded: Loaded, view: View, width: int) -> list[Line]:
    """The reason in full, the numbers behind it, and the evidence as it is stored."""
    row, evaluation = loaded.row, loaded.evaluation
    lines: list[Line] = []

    def section(title: str, text: str) -> None:
        if text.strip():
            lines.append(Line(title, "bold primary"))
            for part in text.split("\n"):
                lines.extend(Line(f"  {piece}") for piece in wrap(one_line(part, 2000), max(20, width - 2)))
            lines.append(Line())

    section("verdict", f"{row.outcome} {row.reason}")
    section("reason in full", row.detail)
    section("hypothesis", row.hypothesis)
    section("predicted change", row.predicted_change)
    if row.log_ratio is not None:
        low, high = fmt.delta(row.log_ratio_hi), fmt.delta(row.log_ratio_lo)
        interval = f", 95 % interval {low} to {high}" if low and high else ""
        section("latency against the agent's best of that time", f"{fmt.delta(row.log_ratio)}{interval}")
    section("parameters", ", ".join(f"{key}={value}" for key, value in row.parameters.items()))
    if row.model:
        cost = f", {fmt.money(row.cost_usd)}" if row.cost_usd is not None else ""
        section("model", f"{row.model}: {row.tokens_in:,} tokens in, {row.tokens_out:,} out{cost}")
    if evaluation is not None:
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in evaluation.phases_s.items())
        section("bench", f"{evaluation.verdict}, timer {evaluation.timer}, {evaluation.wall_s:.1f} s: {phases}")
        section("notes", "\n".join(evaluation.notes))
    if loaded.profile is not None:
        section("profile", profile_text(loaded.profile))
    if evaluation is not None and evaluation.evidence:
        text = msgspec.json.format(msgspec.json.encode(evaluation.evidence), indent=2).decode()
        lines.append(Line("evidence", "bold primary"))
        lines.extend(Line(f"  {part}") for part in source_lines(text, 400, 2000))
    return lines
