"""LLM agents: prompts, money, calls through litellm, replies. litellm is loaded at the first proposal."""

from __future__ import annotations

from engine.proposers.llm.build import build_llm
from engine.proposers.llm.money import Caps
from engine.proposers.llm.pool import ModelPool
from engine.proposers.llm.proposer import LlmProposer

__all__ = ["Caps", "LlmProposer", "ModelPool", "build_llm"]
