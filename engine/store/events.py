"""Decisions, as they are written to ``events``: append-only, a tagged union, followed by sequence number.

Everything that a summary, a screen or a replay shows of the past comes from these records alone. Text fields
that began in a model, candidate or problem file are cleaned and bounded before they get here.
"""

from __future__ import annotations

import msgspec

from engine.records import Mode, Outcome, StopReason


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="kind", omit_defaults=True):
    pass


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ordinal: int
    proposer: str
    model: str | None = None
    strategy: str = ""
    budget: int | None = None


class CampaignStarted(_Event, frozen=True):
    name: str
    problem: str
    device: str
    device_name: str
    kernel_type: str
    config: str  # preset: single, multi-bounded, multi-unbounded, custom
    agents: list[AgentSpec]
    budget: int | None  # candidates
    max_cost_usd: float | None = None
    minutes: float | None = None
    target_speedup: float | None = None
    r_draft: int = 5
    r_stop: int = 15
    margin: float = 0.02


class EngineAttached(_Event, frozen=True):
    """An engine process took the campaign (first start or resume)."""

    pid: int
    resumed: bool = False


class BaselinesMeasured(_Event, frozen=True):
    reference_ms: float
    seed_ms: float
    seed_speedup: float
    noise: float | None  # as a fraction; None where it is the kernel's own (on a GPU)
    timer: str
    roofline_ms: float | None = None  # geometric mean bound over workloads, when every one is known
    ceiling_ms: float | None = None  # the same of the measured ceiling
    compile_ms: float | None = None  # the same of the reference under torch.compile
    sol_score: float | None = None  # the seed's
    sol_bound: str | None = None  # file | roofline
    sol_baseline: str | None = None  # file | eager | compile
    notes: list[str] = []
    kernel_type: str = ""  # by the traced reference; empty: as the campaign started with
    device_name: str = ""


class NoiseMeasured(_Event, frozen=True):
    """The A/A noise of a best (0: the seed), where noise is the kernel's own and not the machine's (on a GPU)."""

    candidate: int
    noise: float  # as a fraction


class CampaignPaused(_Event, frozen=True):
    by: str = "user"


class CampaignResumed(_Event, frozen=True):
    by: str = "user"


class CampaignEnded(_Event, frozen=True):
    state: str  # stopped | finished
    reason: StopReason
    detail: str = ""


class Verdict(_Event, frozen=True):
    """One candidate judged. ``r`` and the draft fields are the agent's after this verdict."""

    number: int
    agent: str
    position: int
    mode: Mode
    strategy: str
    family: str
    outcome: Outcome
    reason: str = ""
    detail: str = ""
    latency_ms: float | None = None
    speedup: float | None = None  # against the reference; official only for a KEEP
    log_ratio: float | None = None  # ln(agent's best / candidate)
    log_ratio_ci: tuple[float, float] | None = None
    sol_score: float | None = None
    parent: int = 0
    r: int = 0
    draft_due: bool = False
    draft_line: int = 0  # benched tries used in the open line, 0 when none is open
    model: str | None = None
    tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0
    hypothesis: str = ""


class CandidateError(_Event, frozen=True):
    """An ERROR: nobody's candidate failed, no position is taken."""

    agent: str
    reason: str
    detail: str = ""
    streak: int = 1
    tokens: int = 0
    cost_usd: float | None = None


class StrategyChosen(_Event, frozen=True):
    agent: str
    strategy: str
    why: str
    by: str = "policy"  # policy | user


class ModelChosen(_Event, frozen=True):
    agent: str
    model: str
    why: str
    by: str = "policy"


class DraftLineOpened(_Event, frozen=True):
    agent: str
    forced: bool = False


class DraftLineClosed(_Event, frozen=True):
    agent: str
    kept: bool


class AgentPaused(_Event, frozen=True):
    agent: str
    by: str = "user"  # user | breaker | errors
    why: str = ""


class AgentResumed(_Event, frozen=True):
    agent: str
    by: str = "user"


class AgentRestarted(_Event, frozen=True):
    agent: str
    why: str
    crashes: int


class AgentStopped(_Event, frozen=True):
    agent: str
    reason: StopReason
    detail: str = ""


class HintGiven(_Event, frozen=True):
    agent: str
    text: str


class HintDelivered(_Event, frozen=True):
    agent: str
    text: str
    position: int


class Vetoed(_Event, frozen=True):
    """The archive row stays; the best goes back to ``best`` (0 the seed) everywhere, wins from it expire."""

    number: int
    agent: str
    best: int
    best_ms: float | None
    best_speedup: float | None
    expired: list[int] = []


class MemoryAdded(_Event, frozen=True):
    id: int
    memory: str  # win | trap
    kernel_type: str
    strategy: str
    agent: str
    candidate: int | None = None
    speedup: float | None = None
    gain: float | None = None
    reflection: str = ""
    carried_from: str = ""
    merged_into: int | None = None  # a near-duplicate: nothing new was stored


class MemoryExpired(_Event, frozen=True):
    id: int
    why: str  # retention | user | veto
    by: str = "policy"
    memory: str = ""  # win | trap


class MemoryPinned(_Event, frozen=True):
    id: int
    pinned: bool


class MemoryNoted(_Event, frozen=True):
    id: int
    note: str


class BudgetChanged(_Event, frozen=True):
    candidates: int | None = None
    minutes: float | None = None
    max_cost_usd: float | None = None
    agents: dict[str, int] = {}  # new budgets by agent


class CommandAnswered(_Event, frozen=True):
    """A person's command and the engine's answer, so that every viewer sees both."""

    id: str
    verb: str
    args: dict[str, str] = {}
    ok: bool = True
    text: str = ""


class Attention(_Event, frozen=True):
    """Something needs a person. ``code`` is stable; ``clear`` withdraws an earlier one of the same code."""

    code: str  # model.failing, breaker.open, disk.low, device.gone, cost.90, best.new, plateau …
    text: str
    level: str = "warning"  # info | warning | error
    agent: str = ""
    clear: bool = False


class ModelCharged(_Event, frozen=True):
    """Money that no verdict or ERROR accounts for: a call lost in a crash is charged in full."""

    agent: str
    cost_usd: float = 0.0
    tokens: int = 0
    why: str = ""


class CandidateProfiled(_Event, frozen=True):
    """A profile was stored; ``reason`` says why it holds nothing, ``lines`` what the next prompt is told."""

    number: int
    agent: str = ""  # empty: the seed
    reason: str = ""
    lines: list[str] = []


class SkillReloaded(_Event, frozen=True):
    name: str
    ok: bool
    detail: str = ""


Event = (
    CampaignStarted
    | EngineAttached
    | BaselinesMeasured
    | NoiseMeasured
    | CampaignPaused
    | CampaignResumed
    | CampaignEnded
    | Verdict
    | CandidateError
    | StrategyChosen
    | ModelChosen
    | DraftLineOpened
    | DraftLineClosed
    | AgentPaused
    | AgentResumed
    | AgentRestarted
    | AgentStopped
    | HintGiven
    | HintDelivered
    | Vetoed
    | MemoryAdded
    | MemoryExpired
    | MemoryPinned
    | MemoryNoted
    | BudgetChanged
    | CommandAnswered
    | Attention
    | ModelCharged
    | SkillReloaded
    | CandidateProfiled
)


class Stored(msgspec.Struct, frozen=True):
    """An event with its place in the log."""

    seq: int
    at: float
    event: Event


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Event).decode
