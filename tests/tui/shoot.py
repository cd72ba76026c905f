"""A picture of the live screen for the documentation.

python tests/tui/shoot.py docs/live.svg                       # the recorded example campaign
python tests/tui/shoot.py docs/live.svg --campaign FOLDER     # a campaign of your own, as it is now
python tests/tui/shoot.py docs/live.svg --campaign FOLDER --candidate 20    # … as it was then
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
from kernelarc_tui.feed import Feed, FeedFilter
from kernelarc_tui.player import Player
from kernelarc_tui.settings import Settings
from kernelarc_tui.widgets.stream import OutcomeStream


async def shoot(folder: Path, out: Path, size: tuple[int, int], at: float, candidate: int | None) -> None:
    clock.now = lambda: at
    app = KernelArcApp(folder, settings=Settings())
    async with app.run_test(size=size) as pilot:
        await pilot.pause(0.5)
        if candidate is not None and app.session is not None and app.session.follower is not None:
            app.session.follower.stop()
            with StoreReader(folder) as reader:
                player = Player(folder, reader)
                player.seek(1)
                app.session.view = view = player.step(candidate)
                clock.now = lambda: view.now
                app.screen.query_one(OutcomeStream).attach(Feed(reader, FeedFilter(), view.last_seq), view.summary)
                app.show_view(view)
                await pilot.pause(0.5)
        out.write_text(app.export_screenshot(title=f"kernelarc attach {folder.name}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--campaign", type=Path)
    parser.add_argument("--candidate", type=int, help="as it was when this one had been judged")
    parser.add_argument("--size", default="120x34")
    options = parser.parse_args()
    columns, rows = map(int, options.size.split("x"))
    if options.campaign is not None:
        with StoreReader(options.campaign) as reader:
            at = reader.summary().last_at
        asyncio.run(shoot(options.campaign, options.out, (columns, rows), at, options.candidate))
        return
    with tempfile.TemporaryDirectory() as home:
        story = Story()
        folder = record(Path(home), story)
        lock = CampaignLock(folder)  # as if its engine ran
        lock.acquire()
        asyncio.run(shoot(folder, options.out, (columns, rows), end_of(story), None))
        lock.release()


if __name__ == "__main__":
    main()
