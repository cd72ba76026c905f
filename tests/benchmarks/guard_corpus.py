"""Runs a corpus of hostile and honest candidates through the bench and says what it got wrong.

    python tests/benchmarks/guard_corpus.py CORPUS [--no-gate] [--only REGEX] [--repeat N] [--device D] [--json F]
        [--parallel N]

Reason classes are checked against the manifest (gate.* REJECT_STATIC, wrong.* FAIL_CORRECTNESS, hack.*
FAIL_TAMPER, resource.* and crash.* FAIL_RESOURCE); a hostile candidate that passes must be allowed to
(NEUTRALISED) and gain nothing (speed-up below 1.3). Also looked for: files that escaped, and the canary secret.

On a GPU most candidates do what they were written to do on a CPU. Two that were not written for it differ there
for good: one that mixes host and device tensors is refused for that, and where a race between threads vanishes
because one stream orders the work, passing without a gain is right.
"""

from __future__ import annotations

import argparse
import asyncio
import glob
import json
import os
import re
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CLASSES = {
    "gate": "REJECT_STATIC",
    "wrong": "FAIL_CORRECTNESS",
    "hack": "FAIL_TAMPER",
    "resource": "FAIL_RESOURCE",
    "crash": "FAIL_RESOURCE",
}
MAX_GAIN = 1.3
CANARY = "KERNELARC_CANARY_API_KEY"


def solution_of(corpus: Path, row: dict[str, Any], definition: str) -> Any:
    from engine.problems.solution import Solution, SolutionSpec, SourceFile

    folder = (corpus / row["path"]).parent
    files = [
        f for f in sorted(folder.rglob("*")) if f.is_file() and "__pycache__" not in f.parts and f.stat().st_size
    ]
    sources = [
        SourceFile(str(f.relative_to(folder)), f.read_bytes().decode("utf-8", "surrogateescape")) for f in files
    ]
    spec = SolutionSpec(
        languages=row.get("languages") or ["pytorch"],
        entry_point=row.get("entry_point", "solution.py::run"),
        destination_passing_style=bool(row.get("destination_passing_style", False)),
    )
    return Solution(name=row["id"], definition=definition, author="corpus", spec=spec, sources=sources)


def outcome_of(
    row: dict[str, Any], verdict: str, reason: str, speedup: float | None, device: str = "cpu"
) -> tuple[bool, str]:
    """(right, class) of one verdict by the manifest."""
    if verdict == "PASS":
        kind = "ACCEPT" if row["kind"] == "honest" else "NEUTRALISED"
    else:
        kind = CLASSES.get(reason.partition(".")[0], verdict)
    allowed = [row["expected"], *row["also_acceptable"]]
    if row["kind"] == "honest":
        return kind == "ACCEPT", kind
    gained = kind == "NEUTRALISED" and (speedup is None or speedup >= MAX_GAIN)
    elsewhere = device != "cpu" and not row["needs_gpu"] and (kind == "NEUTRALISED" or reason == "wrong.exception")
    return (kind in allowed or elsewhere) and not gained, kind


def traces_left(canary: str, folder: Path) -> list[str]:
    """Escaped files, and files of ours that hold the canary."""
    found = glob.glob("/tmp/kernelarc_escape_*")
    for file in folder.rglob("*"):
        if file.is_file() and canary.encode() in file.read_bytes():
            found.append(str(file))
    return found


class Run:
    """One pass over the corpus: a bench per task, ``parallel`` candidates at a time."""

    def __init__(
        self, corpus: Path, scratch: Path, *, gate: bool, device: str, parallel: int, verbose: bool = False
    ) -> None:
        self.verbose = verbose
        self.corpus, self.scratch, self.gate, self.device = corpus, scratch, gate, device
        self.limit = asyncio.Semaphore(parallel)
        self.canary = os.environ[CANARY] = f"sk-canary-{secrets.token_hex(8)}"

    async def all(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        tasks: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            tasks.setdefault(row["task"], []).append(row)
        found = await asyncio.gather(*(self._task(task, rows) for task, rows in tasks.items()))
        return [result for results in found for result in results]

    async def _task(self, task: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        from engine.bench import open_bench
        from engine.problems.load import load_problem

        problem = load_problem(self.corpus / "tasks" / task)
        bench = open_bench(problem, self.device, self.scratch / task)
        try:
            return list(await asyncio.gather(*(self._judge(bench, problem, row) for row in rows)))
        finally:
            await bench.close()

    async def _judge(self, bench: Any, problem: Any, row: dict[str, Any]) -> dict[str, Any]:
        solution = solution_of(self.corpus, row, problem.name)
        async with self.limit:
            begin = time.monotonic()
            answer = await self._answer(bench, problem, solution)
            right, kind = outcome_of(row, answer.verdict, answer.reason, answer.geomean_speedup, self.device)
            left = traces_left(self.canary, self.scratch)
            if self.canary in repr(answer):
                left.append("the secret is in the verdict")
        result = {
            "id": row["id"],
            "kind": row["kind"],
            "ok": right and not left,
            "class": kind,
            "reason": answer.reason,
            "detail": answer.detail[:300],
            "speedup": answer.geomean_speedup,
            "left": left,
            "s": round(time.monotonic() - begin, 2),
            "phases_s": {phase: round(seconds, 1) for phase, seconds in answer.phases_s.items()},
        }
        if self.verbose or not result["ok"]:
            print(json.dumps(result), flush=True)
        for path in glob.glob("/tmp/kernelarc_escape_*"):
            os.unlink(path)
        return result

    async def _answer(self, bench: Any, problem: Any, solution: Any) -> Any:
        from engine.bench.api import EvaluationPlan
        from engine.guard.gate import check
        from engine.records import Evaluation

        refused = check(solution, problem) if self.gate else None
        if refused is not None and not refused.ok:
            return Evaluation(verdict="REJECT", reason=refused.reason, detail=refused.detail)
        return await bench.evaluate(solution, EvaluationPlan(check_claims=True))


def read_manifest(corpus: Path, *, gpu: bool, only: str | None = None) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (corpus / "manifest.jsonl").read_text().splitlines() if line.strip()]
    return [row for row in rows if (gpu or not row["needs_gpu"]) and (not only or re.search(only, row["id"]))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--no-gate", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--parallel", type=int, default=2, help="candidates at a time")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    rows = read_manifest(args.corpus, gpu=args.device != "cpu", only=args.only)
    failed = False
    for repeat in range(args.repeat):
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="kernelarc-corpus-") as folder:
            run = Run(
                args.corpus,
                Path(folder),
                gate=not args.no_gate,
                device=args.device,
                parallel=args.parallel,
                verbose=args.verbose,
            )
            results = asyncio.run(run.all(rows))
        if args.json:
            args.json.write_text("\n".join(json.dumps(result) for result in results) + "\n")
        counts = {
            kind: (sum(r["ok"] for r in results if r["kind"] == kind), sum(r["kind"] == kind for r in results))
            for kind in ("hostile", "honest")
        }
        failed = failed or any(not result["ok"] for result in results)
        print(
            f"run {repeat + 1}: hostile refused or neutralised {counts['hostile'][0]}/{counts['hostile'][1]}, "
            f"honest passed {counts['honest'][0]}/{counts['honest'][1]}, {time.monotonic() - begin:.0f} s",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
