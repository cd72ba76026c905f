"""An agent's LLM proposer, wired to its campaign. The models' health is shared by all agents of one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from engine.agent_state import model_of
from engine.errors import BadInput
from engine.proposers.llm.money import Caps
from engine.proposers.llm.pool import ModelPool
from engine.proposers.llm.proposer import LlmProposer

if TYPE_CHECKING:
    from engine.session import AgentControl, Session
    from engine.store.writer import StoreWriter

_pools: WeakKeyDictionary[StoreWriter, ModelPool] = WeakKeyDictionary()


def build_llm(session: Session, control: AgentControl) -> LlmProposer:
    """The proposer of one agent: its own model, or the one that a person chose. Raises :class:`BadInput`."""
    spec, config = control.spec, session.config
    model = model_of(spec, control.mailbox, config)
    if not model:
        raise BadInput("has no model", where=f"agent {spec.name}", fix="start the campaign with --model")

    def caps() -> Caps:
        return Caps(usd=session.summary.max_cost_usd, tokens=config.max_tokens_total)

    return LlmProposer(
        config=config,
        agent=spec.name,
        model=model,
        pool=_pool(session),
        ledger=session.writer,
        skills=lambda: session.skills,
        caps=caps,
    )


def _pool(session: Session) -> ModelPool:
    """One per open store, so that what one agent learns of a model holds for the others."""
    pool = _pools.get(session.writer)
    if pool is None:
        config = session.config
        models = config.model or ["none"]
        pool = ModelPool(models, api_base=config.api_base, rotate=config.rotate_models, notify=session.record)
        _pools[session.writer] = pool
    return pool
