"""What a campaign looks like after some event: a pure fold, so that live view, attach and replay are one path.

``fold(summary, at, event)`` returns a new summary; it never looks at a clock, a table or the order of anything
but the events themselves.
"""

from __future__ import annotations

import msgspec

from engine.records import WALL, CampaignState, Mode, StopReason
from engine.store.events import AgentSpec


class TrajectoryPoint(msgspec.Struct, frozen=True, array_like=True):
    """One step of a best-so-far line: after ``number`` candidates, ``at`` seconds, ``cost_usd`` dollars."""

    number: int
    at: float
    cost_usd: float
    latency_ms: float


class Keep(msgspec.Struct, frozen=True, array_like=True):
    """One KEEP that still stands: what the best goes back to when a later one is vetoed."""

    number: int
    latency_ms: float | None
    speedup: float | None
    sol_score: float | None


BROKEN = ("errors", "breaker")
"""Who pauses an agent that cannot go on by itself."""


class AgentSummary(msgspec.Struct, frozen=True, kw_only=True):
    spec: AgentSpec
    strategy: str = ""
    model: str | None = None
    candidates: int = 0  # positions used
    budget: int | None = None
    outcomes: dict[str, int] = {}
    errors: int = 0
    error_streak: int = 0
    best: int = 0  # candidate number, 0 the seed
    best_ms: float | None = None
    best_speedup: float | None = None
    r: int = 0
    mode: Mode = Mode.REFINE
    draft_due: bool = False
    draft_line: int = 0
    paused: str = ""  # empty, or who paused it and why
    stopped: StopReason | None = None
    stopped_detail: str = ""
    restarts: int = 0  # crashes the breaker has counted
    cost_usd: float = 0.0
    tokens: int = 0
    trajectory: list[TrajectoryPoint] = []
    keeps: list[Keep] = []  # KEEPs that were not vetoed, oldest first; the last one is the best

    @property
    def paused_by(self) -> tuple[str, str]:
        """(who, why); both empty while it is not paused."""
        by, _, why = self.paused.partition(": ")
        return by, why

    @property
    def stopped_for(self) -> str:
        """Why it stopped, in a word or two: ``no ideas`` where its proposer left candidates of its budget over."""
        if self.stopped is StopReason.CANDIDATES and (self.budget is None or self.candidates < self.budget):
            return "no ideas"
        return self.stopped.value if self.stopped else ""

    @property
    def broken(self) -> bool:
        """Paused because it fails, and not stopped."""
        return self.stopped is None and self.paused_by[0] in BROKEN

    @property
    def kept(self) -> list[int]:
        """Candidate numbers of KEEPs that were not vetoed, oldest first."""
        return [keep.number for keep in self.keeps]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A standing attention line."""

    code: str
    text: str
    level: str
    agent: str
    at: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The whole campaign in one bounded record; every list in it grows with KEEPs or agents only."""

    seq: int = 0
    name: str = ""
    problem: str = ""
    device: str = ""
    device_name: str = ""
    kernel_type: str = ""
    config: str = ""
    state: CampaignState = CampaignState.STARTING
    stop_reason: StopReason | None = None
    stop_detail: str = ""
    created_at: float = 0.0
    running_since: float | None = None  # ``None`` while paused or ended
    elapsed_before_s: float = 0.0  # running time before ``running_since``
    last_at: float = 0.0
    budget: int | None = None
    minutes: float | None = None
    max_cost_usd: float | None = None
    target_speedup: float | None = None
    r_draft: int = 5
    r_stop: int = 15
    margin: float = 0.02
    noise: float | None = None
    noise_of: dict[int, float] = {}  # of candidates whose own was measured, as a fraction
    timer: str = ""
    candidates: int = 0
    outcomes: dict[str, int] = {}
    errors: int = 0
    reference_ms: float | None = None
    seed_ms: float | None = None
    seed_speedup: float | None = None
    roofline_ms: float | None = None
    ceiling_ms: float | None = None
    compile_ms: float | None = None
    best_agent: str = ""
    best: int = 0
    best_ms: float | None = None
    best_speedup: float | None = None
    sol_score: float | None = None  # of the best
    seed_sol_score: float | None = None
    sol_bound: str | None = None
    sol_baseline: str | None = None
    cost_usd: float = 0.0
    cost_unknown: bool = False  # some call had no known price
    tokens: int = 0
    wins: int = 0
    traps: int = 0
    agents: dict[str, AgentSummary] = {}
    attention: list[Note] = []

    @property
    def why_ended(self) -> str:
        """The reason of its end in a word or, where its budget was not used up, in the words of who ran dry."""
        if self.stop_reason is StopReason.CANDIDATES and self.budget and self.candidates < self.budget:
            return self.stop_detail or self.stop_reason.value
        return self.stop_reason.value if self.stop_reason else ""

    @property
    def cost_per_keep_usd(self) -> float | None:
        """What each KEEP that stands has cost so far; ``None`` without one, or where no price is known."""
        standing = sum(len(agent.keeps) for agent in self.agents.values())
        return self.cost_usd / standing if standing and self.cost_usd else None

    @property
    def best_over_seed(self) -> float | None:
        """The best's speed-up over the seed: (reference / best) / (reference / seed), both paired.

        On a CPU the times themselves are made of paired ratios, and a KEEP's is below that of what it has beaten.
        """
        if self.timer == WALL and self.seed_ms and self.best_ms:
            return self.seed_ms / self.best_ms
        if self.best_speedup is None or not self.seed_speedup:
            return None
        return self.best_speedup / self.seed_speedup

    def elapsed_s(self, now: float) -> float:
        """Running time, pauses and interruptions left out."""
        running = max(0.0, now - self.running_since) if self.running_since is not None else 0.0
        return self.elapsed_before_s + running
