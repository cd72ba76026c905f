"""The plateau counter r and the draft line of one agent. Pure: a state, the events that move it, nothing else.

r counts benched non-improvements in a row (ACCEPT, REVERT). A KEEP resets it; a REJECT or an ERROR leaves it
alone. At ``r_draft`` the agent must draft: a *draft line* opens, up to three benched tries whose base is the
line's own last correct candidate, even if slower than the best. r still advances and ``r_stop`` is not tested
meanwhile. A KEEP or the third try closes the line; without a KEEP the base returns to the best and ``r_stop``
is tested. The next draft is due after ``r_draft`` more benched tries. A person may force a draft, which opens
a line at once.
"""

from __future__ import annotations

import msgspec

from engine.records import Mode, Outcome

LINE_TRIES = 3


class PlateauConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``r_stop`` ≥ ``r_draft`` + 3, so that a first draft line always has its three tries."""

    r_draft: int = 5
    r_stop: int = 15


class PlateauState(msgspec.Struct, frozen=True, kw_only=True):
    """Of one agent. ``next_draft`` is the value of r at which the next draft is due; 0 means ``r_draft``."""

    r: int = 0
    next_draft: int = 0
    forced: bool = False  # a person asked for a draft that has not begun
    line_open: bool = False
    line_tries: int = 0  # benched tries used in the open line
    line_base: int | None = None  # the line's last correct candidate; ``None``: start from the best
    line_forced: bool = False
    stop: bool = False  # r_stop was reached outside a line


def draft_due(state: PlateauState, config: PlateauConfig) -> bool:
    """Whether the next proposal must open a draft line."""
    if state.line_open or state.stop:
        return False
    return state.forced or state.r >= (state.next_draft or config.r_draft)


def mode(state: PlateauState, config: PlateauConfig) -> Mode:
    """The mode of the next proposal: draft while a line is open or due."""
    return Mode.DRAFT if state.line_open or draft_due(state, config) else Mode.REFINE


def force_draft(state: PlateauState) -> PlateauState:
    """A person asks for a draft. Within an open line there is nothing to force: the state is unchanged."""
    return state if state.line_open else msgspec.structs.replace(state, forced=True)


def before_proposal(state: PlateauState, config: PlateauConfig) -> PlateauState:
    """Open the line if one is due. Call once per proposal; repeating it changes nothing."""
    if not draft_due(state, config):
        return state
    return msgspec.structs.replace(
        state, forced=False, line_open=True, line_tries=0, line_base=None, line_forced=state.forced
    )


def after_verdict(
    state: PlateauState,
    outcome: Outcome,
    config: PlateauConfig,
    *,
    number: int | None = None,
    correct: bool | None = None,
) -> PlateauState:
    """The state after one outcome.

    ``number`` is the candidate's and becomes the base of an open line when it was ``correct`` (default: an ACCEPT
    is, a REVERT is not; pass ``Decision.correct`` so that a slower but right draft carries its line on).
    """
    if outcome in (Outcome.REJECT, Outcome.ERROR):
        return state
    if outcome is Outcome.KEEP:
        return PlateauState(forced=state.forced)
    r = state.r + 1
    if not state.line_open:
        return msgspec.structs.replace(state, r=r, stop=r >= config.r_stop)
    tries = state.line_tries + 1
    if tries < LINE_TRIES:
        was_correct = outcome is Outcome.ACCEPT if correct is None else correct
        base = number if was_correct and number is not None else state.line_base
        return msgspec.structs.replace(state, r=r, line_tries=tries, line_base=base)
    return PlateauState(r=r, next_draft=r + config.r_draft, forced=state.forced, stop=r >= config.r_stop)


def base_of(state: PlateauState, working: int, best: int) -> int:
    """The candidate number that the next proposal starts from (0 is the seed).

    In a line: the line's own last correct candidate, or the best while it has none. Otherwise the working point.
    """
    if state.line_open:
        return best if state.line_base is None else state.line_base
    return working
