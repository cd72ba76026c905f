"""Signs and words for states and outcomes: told apart by letter and word first, by colour second."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from engine.records import AgentState, CampaignState, Outcome

OUTCOMES: dict[str, tuple[str, str, str]] = {  # outcome → (letter, word, style)
    Outcome.KEEP: ("K", "keep", "verdict-keep"),
    Outcome.ACCEPT: ("A", "accept", "verdict-accept"),
    Outcome.REVERT: ("R", "revert", "verdict-revert"),
    Outcome.REJECT: ("x", "reject", "verdict-reject"),
    Outcome.ERROR: ("E", "error", "verdict-error"),
}
OUTCOME_RANK: dict[str, int] = {Outcome.KEEP: 4, Outcome.ACCEPT: 2, Outcome.REVERT: 1, Outcome.REJECT: 0}

STATES: dict[str, tuple[str, str, str]] = {  # campaign state → (sign, word, style)
    CampaignState.STARTING: ("…", "starting", "muted"),
    CampaignState.RUNNING: ("▶", "running", "verdict-keep"),
    CampaignState.PAUSED: ("‖", "paused", "warning"),
    CampaignState.STOPPED: ("■", "stopped", "muted"),
    CampaignState.FINISHED: ("✓", "finished", "verdict-keep"),
    CampaignState.INTERRUPTED: ("!", "interrupted", "error"),
}

AGENT_STATES: dict[str, str] = {  # style of what an agent is doing
    AgentState.WAITING_MODEL: "muted",
    AgentState.WAITING_DEVICE: "muted",
    AgentState.STARTING: "muted",
    AgentState.PAUSED: "warning",
    AgentState.BROKEN: "bold error",
    AgentState.STOPPED: "muted",
    AgentState.BENCHING: "primary",
    AgentState.CONFIRMING: "primary",
}

LEVELS = {"info": ("i", "primary"), "warning": ("!", "bold warning"), "error": ("!", "bold error")}

SPARK = "▁▂▃▄▅▆▇█"
SPARK_ASCII = "_.-:=+*#"
FULL, EMPTY = "▮", "▯"

_ASCII = {
    "▶": ">",
    "‖": "=",
    "■": "#",
    "✓": "v",
    "·": ".",
    "…": "~",
    "−": "-",
    "–": "-",
    "—": "-",
    "×": "x",
    "▮": "#",
    "▯": ".",
    "→": ">",
    "←": "<",
    "↑": "^",
    "↓": "v",
    "›": ">",
    "‹": "<",
    "⏎": "=",
    "▸": ">",
    "★": "*",
    "●": "o",
    "°": " ",
    "≥": ">",
    "≤": "<",
    "µ": "u",
    "│": "|",
    "┤": "+",
    "└": "+",
    "┄": ".",
    "━": "=",
    "╸": "=",
    "╺": "-",
    "▌": "|",
    "▐": "|",
    "█": "#",
    "▁": "_",
    "▔": "-",
    "✔": "v",
    "✗": "x",
    "“": '"',
    "”": '"',
    "’": "'",
}
_BOX_VERTICAL = "│┃║▏▕▎▍▊▉"


def to_ascii(text: str) -> str:
    """``text`` with every non-ASCII character replaced by ASCII of the same width."""
    if text.isascii():
        return text
    from rich.cells import cell_len

    return "".join(char if char.isascii() else _ascii_of(char) or "?" * cell_len(char) for char in text)


def _ascii_of(char: str) -> str:
    found = _ASCII.get(char)
    if found:
        return found
    code = ord(char)
    if char in _BOX_VERTICAL:
        return "|"
    if 0x2500 <= code <= 0x257F:
        return "-" if char in "─━═╌┄┈" else "+"
    if 0x2580 <= code <= 0x259F:
        return "#"
    return ""


class AsciiFilter(LineFilter):
    """Applied to everything the app draws when the terminal has no box or braille characters."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(to_ascii(segment.text), segment.style, segment.control)
            for segment in segments
        ]


def spark(values: list[float | None], *, ascii: bool = False) -> str:
    """Fractions 0–1 as one row of bars; a missing value is blank."""
    bars = SPARK_ASCII if ascii else SPARK
    return "".join(" " if value is None else bars[max(0, min(7, int(value * 8)))] for value in values)


def gauge(value: int, limit: int, cells: int) -> str:
    """``value`` of ``limit`` in ``cells`` cells: ``▮▮▯▯▯``. Anything above zero fills at least one cell."""
    if limit <= 0:
        return EMPTY * cells
    filled = min(cells, max(1 if value > 0 else 0, round(value / limit * cells)))
    return FULL * filled + EMPTY * (cells - filled)


_SHORT_STRATEGY = {
    "algorithmic-restructuring": "algorithm",
    "launch-overhead": "launch",
    "memory-layout": "layout",
    "native-tensor-core": "tensor",
    "operator-fusion": "fusion",
    "precision-formats": "precision",
    "tiling-pipelining": "tiling",
    "vendor-library": "library",
}


def short_strategy(name: str) -> str:
    """One word for a narrow column."""
    return _SHORT_STRATEGY.get(name, name)
