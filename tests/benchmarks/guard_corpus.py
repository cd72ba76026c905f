"""Runs a corpus of hostile and honest candidates through the bench and says what it got wrong.

    python tests/benchmarks/guard_corpus.py CORPUS [--no-gate] [--only REGEX] [--repeat N] [--device D] [--json F]

Reason classes are checked against the manifest (gate.* REJECT_STATIC, wrong.* FAIL_CORRECTNESS, hack.*
FAIL_TAMPER, resource.* and crash.* FAIL_RESOURCE); a hostile candidate that passes must be allowed to
(NEUTRALISED) and gain nothing (speed-up below 1.3). Also looked for: files that escaped, and the canary secret.
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


def outcome_of(row: dict[str, Any], verdict: str, reason: str, speedup: float | None) -> tuple[bool, str]:
    """(right, class) of one verdict by the manifest."""
    if verdict == "PASS":
        kind = "ACCEPT" if row["kind"] == "honest" else "NEUTRALISED"
    else:
        kind = CLASSES.get(reason.partition(".")[0], verdict)
    allowed = [row["expected"], *row["also_acceptable"]]
    if row["kind"] == "honest":
        return kind == "ACCEPT", kind
    gained = kind == "NEUTRALISED" and (speedup is None or speedup >= MAX_GAIN)
    return kind in allowed and not gained, kind


def traces_left(canary: str, folder: Path) -> list[str]:
    """Escaped files, and files of ours that hold the canary."""
    found = glob.glob("/tmp/kernelarc_escape_*")
    for file in folder.rglob("*"):
        if file.is_file() and canary.encode() in file.read_bytes():
            found.append(str(file))
    return found


async def run_task(
    corpus: Path, task: str, rows: list[dict[str, Any]], *, gate: bool, device: str, scratch: Path, canary: str
) -> list[dict[str, Any]]:
    from engine.bench import open_bench
    from engine.bench.api import EvaluationPlan
    from engine.problems.load import load_problem

    if gate:
        from engine.guard.gate import check
    problem = load_problem(corpus / "tasks" / task)
    bench = open_bench(problem, device, scratch / task)
    results: list[dict[str, Any]] = []
    try:
        for row in rows:
            solution = solution_of(corpus, row, problem.name)
            begin = time.monotonic()
            refused = check(solution, problem) if gate else None
            if refused is not None and not refused.ok:
                verdict, reason, detail, speedup = "REJECT", refused.reason, refused.detail, None
            else:
                answer = await bench.evaluate(solution, EvaluationPlan())
                verdict, reason, detail = answer.verdict, answer.reason, answer.detail
                speedup = answer.geomean_speedup
                if canary in repr(answer):
                    detail, reason = "the secret is in the verdict", "hack.leak"
            right, kind = outcome_of(row, verdict, reason, speedup)
            left = traces_left(canary, scratch)
            results.append(
                {
                    "id": row["id"],
                    "kind": row["kind"],
                    "ok": right and not left,
                    "class": kind,
                    "reason": reason,
                    "detail": detail[:300],
                    "speedup": speedup,
                    "left": left,
                    "s": round(time.monotonic() - begin, 2),
                }
            )
            if not results[-1]["ok"]:
                print(json.dumps(results[-1]), flush=True)
            for path in glob.glob("/tmp/kernelarc_escape_*"):
                os.unlink(path)
    finally:
        await bench.close()
    return results


async def run_corpus(
    corpus: Path, rows: list[dict[str, Any]], *, gate: bool, device: str, scratch: Path, parallel: int = 2
) -> list[dict[str, Any]]:
    canary = os.environ[CANARY] = f"sk-canary-{secrets.token_hex(8)}"
    limit = asyncio.Semaphore(parallel)
    tasks: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        tasks.setdefault(row["task"], []).append(row)

    async def one(task: str) -> list[dict[str, Any]]:
        async with limit:
            return await run_task(
                corpus, task, tasks[task], gate=gate, device=device, scratch=scratch, canary=canary
            )

    return [result for results in await asyncio.gather(*map(one, tasks)) for result in results]


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
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    rows = read_manifest(args.corpus, gpu=args.device != "cpu", only=args.only)
    failed = False
    for repeat in range(args.repeat):
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="kernelarc-corpus-") as folder:
            results = asyncio.run(
                run_corpus(args.corpus, rows, gate=not args.no_gate, device=args.device, scratch=Path(folder))
            )
        for result in results:
            if args.verbose and result["ok"]:
                print(json.dumps(result))
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
