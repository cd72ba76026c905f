"""What offline agents reach on this GPU: one row per problem, campaign first, then paired comparisons of its best.

    python tests/benchmarks/h200_table.py [--problems DIR] [--only NAME,NAME] [--gpus N] [--minutes 1.25]
        [--candidates 24] [--agents 3] [--overlap-s 0] [--max-autotune NAME,NAME] [--limit-s 560] [--json FILE]
        [--keep DIR] [--some NAME,NAME]

Each row is made by KernelArc's own commands, as a user would type them: ``run`` without an API key, ``export``,
``evaluate --against`` torch.compile of the reference. With several GPUs the rows are shared among them, each GPU
with cores of its own. Rows are compared when all campaigns of their GPU are done, so that no campaign shares it.
With ``--overlap-s`` a campaign starts so many seconds before the last one ends: starting hardly needs the GPU.
Ratios come from paired blocks of one evaluation, with 95 % intervals over all workloads.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from scratch import own_home

ROOT = Path(__file__).resolve().parents[2]
COMPARE_S = 25.0  # kept for the comparison of each row
LONGEST_S = 150.0  # of one comparison: torch.compile takes minutes where shapes are many
SOME = 6  # workloads that are compared then
sys.path.insert(0, str(ROOT))

SHARED = (
    "FlashInfer-Bench-002_fused_add_rmsnorm_h4096",
    "FlashInfer-Bench-023_rmsnorm_h1536",
    "L1-038_flux_multi_head_rmsnorm_qk",
    "L1-030_attention_output_projection_with_residual",
)
BUNDLED = (
    "gemm_bf16_4096",
    "fused_add_rmsnorm_bf16",
    "swiglu_bf16",
    "qk_rmsnorm_h24_d128_bf16",
    "layernorm_h2048_bf16",
    "scaled_softmax_bf16",
    "gqa_paged_prefill_causal_h32_kv4_d128_bf16",
    "attention_output_projection_residual_bf16",
    "cross_entropy_v128k_bf16",
    "text_decoder_layer_bf16",
    "nvfp4_gqa_causal_h40_kv8_d128",
    "moe_swiglu_expert_backward_small_fp32",
    "moe_swiglu_expert_parallel_backward_fp32",
    "moe_swiglu_expert_backward_fp32",
)


def kernelarc(arguments: list[str], cores: set[int], timeout_s: float) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of one command on its own cores; 124 if it did not end in time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelarc_tui", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            out, err = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        return 124, out, err


def document(text: str) -> dict[str, Any]:
    """The last JSON document on standard output, or nothing."""
    for line in reversed(text.strip().splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}


class Row:
    """Everything measured for one problem."""

    def __init__(self, problem: str, device: str, cores: set[int], options: argparse.Namespace) -> None:
        self.problem, self.device, self.cores, self.options = problem, device, cores, options
        self.name = Path(problem).name
        self.found: dict[str, Any] = {"problem": self.name, "device": device}

    def campaign(self, scratch: Path) -> Path | None:
        """The best kernel of a campaign without an API key, as a file."""
        begin = time.monotonic()
        campaign = f"t-{self.name[:40]}"
        code, out, err = self._run(
            ["run", self.problem, "--name", campaign, "--agents", str(self.options.agents), "--headless", "--json",
             "--candidates", str(self.options.candidates), "--minutes", str(self.options.minutes)],
            60 * self.options.minutes + 90,
        )  # fmt: skip
        status = document(out)
        self.found["campaign_s"] = round(time.monotonic() - begin, 1)
        self.found |= {k: status.get(k) for k in ("candidates", "outcomes", "errors", "speedup", "sol_score")}
        if not status.get("speedup"):
            self.found["trouble"] = f"run: exit {code} {err.strip()[-300:]}"
            return None
        folder = scratch / self.name
        code, _, err = self._run(["export", campaign, "--out", str(folder)], 30)
        best = folder / "solution.json"
        if not best.is_file():
            self.found["trouble"] = f"export: exit {code} {err.strip()[-200:]}"
            return None
        self.found["best"] = json.loads(best.read_text()).get("name")
        if not (status.get("outcomes") or {}).get("KEEP"):
            return None
        if self.options.keep:
            self.options.keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(best, self.options.keep / f"{self.name}.json")
        return best

    def compare(self, best: Path, scratch: Path, deadline: float) -> None:
        modes = ["default"]
        if self._chosen(self.options.max_autotune):
            modes.append("max-autotune-no-cudagraphs")
        for mode in modes:
            left = min(deadline - time.monotonic(), LONGEST_S)
            if left > 20:
                self._against(mode, best, scratch, left, SOME if self._chosen(self.options.some) else 0)

    def _chosen(self, words: str) -> bool:
        return any(word and word in self.name for word in words.split(","))

    def _against(self, mode: str, best: Path, scratch: Path, left: float, some: int = 0) -> None:
        """``some``: on so many workloads only. A reference of many shapes compiles for minutes."""
        from recipes_gpu import chosen

        from engine.bench.compiled import compiled_reference
        from engine.problems.library import find_problem
        from engine.problems.solution_io import solution_json

        problem = find_problem(self.problem)
        rival = scratch / f"{self.name}-{mode}.json"
        rival.write_bytes(solution_json(compiled_reference(problem, mode)))
        command = ["evaluate", self.problem, str(best), "--against", str(rival), "--json"]
        for workload in chosen(problem, some) if some else []:
            command += ["--workload", workload.uuid]
        code, out, err = self._run(command, left)
        answer = document(out)
        key = "compile" if mode == "default" else "autotune"
        if code == 124 and not some:
            return self._against(mode, best, scratch, left, SOME)
        if answer.get("verdict") != "PASS":
            words = f"{answer.get('reason')} {str(answer.get('detail'))[:200]}" if answer else err.strip()[-200:]
            self.found.setdefault(f"{key}_trouble", f"exit {code}: {words}")
            if key == "compile":
                self._alone(best, 60.0)
            return
        self.found[key] = answer["against"] | {"workloads": len(answer["workloads"])}
        if some:
            self._alone(best, 60.0)
        else:
            self._levels(answer)

    def _alone(self, best: Path, left: float) -> None:
        """Against eager only, where the compiled reference does not run."""
        _, out, _ = self._run(["evaluate", self.problem, str(best), "--json"], left)
        if document(out).get("verdict") == "PASS":
            self._levels(document(out))

    def _levels(self, answer: dict[str, Any]) -> None:
        rows = [w for w in answer["workloads"] if w["latency_ms"] and w["speedup"]]
        logs = [math.log(w["speedup"]) for w in rows]
        self.found["eager"] = {
            "speedup": answer["geomean_speedup"],
            "least": math.exp(min(logs)),
            "most": math.exp(max(logs)),
        }
        largest = max(rows, key=lambda w: w["latency_ms"])
        self.found["largest"] = {
            key: largest[key]
            for key in ("uuid", "latency_ms", "reference_latency_ms", "roofline_ms", "ceiling_ms")
        }
        self.found["workloads"] = [
            [w["uuid"], round(w["latency_ms"], 5), round(w["speedup"], 3), w["roofline_ms"], w["ceiling_ms"]]
            for w in rows
        ]
        self.found["timer"] = answer["timer"]

    def _run(self, arguments: list[str], timeout_s: float) -> tuple[int, str, str]:
        if arguments[0] in ("run", "evaluate"):
            arguments = [*arguments, "--device", self.device]
        return kernelarc(arguments, self.cores, timeout_s)


def text(row: dict[str, Any]) -> str:
    def ratio(key: str) -> str:
        value = row.get(key)
        if not value:
            return "–"
        low, high = value["speedup_ci"]
        return f"{value['speedup']:.3f} [{low:.3f}, {high:.3f}] ({value['workloads']} workloads)"

    eager = row.get("eager") or {}
    largest = row.get("largest") or {}
    share = [
        f"{100 * largest[key] / largest['latency_ms']:.0f} % of {word}"
        for key, word in (("roofline_ms", "bound"), ("ceiling_ms", "measured ceiling"))
        if largest.get(key)
    ]
    cells = [
        row["problem"],
        f"eager {eager['speedup']:.2f}x ({eager['least']:.2f}–{eager['most']:.2f})" if eager else "eager –",
        f"compile {ratio('compile')}",
        f"max-autotune {ratio('autotune')}",
        ", ".join(share),
        f"{row.get('campaign_s')} s, {row.get('candidates')} candidates {row.get('outcomes')}",
        str(row.get("best")),
        *(f"{key}: {row[key]}" for key in ("trouble", "compile_trouble", "autotune_trouble") if row.get(key)),
    ]
    return " | ".join(cells)


class Table:
    """Rows as they are done: each worker's campaigns, then its comparisons."""

    def __init__(self, problems: list[str], options: argparse.Namespace) -> None:
        self.options, self.deadline = options, time.monotonic() + options.limit_s
        self.rows: list[dict[str, Any]] = []
        self._waiting: queue.Queue[str] = queue.Queue()
        for problem in problems:
            self._waiting.put(problem)

    def run(self) -> None:
        workers = self.options.gpus * self.options.per_gpu
        threads = [threading.Thread(target=self._work, args=(n, workers)) for n in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, number: int, count: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        share = set(cores[number * len(cores) // count : (number + 1) * len(cores) // count])
        device = f"cuda:{number % self.options.gpus + self.options.first_gpu}"
        with (
            tempfile.TemporaryDirectory(prefix="kernelarc-table-") as folder,
            ThreadPoolExecutor(max_workers=2) as campaigns,
        ):
            if number < self.options.gpus:
                _, out, err = kernelarc(["doctor", "--measure", "--device", device, "--json"], share, 90)
                print(f"{device} ceilings {str(document(out).get('ceilings'))[:600] or err[-300:]}", flush=True)
            runs: list[tuple[Row, Future[Path | None]]] = []
            while time.monotonic() < self.deadline - 60 * self.options.minutes - COMPARE_S * (len(runs) + 1):
                try:
                    row = Row(self._waiting.get_nowait(), device, share, self.options)
                except queue.Empty:
                    break
                runs.append((row, campaigns.submit(row.campaign, Path(folder))))
                overlap_s = self.options.overlap_s
                wait([runs[-1][1]], timeout=60 * self.options.minutes - overlap_s if overlap_s else None)
            for row, run in runs:
                if (error := run.exception()) is not None:
                    row.found["trouble"] = repr(error)
                self._compared(row, None if error is not None else run.result(), Path(folder))

    def _compared(self, row: Row, best: Path | None, scratch: Path) -> None:
        if best is not None:
            row.compare(best, scratch, self.deadline)
        self.rows.append(row.found)
        print(text(row.found), flush=True)
        if self.options.json:
            self.options.json.write_text(json.dumps(self.rows, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=Path, help="a folder with the SOL-ExecBench problems of the table")
    parser.add_argument("--only", default="")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument(
        "--per-gpu", type=int, default=1, help="campaigns at a time on each; its lock keeps them apart"
    )
    parser.add_argument("--first-gpu", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1.25)
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--overlap-s", type=float, default=0.0)
    parser.add_argument("--max-autotune", default="FlashInfer-Bench-0,L1-038")
    parser.add_argument(
        "--some", default="", help=f"of which {SOME} workloads are compared, as where all take too long to compile"
    )
    parser.add_argument("--limit-s", type=float, default=560.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for the best solution of each row")
    options = parser.parse_args()
    own_home("kernelarc-table-home-")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    wanted = [str(options.problems / name) for name in SHARED] if options.problems else []
    wanted += [str(ROOT / "tasks" / name) for name in BUNDLED]
    if options.only:
        wanted = [p for p in wanted if any(word in Path(p).name for word in options.only.split(","))]
    table = Table(wanted, options)
    table.run()
    rows = table.rows
    missing = sorted({Path(p).name for p in wanted} - {row["problem"] for row in rows})
    print(f"{len(rows)} rows; not reached: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()
