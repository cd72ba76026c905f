"""Where candidates come from, seen from the agent: one interface for recipes, LLMs, replay and inbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from engine.problems.model import Problem
from engine.problems.solution import Solution
from engine.records import DeviceFacts, Evaluation, Mode, Outcome, Usage

DUPLICATES = ("reply.duplicate", "gate.duplicate")
"""Why a program that was judged before is refused: one of a model's, one of another proposer's."""


class PastCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One earlier attempt of this agent, as the proposer may see it."""

    number: int
    position: int
    mode: Mode
    strategy: str
    family: str  # algorithm / DSL / layout family, as the proposer named it
    parameters: dict[str, Any] = {}
    outcome: Outcome
    reason: str = ""
    detail: str = ""
    latency_ms: float | None = None
    log_ratio: float | None = None  # against the best of its time; > 0 is faster
    source_sha: str = ""
    hypothesis: str = ""


class Incumbent(msgspec.Struct, frozen=True, kw_only=True):
    """A measured solution: the best, the working point, or a sibling's best."""

    agent: str
    number: int  # 0 is the seed
    solution: Solution
    latency_ms: float | None
    speedup: float | None
    evaluation: Evaluation | None = None
    strategy: str = ""
    family: str = ""
    parameters: dict[str, Any] = {}


class MemoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A recalled win or trap."""

    id: int
    kind: str  # win | trap
    kernel_type: str
    strategy: str
    reflection: str
    error: str = ""
    speedup: float | None = None
    gain: float | None = None
    before_ms: float | None = None
    after_ms: float | None = None
    agent: str = ""
    candidate: int | None = None
    pinned: bool = False
    carried_from: str = ""  # campaign it was carried over from
    shapes: str = ""
    note: str = ""  # a person's own words


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a proposer may see for one proposal. Counters and budgets stay in deterministic code."""

    problem: Problem
    kernel_type: str
    device: DeviceFacts
    agent: str
    ordinal: int  # 0-based index of the agent in the campaign
    position: int  # 1-based budget position this reply will take
    seed: int  # campaign seed; derive random state from (seed, agent, position) only
    mode: Mode
    strategy: str  # name of the chosen skill
    base: Incumbent  # what to start from: working point, or the draft line's last correct candidate
    best: Incumbent
    history: tuple[PastCandidate, ...] = ()
    wins: tuple[MemoryEntry, ...] = ()
    traps: tuple[MemoryEntry, ...] = ()
    siblings: tuple[Incumbent, ...] = ()  # faster than this agent's best, read-only
    hints: tuple[str, ...] = ()
    tried_families: tuple[str, ...] = ()
    reference_ms: float | None = None
    roofline_ms: dict[str, float] = {}  # by workload uuid
    limits: dict[str, str] = {}  # memory | compute by workload uuid: what sets that bound
    reference_by_workload_ms: dict[str, float] = {}  # as measured when the campaign began
    profile: str = ""  # five lines about the base kernel, where a profiler exists
    forced_draft: bool = False
    line_tries: int = 0  # benched tries that the open draft line has had
    failed: Incumbent | None = None  # the last try, where it was judged and is not right
    taken: Mapping[str, int] = {}  # number by program_sha of all that this campaign judged; 0: is being judged


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that can be judged. Texts are untrusted when they come from a model."""

    solution: Solution
    strategy: str
    family: str
    hypothesis: str = ""
    predicted_change: str = ""
    reflection: str = ""
    parameters: dict[str, Any] = {}
    prompt: str = ""
    reply: str = ""
    usage: Usage | None = None


class UnusableReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that arrived but cannot be judged: a REJECT, which takes one position. ``reason``: ``reply.*``."""

    reason: str
    detail: str
    strategy: str
    prompt: str = ""
    reply: str = ""
    usage: Usage | None = None


class ProposerError(Exception):
    """No reply arrived: an ERROR, which takes no position. ``reason`` is a stable code (``model.*``)."""

    def __init__(self, reason: str, detail: str, usage: Usage | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.usage = reason, detail, usage


class NotYet(Exception):
    """Nothing to offer until another agent has found something: no reply, no ERROR, no position."""


class AskAgain(Exception):
    """Nothing to offer for a reason that passes by itself (money in flight): no reply, no ERROR, no position.

    Unlike :class:`NotYet` it waits for no other agent: the proposer is asked again after a moment.
    """


class Exhausted(Exception):
    """The proposer has nothing more to offer (a finished replay): the agent stops, nothing is lost."""


class BudgetSpent(Exhausted):
    """The next model call could pass the cost or token cap: the agent stops with reason ``cost``."""


class LiveSink(Protocol):
    """What a proposer may show while it works; throttled by the store to four writes a second."""

    def state(self, state: str, detail: str = "") -> None: ...

    def reply(self, tail: str, tokens: int) -> None: ...


class Proposer(Protocol):
    """Raises :class:`ProposerError` when no reply came, :class:`Exhausted` when none will, and what asks to wait:
    :class:`NotYet`, :class:`AskAgain`."""

    name: str  # recipes | llm | replay | inbox
    model: str | None

    async def propose(self, context: Context, live: LiveSink) -> Proposal | UnusableReply: ...

    async def judged(
        self, proposal: Proposal, outcome: Outcome, evaluation: Evaluation | None, reason: str
    ) -> None:
        """Called after the verdict is committed (the inbox writes it back beside the file)."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Choosy(Protocol):
    """A proposer that cannot serve every eligible strategy."""

    async def strategies(self, eligible: Sequence[str]) -> tuple[str, ...]:
        """Those of ``eligible`` that it can serve for its problem; empty means that it does not care."""
        ...
