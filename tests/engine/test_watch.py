"""What a person must know of the machine stands as an attention line while it holds."""

from __future__ import annotations

import asyncio
import shutil
from collections import namedtuple

import pytest
from stub_proposer import slowly_better

from engine import paths
from engine.hardware.telemetry import GONE, Sample
from engine.store.reader import StoreReader
from engine.watch import MachineWatch, device_line, disk_line

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("free", "level"), [(5 << 30, None), (1 << 30, None), (900 << 20, "warning"), (100 << 20, "error")]
)
def test_a_disk_is_low_below_one_gibibyte_and_scarce_below_a_fifth(free: int, level: str | None) -> None:
    line = disk_line(free)
    assert (line[0] if line else None) == level


def test_a_device_is_gone_when_its_driver_says_so() -> None:
    assert device_line(Sample(at=0.0, device="GPU-1", reason=f"{GONE}: GPU is lost")) is not None
    assert device_line(Sample(at=0.0, device="GPU-1", reason="power: not supported")) is None


async def test_the_lines_come_and_go_with_their_cause(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 100 << 20
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, free))
    monkeypatch.setattr(MachineWatch.__init__, "__defaults__", (0.02,))
    campaign = lab(slowly_better, delay_s=0.05)
    running = asyncio.create_task(campaign.run())
    assert await _standing(campaign, "disk.low", True)
    free = 10 << 30
    assert await _standing(campaign, "disk.low", False)
    await running
    with StoreReader(campaign.folder) as reader:
        assert [sample.device for sample in reader.samples()][:1] == ["cpu"]


async def test_a_watch_that_dies_takes_neither_the_campaign_nor_its_socket_along(
    lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(self: MachineWatch) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(MachineWatch, "_disk", bug)
    campaign = lab(slowly_better, delay_s=0.01, candidates=3)
    summary = await campaign.run()
    assert summary.candidates == 3
    assert not paths.socket_path(campaign.folder).exists()
    assert "not watched any more" in caplog.text and "a bug" in caplog.text


async def _standing(campaign, code: str, wanted: bool) -> bool:  # type: ignore[no-untyped-def]
    for _ in range(150):
        await asyncio.sleep(0.02)
        if campaign.launcher is None:
            continue
        notes = [note.code for note in campaign.launcher.session.summary.attention]
        if (code in notes) is wanted:
            return True
    return False
