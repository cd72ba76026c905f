"""What goes to and comes from the tracing process."""

from __future__ import annotations

import msgspec

from engine.tracing.graph import TraceGraph


class Job(msgspec.Struct, frozen=True):
    """One problem (``problem_to_json``'s document); no ``uuids`` means every workload."""

    problem: bytes
    uuids: list[str]
    timeout_s: float


class Answer(msgspec.Struct, frozen=True):
    """Graphs in workload order, or why there are none. ``hurried``: some were not traced for lack of time."""

    graphs: list[TraceGraph] = []
    error: str = ""
    hurried: bool = False
