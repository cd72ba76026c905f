"""Where the shipped documents are: one helper for a checkout and an installed wheel alike."""

from __future__ import annotations

from pathlib import Path

_ENGINE = Path(__file__).resolve().parent


def resource_dir(kind: str) -> Path:
    """The folder of shipped ``skills``, ``tasks``, ``themes`` or ``prompts``.

    An installed wheel carries the first three under ``engine/_data``; a checkout has them at its top level.
    Raises ``FileNotFoundError`` if the installation is incomplete.
    """
    candidates = (_ENGINE / "_data" / kind, _ENGINE / kind, _ENGINE.parent / kind)
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"the installation has no {kind!r} folder (looked in {candidates[0]} and {candidates[2]})"
    )
