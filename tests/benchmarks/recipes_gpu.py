"""Every GPU recipe on every problem it fits: correct? how fast against eager and torch.compile? Run on a GPU box.

    python tests/benchmarks/recipes_gpu.py [--problems DIR] [--only PATTERN] [--recipes PATTERN] [--points N]
        [--workloads N] [--jobs N] [--budget-s S] [--no-compile] [--json FILE]

One forked child per problem and recipe, so that a crash costs one row. Children compile side by side and time one
at a time. A time is the sum of kernel durations of one call (CUPTI through torch.profiler, L2 flushed before each
call), median over calls. Not a verdict: no sandbox, one input set.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import fnmatch
import importlib.util
import json
import math
import os
import pickle
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scratch import scratch_folder

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from engine.problems.axes import resolve_axes  # noqa: E402
from engine.problems.inputs import make_inputs  # noqa: E402
from engine.problems.load import load_problem  # noqa: E402
from engine.problems.model import Problem, Workload  # noqa: E402
from engine.problems.outputs import allocate_outputs  # noqa: E402
from engine.problems.solution import CompileOptions, Solution  # noqa: E402
from engine.recipes.capture import trace_all  # noqa: E402
from engine.recipes.match import Fit, Misfit, match_all  # noqa: E402
from engine.recipes.model import load_recipes  # noqa: E402
from engine.recipes.render import render  # noqa: E402
from engine.recipes.reply import Request  # noqa: E402
from engine.recipes.space import starting_points  # noqa: E402
from engine.recipes.subject import subject_of  # noqa: E402
from engine.recipes.tracing import calls_for  # noqa: E402
from engine.records import DeviceFacts  # noqa: E402
from engine.skills import load_skills  # noqa: E402

GENERIC = {"graph-replay", "lean-reference", "relaid-reference", "lower-precision-reference", "compiled-reference"}
DEFAULT_SHARED = ("*fused_add_rmsnorm_h4096", "*rmsnorm_h1536", "*attention_output_projection_with_residual",
                  "*flux_multi_head_rmsnorm_qk", "*gemm_n256*", "*gemm_n6144*", "*masked_softmax*",
                  "*tanh_gated*", "*moe_expert_parallel*", "*text_decoder*", "*kv_cache_update*")  # fmt: skip


def problems(options: argparse.Namespace) -> Iterator[Problem]:
    folders = sorted(p for p in (ROOT / "tasks").iterdir() if (p / "definition.json").is_file())
    folders = [p for p in folders if not p.name.endswith("_fp32") or "moe" in p.name]
    if options.problems:
        shared = sorted(p for p in Path(options.problems).iterdir() if (p / "definition.json").is_file())
        folders += [p for p in shared if any(fnmatch.fnmatch(p.name, w) for w in DEFAULT_SHARED)]
    for folder in folders:
        if not options.only or any(fnmatch.fnmatch(folder.name, w) for w in options.only.split(",")):
            yield load_problem(folder)


def chosen(problem: Problem, count: int) -> list[Workload]:
    """Spread from small to large."""
    ordered = sorted(problem.workloads, key=lambda w: math.prod(max(v, 1) for v in w.axes.values()))
    if len(ordered) <= count:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


def kernel_ms(call: Callable[[], Any], calls: int = 12) -> tuple[float, float]:
    """(median kernel time of one call, wall time by events), L2 flushed before each call."""
    flush = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    events, durations = [], []
    for _ in range(calls):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    wall = statistics.median(b.elapsed_time(e) for b, e in events)
    for _ in range(calls):
        flush.zero_()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        durations.append(sum(e.device_time_total for e in profile.key_averages()) / 1e3)
        if durations[-1] > 20.0:
            break
    return statistics.median(durations), wall


def reference_function(problem: Problem) -> Callable[..., Any]:
    module = types.ModuleType("reference")  # torch.compile looks the module of a function up by name
    sys.modules["reference"] = module
    exec(compile(problem.definition.reference, "reference.py", "exec"), module.__dict__)
    return module.run  # type: ignore[no-any-return]


def as_list(result: Any, names: list[str]) -> list[torch.Tensor]:
    if isinstance(result, dict):
        return [result[n] for n in names]
    return list(result) if isinstance(result, tuple | list) else [result]


def worst_match(outs: list[torch.Tensor], refs: list[torch.Tensor], workload: Workload) -> tuple[bool, str]:
    tolerance = workload.tolerance
    for index, (out, ref) in enumerate(zip(outs, refs, strict=True)):
        matched, peak, total = 0, 0.0, ref.numel()
        for a, b in zip(out.reshape(-1).split(1 << 26), ref.reshape(-1).split(1 << 26), strict=True):
            a, b = a.float(), b.float()
            error = (a - b).abs()
            fine = (error <= tolerance.max_atol + tolerance.max_rtol * b.abs()) | (a == b)
            matched += int(fine.sum())
            peak = max(peak, float(error.nan_to_num(1e30).max()) if error.numel() else 0.0)
        if total and matched / total < tolerance.required_matched_ratio:
            return False, f"out{index} {matched / total:.5f} match, max error {peak:.2e}"
    return True, ""


class Lock:
    """Children time one at a time."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "w")  # noqa: SIM115

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)


def baseline(problem: Problem, options: argparse.Namespace, lock: str) -> dict[str, Any]:
    run, rows = reference_function(problem), {}
    gate = Lock(lock)
    for workload in chosen(problem, options.workloads):
        axes = resolve_axes(problem.definition, workload)
        row: dict[str, Any] = {}
        try:
            args = make_inputs(problem.definition, workload, axes, "cuda", 1, root=problem.root)
            with gate, torch.no_grad():
                row["eager"], row["eager_wall"] = kernel_ms(lambda args=args: run(*args))
            if options.compile and "moe" not in problem.name and "paged" not in problem.name:
                torch._dynamo.reset()
                fast = torch.compile(run, dynamic=False)
                with torch.no_grad():
                    fast(*args)
                    with gate:
                        row["compile"], row["compile_wall"] = kernel_ms(lambda f=fast, args=args: f(*args))
        except Exception as error:  # noqa: BLE001  a candidate may fail in any way
            row["error"] = f"{type(error).__name__}: {error}"[:200]
        rows[workload.uuid] = row
    return rows


def attempt(fit: Fit, problem: Problem, options: argparse.Namespace, lock: str) -> list[dict[str, Any]]:
    found = []
    run = reference_function(problem)
    gate = Lock(lock)
    for point in starting_points(fit.recipe.file, fit.facts)[: options.points]:
        row: dict[str, Any] = {"point": point, "workloads": {}}
        found.append(row)
        try:
            candidate = import_solution(render(fit, point))
        except Exception as error:  # noqa: BLE001  a candidate may fail in any way
            row["error"] = f"{type(error).__name__}: {error}"[:300]
            continue
        for workload in chosen(problem, options.workloads):
            row["workloads"][workload.uuid] = one_workload(problem, workload, run, candidate, gate)
    return found


def one_workload(
    problem: Problem, workload: Workload, run: Callable[..., Any], candidate: Callable[..., Any], gate: Lock
) -> dict[str, Any]:
    definition = problem.definition
    axes = resolve_axes(definition, workload)
    try:
        args = make_inputs(definition, workload, axes, "cuda", 1, root=problem.root)
        outs = allocate_outputs(definition, axes, "cuda")
        with torch.no_grad():
            candidate(*args, *outs)
            torch.cuda.synchronize()
            refs = as_list(run(*args), list(definition.outputs))
            ok, why = worst_match(outs, refs, workload)
            del refs
            if not ok:
                return {"error": f"wrong: {why}"}
            with gate:
                ms, wall = kernel_ms(lambda: candidate(*args, *outs))
        return {"ms": ms, "wall": wall}
    except Exception as error:  # noqa: BLE001  a candidate may fail in any way
        if os.environ.get("RECIPES_GPU_TRACE"):
            traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:300].replace("\n", " ")}


def import_solution(solution: Solution) -> Callable[..., Any]:
    path = scratch_folder("recipe-") / solution.entry_file
    path.write_text(solution.entry_source)
    if path.suffix == ".cu":
        return built(path, solution)
    spec = importlib.util.spec_from_file_location(f"kernel_{path.parent.name.replace('-', '_')}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run  # type: ignore[no-any-return]


def built(path: Path, solution: Solution) -> Callable[..., Any]:
    """A Python extension module without torch's headers, built by nvcc for this device."""
    library = path.with_suffix(".so")
    options = solution.spec.compile_options or CompileOptions()
    include = sysconfig.get_paths()["include"]
    command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-arch=native", f"-I{include}", "-o", str(library)]
    command += ["-DTORCH_EXTENSION_NAME=benchmark_kernel", *options.cuda_cflags, str(path), *options.ld_flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvcc: {done.stderr[-250:]}")
    spec = importlib.util.spec_from_file_location("benchmark_kernel", library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run  # type: ignore[no-any-return]


class Job:
    """One forked child that writes one JSON document."""

    def __init__(self, label: tuple[str, str], work: Callable[[], Any], limit_s: float) -> None:
        self.label, self.started, self.limit_s = label, time.monotonic(), limit_s
        self.path = tempfile.mktemp(prefix="recipe-job-")
        self.pid = os.fork()
        if self.pid == 0:
            code = 0
            try:
                Path(self.path).write_text(json.dumps(work()))
            except BaseException:  # noqa: BLE001  the child ends here
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            os._exit(code)

    def poll(self) -> Any:
        """``None`` while it runs, else its answer or ``{"error": …}``."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() - self.started < self.limit_s:
                return None
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
            return {"error": f"longer than {self.limit_s:.0f} s"}
        if Path(self.path).exists():
            answer = json.loads(Path(self.path).read_text())
            Path(self.path).unlink()
            return answer
        return {"error": f"child ended with status {status}"}


def traced(request: Request) -> list[Any]:
    """The traces of one reference, made in a child: fake CUDA tensors open a context, and this one must fork."""
    path = Path(tempfile.mktemp(prefix="recipe-trace-"))
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            path.write_bytes(pickle.dumps(list(trace_all(request).values())))
        os._exit(0)
    os.waitpid(pid, 0)
    try:
        return list(pickle.loads(path.read_bytes())) if path.exists() else []
    finally:
        path.unlink(missing_ok=True)


def main() -> None:
    options = arguments()
    started = time.monotonic()
    device = facts()
    recipes, broken = load_recipes(load_skills())
    for item in broken:
        print(f"broken recipe {item.name}: {item.why}")
    lock = tempfile.mktemp(prefix="recipe-lock-")
    plan: list[tuple[tuple[str, str], Callable[[], Any]]] = []
    by_name: dict[str, Problem] = {}
    for problem in problems(options):
        by_name[problem.name] = problem
        request = Request(reference=problem.definition.reference, calls=calls_for(problem))
        traces = traced(request)
        subject = subject_of(problem, traces, device, problem.definition.op_type or "other")
        fits, misfits = match_all(recipes, subject)
        wanted = [f for f in fits if f.recipe.name not in GENERIC]
        wanted = [f for f in wanted if any(fnmatch.fnmatch(f.recipe.name, w) for w in options.recipes.split(","))]
        print(f"{problem.name}: {', '.join(f.recipe.name for f in wanted) or why_none(misfits)}")
        plan.append(((problem.name, "baseline"), lambda p=problem: baseline(p, options, lock)))
        for fit in wanted:
            plan.append(((problem.name, fit.recipe.name), lambda f=fit, p=problem: attempt(f, p, options, lock)))
    sys.stdout.flush()
    answers = execute(plan, options, started)
    report(answers, by_name, options)
    print(f"{time.monotonic() - started:.0f} s")
    if options.json:
        document = [{"problem": p, "recipe": r, "result": a} for (p, r), a in answers.items()]
        Path(options.json).write_text(json.dumps(document, indent=1))


def execute(
    plan: list[tuple[tuple[str, str], Callable[[], Any]]], options: argparse.Namespace, started: float
) -> dict[tuple[str, str], Any]:
    waiting, running, answers = sorted(plan, key=lambda item: alone(item[0])), [], {}
    while waiting or running:
        over = time.monotonic() - started > options.budget_s
        if over:
            for label, _ in waiting:
                answers[label] = {"error": "out of time"}
            waiting = []
        while (
            waiting
            and len(running) < options.jobs
            and not (running and (alone(waiting[0][0]) or alone(running[-1].label)))
        ):
            label, work = waiting.pop(0)
            running.append(Job(label, work, options.job_s))
        time.sleep(0.05)
        for job in list(running):
            answer = job.poll()
            if answer is not None:
                answers[job.label] = answer
                running.remove(job)
    return answers


def alone(label: tuple[str, str]) -> bool:
    """Problems whose tensors fill the card: nothing else runs beside them."""
    return any(word in label[0] for word in ("expert_backward_fp32", "moe_expert_parallel", "paged_prefill"))


def report(answers: dict[tuple[str, str], Any], by_name: dict[str, Problem], options: argparse.Namespace) -> None:
    for name, problem in by_name.items():
        base = answers.get((name, "baseline"), {})
        print(f"\n== {name}")
        if "error" in base:
            print(f"   baseline: {base['error']}")
            base = {}
        uuids = [w.uuid for w in chosen(problem, options.workloads)]
        for uuid in uuids:
            row = base.get(uuid, {})
            text = "  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print(f"   {uuid[:40]:40s} {text}")
        for (owner, recipe), answer in answers.items():
            if owner != name or recipe == "baseline":
                continue
            if isinstance(answer, dict):
                print(f"   {recipe}: {answer['error']}")
                continue
            for row in answer:
                print(f"   {recipe} {short(row['point'])}: {row.get('error') or cells(row, base, uuids)}")


def cells(row: dict[str, Any], base: dict[str, Any], uuids: list[str]) -> str:
    """Kernel time, and in brackets how many times faster than the better of eager and compiled."""
    texts = []
    for uuid in uuids:
        result, rival = row["workloads"].get(uuid, {}), base.get(uuid, {})
        if "ms" not in result:
            texts.append(result.get("error", "-"))
            continue
        best = min((rival[k] for k in ("eager", "compile") if k in rival), default=math.nan)
        texts.append(f"{result['ms']:.4f} ({best / result['ms']:.2f}x)")
    return "  ".join(texts)


def short(point: dict[str, Any]) -> str:
    return ",".join(f"{k[:9]}={v}" for k, v in point.items())


def why_none(misfits: list[Misfit]) -> str:
    return "no recipe: " + "; ".join(sorted({m.why for m in misfits}))[:300]


def facts() -> DeviceFacts:
    """Read in a child: a process that holds a CUDA context cannot fork workers that use it."""
    job = Job(
        ("device", ""),
        lambda: [torch.cuda.get_device_name(0), list(torch.cuda.get_device_capability(0))],
        60.0,
    )
    while (answer := job.poll()) is None:
        time.sleep(0.05)
    if isinstance(answer, dict):
        sys.exit(f"needs a CUDA device: {answer['error']}")
    return DeviceFacts(kind="cuda", name=answer[0], compute_capability=tuple(answer[1]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", help="a folder with further problems")
    parser.add_argument("--only", help="comma-separated patterns of problem folders")
    parser.add_argument("--recipes", default="*", help="comma-separated patterns of recipe names")
    parser.add_argument("--points", type=int, default=3)
    parser.add_argument("--workloads", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--job-s", type=float, default=150.0)
    parser.add_argument("--budget-s", type=float, default=420.0)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
