"""Everything a campaign can be told, as one validated record; ``campaign.yaml`` holds the same keys."""

from __future__ import annotations

import msgspec

PRESETS = ("single", "multi-bounded", "multi-unbounded")


class CampaignConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one campaign. The presets differ only in agents, memory, wins, traps and leaderboard."""

    config: str = "multi-bounded"
    agents: int = 2
    proposer: list[str] = msgspec.field(default_factory=lambda: ["recipes"])  # agents take turns
    model: list[str] = []  # agents take turns
    api_base: str | None = None
    candidates: int | None = 100
    minutes: float | None = None
    max_cost: float | None = None  # US dollars
    max_tokens_total: int | None = None  # applies where a price is unknown
    target_speedup: float | None = None
    draft_after: int = 5  # r_draft
    stop_after: int = 15  # r_stop ≥ r_draft + 3
    margin: float | None = None  # None: 0.01 on CUDA, 0.02 on the CPU
    device: str = "cpu"
    seed: int = 0
    memory: str = "shared"  # shared | private
    wins: int | None = 16  # per kernel type; None is all
    traps: int | None = 16
    leaderboard: bool = True
    memory_from: str | None = None
    strategies: list[str] = []  # empty: all eligible
    rounds: int = 3
    profile: bool = False  # profile every KEEP on a GPU, for its agent's next prompt
    replay: str | None = None  # JSONL of replies, or a campaign, for the replay proposer
    inbox: str | None = None  # folder; None: the campaign's own agents/<name>/
    proposal_deadline_s: float = 600.0
    evaluation_deadline_s: float = 600.0
    reply_tokens: int = 16000  # max_tokens of a model call
    prompt_tokens: int = 24000  # a prompt is cut to about this size, in a stated order
    context_tokens: int | None = None  # window of a model that litellm does not know, or on a server of one's own
    rotate_models: bool = False  # every agent changes the model with each proposal, instead of keeping its own
