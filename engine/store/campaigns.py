"""The campaigns under the state folder: list them, find one, say in which state it is. Never writes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine import paths
from engine.errors import BadInput, StoreError
from engine.records import CampaignState
from engine.store.lock import engine_alive
from engine.store.reader import StoreReader
from engine.store.summary import Summary

__all__ = ["CampaignEntry", "campaign_state", "engine_alive", "list_campaigns", "resolve_campaign"]


class CampaignEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``kernelarc ls``. ``problem`` says why a campaign cannot be read; its summary is then empty."""

    name: str
    folder: Path
    state: CampaignState | None
    summary: Summary
    problem: str = ""


def list_campaigns(root: Path | None = None) -> list[CampaignEntry]:
    """Every folder with a campaign in it, newest first. A damaged one is listed with its problem."""
    folder = root or paths.campaigns_dir()
    try:
        folders = [child for child in folder.iterdir() if _has_campaign(child)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{folder}: cannot be listed ({error.strerror})") from error
    entries = [_entry(child) for child in folders]
    return sorted(entries, key=lambda entry: (_age_key(entry), entry.name), reverse=True)


def resolve_campaign(name: str | None = None) -> Path:
    """The folder of the campaign called ``name``, or of the newest one.

    Raises:
        BadInput: there is none of that name, or none at all.
    """
    if name is None:
        entries = list_campaigns()
        if not entries:
            raise BadInput(
                "there is no campaign yet", fix="start one with `kernelarc demo` or `kernelarc run PROBLEM`"
            )
        return next((entry for entry in entries if not entry.problem), entries[0]).folder
    folder = paths.campaign_dir(name)
    if "/" not in name and name not in ("", ".", "..") and _has_campaign(folder):
        return folder
    direct = Path(name).expanduser()
    if "/" in name and _has_campaign(direct):
        return direct.resolve()
    raise BadInput(f"there is no campaign {name!r}", fix=_known_names())


def campaign_state(folder: Path, summary: Summary) -> CampaignState:
    """The stored state, or INTERRUPTED: the store says that it goes on and no engine is there."""
    going = summary.state in (CampaignState.STARTING, CampaignState.RUNNING, CampaignState.PAUSED)
    return CampaignState.INTERRUPTED if going and not engine_alive(folder) else summary.state


def _has_campaign(folder: Path) -> bool:
    try:
        return (folder / "campaign.db").exists()
    except OSError:
        return False


def _entry(folder: Path) -> CampaignEntry:
    try:
        with StoreReader(folder) as reader:
            summary = reader.summary()
    except StoreError as error:
        return CampaignEntry(
            name=folder.name, folder=folder, state=None, summary=Summary(name=folder.name), problem=error.message
        )
    return CampaignEntry(name=folder.name, folder=folder, state=campaign_state(folder, summary), summary=summary)


def _age_key(entry: CampaignEntry) -> float:
    if entry.summary.created_at:
        return entry.summary.created_at
    try:
        return (entry.folder / "campaign.db").stat().st_mtime
    except OSError:
        return 0.0


def _known_names() -> str:
    names = [entry.name for entry in list_campaigns()[:5]]
    return f"`kernelarc ls` lists them: {', '.join(names)}" if names else "none has been started yet"
