"""Bounds and scores of a campaign: what they rest on, and that nothing is guessed."""

from __future__ import annotations

import msgspec
import pytest

from engine.grading import Scale, graded, mean_score, scale_for
from engine.problems.load import load_problem
from engine.records import Evaluation, WorkloadResult
from engine.tracing.trace import trace_problem


def result(uuid: str, ms: float | None, reference: float | None = 2.0) -> WorkloadResult:
    return WorkloadResult(uuid=uuid, status="PASSED", latency_ms=ms, reference_latency_ms=reference)


def test_an_unknown_device_has_no_bound_and_no_score(problem) -> None:  # type: ignore[no-untyped-def]
    scale = scale_for(problem, "some CPU", trace_problem(problem), [result("w1", 1.0)])
    assert scale == Scale()
    evaluation = Evaluation(verdict="PASS", workloads=[result("w1", 1.0)])
    assert graded(evaluation, scale) is evaluation


def test_a_known_gpu_gives_the_roofline_and_the_measured_reference_scores_one_half(problem) -> None:  # type: ignore[no-untyped-def]
    scale = scale_for(problem, "NVIDIA H200", trace_problem(problem), [result("w1", 1.0, 2.0)])
    assert (scale.bound, scale.baseline) == ("roofline", "eager")
    assert 0 < scale.bound_ms["w1"] < 1e-3
    as_slow = graded(Evaluation(verdict="PASS", workloads=[result("w1", 2.0)]), scale)
    assert as_slow.sol_score == pytest.approx(0.5, abs=1e-6)
    assert as_slow.workloads[0].roofline_ms == scale.bound_ms["w1"]
    faster = graded(Evaluation(verdict="PASS", workloads=[result("w1", 1.0)]), scale)
    assert faster.sol_score is not None and 0.5 < faster.sol_score < 1


def test_one_workload_without_a_time_has_no_score_at_all() -> None:
    scale = Scale(
        bound_ms={"a": 0.1, "b": 0.1}, baseline_ms={"a": 1.0, "b": 1.0}, bound="roofline", baseline="eager"
    )
    half = graded(Evaluation(verdict="FAIL", workloads=[result("a", 1.0), result("b", None)]), scale)
    assert half.workloads[0].sol_score is not None and half.sol_score is None
    assert mean_score([]) is None


def test_published_bounds_stand_before_ours_on_their_own_gpu_only(shared_problems) -> None:  # type: ignore[no-untyped-def]
    published = [path for path in shared_problems if (path / "bounds.json").is_file()]
    if not published:
        pytest.skip("no problem with a bounds.json in the collection")
    hardware = msgspec.json.decode((published[0] / "bounds.json").read_bytes())["hardware"]
    problem = load_problem(published[0])
    measured = [result(workload.uuid, 1.0, 2.0) for workload in problem.workloads]
    theirs = scale_for(problem, hardware, {}, measured)
    assert theirs.bound == "file"
    assert scale_for(problem, "some CPU", {}, measured) == Scale()
