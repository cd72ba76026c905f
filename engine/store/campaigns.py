"""The campaigns under the state folder: list them, find one, say in which state it is. Never writes."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from engine import paths
from engine.errors import BadInput, StoreError
from engine.records import CampaignState
from engine.store.lock import engine_alive
from engine.store.reader import StoreReader
from engine.store.summary import Summary

__all__ = [
    "CampaignEntry",
    "campaign_state",
    "engine_alive",
    "list_campaigns",
    "resolve_campaign",
    "running_s",
    "told_state",
]


class CampaignEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``kernelarc ls``. ``problem_note`` says why a campaign cannot be read; the rest is empty.

    ``kept``: some KEEP stands, so that ``best_ms`` and ``speedup`` are a candidate's and not the seed's.
    """

    name: str
    folder: str
    state: str = "damaged"
    stop_reason: str | None = None
    problem: str = ""
    kernel_type: str = ""
    device: str = ""
    device_name: str = ""
    config: str = ""
    agents: int = 0
    created_at: float = 0.0  # Unix seconds
    updated_at: float = 0.0
    elapsed_s: float = 0.0
    candidates: int = 0
    budget: int | None = None
    best_ms: float | None = None
    speedup: float | None = None
    kept: bool = False
    cost_usd: float = 0.0
    problem_note: str = ""


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
    return sorted(entries, key=lambda entry: (entry.created_at, entry.name), reverse=True)


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
        return Path(next((entry for entry in entries if not entry.problem_note), entries[0]).folder)
    folder = paths.campaign_dir(name)
    if "/" not in name and name not in ("", ".", "..") and _has_campaign(folder):
        return folder
    if "/" in name and _has_campaign(direct := paths.expanded(name)):
        return direct.resolve()
    raise BadInput(f"there is no campaign {name!r}", fix=_known_names())


def campaign_state(folder: Path, summary: Summary) -> CampaignState:
    """The stored state, or INTERRUPTED: the store says that it goes on and no engine is there."""
    going = summary.state in (CampaignState.STARTING, CampaignState.RUNNING, CampaignState.PAUSED)
    return CampaignState.INTERRUPTED if going and not engine_alive(folder) else summary.state


def told_state(state: CampaignState) -> str:
    """The state in the words of ``--json``, which ``ls`` and ``status`` use too: what starts is running."""
    return (CampaignState.RUNNING if state is CampaignState.STARTING else state).value


def running_s(folder: Path, summary: Summary) -> float:
    """Running time so far. An interrupted campaign's clock stopped with its last event."""
    return summary.elapsed_s(time.time() if engine_alive(folder) else summary.last_at)


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
        changed = _changed_at(folder)
        return CampaignEntry(
            name=folder.name,
            folder=str(folder),
            created_at=changed,
            updated_at=changed,
            problem_note=error.message.removeprefix(f"{folder / 'campaign.db'}: "),
        )
    return CampaignEntry(
        name=folder.name,
        folder=str(folder),
        state=told_state(campaign_state(folder, summary)),
        stop_reason=summary.stop_reason.value if summary.stop_reason else None,
        problem=summary.problem,
        kernel_type=summary.kernel_type,
        device=summary.device,
        device_name=summary.device_name,
        config=summary.config,
        agents=len(summary.agents),
        created_at=summary.created_at,
        updated_at=summary.last_at,
        elapsed_s=running_s(folder, summary),
        candidates=summary.candidates,
        budget=summary.budget,
        best_ms=summary.best_ms,
        speedup=summary.best_speedup,
        kept=any(agent.keeps for agent in summary.agents.values()),
        cost_usd=summary.cost_usd,
    )


def _changed_at(folder: Path) -> float:
    try:
        return (folder / "campaign.db").stat().st_mtime
    except OSError:
        return 0.0


def _known_names() -> str:
    names = [entry.name for entry in list_campaigns()[:5]]
    return f"`kernelarc ls` lists them: {', '.join(names)}" if names else "none has been started yet"
