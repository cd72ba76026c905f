"""What the engine hands to the profiled process, and what that process says. No torch."""

from __future__ import annotations

import msgspec

from engine.profile.resources import Resources, TritonKernel
from engine.records import KernelFacts

MARK = "KERNELARC-PROFILE "  # in front of each line that is for the engine; ncu writes to the same pipe
READY = "ready"
REQUEST, GO = "request.json", "go"  # files of the shared folder


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one solution on one workload. ``problem`` is ``problem_to_json``'s document."""

    problem: str
    workload: int
    seed: int
    device: str
    entry_file: str
    entry_function: str
    destination_passing: bool
    sources: list[tuple[str, str]]
    library: str = ""  # name of a built extension that lies in the folder
    counters: bool = False  # Nsight Compute watches: start and stop it, and record nothing here
    cold: bool = False  # ready as soon as it is imported: every call is made with the device held, one in all
    wait_s: float = 120.0  # for the device


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The process's last word. Nothing in it is trusted."""

    error: str = ""
    timed: bool = False
    kernels: list[KernelFacts] = []
    triton: list[TritonKernel] = []
    resources: dict[str, Resources] = {}
    notes: list[str] = []
