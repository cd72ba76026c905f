"""One writer: batches, verdicts, memory, money, live rows."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from engine.errors import BadInput, StoreError
from engine.records import Baselines, DeviceFacts, Outcome, Sample
from engine.store import events as ev
from engine.store import memories
from engine.store.create import create_database
from engine.store.ledger import OverBudget
from engine.store.reader import StoreReader
from engine.store.rows import Addition, Compared, MemoryWrite
from engine.store.tx import Tx
from engine.store.writer import StoreWriter
from tests.fixtures.store_records import BASELINES, SEED, archived, fold_all, keep, learning, other, row, started


async def test_a_new_campaign_holds_its_row_its_seed_and_its_first_event(folder: Path) -> None:
    create_database(folder / "campaign.db", row(), SEED, started())
    async with await StoreWriter.open(folder / "campaign.db") as writer:
        assert writer.summary.seq == 1
        with StoreReader(folder) as reader:
            assert reader.campaign().name == "c1"
            assert reader.solution(0) == SEED
            assert isinstance(reader.events(0)[0].event, ev.CampaignStarted)


def test_an_existing_campaign_is_never_created_over(database: Path) -> None:
    before = database.read_bytes()
    with pytest.raises(StoreError, match="exists already"):
        create_database(database, row(), SEED, started())
    assert database.read_bytes() == before


async def test_a_verdict_is_one_transaction_with_everything_it_says(writer: StoreWriter) -> None:
    record = keep(events=(ev.Attention(code="best.new", text="new best", level="info"),), memo={"line": [1, 2]})
    committed = await writer.commit_verdict(record)
    assert committed.number == 1 and committed.fresh
    with StoreReader(writer.path) as reader:
        candidate = reader.candidate(1)
        assert candidate is not None
        assert (candidate.agent, candidate.position, candidate.outcome) == ("a1", 1, "KEEP")
        assert candidate.parameters == {"block": 64}
        assert reader.solution(1) == record.solution
        assert reader.evaluation(1) == record.evaluation
        assert (reader.prompt(1), reader.reply(1)) == ("the prompt", "the reply")
        assert [result.uuid for result in reader.workloads(1)] == ["w0", "w1"]
        assert archived(writer.path) == archived(writer.path, "accepted") == [("a1", 1, False)]
        assert [(entry.id, entry.candidate) for entry in reader.memory("win")] == [(1, 1)]
        assert reader.memo("a1") == {"line": [1, 2]}
        kinds = [type(stored.event).__name__ for stored in reader.events(3)]
        assert kinds == ["Verdict", "Attention", "MemoryAdded"]
        assert reader.summary() == writer.summary


async def test_the_same_position_is_judged_once(writer: StoreWriter) -> None:
    first = await writer.commit_verdict(keep())
    again = await writer.commit_verdict(keep(ms=0.5))
    assert (again.number, again.fresh) == (first.number, False)
    assert writer.summary.candidates == 1
    assert writer.summary.best_ms == 1.0


async def test_numbers_have_no_gaps_however_many_agents_commit_at_once(writer: StoreWriter) -> None:
    records = [other(agent, position) for position in range(1, 31) for agent in ("a1", "a2")]
    done = await asyncio.gather(*(writer.commit_verdict(record) for record in records))
    assert sorted(committed.number for committed in done) == list(range(1, 61))
    with StoreReader(writer.path) as reader:
        assert [stored.seq for stored in reader.events(0, 1000)] == list(range(1, 64))


async def test_an_error_takes_no_position(writer: StoreWriter) -> None:
    with pytest.raises(BadInput, match="takes no position"):
        await writer.commit_verdict(other(outcome=Outcome.ERROR))
    await writer.append(ev.CandidateError(agent="a1", reason="model.server", streak=2))
    agent = writer.summary.agents["a1"]
    assert (agent.candidates, agent.errors, agent.error_streak, writer.summary.errors) == (0, 1, 2, 1)


async def test_a_failing_piece_of_work_takes_nothing_else_with_it(writer: StoreWriter) -> None:
    def broken(tx: Tx) -> None:
        tx.append(ev.CampaignPaused())
        raise ZeroDivisionError

    results = await asyncio.gather(
        writer.commit_verdict(other("a1")),
        writer.transact(broken),
        writer.commit_verdict(other("a2")),
        return_exceptions=True,
    )
    assert isinstance(results[1], ZeroDivisionError)
    assert writer.summary.candidates == 2
    assert writer.summary.state == "running"


async def test_an_oversized_memory_field_refuses_the_whole_verdict(writer: StoreWriter) -> None:
    entry = MemoryWrite(
        kind="win", kernel_type="norm", strategy="s" * 161, reflection="", agent="a1", device="a CPU"
    )
    with pytest.raises(BadInput, match="161 characters"):
        await writer.commit_verdict(keep(then=learning(entry)))
    with StoreReader(writer.path) as reader:
        assert reader.candidates() == [] and archived(writer.path) == []


async def test_a_veto_gives_the_best_back_and_expires_its_wins(writer: StoreWriter) -> None:
    await writer.commit_verdict(keep(position=1, ms=1.0))
    await writer.commit_verdict(keep(position=2, ms=0.8))
    done = await writer.edit("veto", 2)
    vetoed = done.vetoed
    assert vetoed is not None and done.text == "#2 is vetoed; the best of agent a1 is #1 again"
    assert (vetoed.best, vetoed.best_ms) == (1, 1.0)
    assert (writer.summary.best, writer.summary.agents["a1"].best, writer.summary.wins) == (1, 1, 1)
    with StoreReader(writer.path) as reader:
        assert archived(writer.path) == [("a1", 1, False), ("a1", 2, True)]
        assert [entry.candidate for entry in reader.memory("win")] == [1]
    with pytest.raises(BadInput, match="vetoed before"):
        await writer.edit("veto", 2)
    assert (await writer.edit("veto", 1)).text.endswith("is the seed again")
    assert (writer.summary.best, writer.summary.best_ms) == (0, 1.9)


async def test_only_a_keep_can_be_vetoed(writer: StoreWriter) -> None:
    await writer.commit_verdict(other())
    with pytest.raises(BadInput, match="not a KEEP"):
        await writer.edit("veto", 1)


async def test_near_duplicates_are_counted_and_not_stored(writer: StoreWriter) -> None:
    await writer.commit_verdict(keep())
    twin = MemoryWrite(
        kind="win",
        kernel_type="elementwise",
        strategy="same",
        reflection="",
        agent="a2",
        device="a CPU",
        merged_into=1,
    )
    assert await writer.transact(lambda tx: memories.add(tx, twin)) == 1
    with StoreReader(writer.path) as reader:
        assert [entry.merged for entry in reader.memory()] == [2]
    assert writer.summary.wins == 1


async def test_entries_added_together_meet_the_retention_one_after_the_other(writer: StoreWriter) -> None:
    """The newest two stay, twins by strategy are merged, an entry of strategy "never" has no room."""

    def rule(live: Sequence[Compared], new: Compared) -> Addition:
        assert [other.id for other in live] == sorted((other.id for other in live), reverse=True)
        twin = next((other.id for other in live if other.strategy == new.strategy), None)
        if twin is not None or new.strategy == "never":
            return Addition(store=False, merge_into=twin)
        return Addition(store=True, expire=tuple(other.id for other in live[1:] if not other.pinned))

    def traps(*strategies: str) -> list[MemoryWrite]:
        common = {"kind": "trap", "kernel_type": "norm", "reflection": "", "agent": "a1", "device": "a CPU"}
        return [MemoryWrite(strategy=strategy, **common) for strategy in strategies]

    await writer.transact(lambda tx: memories.remember(tx, traps("a", "b"), rule))
    await writer.edit("memory.pin", 1)
    await writer.transact(lambda tx: memories.remember(tx, traps("b", "c", "never", "c", "d", "e"), rule))
    with StoreReader(writer.path) as reader:
        assert [(entry.strategy, entry.merged) for entry in reader.memory()] == [("e", 1), ("d", 1), ("a", 1)]
        gone = [(entry.strategy, entry.merged, entry.expired_why) for entry in reader.expired_memory()]
        assert gone == [("c", 2, "retention"), ("b", 2, "retention")]


async def test_pins_notes_and_expiry_are_decisions_in_the_log(writer: StoreWriter) -> None:
    await writer.commit_verdict(keep())
    await writer.edit("memory.pin", 1)
    await writer.edit("memory.note", 1, "checked by hand")
    await writer.edit("memory.expire", 1)
    with pytest.raises(BadInput, match="expired already"):
        await writer.edit("memory.expire", 1)
    with StoreReader(writer.path) as reader:
        assert reader.memory() == []
        entry = reader.expired_memory()[0]
        assert (entry.pinned, entry.note, entry.expired_why) == (True, "checked by hand", "user")
    assert writer.summary.wins == 0
    with pytest.raises(BadInput, match="no memory entry 99"):
        await writer.edit("memory.pin", 99)
    for nonsense in (("memory.pin", None), ("veto", None), ("hint", 1)):
        with pytest.raises(BadInput):
            await writer.edit(*nonsense)


async def test_then_runs_in_the_verdicts_own_transaction(writer: StoreWriter) -> None:
    def retire(tx: Tx, number: int) -> None:
        memories.add(tx, MemoryWrite(candidate=number, **win))
        for identity, *_ in memories.live(tx.connection, "win")[1:]:
            memories.expire(tx, identity, "retention")

    win = {"kind": "win", "kernel_type": "t", "strategy": "s", "reflection": "", "agent": "a1", "device": "a CPU"}
    for position in (1, 2, 3):
        await writer.commit_verdict(keep(position=position, ms=1.0 / position, then=retire))
    with StoreReader(writer.path) as reader:
        assert [entry.candidate for entry in reader.memory("win")] == [3]
    assert writer.summary.wins == 1


async def test_equal_blobs_are_stored_once(writer: StoreWriter) -> None:
    first, second = await asyncio.gather(*(writer.transact(lambda tx: tx.blob(b"x" * 5000)) for _ in range(2)))
    assert first == second
    with StoreReader(writer.path) as reader:
        assert reader.blob(first) == b"x" * 5000


async def test_the_campaigns_row_is_filled_in_as_things_become_known(writer: StoreWriter) -> None:
    facts = DeviceFacts(kind="cpu", name="a CPU")
    baselines = Baselines(reference_ms=2.0, seed_ms=1.9, seed_speedup=1.05, noise=0.01)
    await writer.set_campaign(BASELINES, device_facts=facts, baselines=baselines)
    with StoreReader(writer.path) as reader:
        campaign = reader.campaign()
        assert (campaign.device_facts, campaign.baselines) == (facts, baselines)


async def test_a_live_row_is_written_at_most_four_times_a_second(writer: StoreWriter) -> None:
    with StoreReader(writer.path) as reader:
        reader.changed()
        began, changes, tokens = time.monotonic(), 0, 0
        while time.monotonic() - began < 1.0:
            tokens += 1
            writer.live("a1", state="proposing", reply="x" * tokens, tokens=tokens)
            await asyncio.sleep(0.005)
            changes += reader.changed()
        assert 2 <= changes <= 5
        await asyncio.sleep(0.3)
        shown = reader.live()[0]
        assert (shown.tokens, shown.state) == (tokens, "proposing")


async def test_a_live_row_says_since_when_its_state_holds(writer: StoreWriter) -> None:
    writer.live("a1", state="proposing")
    await writer.flush()
    writer.live("a1", detail="still")
    await asyncio.sleep(0.3)
    with StoreReader(writer.path) as reader:
        still = reader.live()[0]
        writer.live("a1", state="benching")
        await asyncio.sleep(0.3)
        assert reader.live()[0].since > still.since
    with pytest.raises(TypeError):
        writer.live("a1", speed=3)


async def test_a_long_reply_keeps_its_tail(writer: StoreWriter) -> None:
    writer.live("a1", reply="a" * 100_000 + "end")
    await asyncio.sleep(0.1)
    with StoreReader(writer.path) as reader:
        reply = reader.live()[0].reply
    assert len(reply) == 8000 and reply.endswith("end")


async def test_samples_are_thinned_after_ten_minutes(database: Path) -> None:
    now = 1_000_000.0

    def clock() -> float:
        return now

    async with await StoreWriter.open(database, clock) as writer:
        for second in range(1200):
            writer.sample(Sample(at=now - 1200 + second, device="cpu", utilization=(second % 10) / 10))
            if second % 300 == 299:
                await writer.flush()
                await asyncio.sleep(0.01)
        now += 61.0
        await writer.flush()
        writer.sample(Sample(at=now, device="cpu"))
        await writer.flush()
        await asyncio.sleep(0.05)
        with StoreReader(database) as reader:
            kept = reader.samples(limit=5000)
    old = [sample for sample in kept if sample.at < now - 610]
    fresh = [sample for sample in kept if sample.at >= now - 590]
    assert 50 <= len(old) <= 80
    assert all(sample.utilization == pytest.approx(0.45) for sample in old[1:-1])
    assert len(fresh) >= 500


async def test_money_in_flight_counts_against_the_cap(writer: StoreWriter) -> None:
    async def call(agent: str) -> int:
        return await writer.reserve(agent, "m", 0.4, 1000, cap_usd=1.0)

    results = await asyncio.gather(*(call(f"a{i % 2 + 1}") for i in range(4)), return_exceptions=True)
    assert [isinstance(result, OverBudget) for result in results] == [False, False, True, True]
    first, second = results[0], results[1]
    assert isinstance(first, int) and isinstance(second, int)
    assert await writer.settle(first, 0.1, 500, 100)
    assert not await writer.settle(first, 0.1, 500, 100)
    assert await writer.lose(second)
    totals = await writer.ledger_totals()
    assert totals.charged_usd == pytest.approx(0.5)
    assert (totals.reserved_usd, totals.tokens, totals.lost, totals.calls) == (0.0, 1600, 1, 2)
    await call("a1")


async def test_a_token_cap_holds_where_the_price_is_unknown(writer: StoreWriter) -> None:
    await writer.reserve("a1", "local", None, 700, cap_usd=1.0, cap_tokens=1000)
    with pytest.raises(OverBudget):
        await writer.reserve("a1", "local", None, 700, cap_usd=1.0, cap_tokens=1000)
    assert (await writer.ledger_totals()).unknown_price == 1


async def test_what_a_crash_left_in_flight_is_charged_in_full(database: Path) -> None:
    async with await StoreWriter.open(database) as writer:
        await writer.reserve("a1", "m", 0.25, 9000)
        settled = await writer.reserve("a2", "m", 0.25, 9000)
        await writer.settle(settled, 0.05, 100, 50)
    async with await StoreWriter.open(database) as writer:
        totals = await writer.ledger_totals()
        assert totals.charged_usd == pytest.approx(0.30)
        assert totals.reserved_usd == 0.0
        assert writer.summary.cost_usd == pytest.approx(0.30)
        assert writer.summary.agents["a1"].tokens == 9000
    async with await StoreWriter.open(database) as writer:
        assert writer.summary.cost_usd == pytest.approx(0.30)


async def test_closing_shows_the_money_that_no_verdict_accounts_for(database: Path) -> None:
    async with await StoreWriter.open(database) as writer:
        cancelled = await writer.reserve("a1", "m", 0.25, 9000)
        await writer.lose(cancelled)
        judged = await writer.reserve("a2", "m", 0.25, 9000)
        await writer.settle(judged, 0.05, 100, 50)
        record = other("a2")
        verdict = msgspec.structs.replace(record.verdict, cost_usd=0.05, tokens=150)
        await writer.commit_verdict(dataclasses.replace(record, verdict=verdict))
    with StoreReader(database) as reader:
        summary = reader.summary()
        assert (summary.cost_usd, summary.tokens) == (pytest.approx(0.30), 9150)
        charged = [stored.event for stored in reader.events(0) if isinstance(stored.event, ev.ModelCharged)]
        assert [(event.agent, event.cost_usd) for event in charged] == [("a1", 0.25)]


async def test_a_command_can_be_found_by_its_id(writer: StoreWriter) -> None:
    await writer.append(ev.CommandAnswered(id="k1", verb="pause", text="paused"))
    assert await writer.answer_of("k1") == (True, "paused", 4)
    assert await writer.answer_of("k2") is None


async def test_committed_events_are_announced_in_order(writer: StoreWriter) -> None:
    seen: list[int] = []
    writer.on_commit = lambda stored: seen.extend(item.seq for item in stored)
    await asyncio.gather(*(writer.commit_verdict(other(position=i)) for i in range(1, 6)))
    await asyncio.sleep(0)
    assert seen == [4, 5, 6, 7, 8]


async def test_the_stored_summary_is_the_fold_of_the_log(writer: StoreWriter) -> None:
    for position in range(1, 8):
        await writer.commit_verdict(
            keep(position=position, ms=1.0 / position) if position % 3 == 1 else other(position=position)
        )
    await writer.append(ev.CampaignPaused(), ev.CampaignResumed())
    with StoreReader(writer.path) as reader:
        assert fold_all(reader.events(0, 1000)) == reader.summary() == writer.summary


async def test_a_closed_campaign_has_no_wal_and_reopens_where_it_was(database: Path) -> None:
    async with await StoreWriter.open(database) as writer:
        await writer.commit_verdict(keep())
        summary = writer.summary
    wal = database.with_name("campaign.db-wal")
    assert not wal.exists() or wal.stat().st_size == 0
    async with await StoreWriter.open(database) as writer:
        assert writer.summary == summary
    with pytest.raises(StoreError, match="is closed"):
        await writer.append(ev.CampaignPaused())


async def test_a_lost_current_row_is_folded_anew(database: Path) -> None:
    async with await StoreWriter.open(database) as writer:
        await writer.commit_verdict(keep())
        summary = writer.summary
    with sqlite3.connect(database) as connection:
        connection.execute('UPDATE current SET summary = \'{"candidates": "many"}\'')
    with StoreReader(database) as reader:
        assert reader.summary() == summary
    async with await StoreWriter.open(database) as writer:
        assert writer.summary == summary
