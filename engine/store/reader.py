"""Reading a campaign while its engine writes it: one read-only connection, short reads, no scans.

Every method fetches all of its rows before it returns, because an open cursor keeps the engine from
checkpointing. Any of them raises :class:`StoreError` with one clear line when the file, or a row of it, cannot be
read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from engine.config import CampaignConfig
from engine.errors import StoreError
from engine.problems.solution import Solution
from engine.records import Baselines, DeviceFacts, Evaluation, Profile, Sample, WorkloadResult
from engine.store import events as ev
from engine.store import ledger, memories, samples
from engine.store.readonly import ReadOnly
from engine.store.rows import CampaignRow, CandidateRow, LedgerTotals, LiveRow, MemoryRow
from engine.store.summary import Summary
from engine.store.tx import refold

PROFILES = "profiles"
"""Where profiles are kept among the memos, by candidate number; no agent is called so."""

Point = tuple[int, str, str, float | None]

_CANDIDATE = ", ".join(CandidateRow.__struct_fields__)
_LIVE = ", ".join(LiveRow.__struct_fields__)
PAGE = 500
"""Expired memory entries that are read at once."""


class StoreReader(ReadOnly):
    """Everything that is asked of a campaign's database."""

    # Following

    def last_seq(self) -> int:
        return int(self._one("SELECT coalesce(max(seq), 0) FROM events")[0])

    def events(self, after: int, limit: int = 500) -> list[ev.Stored]:
        """Up to ``limit`` events later than sequence number ``after``, oldest first."""
        rows = self._all("SELECT seq, at, data FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit))
        return [self._stored(row) for row in rows]

    def events_before(self, seq: int | None, limit: int = 500, agent: str | None = None) -> list[ev.Stored]:
        """The last ``limit`` events earlier than ``seq`` (``None``: up to now), oldest first."""
        before = seq if seq is not None else 1 << 62
        if agent is None:
            rows = self._all(
                "SELECT seq, at, data FROM events WHERE seq < ? ORDER BY seq DESC LIMIT ?", (before, limit)
            )
        else:
            rows = self._all(
                """SELECT seq, at, data FROM events WHERE agent = ? AND agent <> '' AND seq < ?
                   ORDER BY seq DESC LIMIT ?""",
                (agent, before, limit),
            )
        return [self._stored(row) for row in reversed(rows)]

    def event_seqs(
        self,
        after: int,
        upto: int,
        *,
        kinds: Sequence[str] = (),
        agent: str = "",
        outcome: str = "",
        text: str = "",
    ) -> list[int]:
        """Sequence numbers in ``(after, upto]`` of events that match, oldest first; empty fields match all.

        Looks at every event of the range: callers index a long log in chunks. ``text`` is found in any field,
        in upper or lower case.
        """
        where, values = _where(agent=agent or None)
        where += ["seq > ?", "seq <= ?"]
        values += [after, upto]
        if kinds:
            where.append(f"json_extract(data, '$.kind') IN ({', '.join('?' * len(kinds))})")
            values += kinds
        if outcome:
            where.append("json_extract(data, '$.outcome') = ?")
            values.append(outcome)
        if text:
            where.append("instr(lower(data), ?) > 0")
            values.append(text.lower())
        sql = f"SELECT seq FROM events WHERE {' AND '.join(where)} ORDER BY seq"
        return [seq for (seq,) in self._all(sql, values)]

    # The campaign

    def summary(self) -> Summary:
        """The fold of every committed event: one row."""
        row = self._row("SELECT summary FROM current")
        if row is None:
            return Summary()
        try:
            return self._decode(row[0], Summary, "the summary")
        except StoreError:  # another version's: the events are the truth
            return self.summary_at(self.last_seq())

    def summary_at(self, seq: int) -> Summary:
        """The summary after event ``seq``: the nearest snapshot and at most 1,000 events."""
        return self._read("an event", lambda: self._asked(lambda connection: refold(connection, seq)))

    def campaign(self) -> CampaignRow:
        row = self._row(
            """SELECT name, created_at, problem_name, problem, kernel_type, config, device, device_facts,
                      seed_solution, baselines FROM campaign"""
        )
        if row is None:
            raise StoreError(f"{self.path}: holds no campaign; creating it was cut short, delete the folder")
        facts, baselines = row[7], row[9]
        return CampaignRow(
            name=row[0],
            created_at=row[1],
            problem_name=row[2],
            problem=row[3],
            kernel_type=row[4],
            config=self._decode(row[5], CampaignConfig, "the campaign's settings"),
            device=row[6],
            device_facts=self._decode(facts, DeviceFacts, "the campaign's device") if facts else None,
            seed_solution=row[8],
            baselines=self._decode(baselines, Baselines, "the campaign's baselines") if baselines else None,
        )

    # Candidates

    def candidate(self, number: int) -> CandidateRow | None:
        row = self._row(f"SELECT {_CANDIDATE} FROM candidates WHERE number = ?", (number,))
        return self._candidates_of([row])[0] if row else None

    def candidates(
        self,
        before: int | None = None,
        limit: int = 100,
        agent: str | None = None,
        outcome: str | None = None,
    ) -> list[CandidateRow]:
        """Newest first, numbers below ``before``: page on with the last row's number."""
        where, values = ["number < ?"], [before if before is not None else 1 << 62]
        return self._candidates(where, values, "DESC", limit, agent, outcome)

    def candidates_after(
        self, number: int, limit: int = 100, agent: str | None = None, outcome: str | None = None
    ) -> list[CandidateRow]:
        """Oldest first, numbers above ``number``."""
        return self._candidates(["number > ?"], [number], "ASC", limit, agent, outcome)

    def points(self, after: int = 0) -> list[Point]:
        """(number, agent, outcome, latency_ms) of candidates above ``after``, oldest first: for plots."""
        sql = "SELECT number, agent, outcome, latency_ms FROM candidates WHERE number > ? ORDER BY number"
        rows = self._all(sql, (after,))
        return self._read("a candidate's row", lambda: msgspec.convert(rows, list[Point]))

    def reasons(self) -> dict[str, int]:
        """How often candidates ended with each reason code. Reads every candidate: for reports only."""
        sql = "SELECT reason, count(*) FROM candidates WHERE outcome IN ('REVERT', 'REJECT') GROUP BY reason"
        return {reason: count for reason, count in self._all(sql) if reason}

    def workloads(self, number: int) -> list[WorkloadResult]:
        rows = self._all("SELECT data FROM workload_results WHERE candidate = ? ORDER BY ordinal", (number,))
        return [self._decode(data, WorkloadResult, f"a workload of candidate {number}") for (data,) in rows]

    def evaluation(self, number: int) -> Evaluation | None:
        row = self._row("SELECT evaluation FROM candidates WHERE number = ?", (number,))
        if not row or not row[0]:
            return None
        return self._decode(self.blob(row[0]), Evaluation, f"the evaluation of candidate {number}")

    def solution(self, number: int) -> Solution | None:
        """A candidate's solution, 0 for the seed; ``None`` if the reply held none."""
        if number == 0:
            row = self._row("SELECT seed_solution FROM campaign")
        else:
            row = self._row("SELECT solution FROM candidates WHERE number = ?", (number,))
        if not row or not row[0]:
            return None
        return self._decode(self.blob(row[0]), Solution, f"the solution of candidate {number}")

    def profile(self, number: int) -> Profile | None:
        """The last profile of a candidate, 0 for the seed."""
        row = self._row("SELECT value FROM agent_memo WHERE agent = ? AND key = ?", (PROFILES, str(number)))
        return self._decode(row[0], Profile, f"the profile of candidate {number}") if row else None

    def prompt(self, number: int) -> str | None:
        return self._text("prompt", number)

    def reply(self, number: int) -> str | None:
        return self._text("reply", number)

    def blob(self, sha: str) -> bytes:
        row = self._row("SELECT data FROM blobs WHERE sha = ?", (sha,))
        if row is None:
            raise StoreError(f"{self.path}: blob {sha[:12]} is missing")
        try:
            return zlib.decompress(row[0])
        except (zlib.error, TypeError) as error:
            raise StoreError(f"{self.path}: blob {sha[:12]} is damaged ({error})") from error

    # Memory, money, what happens now

    def memory(self, kind: str | None = None, kernel_type: str | None = None) -> list[MemoryRow]:
        """Wins and traps in recall, all of them, newest first."""
        return self._memory(self._asked(lambda connection: memories.live(connection, kind, kernel_type)))

    def expired_memory(
        self, before: int | None = None, limit: int = PAGE, kind: str | None = None
    ) -> list[MemoryRow]:
        """Entries out of recall with ids below ``before``, newest first: page on with the last one's id."""
        return self._memory(self._asked(lambda connection: memories.expired(connection, before, limit, kind)))

    def all_memory(self, kind: str | None = None) -> list[MemoryRow]:
        """In recall or not, each once, newest first. For lists that are made once.

        An entry may leave recall between two reads, and is in both of them then: the later one knows better.
        """
        rows = {row.id: row for row in self.memory(kind)}
        page = self.expired_memory(kind=kind)
        while page:
            rows.update((row.id, row) for row in page)
            page = self.expired_memory(page[-1].id, kind=kind)
        return sorted(rows.values(), key=lambda row: -row.id)

    def memory_entry(self, identity: int) -> MemoryRow | None:
        row = self._row(f"SELECT {memories.COLUMNS} FROM memory WHERE id = ?", (identity,))
        return self._memory([row])[0] if row else None

    def ledger_totals(self) -> LedgerTotals:
        return self._asked(ledger.totals)

    def memo(self, agent: str) -> dict[str, Any]:
        rows = self._all("SELECT key, value FROM agent_memo WHERE agent = ?", (agent,))
        return {key: self._read(f"the memo {key} of {agent!r}", partial(json.loads, value)) for key, value in rows}

    def live(self) -> list[LiveRow]:
        rows = self._all(f"SELECT {_LIVE} FROM live ORDER BY agent")
        return self._records(LiveRow, "the live row of agent", rows)

    def samples(self, after: float = 0.0, device: str | None = None, limit: int = 600) -> list[Sample]:
        """The newest ``limit`` samples a device later than ``after`` (Unix seconds), oldest first."""
        rows = self._asked(lambda connection: samples.select(connection, after, device, limit))
        found = [self._decode(data, Sample, f"the sample of {name} at {at}") for name, at, data in rows]
        return sorted(found, key=lambda sample: (sample.at, sample.device))

    def _stored(self, row: tuple[int, float, str]) -> ev.Stored:
        return self._read(f"event {row[0]}", lambda: ev.Stored(row[0], row[1], ev.decode(row[2])))

    def _text(self, column: str, number: int) -> str | None:
        row = self._row(f"SELECT {column} FROM candidates WHERE number = ?", (number,))
        return self.blob(row[0]).decode(errors="replace") if row and row[0] else None

    def _candidates(
        self, where: list[str], values: list[Any], order: str, limit: int, agent: str | None, outcome: str | None
    ) -> list[CandidateRow]:
        more, more_values = _where(agent=agent, outcome=outcome)
        condition = " AND ".join([*where, *more])
        rows = self._all(
            f"SELECT {_CANDIDATE} FROM candidates WHERE {condition} ORDER BY number {order} LIMIT ?",
            (*values, *more_values, limit),
        )
        return self._candidates_of(rows)

    # JSON is read with Python's own reader where early campaigns may hold NaN

    def _candidates_of(self, rows: list[Any]) -> list[CandidateRow]:
        return self._records(CandidateRow, "candidate", rows, parameters=json.loads)

    def _memory(self, rows: list[Any]) -> list[MemoryRow]:
        return self._records(MemoryRow, "memory entry", rows, versions=json.loads, pinned=bool)


def _where(**columns: str | None) -> tuple[list[str], list[Any]]:
    given = {name: value for name, value in columns.items() if value is not None}
    return ["1", *(f"{name} = ?" for name in given)], list(given.values())
