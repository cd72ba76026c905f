"""The gate's tables, read once from ``forbidden.toml`` beside this file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec


class _File(msgspec.Struct, frozen=True, rename={"allowed_only": "allowed-only"}, forbid_unknown_fields=True):
    permitted: frozenset[str]
    torch_private: frozenset[str]
    torch_c: tuple[str, ...]
    flags: tuple[str, ...]
    precision_owners: tuple[str, ...]
    flags_denied: frozenset[str]
    reexported: frozenset[str]
    reexport_fine: frozenset[str]
    exits: frozenset[str]
    exit_calls: frozenset[str]
    forbidden_methods: frozenset[str]
    unstorable: frozenset[str]
    module_dunders: frozenset[str]
    sensitive: frozenset[str]
    decoders: frozenset[str]
    env_writable: tuple[str, ...]
    env_denied: tuple[str, ...]
    star_imports: frozenset[str]
    submodules: frozenset[str]
    reasons: dict[str, str]
    denied: dict[str, list[str]]
    names: dict[str, list[str]]
    attributes: dict[str, list[str]]
    bases: dict[str, str]
    allowed_only: dict[str, frozenset[str]]


TABLES = msgspec.convert(tomllib.loads((Path(__file__).parent / "forbidden.toml").read_text("utf-8")), _File)


def _with_reason(groups: dict[str, list[str]]) -> dict[str, str]:
    return {name: TABLES.reasons[kind] for kind, names in groups.items() for name in names}


DENIED = _with_reason(TABLES.denied)
FORBIDDEN_NAMES = _with_reason(TABLES.names)
FORBIDDEN_ATTRIBUTES = _with_reason(TABLES.attributes)
SENSITIVE = TABLES.sensitive | frozenset(FORBIDDEN_ATTRIBUTES)
