"""Numbers and times as the screens show them: one place, so that a value looks the same everywhere."""

from __future__ import annotations

import time

NONE = "–"


def ms(value: float | None) -> str:
    """A latency in milliseconds with four significant digits: ``0.0843``, ``1.234``, ``12.35``, ``1234``."""
    if value is None:
        return NONE
    if value >= 1000:
        return f"{value:.0f}"
    if value >= 100:
        return f"{value:.1f}"
    if value >= 10:
        return f"{value:.2f}"
    if value >= 1:
        return f"{value:.3f}"
    return f"{value:.4f}" if value >= 0.001 else f"{value:.2e}"


def times(value: float | None) -> str:
    """A speed-up: ``1.41×``."""
    return NONE if value is None else f"{value:.2f}×" if value < 100 else f"{value:.0f}×"


def percent(fraction: float | None) -> str:
    return NONE if fraction is None else f"{fraction * 100:.0f} %"


def delta(log_ratio: float | None) -> str:
    """Latency against the best of its time, in percent: ``−2.1 %`` is faster. ``log_ratio`` = ln(best / this)."""
    if log_ratio is None:
        return ""
    change = (2.718281828459045 ** (-log_ratio) - 1) * 100
    if abs(change) >= 1000:
        return "+>999 %" if change > 0 else ""
    size = abs(change)
    if size < 0.05:
        return "0.0 %"
    sign = "+" if change > 0 else "−"
    return f"{sign}{size:.1f} %" if size < 100 else f"{sign}{size:.0f} %"


def clock(seconds: float) -> str:
    """A duration as ``hh:mm:ss``; days in front when there are any."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    text = f"{hours:02}:{minutes:02}:{left:02}"
    return f"{days}d {text}" if days else text


def span(seconds: float) -> str:
    """A short duration: ``12s``, ``4m``, ``2.1h``, ``3d``."""
    value = max(0.0, seconds)
    if value < 100:
        return f"{value:.0f}s"
    if value < 5400:
        return f"{value / 60:.0f}m"
    if value < 36 * 3600:
        return f"{value / 3600:.1f}h"
    return f"{value / 86400:.0f}d"


def wall(at: float, *, seconds: bool = False) -> str:
    """The local time of day of a Unix time."""
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", time.localtime(at))


def date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def money(usd: float | None, *, unknown: bool = False) -> str:
    """US dollars; ``≥`` in front when some call had no known price."""
    if usd is None:
        return NONE
    text = f"${usd:.2f}" if usd < 1000 else f"${usd:.0f}"
    return f"≥{text}" if unknown else text


def count(value: float | None) -> str:
    """A count in few characters: ``950``, ``12.3k``, ``4.1M``."""
    if value is None:
        return NONE
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}"


def gib(size_bytes: float | None) -> str:
    return NONE if size_bytes is None else f"{size_bytes / 2**30:.1f}"


def gib_of(used: float | None, total: float | None) -> str:
    """``7.2/139 GiB``."""
    if used is None:
        return NONE
    return f"{gib(used)} GiB" if total is None else f"{gib(used)}/{total / 2**30:.0f} GiB"


def error(value: float | None) -> str:
    """An absolute or relative error: ``1.2e-03``; zero stays ``0``."""
    return NONE if value is None else "0" if value == 0 else f"{value:.1e}"
