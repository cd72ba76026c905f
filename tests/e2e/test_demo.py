"""The main job, as a new user meets it: a whole campaign from one command, and the kernel taken home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELARC = [sys.executable, "-m", "kernelarc_tui"]
STATUS_KEYS = {
    "campaign", "state", "stop_reason", "problem", "device", "config", "elapsed_s", "candidates", "budget",
    "outcomes", "errors", "reference_ms", "seed_ms", "best_ms", "speedup", "seed_speedup", "sol_score",
    "sol_basis", "cost_usd", "tokens", "agents", "wins", "traps",
}  # fmt: skip
AGENT_KEYS = {"name", "strategy", "model", "state", "candidates", "best_ms", "r", "mode"}
EVALUATE_KEYS = {
    "problem", "solution", "device", "verdict", "reason", "detail", "workloads", "geomean_speedup", "sol_score",
    "timer", "notes", "wall_s", "phases_s",
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo-home")


def kernelarc(home: Path, *args: str, timeout: float = 150) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "KERNELARC_HOME": str(home)}
    return subprocess.run([*KERNELARC, *args], capture_output=True, text=True, timeout=timeout, env=env)


@pytest.fixture(scope="module")
def demo(home: Path) -> dict:  # type: ignore[type-arg]
    done = kernelarc(home, "demo", "--headless", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.strip().splitlines()) == 1, "one JSON document and nothing else on standard output"
    document: dict = json.loads(done.stdout)  # type: ignore[type-arg]
    return document


@pytest.mark.slow
@pytest.mark.alone
def test_the_demo_ends_with_a_keep_and_the_promised_document(demo: dict) -> None:  # type: ignore[type-arg]
    assert demo.keys() >= STATUS_KEYS
    assert all(agent.keys() >= AGENT_KEYS for agent in demo["agents"])
    assert demo["state"] == "finished" and demo["stop_reason"] in ("candidates", "plateau", "time")
    assert len(demo["agents"]) >= 2
    assert demo["candidates"] >= 12
    assert demo["outcomes"]["KEEP"] >= 1
    assert sum(demo["outcomes"].values()) == demo["candidates"]
    assert demo["speedup"] > 1.05
    assert demo["best_ms"] < demo["seed_ms"]


@pytest.mark.slow
@pytest.mark.alone
def test_the_exported_best_is_confirmed_by_a_separate_evaluation(demo: dict, home: Path, tmp_path: Path) -> None:  # type: ignore[type-arg]
    out = tmp_path / "best"
    done = kernelarc(home, "export", demo["campaign"], "--out", str(out))
    assert done.returncode == 0, done.stderr
    done = kernelarc(home, "evaluate", demo["problem"], str(out / "solution.json"), "--device", "cpu", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    judged = json.loads(done.stdout)
    assert judged.keys() >= EVALUATE_KEYS
    assert judged["verdict"] == "PASS"
    assert judged["geomean_speedup"] == pytest.approx(
        demo["speedup"], rel=0.4
    )  # of another moment of this machine


@pytest.mark.slow
@pytest.mark.alone
def test_looking_back_at_the_demo(demo: dict, home: Path) -> None:  # type: ignore[type-arg]
    listed = json.loads(kernelarc(home, "ls", "--json").stdout)
    assert [c["name"] for c in listed] == [demo["campaign"]]
    assert json.loads(kernelarc(home, "status", "--json").stdout)["campaign"] == demo["campaign"]
    report = kernelarc(home, "report")
    assert report.returncode == 0 and demo["campaign"] in report.stdout
    assert json.loads(kernelarc(home, "memory", "list", "--json").stdout)["memory"]
    assert kernelarc(home, "resume", demo["campaign"]).returncode == 2
