"""Typed rows of the campaign database: what the reader returns and the writer takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from engine.config import CampaignConfig
from engine.problems.solution import Solution
from engine.records import MEASURING, AgentState, Baselines, CampaignState, DeviceFacts, Evaluation
from engine.store.events import Event, Verdict

if TYPE_CHECKING:
    from engine.store.tx import Tx

STRATEGY_LIMIT = 160
REFLECTION_LIMIT = 1200


class CampaignRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign is. ``problem`` is the frozen problem as JSON (``load.problem_from_json``)."""

    name: str
    problem_name: str
    problem: str
    kernel_type: str
    config: CampaignConfig
    device: str
    created_at: float = 0.0
    seed_solution: str = ""  # blob sha of the seed's solution.json; filled in when the campaign is created
    device_facts: DeviceFacts | None = None
    baselines: Baselines | None = None


class CandidateRow(msgspec.Struct, frozen=True, kw_only=True):
    """One judged candidate. ``solution``, ``prompt``, ``reply``, ``evaluation`` are blob addresses."""

    number: int
    agent: str
    position: int
    at: float
    mode: str
    strategy: str
    family: str
    parameters: dict[str, Any]
    outcome: str
    reason: str
    detail: str
    latency_ms: float | None
    speedup: float | None
    log_ratio: float | None
    log_ratio_lo: float | None
    log_ratio_hi: float | None
    sol_score: float | None
    seconds: float
    parent: int | None
    solution: str | None
    prompt: str | None
    reply: str | None
    evaluation: str | None
    hypothesis: str
    predicted_change: str
    model: str | None
    tokens_in: int
    tokens_out: int
    cost_usd: float | None
    source_sha: str | None
    vetoed_at: float | None


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A win or a trap."""

    id: int
    kind: str
    kernel_type: str
    strategy: str
    reflection: str
    error: str
    speedup: float | None
    gain: float | None
    before_ms: float | None
    after_ms: float | None
    shapes: str
    agent: str
    candidate: int | None
    device: str
    versions: dict[str, str]
    at: float
    merged: int
    pinned: bool
    note: str
    expired_at: float | None
    expired_why: str
    carried_from: str


class Compared(msgspec.Struct, frozen=True):
    """What a retention rule reads of a live entry; in the order of its columns."""

    id: int
    kind: str
    kernel_type: str
    strategy: str
    reflection: str
    error: str
    speedup: float | None
    agent: str
    carried_from: str
    pinned: bool


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """What adding one entry does: store it (and push ``expire`` out), count it to ``merge_into``, or neither."""

    store: bool
    merge_into: int | None = None
    expire: tuple[int, ...] = ()


_BENCHES = frozenset({AgentState.COMPILING, AgentState.WAITING_DEVICE, AgentState.BENCHING, AgentState.CONFIRMING})


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is doing now. ``since`` is when ``state`` last changed."""

    agent: str
    state: str = "starting"
    detail: str = ""
    since: float = 0.0
    strategy: str = ""
    mode: str = "refine"
    hypothesis: str = ""
    reply: str = ""
    tokens: int = 0
    updated_at: float = 0.0

    @property
    def benches(self) -> bool:
        """Whether it is in the bench or its queue: a pause lets that end before the device is given back."""
        if self.state == AgentState.STARTING:
            return self.detail.startswith(MEASURING)
        return self.state in _BENCHES


def is_pausing(state: CampaignState, rows: Iterable[LiveRow]) -> bool:
    """The campaign is paused, and what was being benched or measured still holds the device."""
    return state is CampaignState.PAUSED and any(row.benches for row in rows)


class LedgerTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Money and tokens. A cap holds when charged + reserved (in flight) never exceeds it."""

    charged_usd: float = 0.0
    reserved_usd: float = 0.0
    tokens: int = 0  # in + out of settled and lost calls
    reserved_tokens: int = 0
    calls: int = 0
    lost: int = 0
    unknown_price: int = 0  # calls whose price was unknown


class MemoryWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A win or trap to store; ``merged_into`` names the near-duplicate that stands for it instead."""

    kind: str
    kernel_type: str
    strategy: str
    reflection: str
    agent: str
    device: str
    error: str = ""
    speedup: float | None = None
    gain: float | None = None
    before_ms: float | None = None
    after_ms: float | None = None
    shapes: str = ""
    candidate: int | None = None
    versions: dict[str, str] = {}
    carried_from: str = ""
    merged_into: int | None = None


@dataclass(frozen=True, kw_only=True)
class VerdictRecord:
    """Everything that one verdict commits, in one transaction.

    ``verdict.number`` is ignored: the writer numbers candidates campaign-wide without gaps. ``then`` runs inside
    the same transaction after everything else, on the writer's thread, with the candidate's number: it may only
    use its ``Tx``.
    """

    verdict: Verdict
    evaluation: Evaluation | None = None
    solution: Solution | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    predicted_change: str = ""
    prompt: str = ""
    reply: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    source_sha: str = ""  # empty: taken from ``solution``
    events: tuple[Event, ...] = ()  # after the verdict's own event
    memo: dict[str, Any] = field(default_factory=dict)
    then: Callable[[Tx, int], None] | None = None


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a verdict: ``fresh`` is false when (agent, position) had been committed before."""

    number: int
    seq: int
    fresh: bool
