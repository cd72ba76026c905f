"""Honest kernels with unusual manners pass, and their numbers are there."""

# ruff: noqa: E501  (sources of candidates)
from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.bench import claims as claims_of
from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.bench.evaluation import Trial
from engine.bench.stats import TimingCheck
from engine.problems.model import Problem
from engine.problems.solution import Solution, python_solution

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = EvaluationPlan(rounds=2, timing=False)
Make = Callable[..., Solution]

HONEST = {
    "plain": ("", "return torch.softmax(x, dim=-1) * scale + y"),
    "list": ("", "return [torch.softmax(x, dim=-1) * scale + y]"),
    "dictionary": ("", "return {'out': torch.softmax(x, dim=-1) * scale + y, 'more': 1}"),
    "not contiguous": ("", "return (torch.softmax(x, dim=-1) * scale + y).t().contiguous().t()"),
    "slice of a padded buffer": (
        "",
        "padded = torch.zeros(x.shape[0], 80)\npadded[:, :64] = torch.softmax(x, dim=-1) * scale + y\nreturn padded[:, :64]",
    ),
    "one output buffer for ever": (
        "_out = {}",
        "out = _out.setdefault(x.shape, torch.empty_like(x))\ntorch.add(torch.softmax(x, dim=-1) * scale, y, out=out)\nreturn out",
    ),
    "one arena for ever, shifted": (
        "_arena, _calls = torch.empty(1 << 16), [0]",
        "_calls[0] += 1\nout = _arena[_calls[0] % 7 * 32:][:x.numel()].view(x.shape)\n"
        "torch.add(torch.softmax(x, dim=-1) * scale, y, out=out)\nreturn out",
    ),
    "lazily negated": ("", "return torch._neg_view(-(torch.softmax(x, dim=-1) * scale + y))"),
    "named tuple": (
        "from collections import namedtuple\nAnswer = namedtuple('Answer', 'out')",
        "return Answer(torch.softmax(x, dim=-1) * scale + y)",
    ),
    "numpy": (
        "import numpy as np",
        "v = np.exp(x.numpy() - x.numpy().max(-1, keepdims=True))\nreturn torch.from_numpy(v / v.sum(-1, keepdims=True) * np.float32(scale)) + y",
    ),
    "parameter": ("", "return torch.nn.Parameter(torch.softmax(x, dim=-1) * scale + y)"),
    "joined threads": (
        "from concurrent.futures import ThreadPoolExecutor",
        "with ThreadPoolExecutor(2) as pool:\n    parts = list(pool.map(lambda r: torch.softmax(r, dim=-1), x.chunk(2)))\nreturn torch.cat(parts) * scale + y",
    ),
    "prints and warns": ("import warnings", "print('hello')\nwarnings.warn('careful')\nreturn torch.softmax(x, dim=-1) * scale + y"),
    "aot_eager": (
        "@torch.compile(backend='aot_eager')\ndef f(x, y, scale): return torch.softmax(x, dim=-1) * scale + y",
        "return f(x, y, scale)",
    ),
    "a default device of its own": ("torch.set_default_device('meta')", "return torch.softmax(x, dim=-1) * scale + y"),
    "a default type of its own": (
        "torch.set_default_dtype(torch.float64)",
        "return torch.softmax(x, dim=-1) * torch.tensor(scale, dtype=x.dtype) + y",
    ),
    "jit.script": (
        "@torch.jit.script\ndef f(x, y, scale: float):\n    return torch.softmax(x, dim=-1) * scale + y",
        "return f(x, y, scale)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
async def test_passes(bench: ProcessBench, candidate: Make, name: str) -> None:
    answer = await bench.evaluate(candidate(*HONEST[name]), QUICK)
    assert answer.verdict == "PASS", (answer.reason, answer.detail)


async def test_destination_passing(bench: ProcessBench, problem: Problem) -> None:
    source = (
        "import torch\n\ndef run(x, y, scale, out):\n    torch.add(torch.softmax(x, dim=-1) * scale, y, out=out)\n"
    )
    solution = python_solution(source, definition=problem.name, name="dps", destination_passing=True)
    answer = await bench.evaluate(solution, EvaluationPlan(rounds=2, min_pairs=3, max_pairs=4, calls=6))
    assert answer.verdict == "PASS", (answer.reason, answer.detail)


async def test_an_untouched_destination_is_not_a_result(bench: ProcessBench, problem: Problem) -> None:
    solution = python_solution(
        "def run(x, y, scale, out):\n    pass\n", definition=problem.name, name="idle", destination_passing=True
    )
    answer = await bench.evaluate(solution, QUICK)
    assert answer.reason in ("wrong.nan", "wrong.inf"), (answer.reason, answer.detail)


async def test_a_timed_pass_has_every_number(bench: ProcessBench, candidate: Make) -> None:
    plan = EvaluationPlan(rounds=2, min_pairs=3, max_pairs=6, calls=6, against_reference=True)
    answer = await bench.evaluate(candidate(), plan, incumbent=candidate())
    assert answer.verdict == "PASS", (answer.reason, answer.detail)
    assert answer.timer == "wall" and answer.latency_ms and answer.geomean_speedup
    assert (
        answer.comparison is not None and answer.comparison.against == "incumbent" and answer.comparison.pairs >= 3
    )
    for row in answer.workloads:
        assert row.status == "PASSED" and row.latency_ms and row.reference_latency_ms and row.speedup
        assert row.latency_ci and row.latency_ci[0] <= row.latency_ms <= row.latency_ci[1]
        samples = answer.evidence["samples_ns"][row.uuid]
        assert set(samples) == {"candidate", "incumbent", "reference"} and samples["candidate"]
    assert set(answer.phases_s) == {"start", "compile", "wait", "correctness", "timing"}
    assert answer.evidence["isolation"] and answer.evidence["seeds"] and answer.evidence["environment"]


async def test_only_the_published_shapes_is_not_enough(bench: ProcessBench, candidate: Make) -> None:
    body = "if x.shape[0] not in (16, 48):\n    return torch.zeros_like(x)\nreturn torch.softmax(x, dim=-1) * scale + y"
    answer = await bench.evaluate(candidate("", body), QUICK)
    assert answer.reason == "wrong.unlisted-shape", (answer.reason, answer.detail)


async def test_refusing_an_unlisted_shape_is_a_note(bench: ProcessBench, candidate: Make) -> None:
    body = "if x.shape[0] not in (16, 48):\n    raise ValueError(x.shape)\nreturn torch.softmax(x, dim=-1) * scale + y"
    answer = await bench.evaluate(candidate("", body), QUICK)
    assert answer.verdict == "PASS" and any("does not list" in note for note in answer.notes)


async def test_a_published_scalar_is_not_enough(bench: ProcessBench, candidate: Make) -> None:
    answer = await bench.evaluate(candidate("", "return torch.softmax(x, dim=-1) * 0.5 + y"), QUICK)
    assert answer.reason == "wrong.unlisted-shape", (answer.reason, answer.detail)


async def test_several_evaluations_run_side_by_side(bench: ProcessBench, candidate: Make) -> None:
    import asyncio

    answers = await asyncio.gather(*(bench.evaluate(candidate(), QUICK) for _ in range(3)))
    assert [answer.verdict for answer in answers] == ["PASS"] * 3


async def test_what_a_source_compiled_is_kept_for_it(bench: ProcessBench, candidate: Make) -> None:
    before = "import os\nfile = os.path.join(os.environ['TRITON_CACHE_DIR'], 'built')\nhad = os.path.exists(file)\nos.makedirs(os.path.dirname(file), exist_ok=True)\nopen(file, 'w').write('x')"
    body = "print('had', had)\nreturn torch.softmax(x, dim=-1) * scale + y"
    kept = [(await bench.evaluate(candidate(before, body), QUICK)).evidence["compile_cache"] for _ in range(2)]
    assert kept == ["kept", "present"]
    other = await bench.evaluate(candidate(before + "\nother = 1", body), QUICK)
    assert other.evidence["compile_cache"] == "kept"


@pytest.mark.parametrize(
    ("fresh", "verdict"), [([True, True], "FAIL"), ([True, False], "PASS"), ([False], "PASS")]
)
async def test_every_one_of_three_runs_must_contradict_a_claim(
    bench: ProcessBench, candidate: Make, monkeypatch: pytest.MonkeyPatch, fresh: list[bool], verdict: str
) -> None:
    def check(suspect: bool) -> TimingCheck:
        return TimingCheck(
            suspect=suspect, weak=False, slope_ms=1.0, excess_ms=0.5, allowed_ms=0.1, below_bound=False
        )

    answers = iter(fresh)

    async def first_run(trial: Trial, claims: dict[int, float]) -> dict[int, TimingCheck]:
        await real(trial, claims)
        return {workload: check(True) for workload in claims}

    async def fresh_run(trial: Trial, claims: dict[int, float]) -> dict[int, TimingCheck]:
        suspect = next(answers)
        return {workload: check(suspect) for workload in claims}

    real = claims_of._first_run
    monkeypatch.setattr(claims_of, "_first_run", first_run)
    monkeypatch.setattr(claims_of, "_fresh_run", fresh_run)
    answer = await bench.evaluate(candidate(), EvaluationPlan(rounds=2, min_pairs=3, max_pairs=4, calls=6))
    assert (answer.verdict, next(answers, None)) == (verdict, None), answer.detail
    assert answer.reason == ("hack.timing" if verdict == "FAIL" else "")
    assert any("cleared" in note for note in answer.notes) is (verdict == "PASS")
