"""A profile in words: at most five lines for a prompt, a block for a person. Pure."""

from __future__ import annotations

import math

from engine.records import KernelFacts, Profile
from engine.text import one_line

LINES = 5
_SOURCES = {
    "ncu": "Nsight Compute's counters",
    "cupti": "CUPTI's launch records and the compiler's figures, no counters",
    "metadata": "the compiler's figures only, nothing was timed",
}


def profile_lines(profile: Profile, limit: int = LINES) -> list[str]:
    """What a prompt may hold: where it is from, then the longest kernels, each in a line."""
    if profile.reason:
        return [one_line(f"no profile ({profile.reason}): {profile.detail}", 300)]
    total = sum(kernel.duration_us or 0.0 for kernel in profile.kernels)
    launches = sum(kernel.calls for kernel in profile.kernels)
    about = f"one call on {profile.shape or profile.workload}"
    spent = f", {launches} launches, {_digits(total)} µs in kernels" if total else ""
    lines = [one_line(f"{about}{spent}; from {_SOURCES.get(profile.source, profile.source)}", 300)]
    room = limit - 1
    shown = (
        profile.kernels if len(profile.kernels) <= room and not profile.left_out else profile.kernels[: room - 1]
    )
    lines += [kernel_line(kernel, total) for kernel in shown]
    more = len(profile.kernels) - len(shown) + profile.left_out
    if more:
        lines.append(f"and {more} more kinds of kernels")
    return lines


def profile_text(profile: Profile) -> str:
    """Everything, for a screen or a terminal."""
    lines = profile_lines(profile, limit=64)
    return "\n".join([*lines, *(f"note: {one_line(note, 300)}" for note in profile.notes)])


def kernel_line(kernel: KernelFacts, total_us: float) -> str:
    """Name, time, shape, then what is known of how it uses the device."""
    parts = []
    if kernel.duration_us is not None:
        share = f" ({kernel.duration_us / total_us:.0%})" if total_us else ""
        times = f"{kernel.calls} × " if kernel.calls > 1 else ""
        parts.append(f"{times}{_digits(kernel.duration_us / max(kernel.calls, 1))} µs{share}")
    if kernel.grid and kernel.block:
        parts.append(f"{math.prod(kernel.grid)} blocks of {math.prod(kernel.block)}")
    parts += [
        f"{word} {share:.0%}"
        for word, share in (
            ("SM", kernel.sm_share),
            ("memory", kernel.memory_share),
            ("occupancy", kernel.occupancy),
        )
        if share is not None
    ]
    if kernel.registers is not None:
        parts.append(f"{kernel.registers} registers")
    parts += _memory(kernel)
    if kernel.warps is not None:
        stages = f", {kernel.stages} stages" if kernel.stages is not None else ""
        parts.append(f"{kernel.warps} warps{stages}")
    return one_line(f"{kernel.name[:60]}: {', '.join(parts) or 'nothing is known of it'}", 300)


def _memory(kernel: KernelFacts) -> list[str]:
    parts = []
    if kernel.shared_bytes:
        parts.append(f"{_bytes(kernel.shared_bytes)} shared")
    if kernel.local_bytes or kernel.stack_bytes:
        moved = f"{_bytes(kernel.local_bytes)} of local memory moved" if kernel.local_bytes else ""
        stack = f"{kernel.stack_bytes} B of stack a thread" if kernel.stack_bytes else ""
        parts.append("spills: " + " and ".join(part for part in (moved, stack) if part))
    elif kernel.local_bytes == 0 or kernel.stack_bytes == 0:
        parts.append("no spills")
    if kernel.dram_bytes is not None:
        parts.append(f"DRAM {_bytes(kernel.dram_bytes)}")
    if kernel.l2_bytes is not None:
        parts.append(f"L2 {_bytes(kernel.l2_bytes)}")
    return parts


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{_digits(value / size)} {unit}"
    return f"{value:.0f} B"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
