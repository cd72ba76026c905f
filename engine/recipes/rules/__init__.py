"""Matchers: each looks at a traced reference and binds inputs to roles, or raises ``Unsupported`` with a reason.

A rule takes the subject and the recipe's ``options``; it returns the facts that conditions and templates see as
``f``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.recipes.rules.attention import flash, sdpa
from engine.recipes.rules.gemm import cublaslt, gemm_torch, gemm_triton
from engine.recipes.rules.moe import moe_backward
from engine.recipes.rules.reference import wrapped_reference
from engine.recipes.rules.rowwise import rows_torch, rows_triton, tiles_triton
from engine.recipes.rules.stitch import stitched
from engine.recipes.rules.varlen import varlen
from engine.recipes.subject import Subject

Rule = Callable[[Subject, Mapping[str, Any]], dict[str, Any]]

RULES: dict[str, Rule] = {
    "reference": wrapped_reference,
    "flash": flash,
    "gemm-torch": gemm_torch,
    "cublaslt": cublaslt,
    "gemm-triton": gemm_triton,
    "sdpa": sdpa,
    "moe-backward": moe_backward,
    "stitched": stitched,
    "varlen": varlen,
    "rows-torch": rows_torch,
    "rows-triton": rows_triton,
    "tiles-triton": tiles_triton,
}
