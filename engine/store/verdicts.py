"""The verdict transaction and the veto: candidate, results, archive, memory and events, all or nothing."""

from __future__ import annotations

import json

import msgspec

from engine.errors import BadInput
from engine.problems.solution import Solution, solution_sha
from engine.records import Outcome
from engine.store import events as ev
from engine.store import memories
from engine.store.rows import Committed, VerdictRecord
from engine.store.tx import Tx

_encode = msgspec.json.Encoder().encode
_ARCHIVES = {Outcome.KEEP: ("best", "accepted"), Outcome.ACCEPT: ("accepted",)}


def solution_bytes(solution: Solution) -> bytes:
    """The stored form; the reader decodes it, exports write SOL-ExecBench's own."""
    return _encode(solution)


def commit(tx: Tx, record: VerdictRecord) -> Committed:
    """Write one verdict. A second one for the same (agent, position) changes nothing and returns the first.

    Raises:
        BadInput: the record is not a verdict that takes a position.
    """
    verdict = record.verdict
    if verdict.outcome is Outcome.ERROR:
        raise BadInput("an ERROR takes no position; append a CandidateError instead", where=verdict.agent)
    known = tx.connection.execute(
        "SELECT number FROM candidates WHERE agent = ? AND position = ?", (verdict.agent, verdict.position)
    ).fetchone()
    if known is not None:
        return Committed(number=known[0], seq=tx.summary.seq, fresh=False)
    number = tx.connection.execute("SELECT coalesce(max(number), 0) + 1 FROM candidates").fetchone()[0]
    _insert_candidate(tx, record, number)
    _insert_results(tx, record, number)
    for kind in _ARCHIVES.get(verdict.outcome, ()):
        tx.connection.execute(
            "INSERT INTO archive (agent, kind, candidate, at) VALUES (?, ?, ?, ?)",
            (verdict.agent, kind, number, tx.now),
        )
    seq = tx.append(msgspec.structs.replace(verdict, number=number)).seq
    for event in record.events:
        tx.append(event)
    for key, value in record.memo.items():
        tx.memo(verdict.agent, key, value)
    if record.then is not None:
        record.then(tx, number)
    return Committed(number=number, seq=seq, fresh=True)


def veto(tx: Tx, number: int) -> ev.Vetoed:
    """Take a KEEP back: its archive row stays with a mark, the best returns, the wins from it expire.

    Raises:
        BadInput: there is no such KEEP, or it was vetoed before.
    """
    row = tx.connection.execute(
        "SELECT agent, vetoed_at FROM archive WHERE candidate = ? AND kind = 'best'", (number,)
    ).fetchone()
    if row is None:
        raise BadInput(f"candidate {number} is not a KEEP", fix="only a KEEP can be vetoed")
    agent, vetoed_at = row
    if vetoed_at is not None:
        raise BadInput(f"candidate {number} was vetoed before")
    tx.connection.execute("UPDATE archive SET vetoed_at = ? WHERE candidate = ?", (tx.now, number))
    tx.connection.execute("UPDATE candidates SET vetoed_at = ? WHERE number = ?", (tx.now, number))
    expired = memories.expire_wins_of(tx, number, "veto")
    summary = tx.summary
    standing = [keep for keep in summary.agents[agent].keeps if keep.number != number]
    event = ev.Vetoed(
        number=number,
        agent=agent,
        best=standing[-1].number if standing else 0,
        best_ms=standing[-1].latency_ms if standing else summary.seed_ms,
        best_speedup=standing[-1].speedup if standing else summary.seed_speedup,
        expired=expired,
    )
    tx.append(event)
    return event


def _insert_candidate(tx: Tx, record: VerdictRecord, number: int) -> None:
    verdict, solution = record.verdict, record.solution
    low, high = verdict.log_ratio_ci or (None, None)
    values = {
        "number": number,
        "agent": verdict.agent,
        "position": verdict.position,
        "at": tx.now,
        "mode": verdict.mode.value,
        "strategy": verdict.strategy,
        "family": verdict.family,
        "parameters": json.dumps(record.parameters),
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "detail": verdict.detail,
        "latency_ms": verdict.latency_ms,
        "speedup": verdict.speedup,
        "log_ratio": verdict.log_ratio,
        "log_ratio_lo": low,
        "log_ratio_hi": high,
        "sol_score": verdict.sol_score,
        "seconds": verdict.seconds,
        "parent": verdict.parent,
        "solution": tx.blob(solution_bytes(solution)) if solution else None,
        "prompt": tx.blob(record.prompt.encode(errors="replace")) if record.prompt else None,
        "reply": tx.blob(record.reply.encode(errors="replace")) if record.reply else None,
        "evaluation": tx.blob(_encode(record.evaluation)) if record.evaluation else None,
        "hypothesis": verdict.hypothesis,
        "predicted_change": record.predicted_change,
        "model": verdict.model,
        "tokens_in": record.tokens_in,
        "tokens_out": record.tokens_out,
        "cost_usd": verdict.cost_usd,
        "source_sha": record.source_sha or (solution_sha(solution) if solution else None),
    }
    marks = ", ".join("?" * len(values))
    tx.connection.execute(f"INSERT INTO candidates ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def _insert_results(tx: Tx, record: VerdictRecord, number: int) -> None:
    if record.evaluation is not None:
        rows = [(number, i, _encode(result).decode()) for i, result in enumerate(record.evaluation.workloads)]
        tx.connection.executemany("INSERT INTO workload_results VALUES (?, ?, ?)", rows)
