"""Candidates from a recording, and from a file that a person or another coding agent saves."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from stub_proposer import in_order, slowly_better

from engine.errors import BadInput
from engine.proposers import build_proposer
from engine.proposers.replay import ReplayLine, deal, read_lines
from engine.records import StopReason
from engine.store import events as ev

KERNEL = '# {note}\nNOTE = "{note}"\nFAKE = "fake: {script}"\ndef run(x, weight):\n    return x * weight\n'


def kernel(script: str, note: str = "mine") -> str:
    return KERNEL.format(note=note, script=script)


def test_lines_are_dealt_by_name_or_in_turn() -> None:
    lines = [
        ReplayLine(source="a", agent="2"),
        ReplayLine(source="b"),
        ReplayLine(source="c"),
        ReplayLine(source="d"),
    ]
    assert [line.source for line in deal(lines, "1", 0, 2)] == ["b", "d"]
    assert [line.source for line in deal(lines, "2", 1, 2)] == ["a", "c"]
    strangers = [ReplayLine(source=str(i), agent=f"other-{i}") for i in range(3)]
    assert [line.source for line in deal(strangers, "1", 0, 2)] == ["0", "2"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "recording.jsonl:1"),
        ('{"parameters": {"a": ' + "[" * 5000, "recording.jsonl:1: nested too deeply"),
        ('{"agent": "1"}', "no reply"),
        ('{"reply": 3}', "reply"),
    ],
    ids=["half", "depth", "no reply", "a number"],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text(text)
    with pytest.raises(BadInput, match=says):
        read_lines(path)


async def test_a_recording_is_judged_and_then_the_agent_stops(lab, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "recording.jsonl"
    reply = f"Here it is.\n\n```python\n{kernel('ms=0.6', 'third')}```\n"
    lines = [
        {"source": kernel("ms=0.8", "first"), "strategy": "operator-fusion", "hypothesis": "fewer passes"},
        {"source": kernel("fail=wrong.numerical", "second"), "family": "broken"},
        {"reply": reply},
        {"reply": "I would rather not."},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    campaign = lab(in_order([]), candidates=50, proposer=["replay"], replay=str(path))
    campaign._build = build_proposer
    summary = await campaign.run()
    assert campaign.outcomes() == ["KEEP", "REVERT", "KEEP", "REJECT"]
    assert summary.stop_reason is StopReason.CANDIDATES
    verdicts = campaign.events(ev.Verdict)
    assert (verdicts[0].strategy, verdicts[0].hypothesis, verdicts[1].family) == (
        "operator-fusion", "fewer passes", "broken",
    )  # fmt: skip
    assert verdicts[3].reason.startswith("reply.")


async def test_a_recorded_campaign_is_judged_again_with_the_same_result(lab) -> None:  # type: ignore[no-untyped-def]
    script = in_order(["ms=0.8", "ms=1.4", "fail=crash.signal", "ms=0.7"])
    first = lab(script, candidates=4)
    first.create("recorded")
    await first.run()
    again = lab(in_order([]), candidates=50, proposer=["replay"], replay="recorded")
    again._build = build_proposer
    await again.run()
    assert again.outcomes() == first.outcomes() == ["KEEP", "REVERT", "REVERT", "KEEP"]
    with first.reader() as one, again.reader() as two:
        assert [r.source_sha for r in one.candidates_after(0)] == [r.source_sha for r in two.candidates_after(0)]


async def wait_for(condition, timeout_s: float = 15.0) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.05)


def outcome_of(folder: Path) -> dict[str, object]:
    path = folder / "outcome.json"
    return json.loads(path.read_text()) if path.exists() else {}


async def test_every_save_is_a_candidate_and_the_verdict_is_written_beside_it(lab) -> None:  # type: ignore[no-untyped-def]
    campaign = lab(in_order([]), candidates=50, proposer=["inbox"])
    campaign._build = build_proposer
    task = campaign.start()
    inbox = campaign.folder / "agents" / "1"
    await wait_for(lambda: (inbox / "kernel.py").exists())
    assert "def run" in (inbox / "kernel.py").read_text(), "the best so far, to start from"
    await asyncio.sleep(0.3)
    assert (await campaign.until(lambda s: True)).candidates == 0, "what was offered is no candidate"

    (inbox / "kernel.py").write_text(kernel("ms=0.8", "one pass over the rows"))
    await campaign.until(lambda s: s.candidates == 1)
    await wait_for(lambda: outcome_of(inbox).get("outcome") == "KEEP")
    assert outcome_of(inbox)["latency_ms"] == pytest.approx(0.8)
    assert "KEEP" in (inbox / "outcome.txt").read_text()
    verdict = campaign.events(ev.Verdict)[0]
    assert verdict.hypothesis.startswith("one pass over the rows")

    (inbox / "kernel.py").write_text(kernel("ms=0.8", "one pass over the rows"))  # saved again, unchanged
    await asyncio.sleep(0.8)
    assert (await campaign.until(lambda s: True)).candidates == 1

    (inbox / "kernel.py.swp").write_text("an editor's own file")
    (inbox / "kernel.py").write_text(kernel("fail=wrong.numerical", "worse"))
    await wait_for(lambda: outcome_of(inbox).get("reason") == "wrong.numerical")

    (inbox / "solution.json").write_text('{"name": "half a solu')
    await wait_for(lambda: outcome_of(inbox).get("reason") == "reply.unusable")
    summary = await campaign.until(lambda s: s.candidates == 3)
    assert summary.outcomes == {"KEEP": 1, "REVERT": 1, "REJECT": 1}
    await campaign.order("stop")
    await asyncio.wait_for(task, 5)


async def test_a_link_out_of_the_inbox_is_refused_and_nothing_of_it_is_kept(lab, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    campaign = lab(in_order([]), candidates=50, proposer=["inbox"])
    campaign._build = build_proposer
    task = campaign.start()
    inbox = campaign.folder / "agents" / "1"
    await wait_for(lambda: (inbox / "kernel.py").exists())
    await asyncio.sleep(0.3)
    secret = tmp_path / "secret.py"
    secret.write_text(kernel("ms=0.8", "canary"))
    (inbox / "kernel.py").unlink()
    (inbox / "kernel.py").symlink_to(secret)
    await wait_for(lambda: outcome_of(inbox).get("reason") == "reply.unusable")
    assert "leads out of its folder" in str(outcome_of(inbox)["detail"])
    await campaign.order("stop")
    await asyncio.wait_for(task, 5)
    assert not any("canary" in str(event) for event in campaign.events(object))


async def test_an_edit_made_while_no_engine_ran_counts_when_it_is_back(lab) -> None:  # type: ignore[no-untyped-def]
    campaign = lab(in_order([]), candidates=50, proposer=["inbox"])
    campaign._build = build_proposer
    task = campaign.start()
    inbox = campaign.folder / "agents" / "1"
    await wait_for(lambda: (inbox / "kernel.py").exists())
    task.cancel()
    await asyncio.wait({task})
    (inbox / "kernel.py").write_text(kernel("ms=0.9"))
    task = campaign.start()
    await campaign.until(lambda s: s.candidates == 1)
    await wait_for(lambda: outcome_of(inbox).get("outcome") == "KEEP")
    await campaign.order("stop")
    await task


async def test_a_broken_file_is_judged_once_however_often_the_engine_starts(lab) -> None:  # type: ignore[no-untyped-def]
    campaign = lab(in_order([]), candidates=50, proposer=["inbox"])
    campaign._build = build_proposer
    inbox = campaign.create() / "agents" / "1"
    inbox.mkdir(parents=True)
    (inbox / "solution.json").write_text('{"key": "sk-1234567890abcdef"')  # stored without the secret
    for _ in range(3):
        began = time.time()
        task = campaign.start()
        await campaign.until(lambda s: s.candidates >= 1)
        await wait_for(lambda t=began: (row := campaign.live("1")).updated_at > t and "a save" in row.detail)
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.wait({task})
    assert campaign.outcomes() == ["REJECT"]
    (inbox / "solution.json").write_text('{"name": "half a solu')
    task = campaign.start()
    await campaign.until(lambda s: s.candidates == 2)
    await campaign.order("stop")
    await asyncio.wait_for(task, 5)
    assert campaign.outcomes() == ["REJECT", "REJECT"], "another broken text is another save"


async def test_an_inbox_that_cannot_be_used_pauses_its_agent_with_one_line(lab, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    box = tmp_path / "box"
    campaign = lab(in_order([]), candidates=50, proposer=["inbox"], inbox=str(box))
    campaign._build = build_proposer
    campaign.create("mine")
    box.touch()  # a file took its place
    task = campaign.start(end_when_stuck=False)
    summary = await campaign.until(lambda s: s.agents["1"].broken)
    assert not summary.agents["1"].restarts and not summary.errors
    (note,) = [note for note in summary.attention if note.agent == "1"]
    assert f"{box}: cannot be an inbox" in note.text and note.text.endswith("then resume agent 1")
    box.unlink()
    assert (await campaign.order("resume", agent="1")).ok
    await wait_for(lambda: (box / "kernel.py").exists())
    await campaign.order("stop")
    await asyncio.wait_for(task, 5)


async def test_an_outcome_that_cannot_be_written_beside_its_file_is_no_crash(lab) -> None:  # type: ignore[no-untyped-def]
    campaign = lab(in_order([]), candidates=50, proposer=["inbox"])
    campaign._build = build_proposer
    task = campaign.start()
    inbox = campaign.folder / "agents" / "1"
    await wait_for(lambda: (inbox / "kernel.py").exists())
    (inbox / "outcome.json").mkdir()
    (inbox / "kernel.py").write_text(kernel("ms=0.8", "one"))
    await campaign.until(lambda s: s.candidates == 1)
    (inbox / "kernel.py").write_text(kernel("ms=0.7", "two"))
    summary = await campaign.until(lambda s: s.candidates == 2)
    assert summary.outcomes == {"KEEP": 2} and not summary.agents["1"].restarts
    await campaign.order("stop")
    await asyncio.wait_for(task, 5)


async def test_a_folder_that_cannot_be_watched_is_looked_at(lab, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A machine without watches left, or a file system that tells nothing: a save is seen all the same."""

    async def no_watches(*folders, **options):  # type: ignore[no-untyped-def]
        raise OSError("no space left on device: watches")
        yield

    monkeypatch.setattr("watchfiles.awatch", no_watches)
    monkeypatch.setattr("engine.proposers.inbox.LOOK_AGAIN_S", 0.05)
    campaign = lab(in_order([]), candidates=50, proposer=["inbox"])
    campaign._build = build_proposer
    task = campaign.start()
    inbox = campaign.folder / "agents" / "1"
    await wait_for(lambda: (inbox / "kernel.py").exists())
    (inbox / "kernel.py").write_text(kernel("ms=0.9"))
    await wait_for(lambda: outcome_of(inbox).get("outcome") == "KEEP")
    assert (await campaign.order("stop")).ok
    summary = await task
    assert summary.errors == 0 and not summary.agents["1"].restarts


@pytest.mark.parametrize(
    "text", ["no frontmatter\n", "---\nname: half-done\ndescription: d\nsince: 2026-13-45\n---\nfrontmatter\n"]
)
async def test_a_skill_that_was_broken_before_the_start_is_reported(lab, private_home: Path, text: str) -> None:  # type: ignore[no-untyped-def]
    folder = private_home / "config" / "kernelarc" / "skills" / "half-done"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text)
    campaign = lab(in_order(["ms=0.9"]), candidates=1)
    summary = await campaign.run()
    assert summary.candidates == 1
    told = [e for e in campaign.events(ev.SkillReloaded) if not e.ok]
    assert [(e.name, "frontmatter" in e.detail) for e in told] == [("half-done", True)]


async def test_a_skill_that_is_added_while_a_campaign_runs_is_tried(lab, private_home: Path) -> None:  # type: ignore[no-untyped-def]
    folder = private_home / "config" / "kernelarc" / "skills" / "fewer-passes"
    folder.parent.mkdir(parents=True)
    campaign = lab(slowly_better, candidates=5000, delay_s=0.02, draft_after=3000, stop_after=4000)
    running = campaign.start()
    await wait_for(lambda: len(campaign.contexts) > 2)
    folder.mkdir()
    (folder / "SKILL.md").write_text(
        "---\nname: fewer-passes\ndescription: One pass.\n---\n# Fewer passes\nRead once.\n"
    )
    await wait_for(lambda: any(context.strategy == "fewer-passes" for context in campaign.contexts))
    (folder / "SKILL.md").unlink()
    folder.rmdir()
    await wait_for(lambda: "fewer-passes" not in campaign.launcher.session.skills.skills)
    seen = len(campaign.contexts)
    await wait_for(lambda: len(campaign.contexts) > seen + 12)
    assert all(context.strategy != "fewer-passes" for context in campaign.contexts[seen + 1 :])
    assert (await campaign.order("stop")).ok
    await running
