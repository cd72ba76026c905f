"""The offline proposer: recipes that fit the problem, their parameters searched by a seeded optimizer."""

from __future__ import annotations

from engine.proposers.recipes.proposer import RecipeProposer, begin_tracing

__all__ = ["RecipeProposer", "begin_tracing"]
