"""What a block costs beside the calls themselves: the same harness around a no-op."""

from __future__ import annotations

from statistics import median

import msgspec

ByCalls = dict[int, list[float]]


class Overhead(msgspec.Struct, frozen=True):
    """What no-op blocks of one workload took, milliseconds, by number of calls."""

    wall: ByCalls
    cpu: ByCalls
    claimed: ByCalls
    cpu_known: bool

    def beyond_calls(self, *, use_cpu: bool) -> ByCalls:
        """By an outside clock, without the calls themselves: even a no-op call takes a little."""
        return _minus(self.cpu if use_cpu else self.wall, self.claimed)


def _minus(a: ByCalls, b: ByCalls) -> ByCalls:
    return {size: [x - y for x, y in zip(a[size], b[size], strict=True)] for size in a}


def typical_ms(by_calls: ByCalls, calls: int) -> float:
    return median(by_calls[calls])


def spread_ms(by_calls: ByCalls) -> float:
    """How much the outside clock itself varies, per call: the widest interquartile range of a block size."""
    return max((quartile(values, 3) - quartile(values, 1)) / calls for calls, values in by_calls.items())


def quartile(values: list[float], which: int) -> float:
    """The ``which``-th quarter of the ordered values, without interpolation."""
    ordered = sorted(values)
    return ordered[min(which * len(ordered) // 4, len(ordered) - 1)]


def per_call_ms(by_calls: ByCalls, k: int) -> float:
    return max((min(by_calls[2 * k]) - min(by_calls[k])) / k, 0.0)
