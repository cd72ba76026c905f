"""From what a person asked for to a complete, checked configuration. Pure but for looking whether files exist.

The three configurations that the field compares are presets of plain settings: after :func:`resolve` nothing in
the engine asks which preset it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from engine import paths
from engine.config import PRESETS, CampaignConfig
from engine.errors import BadInput
from engine.guard.plateau import LINE_TRIES
from engine.text import nearest, one_line

PRESET_SETTINGS: dict[str, dict[str, Any]] = {
    "single": {"agents": 1, "memory": "private", "wins": 16, "traps": 16, "leaderboard": False},
    "multi-bounded": {"memory": "shared", "wins": 16, "traps": 16, "leaderboard": True},
    "multi-unbounded": {"memory": "shared", "wins": None, "traps": None, "leaderboard": True},
}
CUSTOM = "custom"
"""The preset name of a configuration that departs from the preset it started from."""

PROPOSERS = ("recipes", "llm", "replay", "inbox")

LARGEST = 2**53
"""What JSON and the database hold exactly; nobody needs more."""

MARGIN_CPU = 0.02
MARGIN_CUDA = 0.01

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_FIELDS = frozenset(field.name for field in msgspec.structs.fields(CampaignConfig))
BESIDE = frozenset({"name", "seed_solution"})
"""Keys of ``campaign.yaml`` that are no settings: what the campaign is called and where it starts."""

_WRONG_TYPE = re.compile(r"Expected `([^`]+)`, got `[^`]+` - at `\$\.(\w+)(?:\[\d+\])?`")
_WORDS = {
    "wins": "a whole number, or all",
    "traps": "a whole number, or all",
    "leaderboard": "on or off",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
}
"""What a setting takes, by its key where the type does not say it."""


def resolve(explicit: Mapping[str, Any], *, where: str = "") -> CampaignConfig:
    """The configuration for the keys that a person set, over their preset, over the defaults; checked.

    A key that departs from what the preset fixes turns ``config`` into ``custom``. Raises
    :class:`BadInput` that names the key (``where`` is the file it came from, if any).
    """
    unknown = sorted(set(explicit) - _FIELDS)
    if unknown:
        known = sorted(_FIELDS | BESIDE)
        what = f"unknown setting {unknown[0]!r}{nearest(unknown[0], known)}"
        raise BadInput(what, where=where, fix=f"known: {', '.join(known)}")
    settings = {**preset(str(explicit.get("config", "multi-bounded")), where=where), **explicit}
    try:
        config = msgspec.convert(settings, CampaignConfig)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), settings, where or "settings") from None
    return labelled(checked(config, where=where))


def _wrong_type(said: str, settings: Mapping[str, Any], where: str) -> BadInput:
    """msgspec's complaint about a type in the words of the person who wrote the file."""
    found = _WRONG_TYPE.fullmatch(said)
    if found is None:
        return BadInput(said, where=where, fix="see `kernelarc run --help`")
    kind, key = found[1].split(" | ")[0], found[2]
    value = one_line(repr(settings[key]), 60)
    return BadInput(f"{key} is {value}", where=where, fix=f"use {_WORDS.get(key) or _WORDS.get(kind, kind)}")


def preset(name: str, *, where: str = "") -> dict[str, Any]:
    """The settings that configuration ``name`` fixes; none for ``custom``."""
    if name not in (*PRESETS, CUSTOM):
        raise BadInput(f"unknown configuration {name!r}", where=where, fix=f"use one of {', '.join(PRESETS)}")
    return dict(PRESET_SETTINGS.get(name, {}))


def labelled(config: CampaignConfig) -> CampaignConfig:
    """``config`` checked, and called ``custom`` where it departs from the preset that it names."""
    checked(config)
    fixed = preset(config.config)
    departs = any(getattr(config, key) != value for key, value in fixed.items())
    return msgspec.structs.replace(config, config=CUSTOM) if departs else config


def checked(config: CampaignConfig, *, where: str = "") -> CampaignConfig:
    """``config`` itself, or :class:`BadInput` for the first thing in it that cannot work."""
    for complaint in (_check_agents, _check_servers, _check_budgets, _check_search, _check_sources):
        complaint(config, where)
    return config


def _check_agents(config: CampaignConfig, where: str) -> None:
    _require(1 <= config.agents <= 64, f"agents is {config.agents}", "use 1 to 64", where)
    _require(bool(config.proposer), "no proposer", f"use one of {', '.join(PROPOSERS)}", where)
    for name in config.proposer:
        _require(name in PROPOSERS, f"unknown proposer {name!r}", f"use one of {', '.join(PROPOSERS)}", where)
    if "llm" in config.proposer:
        _require(bool(config.model), "proposer llm without a model", "add --model provider/name", where)
    else:
        _require(not config.model, "a model is named but no agent is an LLM", "add --proposer llm", where)
    _require(config.memory in ("shared", "private"), f"memory is {config.memory!r}", "shared or private", where)
    for name, cap in (("wins", config.wins), ("traps", config.traps)):
        _require(cap is None or cap >= 0, f"{name} is {cap}", "use 0 or more, or all", where)


def _check_servers(config: CampaignConfig, where: str) -> None:
    if config.api_base is not None:
        check_server(config.api_base, where=where or "api_base")
    for name in config.model:
        check_model(name, where=where)


def check_model(name: str, *, where: str = "") -> None:
    """Raises :class:`BadInput` if ``provider/model@http://host/v1`` names a server that may not be stored."""
    _, at, base = name.partition("@http")
    if at:
        check_server(f"http{base}", where=where or "model")


def check_server(base: str, *, where: str) -> None:
    """The configuration is stored, shown and exported, so no key may be part of a server's address."""
    try:
        parts = urlsplit(base)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise BadInput("is not a URL", where=where, fix="for instance http://localhost:8000/v1") from None
    secret = parts.username is not None or parts.password is not None or bool(parts.query)
    _require(
        not secret,
        "the server's address carries credentials, which would be stored with the campaign",
        "put the key into the environment (OPENAI_API_KEY, or your provider's variable)",
        where,
    )
    fine = parts.scheme in ("http", "https") and bool(parts.hostname) and port_is_fine
    _require(fine, "the server's address is not an http URL", "for instance http://localhost:8000/v1", where)


def _check_budgets(config: CampaignConfig, where: str) -> None:
    positive: tuple[tuple[str, float | None], ...] = (
        ("candidates", config.candidates),
        ("minutes", config.minutes),
        ("max_cost", config.max_cost),
        ("max_tokens_total", config.max_tokens_total),
        ("target_speedup", config.target_speedup),
        ("proposal_deadline_s", config.proposal_deadline_s),
        ("evaluation_deadline_s", config.evaluation_deadline_s),
    )
    for name, value in positive:
        _require(value is None or value > 0, f"{name} is {value}", "use more than 0", where)
        _require(value is None or value <= LARGEST, f"{name} is {value}", f"use at most {LARGEST}", where)
    _require(abs(config.seed) <= LARGEST, f"seed is {config.seed}", "use fewer digits", where)
    _require(config.reply_tokens >= 256, f"reply_tokens is {config.reply_tokens}", "use 256 or more", where)
    context = config.context_tokens
    _require(context is None or context >= 1024, f"context_tokens is {context}", "use 1024 or more", where)
    _require(config.prompt_tokens >= 1024, f"prompt_tokens is {config.prompt_tokens}", "use 1024 or more", where)


def _check_search(config: CampaignConfig, where: str) -> None:
    _require(config.draft_after >= 1, f"draft_after is {config.draft_after}", "use 1 or more", where)
    least = config.draft_after + LINE_TRIES
    _require(
        config.stop_after >= least,
        f"stop_after is {config.stop_after} and draft_after {config.draft_after}",
        f"a draft line needs {LINE_TRIES} tries: use stop_after {least} or more",
        where,
    )
    _require(
        config.margin is None or 0 <= config.margin < 1, f"margin is {config.margin}", "a fraction, as 0.02", where
    )
    _require(config.rounds >= 1, f"rounds is {config.rounds}", "use 1 or more", where)
    _require(
        _DEVICE.fullmatch(config.device) is not None, f"device {config.device!r}", "use cpu, cuda or cuda:0", where
    )


def _check_sources(config: CampaignConfig, where: str) -> None:
    if "replay" in config.proposer:
        _require(config.replay is not None, "proposer replay without a recording", "add --replay FILE", where)
    if config.replay is not None:
        _require("replay" in config.proposer, "a replay without its proposer", "add --proposer replay", where)
    if config.inbox is not None:
        _require("inbox" in config.proposer, "an inbox without its proposer", "add --proposer inbox", where)


def _require(holds: bool, what: str, fix: str, where: str) -> None:
    if not holds:
        raise BadInput(what, where=where, fix=fix)


def margin_of(config: CampaignConfig) -> float:
    """The KEEP margin as a fraction, before the noise floor: as set, or the device's default."""
    if config.margin is not None:
        return config.margin
    return MARGIN_CPU if config.device == "cpu" else MARGIN_CUDA


def absolute_sources(config: CampaignConfig) -> CampaignConfig:
    """File settings made absolute: the engine runs in another directory than the person who started it.

    A recording that is no file is a campaign's name; an inbox is a folder, there or not yet.
    """
    changes: dict[str, Any] = {}
    for name in ("replay", "inbox"):
        value = getattr(config, name)
        if value is not None and (name == "inbox" or "/" in value or Path(value).exists()):
            changes[name] = str(paths.expanded(value).resolve())
    return msgspec.structs.replace(config, **changes)
