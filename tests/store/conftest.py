"""A campaign folder with a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine import paths
from engine.store import events as ev
from engine.store.create import create_database
from engine.store.writer import StoreWriter
from tests.fixtures.store_records import BASELINES, SEED, row, started


@pytest.fixture
def folder() -> Path:
    """An empty campaign folder in the test's own state directory."""
    path = paths.campaign_dir("c1")
    path.mkdir(parents=True)
    return path


@pytest.fixture
def database(folder: Path) -> Path:
    """A created campaign, closed."""
    path = folder / "campaign.db"
    create_database(path, row(), SEED, started())
    return path


@pytest.fixture
async def writer(database: Path) -> AsyncIterator[StoreWriter]:
    opened = await StoreWriter.open(database)
    await opened.append(ev.EngineAttached(pid=1), BASELINES)
    yield opened
    await opened.close()
