"""A small valid problem that tests bend in one place at a time."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DEFINITION: dict[str, Any] = {
    "name": "scaled_bias_gelu_c256",
    "op_type": "elementwise",
    "axes": {
        "rows": {"type": "var"},
        "cols": {"type": "const", "value": 256},
        "half": {"type": "expr", "expression": "cols // 2"},
    },
    "inputs": {
        "x": {"shape": ["rows", "cols"], "dtype": "float32"},
        "bias": {"shape": ["cols"], "dtype": "float32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "half"], "dtype": "float32"}},
    "reference": (
        "import torch\n\n@torch.no_grad()\ndef run(x, bias, scale):\n"
        "    a, b = torch.nn.functional.gelu(x * scale + bias).chunk(2, dim=-1)\n    return a * b\n\n"
        "def make(axes_and_scalars, device):\n"
        "    rows, cols = axes_and_scalars['rows'], axes_and_scalars['cols']\n"
        "    x, bias = torch.randn(rows, cols, device=device), torch.rand(cols, device=device)\n"
        "    return {'x': x, 'bias': bias, 'scale': 2.0}\n"
    ),
}
WORKLOADS: list[dict[str, Any]] = [
    {
        "uuid": "r64",
        "axes": {"rows": 64},
        "inputs": {"x": {"type": "random"}, "scale": {"type": "scalar", "value": 0.5}},
    },
    {"uuid": "r1000", "axes": {"rows": 1000}, "inputs": {"scale": {"type": "scalar", "value": 1.25}}},
]

MakeProblem = Callable[..., Path]


@pytest.fixture
def make_problem(tmp_path: Path) -> MakeProblem:
    """Write the small problem into a folder, after ``change(definition, workloads)``."""

    def write(
        change: Callable[[dict[str, Any], list[dict[str, Any]]], None] | None = None, name: str = "p"
    ) -> Path:
        definition, workloads = copy.deepcopy(DEFINITION), copy.deepcopy(WORKLOADS)
        if change is not None:
            change(definition, workloads)
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "definition.json").write_text(json.dumps(definition))
        (folder / "workload.jsonl").write_text("".join(json.dumps(workload) + "\n" for workload in workloads))
        return folder

    return write
