"""A picture of the live screen for the documentation.

python tests/tui/shoot.py docs/live.svg                       # the recorded example campaign
python tests/tui/shoot.py docs/live.svg --campaign FOLDER     # a campaign of your own, at its last moment
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from recorded import Story, end_of, record

from engine.store.lock import CampaignLock
from engine.store.reader import StoreReader
from kernelarc_tui import clock
from kernelarc_tui.app import KernelArcApp
from kernelarc_tui.settings import Settings


async def shoot(folder: Path, out: Path, size: tuple[int, int], at: float) -> None:
    clock.now = lambda: at
    app = KernelArcApp(folder, settings=Settings())
    async with app.run_test(size=size) as pilot:
        await pilot.pause(0.5)
        out.write_text(app.export_screenshot(title=f"kernelarc attach {folder.name}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--campaign", type=Path)
    parser.add_argument("--size", default="120x34")
    options = parser.parse_args()
    columns, rows = map(int, options.size.split("x"))
    if options.campaign is not None:
        with StoreReader(options.campaign) as reader:
            at = reader.summary().last_at
        asyncio.run(shoot(options.campaign, options.out, (columns, rows), at))
        return
    with tempfile.TemporaryDirectory() as home:
        story = Story()
        folder = record(Path(home), story)
        lock = CampaignLock(folder)  # as if its engine ran
        lock.acquire()
        asyncio.run(shoot(folder, options.out, (columns, rows), end_of(story)))
        lock.release()


if __name__ == "__main__":
    main()
