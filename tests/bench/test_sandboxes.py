"""Every outer layer alone: bubblewrap, our own namespaces, and none at all. And what children can do without."""

# ruff: noqa: E501  (sources of candidates)
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.bench import bench as bench_module
from engine.bench import seccomp
from engine.bench.api import EvaluationPlan
from engine.bench.bench import ProcessBench
from engine.bench.probe import _tries, probe_layers
from engine.bench.sandbox import Sandbox, environment, hidden_paths, readable_prefixes, why_missing
from engine.bench.session import Session
from engine.problems.model import Problem
from engine.problems.solution import Solution

from .conftest import helpers_of, wait_until

Make = Callable[..., Solution]
QUICK = EvaluationPlan(rounds=1, timing=False, unlisted_shape=False)


@pytest.mark.parametrize("kind", ["bubblewrap", "namespaces", "none"])
async def test_a_candidate_runs_confined(
    kind: str, problem: Problem, candidate: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "" if kind == "none" else _tries(kind)
    if refused:
        pytest.skip(f"this machine does not allow {kind}: {refused}")
    monkeypatch.setattr(
        bench_module, "Session", lambda *a, **k: Session(*a, **k, sandbox=Sandbox(kind=kind, layers={}))
    )
    bench = ProcessBench(problem, "cpu", tmp_path / "scratch")
    try:
        good = await bench.evaluate(candidate(), QUICK)
        bad = await bench.evaluate(candidate("", "return y"), QUICK)
    finally:
        await bench.close()
    assert good.verdict == "PASS", (good.reason, good.detail)
    assert bad.reason.startswith("wrong.")
    layers = good.evidence["isolation"]
    assert layers["no-new-privileges"] == "on" and layers["no-capabilities"] == "on"
    assert {"pid-namespace", "private-tmp", "unprivileged-user", "system-call-filter"} <= set(layers)


async def test_without_namespaces_of_its_own_a_candidate_is_still_killed_whole(
    problem: Problem, candidate: Make, tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "Session", lambda *a, **k: Session(*a, **k, namespaces=False))
    bench = ProcessBench(problem, "cpu", tmp_path / "scratch")
    before = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(300)\n    os._exit(0)"
    try:
        answer = await bench.evaluate(candidate(before), QUICK)
        again = await bench.evaluate(candidate(), QUICK)
        standing = len(helpers_of(private_home))
        await bench.evaluate(candidate(before), QUICK)
        assert wait_until(lambda: len(helpers_of(private_home)) <= standing)
    finally:
        await bench.close()
    assert (answer.verdict, again.verdict) == ("PASS", "PASS"), (answer.detail, again.detail)
    assert answer.evidence["isolation"]["pid-namespace"].startswith("off")
    assert answer.evidence["isolation"]["unprivileged-user"] == "on" or os.geteuid() != 0


def test_layers_are_named_for_doctor() -> None:
    layers = probe_layers()
    assert layers and all(value == "on" or value.startswith("off: ") for value in layers.values())


def test_the_environment_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret-value")
    monkeypatch.setenv("LD_PRELOAD", "/tmp/x.so")
    env = environment("cpu")
    assert "secret-value" not in env.values() and "LD_PRELOAD" not in env
    assert env["OMP_WAIT_POLICY"] == "PASSIVE" and env["TORCHINDUCTOR_COMPILE_THREADS"] == "1"


def test_python_can_be_found_in_the_sandbox() -> None:
    prefixes = readable_prefixes()
    assert all(not a.startswith(f"{b}/") for a in prefixes for b in prefixes if a != b)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_whole_instructions(machine: str) -> None:
    code = seccomp.build_filter(machine)
    assert len(code) % 8 == 0 and len(code) // 8 < 4096


def test_packages_that_only_a_variable_shows_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onlyhere").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), "/usr/lib/python3", "/no/such/place")))
    assert hidden_paths() == [str(tmp_path)]
    said = why_missing("ModuleNotFoundError: No module named 'onlyhere'")
    assert str(tmp_path) in said and "PYTHONPATH" in said
    assert not why_missing("ModuleNotFoundError: No module named 'elsewhere'") and not why_missing("No such file")
    monkeypatch.delenv("PYTHONPATH")
    assert not hidden_paths() and not why_missing("No module named 'onlyhere'")
