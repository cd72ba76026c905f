"""What a person prefers, from ``config.yaml`` in the configuration folder, and what the app remembers by itself.

The file holds the keys of :class:`Settings`; an unknown key or a wrong value is one clear line. Remembered
choices (the theme picked in the app, for instance) go to ``remembered.json`` beside it and lose to the file.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from pathlib import Path
from typing import Any

import msgspec

from engine.decoding import MissingFile, decode_json, read_yaml
from engine.errors import BadInput
from engine.paths import config_dir


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults of the screens. ``keys`` maps binding ids (see ``?``) to keys."""

    theme: str = "arc"
    mouse: bool = True
    ascii: bool = False
    bell: bool = False  # ring when something needs a person
    notify: bool = False  # a desktop notification through the terminal (OSC 9 and 777)
    footer: bool = True
    axis: str = "candidates"  # candidates | time | dollars
    log_scale: bool = False
    events: bool = False  # the stream shows all events, not only outcomes
    diff: str = "unified"  # unified | split
    keys: dict[str, str] = {}


REMEMBERED = ("theme", "bell", "notify", "footer", "axis", "log_scale", "events", "diff")


def config_path() -> Path:
    return config_dir() / "config.yaml"


def load_settings() -> Settings:
    """The file over what was remembered over the defaults. Raises BadInput naming file, key and fix."""
    merged = {**_remembered(), **_from_file(config_path())}
    try:
        settings = msgspec.convert(merged, Settings)
    except msgspec.ValidationError as error:
        raise BadInput(str(error), where=str(config_path()), fix=_known_keys(str(error))) from error
    for name, allowed in (("axis", ("candidates", "time", "dollars")), ("diff", ("unified", "split"))):
        if getattr(settings, name) not in allowed:
            raise BadInput(
                f"{name} is {getattr(settings, name)!r}", where=str(config_path()), fix=f"use {allowed}"
            )
    return settings


def remember(name: str, value: Any) -> None:
    """Keep a choice for the next start. A configuration folder that cannot be written is not worth an error."""
    if name not in REMEMBERED:
        raise ValueError(f"{name} is not a remembered setting")
    kept = {**_remembered(), name: value}
    path = config_dir() / "remembered.json"
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(kept))
        temporary.replace(path)


def _remembered() -> dict[str, Any]:
    try:
        kept = decode_json((config_dir() / "remembered.json").read_bytes(), where="remembered.json")
    except (OSError, BadInput):
        return {}
    if not isinstance(kept, dict):
        return {}
    usable = {name: value for name, value in kept.items() if name in REMEMBERED}
    try:
        msgspec.convert(usable, Settings)
    except msgspec.ValidationError:
        return {}
    return usable


def _from_file(path: Path) -> dict[str, Any]:
    try:
        found = read_yaml(path)
    except MissingFile:
        return {}
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadInput("must be a mapping of keys to values", where=str(path))
    return {str(key): value for key, value in found.items()}


def _known_keys(message: str) -> str:
    fields = Settings.__struct_fields__
    if "unknown field" in message:
        name = message.split("`")[1] if "`" in message else ""
        near = difflib.get_close_matches(name, fields, 1)
        return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(fields)}"
    return ""


def over_ssh() -> bool:
    return bool(os.environ.get("SSH_TTY") or os.environ.get("SSH_CONNECTION"))
