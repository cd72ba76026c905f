"""Each problem's own reference as the solution, on its smallest workload: does the guard pass what must pass?

    python tests/benchmarks/reference_solutions.py PROBLEM_FOLDER... [--device cpu] [--seconds 60] [--jobs 1]

Prints one row a problem: verdict, reason, seconds. Exits 1 if a verdict is neither PASS nor an ERROR ``needs.*``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.errors import BadInput
from engine.problems.axes import input_bytes, resolve_axes
from engine.problems.load import load_problem


def smallest(folder: Path) -> tuple[int, int]:
    """(1-based number, input bytes) of the workload with the smallest inputs."""
    problem = load_problem(folder)
    sizes = [input_bytes(problem.definition, resolve_axes(problem.definition, w)) for w in problem.workloads]
    return sizes.index(min(sizes)) + 1, min(sizes)


def judge(folder: Path, device: str, seconds: float) -> dict[str, object]:
    began = time.monotonic()
    try:
        number, size = smallest(folder)
    except BadInput as error:
        return {"problem": folder.name, "verdict": "BAD", "reason": error.message}
    source = load_problem(folder).definition.reference
    with tempfile.TemporaryDirectory() as scratch:
        solution = Path(scratch) / "reference.py"
        solution.write_text(source, encoding="utf-8")
        command = [sys.executable, "-m", "kernelarc_tui", "evaluate", str(folder), str(solution), "--json"]
        command += ["--workload", str(number), "--device", device, "--rounds", "3", "--calls", "5"]
        command += ["--deadline", str(seconds)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=2 * seconds + 60, check=False)
            answer = json.loads(done.stdout)
        except (ValueError, subprocess.TimeoutExpired) as error:
            answer = {"verdict": "NONE", "reason": type(error).__name__, "detail": ""}
    return {
        "problem": folder.name,
        "mib": round(size / 2**20),
        "verdict": answer["verdict"],
        "reason": answer["reason"],
        "detail": str(answer["detail"])[:110],
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    bad = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda f: judge(f, options.device, options.seconds), options.folders):
            passes = row["verdict"] == "PASS" or str(row["reason"]).startswith("needs.")
            bad += not passes
            print("  ".join(str(value) for value in row.values()), flush=True)
    print(f"{len(options.folders) - bad} of {len(options.folders)} pass or say what they need")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
