"""Money: reserved and committed before a call is sent, settled afterwards, charged in full when it was lost.

All functions run inside a transaction of the one writer, so a cap is tested against every call in flight.
"""

from __future__ import annotations

import sqlite3

from engine.errors import KernelArcError
from engine.store import events as ev
from engine.store.rows import LedgerTotals
from engine.store.tx import Tx


class OverBudget(KernelArcError):
    """The reservation would pass the cap: nothing was reserved, the call must not be sent."""

    def __init__(self, totals: LedgerTotals, asked: str) -> None:
        super().__init__(
            f"{asked} more would pass the limit: ${totals.charged_usd:.4f} and {totals.tokens} tokens are spent, "
            f"${totals.reserved_usd:.4f} and {totals.reserved_tokens} tokens are in flight"
        )
        self.totals = totals


def totals(connection: sqlite3.Connection) -> LedgerTotals:
    """Everything charged and in flight; reads one row a call was made for."""
    row = connection.execute(
        """SELECT coalesce(sum(charged_usd), 0), coalesce(sum(tokens_in + tokens_out), 0), count(*),
                  coalesce(sum(state = 'lost'), 0), coalesce(sum(charged_usd IS NULL), 0)
           FROM ledger WHERE state <> 'reserved'"""
    ).fetchone()
    reserved = connection.execute(
        """SELECT coalesce(sum(reserved_usd), 0), coalesce(sum(reserved_tokens), 0), count(*),
                  coalesce(sum(reserved_usd IS NULL), 0)
           FROM ledger WHERE state = 'reserved'"""
    ).fetchone()
    return LedgerTotals(
        charged_usd=row[0],
        tokens=row[1],
        calls=row[2] + reserved[2],
        lost=row[3],
        unknown_price=row[4] + reserved[3],
        reserved_usd=reserved[0],
        reserved_tokens=reserved[1],
    )


def reserve(
    tx: Tx,
    agent: str,
    model: str,
    usd: float | None,
    tokens: int,
    *,
    cap_usd: float | None = None,
    cap_tokens: int | None = None,
) -> int:
    """Put ``usd`` (``None``: price unknown) and ``tokens`` aside; returns the reservation's id.

    Raises:
        OverBudget: charged + in flight + this would pass a cap.
    """
    if cap_usd is not None or cap_tokens is not None:
        now = totals(tx.connection)
        if cap_usd is not None and usd is not None and now.charged_usd + now.reserved_usd + usd > cap_usd:
            raise OverBudget(now, f"${usd:.4f}")
        if cap_tokens is not None and now.tokens + now.reserved_tokens + tokens > cap_tokens:
            raise OverBudget(now, f"{tokens} tokens")
    cursor = tx.connection.execute(
        """INSERT INTO ledger (agent, model, at, state, reserved_usd, reserved_tokens)
           VALUES (?, ?, ?, 'reserved', ?, ?)""",
        (agent, model, tx.now, usd, tokens),
    )
    return int(cursor.lastrowid or 0)


def settle(tx: Tx, reservation: int, usd: float | None, tokens_in: int, tokens_out: int) -> bool:
    """Charge what the call really cost. False if it was settled or lost before: nothing is charged twice."""
    cursor = tx.connection.execute(
        """UPDATE ledger SET state = 'settled', charged_usd = ?, tokens_in = ?, tokens_out = ?
           WHERE id = ? AND state = 'reserved'""",
        (usd, tokens_in, tokens_out, reservation),
    )
    return cursor.rowcount == 1


def lose(tx: Tx, reservation: int) -> bool:
    """Usage is missing, cancelled or lost: charge the reservation in full."""
    cursor = tx.connection.execute(
        """UPDATE ledger SET state = 'lost', charged_usd = reserved_usd, tokens_out = reserved_tokens
           WHERE id = ? AND state = 'reserved'""",
        (reservation,),
    )
    return cursor.rowcount == 1


def lose_open(tx: Tx) -> int:
    """After a crash: every reservation of the old engine is charged in full. Returns how many there were."""
    rows = tx.connection.execute("SELECT id FROM ledger WHERE state = 'reserved'").fetchall()
    return sum(lose(tx, reservation) for (reservation,) in rows)


def reconcile(tx: Tx, why: str) -> None:
    """Append what the ledger charged and no event accounts for, so that the summary shows all of the money."""
    rows = tx.connection.execute(
        """SELECT agent, coalesce(sum(charged_usd), 0), sum(tokens_in + tokens_out) FROM ledger
           WHERE state <> 'reserved' GROUP BY agent ORDER BY agent"""
    ).fetchall()
    for agent, usd, tokens in rows:
        known = tx.summary.agents.get(agent)
        if known is None:
            continue
        missing_usd = max(0.0, usd - known.cost_usd)
        missing_tokens = max(0, tokens - known.tokens)
        if missing_usd > 1e-9 or missing_tokens:
            tx.append(ev.ModelCharged(agent=agent, cost_usd=missing_usd, tokens=missing_tokens, why=why))
