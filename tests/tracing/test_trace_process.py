"""The tracing process: limited, scrubbed, killed by a deadline, cached."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.bench.sandbox import choose_sandbox
from engine.errors import Fault
from engine.paths import cache_dir
from engine.problems.model import Definition, Problem, TensorSpec, Workload
from engine.tracing.trace import trace_problem, trace_problems

SPEC = TensorSpec(dtype="float32", shape=["64", "64"])


def _problem(body: str, name: str = "p") -> Problem:
    definition = Definition(
        name=name,
        axes={},
        inputs={"x": SPEC},
        outputs={"y": SPEC},
        reference=f"import os, time\nimport torch\n\ndef run(x):\n    {body}\n",
    )
    return Problem(definition=definition, workloads=[Workload(uuid="a", axes={}), Workload(uuid="b", axes={})])


def test_hostile_references_cost_only_their_own_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELARC_CANARY_API_KEY", "secret")
    seen = tmp_path / "seen"
    seen.write_text("x")
    problems = [
        _problem("return x @ x", "good"),
        _problem("os._exit(0)", "leaves"),
        _problem("os.kill(os.getpid(), 11)", "crashes"),
        _problem("time.sleep(600)", "sleeps"),
        _problem("print('noise' * 1000); os.write(1, b'{}'); return x @ x", "noisy"),
        _problem("assert 'KERNELARC_CANARY_API_KEY' not in os.environ; return x @ x", "secrets"),
        _problem(f"assert not os.path.exists({str(seen)!r}); return x @ x", "disk"),
        _problem("import socket; socket.create_connection(('127.0.0.1', 9), 1); return x @ x", "network"),
        _problem("return x @ x + 1", "good too"),
    ]
    results = dict(zip([p.name for p in problems], trace_problems(problems, timeout_s=8), strict=True))
    for name in ("good", "noisy", "secrets", "good too"):
        graphs = results[name]
        assert isinstance(graphs, dict), graphs
        assert list(graphs) == ["a", "b"]
        assert graphs["a"].complete, graphs["a"].notes
    for name, part in [
        ("leaves", "ended with code 0"),
        ("crashes", "SIGSEGV"),
        ("sleeps", "did not finish in time"),
    ]:
        fault = results[name]
        assert isinstance(fault, Fault) and fault.reason == "fault.trace" and part in fault.detail
    network = results["network"]
    assert isinstance(network, dict) and not network["a"].complete
    if choose_sandbox().kind != "none":
        disk = results["disk"]
        assert isinstance(disk, dict) and disk["a"].complete, "files of this box are not visible"


FORGED = """
    line = b'{}'.ljust(65535) + b'\\n{"error": "forged"}'
    for fd in range(3, 30):
        try: os.write(fd, line)
        except OSError: pass
    os._exit(0)
"""


def test_a_reference_that_forges_an_answer_forges_only_its_own() -> None:
    forging, *others = trace_problems([_problem(FORGED, "forging"), *[_problem("return x @ x", n) for n in "abc"]])
    assert isinstance(forging, Fault)
    assert all(isinstance(graphs, dict) and graphs["a"].complete for graphs in others), others


def test_traces_are_cached_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem("return x @ x")
    first = trace_problem(problem)
    assert set(first) == {"a", "b"}
    (file,) = (cache_dir() / "traces").iterdir()
    monkeypatch.setattr("engine.tracing.trace._answers", lambda *_: pytest.fail("traced again"))
    assert trace_problem(problem) == first
    file.write_bytes(b"broken")
    monkeypatch.undo()
    assert trace_problem(problem, ["b"]).keys() == {"b"}
    assert trace_problem(problem) == first, "a broken cache file is only slow"


def test_workloads_that_find_no_time_have_their_bytes_and_are_not_cached() -> None:
    problem = _problem("time.sleep(3); return x @ x")
    graphs = trace_problem(problem, timeout_s=4.2)
    assert graphs["a"].complete
    assert not graphs["b"].complete and graphs["b"].total_bytes == 2 * 64 * 64 * 4
    assert graphs["b"].notes == ["no time was left to follow the reference"]
    assert not (cache_dir() / "traces").exists()


def test_a_fault_is_raised_for_one_problem() -> None:
    with pytest.raises(Fault, match="SIGSEGV"):
        trace_problem(_problem("os.kill(os.getpid(), 11)"))


def test_the_door_imports_no_torch() -> None:
    import subprocess

    doors = "engine.tracing.trace, engine.tracing.kernel_type, engine.hardware.roofline, engine.problems.importing"
    code = f"import sys, {doors}; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
