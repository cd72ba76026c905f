"""The campaign engine: problems, guard, bench, proposers, memory and store. Never imports Textual."""

__version__ = "0.1.0"
