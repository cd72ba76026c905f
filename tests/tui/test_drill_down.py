"""From the live screen into a candidate, an agent, the memory, the leaderboard, the skills."""

from __future__ import annotations

import os
import re

from engine.store import memories
from engine.store.offline import edit
from engine.store.rows import MemoryWrite
from kernelarc_tui.screens.candidate import CandidateScreen
from kernelarc_tui.screens.live import Live
from kernelarc_tui.widgets.memory import MemoryPanel
from kernelarc_tui.widgets.text_pane import TextPane


async def test_enter_opens_the_candidate_with_its_reason_in_full(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("2", "j", "j", "enter")
        await screen.sees("#62 agent 3  x reject")
        assert "gate.no-entry: kernel.py has no function run(x, residual, weight, bias)" in screen.text("#head")
        await screen.sees("def _linear_residual")
        assert "predicted −6 %" in screen.text("#head")


async def test_the_tabs_show_source_diff_workloads_reason_prompt_and_reply(engine, show):
    async with show(engine.folder, (120, 30)) as screen:
        screen.app.push_screen(CandidateScreen(63))
        await screen.sees("import triton")
        await screen.press("2")
        await screen.sees("against parent (#48)", "+1 −1", "num_warps=8", "num_warps=4")
        await screen.press("3")
        await screen.sees("M=4096", "95 % interval", "PASSED", "1.41×")
        await screen.press("4")
        await screen.sees(
            "reason in full" if "slower" in screen.text() else "hypothesis", "parameters", "evidence"
        )
        await screen.press("5")
        await screen.sees("You optimize one GPU kernel")
        await screen.press("6")
        await screen.sees("Hypothesis: split K by two")


async def test_the_diff_goes_against_parent_best_or_reference_unified_or_split(engine, show):
    async with show(engine.folder, (120, 30)) as screen:
        screen.app.push_screen(CandidateScreen(63, tab=1))
        await screen.sees("against parent (#48)")
        await screen.press("c")
        await screen.sees("against best (#48)")
        await screen.press("c")
        await screen.sees("against reference (the seed)", "+28 −3")
        await screen.press("t")
        await screen.until(lambda: "│" in screen.text("#text"))
        await screen.press("f", "c")
        await screen.sees("against parent")
        await screen.until(lambda: "lines the same" not in screen.text())


async def test_brackets_step_through_candidates_and_slash_searches(engine, show):
    async with show(engine.folder) as screen:
        screen.app.push_screen(CandidateScreen(62))
        await screen.press("right_square_bracket")
        await screen.sees("#63")
        await screen.press("left_square_bracket", "left_square_bracket")
        await screen.sees("#61")
        await screen.press("slash")
        await screen.type("tl.store")
        await screen.press("enter")
        await screen.until(lambda: screen.app.screen.query_one("#text").scroll_offset.y > 0)
        assert "tl.store" in screen.text("#text")
        await screen.press("slash")
        await screen.type("nowhere")
        await screen.press("enter")
        await screen.sees("'nowhere' is not in here")


async def test_a_candidate_is_exported_and_its_path_shown(engine, show, tmp_path):
    async with show(engine.folder) as screen:
        screen.app.push_screen(CandidateScreen(48))
        await screen.press("X")
        await screen.sees("Export to which folder?")
        await screen.press("ctrl+u")
        await screen.type(str(tmp_path / "out").replace("_", "_"))
        await screen.press("enter")
        await screen.until(lambda: list(tmp_path.rglob("solution.json")))
        await screen.sees("✓ candidate #48")


async def test_copying_says_which_way_it_went(engine, show, monkeypatch):
    async with show(engine.folder) as screen:
        screen.app.push_screen(CandidateScreen(48))
        await screen.sees("import triton")
        await screen.press("Y")
        await screen.sees("your terminal's clipboard (OSC 52)")
        assert screen.app.clipboard.startswith("import torch")


async def test_the_editor_gets_copies_only(engine, tmp_path, monkeypatch):
    from engine.store.reader import StoreReader
    from kernelarc_tui.editor import view_in_editor

    script = tmp_path / "editor"
    script.write_text(f'#!/bin/sh\ncat "$1" > {tmp_path}/seen\necho changed > "$1" 2>/dev/null\nexit 0\n')
    script.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(script))
    with StoreReader(engine.folder) as reader:
        said = view_in_editor("x", reader.solution(48))
        assert "def run" in (tmp_path / "seen").read_text()
        assert "changed" not in reader.solution(48).entry_source
    assert "the copies are gone" in said and not [p for p in os.listdir("/tmp") if p.startswith("kernelarc-x-")]


async def test_an_agents_screen_has_its_reply_its_log_and_its_own_line(engine, show):
    async with show(engine.folder, (120, 30)) as screen:
        await screen.press("j", "enter")
        await screen.sees("agent 2  tiling-pipelining", "proposing", "3 without gain (draft at 5, stop at 15)")
        assert "the epilogue can add the" in screen.text("#reply")
        assert all(" 2 #" in row for row in screen.text("#stream").split("\n") if re.search(r"#\d", row))
        assert re.search(r" 2\s*│?$", screen.text("#plot"), re.M) and not re.search(
            r" 3\s*│?$", screen.text("#plot"), re.M
        )
        engine.writer.live("2", state="proposing", reply="a new reply grows\n" * 3, tokens=999)
        await screen.until(lambda: "a new reply grows" in screen.text("#reply"), timeout_s=3)
        await screen.press("right_square_bracket")
        await screen.sees("agent 3")
        await screen.press("o")
        await screen.sees("You optimize one GPU kernel")


async def test_memory_is_filtered_sorted_and_leads_to_its_candidate(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("m")
        await screen.sees("newest first · 17", "before → after", "1.33×")
        await screen.press("t")
        await screen.sees("wins · newest first · 12")
        await screen.press("t")
        await screen.sees("traps · newest first · 5", "what happened and why")
        await screen.press("t", "slash")
        await screen.type("fp8")
        await screen.press("enter")
        await screen.sees("“fp8”", "fp8 weights", "what happened and why")
        await screen.press("enter")
        await screen.until(lambda: isinstance(screen.app.screen, CandidateScreen))
        await screen.press("q", "slash", "ctrl+u", "enter", "o")
        await screen.sees("speed-up first")


async def test_memory_shows_all_that_is_in_recall_and_what_expired_page_by_page(ended, show, monkeypatch):
    """One win from before 1,100 traps, of which sixteen are left."""
    from kernelarc_tui.screens import memory as screen_module

    def learn(tx):
        tx.connection.execute("DELETE FROM memory")
        common = {"kernel_type": "norm", "reflection": "", "agent": "1", "device": "a CPU"}
        memories.add(tx, MemoryWrite(kind="win", strategy="the first win", **common))
        for number in range(1100):
            memories.add(tx, MemoryWrite(kind="trap", strategy=f"trap {number}", **common))
        for identity in range(2, 1086):
            memories.expire(tx, identity, "retention")

    edit(ended, learn)
    monkeypatch.setattr(screen_module, "PAGE", 40)
    async with show(ended) as screen:
        await screen.press("m")
        await screen.sees("the first win")

        def shown():
            return len(screen.app.screen.query_one(MemoryPanel).entries)

        assert shown() == 17
        reads = []
        real = screen.app.session.reader.expired_memory
        monkeypatch.setattr(
            screen.app.session.reader, "expired_memory", lambda **how: reads.append(how) or real(**how)
        )
        for _ in range(20):
            screen.app.show_view(screen.app.session.view)
        assert reads == [], "another view of the same memory costs no read"
        await screen.press("e")
        assert shown() == 57
        for _ in range(20):
            screen.app.show_view(screen.app.session.view)
        assert len(reads) == 1
        await screen.press("end")
        await screen.until(lambda: shown() == 97)


async def test_enter_on_a_memory_row_opens_the_browser_there(engine, show):
    async with show(engine.folder) as screen:
        await screen.press("3", "j", "j", "j", "j", "enter")
        await screen.sees("split-K below 512 rows", "what happened and why", "trap ")


async def test_the_leaderboard_ranks_shows_archives_lineage_and_differences(engine, show):
    async with show(engine.folder, (120, 30)) as screen:
        await screen.press("l")
        await screen.sees("1. 1", "#48", "+5.7 %", "made from  seed → #5 → #13")
        await screen.press("e")
        await screen.sees("every KEEP", "#45")
        await screen.press("equals_sign", "j", "equals_sign")
        await screen.until(lambda: isinstance(screen.app.screen, CandidateScreen))
        await screen.sees("against chosen (#48)")


async def test_skills_say_whether_and_why_they_fit(engine, show):
    async with show(engine.folder, (120, 30)) as screen:
        await screen.press("i")
        await screen.sees("fit gemm", "may be used: fits gemm on cuda")
        await screen.press("G")
        await screen.sees("not here:")


async def test_help_lists_every_key_of_the_screen_beneath(engine, show):
    from kernelarc_tui.keys import key_groups

    async with show(engine.folder) as screen:
        groups = key_groups(screen.app.screen)
        await screen.press("question_mark")
        shown = screen.app.screen.query_one("TextPane").text
        for _, rows in groups:
            for keys, text, binding_id in rows:
                assert text and text in shown and keys.split()[0] in shown and binding_id in shown
        assert "faster than the agent's best" in shown
        await screen.press("q")
        assert isinstance(screen.app.screen, Live)


async def test_every_binding_has_an_id_and_says_what_it_does():
    from kernelarc_tui.keys import known_ids

    for binding_id, binding in known_ids().items():
        assert binding.tooltip, f"{binding_id} has no help text"


async def test_escape_and_q_lead_back_to_the_live_screen(engine, show):
    async with show(engine.folder) as screen:
        for key in ("a", "m", "l", "i"):
            for back in ("q", "escape"):
                await screen.press(key)
                assert not isinstance(screen.app.screen, Live)
                await screen.press(back)
                assert isinstance(screen.app.screen, Live)


async def test_the_screen_is_saved_as_svg(engine, show, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with show(engine.folder) as screen:
        screen.app.action_save_screen()
        await screen.sees("saved ")
    assert next(tmp_path.glob("kernelarc-*.svg")).read_text().startswith("<svg")


async def test_a_split_diff_shows_every_character_within_its_halves(engine, show):
    async with show(engine.folder) as screen:
        screen.app.push_screen(CandidateScreen(63, tab=1, against="reference"))
        await screen.press("t")
        await screen.until(lambda: "│" in screen.text("#text"))
        pane = screen.app.screen.query_one("#text", TextPane)
        assert max(line.width for line in pane.lines) <= pane.scrollable_content_region.width
        assert "›" not in screen.text("#text")
        await screen.press("4")
        await screen.sees("verdict")
        assert max(line.width for line in pane.lines) <= pane.scrollable_content_region.width
