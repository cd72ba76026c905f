"""Telemetry rows: every second for ten minutes, then one mean per ten seconds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from engine.records import Sample
from engine.store.tx import Tx

FULL_RATE_S = 600.0
BUCKET_S = 10.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Sample).decode
_MEANS = (
    "utilization",
    "memory_used_bytes",
    "power_w",
    "temperature_c",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "load",
)


def write(tx: Tx, samples: Iterable[Sample]) -> None:
    tx.connection.executemany(
        "INSERT OR REPLACE INTO samples (device, at, data) VALUES (?, ?, ?)",
        [(sample.device, sample.at, _encode(sample).decode()) for sample in samples],
    )


def select(
    connection: sqlite3.Connection, after: float, device: str | None = None, limit: int = 600
) -> list[tuple[str, float, str]]:
    """(device, time, JSON) of the newest ``limit`` samples a device later than ``after``, oldest first."""
    devices = [device] if device is not None else devices_of(connection)
    found: list[tuple[str, float, str]] = []
    for name in devices:
        rows = connection.execute(
            "SELECT device, at, data FROM samples WHERE device = ? AND at > ? ORDER BY at DESC LIMIT ?",
            (name, after, limit),
        ).fetchall()
        found.extend(reversed(rows))
    return found


def devices_of(connection: sqlite3.Connection) -> list[str]:
    """One index seek a device: a DISTINCT would read every row."""
    names: list[str] = []
    row = connection.execute("SELECT min(device) FROM samples").fetchone()
    while row[0] is not None:
        names.append(row[0])
        row = connection.execute("SELECT min(device) FROM samples WHERE device > ?", (names[-1],)).fetchone()
    return names


def downsample(tx: Tx, since: float, until: float) -> None:
    """Replace the samples of ``[since, until)`` by one mean per bucket; both ends are bucket borders."""
    for device in devices_of(tx.connection):
        rows = tx.connection.execute(
            "SELECT data FROM samples WHERE device = ? AND at >= ? AND at < ? ORDER BY at", (device, since, until)
        ).fetchall()
        buckets: dict[int, list[Sample]] = {}
        for (data,) in rows:
            try:
                sample = _decode(data)
            except msgspec.MsgspecError:
                continue  # another version's: a mean can be made without it
            buckets.setdefault(int(sample.at // BUCKET_S), []).append(sample)
        crowded = [group for group in buckets.values() if len(group) > 1]
        for group in crowded:
            tx.connection.execute(
                "DELETE FROM samples WHERE device = ? AND at >= ? AND at <= ?", (device, group[0].at, group[-1].at)
            )
        write(tx, (mean(group) for group in crowded))


def mean(group: list[Sample]) -> Sample:
    """One sample for several of one device: numbers averaged, the last one's processes, every throttle reason."""
    last = group[-1]
    averages: dict[str, float | int | None] = {}
    for name in _MEANS:
        values = [value for value in (getattr(sample, name) for sample in group) if value is not None]
        average = sum(values) / len(values) if values else None
        averages[name] = round(average) if average is not None and name == "memory_used_bytes" else average
    throttle = sorted({reason for sample in group for reason in sample.throttle})
    return msgspec.structs.replace(last, throttle=throttle, **averages)


def cut(now: float) -> float:
    """The bucket border before which samples are down-sampled."""
    return (now - FULL_RATE_S) // BUCKET_S * BUCKET_S
