"""The guard corpus through gate and bench: hostile candidates refused in their class, honest ones passed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "guard_corpus.py"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("guard_corpus_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.shared
@pytest.mark.timeout(600)
async def test_the_guard_corpus(shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = _script()
    corpus = shared_dir / "guard_corpus"
    monkeypatch.setenv(script.CANARY, "")
    rows = script.read_manifest(corpus, gpu=False)
    run = script.Run(corpus, tmp_path, gate=True, device="cpu", parallel=2)
    results = await run.all(rows)
    assert len(results) == len(rows)
    wrong = [result for result in results if not result["ok"]]
    assert not wrong, wrong
