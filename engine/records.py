"""The records that rooms hand to each other. Plain data: no I/O, no policy, no torch.

Times in ``*_ms`` are milliseconds, ``*_s`` seconds, ``*_usd`` US dollars. A latency is the median over timed
calls of one workload; an aggregate is the geometric mean over workloads, ``None`` if any workload failed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

WALL = "wall"
"""The timer of a CPU, which is busy now and idle then: times of different evaluations are not comparable."""


class Outcome(StrEnum):
    """What the guard decided about one candidate."""

    REJECT = "REJECT"  # failed the gate, or the reply could not be used: takes a position, never moves r
    KEEP = "KEEP"  # correct on every workload and better than the agent's best by the margin
    ACCEPT = "ACCEPT"  # correct and near the best: becomes the working point, the best is unchanged
    REVERT = "REVERT"  # slower, wrong or crashed in the bench: the working point goes back to the best
    ERROR = "ERROR"  # not the candidate's doing: takes no position, never moves r


class Mode(StrEnum):
    REFINE = "refine"
    DRAFT = "draft"


class CampaignState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"  # by the user
    FINISHED = "finished"  # by its own stop reason
    INTERRUPTED = "interrupted"  # the store says running and no engine holds the lock; never stored


class StopReason(StrEnum):
    TARGET = "target"
    PLATEAU = "plateau"
    CANDIDATES = "candidates"
    TIME = "time"
    COST = "cost"
    USER = "user"
    FAULT = "fault"


class AgentState(StrEnum):
    """What an agent is doing now (the ``live`` row)."""

    STARTING = "starting"
    RECALLING = "recalling"
    PROPOSING = "proposing"
    WAITING_MODEL = "waiting model"
    GATING = "gating"
    COMPILING = "compiling"
    WAITING_DEVICE = "waiting device"
    BENCHING = "benching"
    CONFIRMING = "confirming"
    PAUSED = "paused"
    BROKEN = "broken"  # breaker open or five ERRORs in a row: needs a person
    STOPPED = "stopped"


MEASURING = "measuring the reference"  # how a starting agent's detail begins while the campaign is admitted


class WorkloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One workload of one evaluation. ``status`` is a SOL-ExecBench status name."""

    uuid: str
    status: str
    reason: str = ""  # stable code when the status is not PASSED, for instance ``wrong.numerical``
    detail: str = ""  # for a person: cleaned, bounded text
    latency_ms: float | None = None
    latency_ci: tuple[float, float] | None = None  # 95 % interval of the median
    reference_latency_ms: float | None = None
    speedup: float | None = None  # the middle pair's ratio reference/candidate
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    roofline_ms: float | None = None
    ceiling_ms: float | None = None  # what a plain copy or library product of this size takes here: no bound
    sol_score: float | None = None
    log_ratio: float | None = None  # mean paired ln(incumbent / candidate); > 0 is faster
    log_ratio_ci: tuple[float, float] | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate against incumbent, from interleaved pairs. ``log_ratio`` = ln(incumbent / candidate)."""

    log_ratio: float
    lo: float  # 95 % interval
    hi: float
    pairs: int
    noise: float = 0.0  # measured A/A noise floor, as a fraction; the margin is never below it
    against: str = "incumbent"  # "incumbent" or "reference"


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What the bench measured of one solution. Every number in it was measured by the trusted side."""

    verdict: str  # PASS | FAIL | REJECT | ERROR
    reason: str = ""
    detail: str = ""
    workloads: list[WorkloadResult] = []
    latency_ms: float | None = None  # geometric mean over workloads
    geomean_speedup: float | None = None  # against the reference, paired where the plan asked for it
    sol_score: float | None = None
    comparison: Comparison | None = None  # against the incumbent
    timer: str = WALL  # cupti | cuda-event | wall
    notes: list[str] = []
    wall_s: float = 0.0
    phases_s: dict[str, float] = {}  # start, compile, wait, correctness, timing
    evidence: dict[str, Any] = {}  # seeds, isolation layers, raw samples, environment fingerprint


class Baselines(msgspec.Struct, frozen=True, kw_only=True):
    """Measured once when a campaign starts: the reference and the seed solution, paired."""

    reference_ms: float
    seed_ms: float
    seed_speedup: float  # paired reference/seed
    noise: float | None  # A/A floor of device and problem, a fraction; None on a GPU: measured when it matters
    workloads: list[WorkloadResult] = []  # the seed's, with reference latencies
    timer: str = WALL
    notes: list[str] = []
    compile_ms: dict[str, float] = {}  # the reference under torch.compile, by workload uuid; GPU campaigns only
    compile_mode: str = ""


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the device; unknown stays ``None``, never a guess."""

    kind: str  # cpu | cuda
    name: str
    uuid: str = ""
    index: int | None = None
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    sm_count: int | None = None
    driver: str = ""
    cores: int | None = None
    versions: dict[str, str] = {}  # torch, triton, cuda, python …


class KernelFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kernel of one call, launches of the same shape taken together. Shares are fractions of the peak."""

    name: str
    calls: int = 1
    duration_us: float | None = None  # of all these launches
    grid: list[int] = []
    block: list[int] = []
    registers: int | None = None  # per thread
    shared_bytes: float | None = None  # per block
    occupancy: float | None = None  # achieved by ncu, estimated by CUPTI
    sm_share: float | None = None
    memory_share: float | None = None
    dram_bytes: float | None = None
    l2_bytes: float | None = None
    local_bytes: float | None = None  # moved to and from local memory: spills
    stack_bytes: int | None = None  # local memory per thread that the compiler set aside
    warps: int | None = None  # Triton's num_warps and num_stages
    stages: int | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one call of a candidate does on the GPU. Advice: much of it is the candidate's own process's word.

    ``reason`` says why there is none (``needs.cuda``, ``crash.exit`` …), with a line for a person in ``detail``.
    """

    source: str = ""  # ncu | cupti | metadata
    device: str = ""
    workload: str = ""  # uuid
    shape: str = ""
    kernels: list[KernelFacts] = []  # longest first
    left_out: int = 0
    notes: list[str] = []
    reason: str = ""
    detail: str = ""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and cost of one model call; ``cost_usd`` is ``None`` when the price is unknown."""

    model: str
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0


class Win(msgspec.Struct, frozen=True, kw_only=True):
    """What worked and why. ``strategy`` ≤ 160 characters, ``reflection`` ≤ 1200."""

    kernel_type: str
    strategy: str
    reflection: str  # why + before→after
    speedup: float  # against the reference, measured by the guard
    gain: float  # fraction faster than the previous best
    before_ms: float | None = None
    after_ms: float | None = None
    shapes: str = ""


class Trap(msgspec.Struct, frozen=True, kw_only=True):
    """A dead end worth knowing. Field limits as for a win."""

    kernel_type: str
    strategy: str
    error: str  # reason code and what happened
    reflection: str
    shapes: str = ""


class SampleProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that holds memory on the device."""

    pid: int
    name: str = ""
    memory_bytes: int | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One second of one device. What could not be read is ``None`` and ``reason`` says why."""

    at: float  # Unix seconds
    device: str  # GPU or MIG UUID, or ``cpu``
    name: str = ""
    index: int | None = None
    utilization: float | None = None  # fraction of the last interval
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle: list[str] = []  # why the clocks are held down, empty when they are not
    processes: list[SampleProcess] = []
    cores: list[float] = []  # per-core use of a CPU, fractions
    load: float | None = None  # one-minute load average of a CPU
    reason: str = ""
