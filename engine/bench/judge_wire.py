"""What the engine asks of a judge, and what it answers."""

from __future__ import annotations

import msgspec

from engine.bench.wire import WorkloadSpec


class Inputs(msgspec.Struct, frozen=True, array_like=True):
    """The inputs of one call: the set drawn from ``seed``, its interchangeable elements rotated by ``shift``."""

    slot: int
    seed: int
    shift: int = 0


class Open(msgspec.Struct, frozen=True, tag=True):
    problem: bytes  # ``problem_to_json``
    root: str | None
    device: str
    threads: int
    own_inputs: bool = False  # children build their inputs from seeds even though they run on the CPU


class Opened(msgspec.Struct, frozen=True, tag=True):
    specs: list[WorkloadSpec]
    versions: dict[str, str]
    seconds: float
    reason: str = ""
    detail: str = ""
    digest_code: bytes = b""  # the kernel that fingerprints take on this device, see :mod:`engine.bench.digest`


class Attach(msgspec.Struct, frozen=True, tag=True):
    """Maps the two shared arenas of one side; their descriptors travel along. Forgets the side's past outputs."""

    side: int
    input_bytes: int
    output_bytes: int


class Fill(msgspec.Struct, frozen=True, tag=True):
    """Write the inputs of these calls into the sides' input slots and poison their output slots.

    ``told``: the children build the tensors themselves, only the numbers are asked for.
    """

    sides: list[int]
    workload: int
    calls: list[Inputs]
    told: bool = False


class Check(msgspec.Struct, frozen=True, tag=True):
    """Compare a side's output slots with the reference, and its input slots with what was written there."""

    side: int
    workload: int
    calls: list[Inputs]
    digests: list[list[int]]  # of a device's outputs and inputs, as delivered when the block ended; else empty
    strides: list[list[list[int]]]  # of the outputs as they lie in their slots: call → output → dimension


class Forget(msgspec.Struct, frozen=True, tag=True):
    """A new process takes over this side: its outputs are compared with its own earlier ones only."""

    side: int


class Filled(msgspec.Struct, frozen=True, tag=True):
    """``scalars``: per call, the Python numbers among the arguments, in order (none where they are made with the
    tensors). ``draw_s``: seconds that the inputs of one call took at least to make, 0 if none were made. ``told``:
    as asked, the children build the tensors.
    """

    scalars: list[list[bool | int | float]] = []
    draw_s: float = 0.0
    told: bool = False
    reason: str = ""
    detail: str = ""


class Finding(msgspec.Struct, frozen=True):
    """One checked call. ``reason`` is empty when it is right."""

    reason: str = ""
    detail: str = ""
    max_abs_error: float | None = None
    max_rel_error: float | None = None


class Checked(msgspec.Struct, frozen=True, tag=True):
    findings: list[Finding] = []
    notes: list[str] = []  # of the admission probe, for the problem's workload
    seconds: float = 0.0  # that the judge took for all the calls, without the probe
    reason: str = ""  # of the judge itself: ``fault.reference``, ``needs.cuda`` …
    detail: str = ""


ToJudge = Open | Attach | Fill | Check | Forget
FromJudge = Opened | Filled | Checked
