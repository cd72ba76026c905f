"""From raw outputs to a finding: the comparator, the admission probe and replay detection (imports torch)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch

from engine.bench.admission import Probe, admission_probe
from engine.bench.compare import Expected, ExtraChecks, compare_guard
from engine.bench.judge_wire import Finding
from engine.bench.wire import WorkloadSpec
from engine.problems.dtypes import DTYPES
from engine.problems.model import Tolerance

_REMEMBERED = 4096  # fingerprints per side and workload
_FINGERPRINT_BYTES = 1 << 20


def expected_of(spec: WorkloadSpec) -> list[Expected]:
    return [Expected(item.name, item.shape, DTYPES[item.dtype].torch_name) for item in spec.outputs]


def probe(
    spec: WorkloadSpec, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], tolerance: Tolerance
) -> Probe:
    """Which worthless outputs the tolerance lets pass, from the reference on two independent inputs."""
    return admission_probe(first, second, expected_of(spec), tolerance)


class Replays:
    """Fingerprints of outputs that a side has given before: a wrong output that repeats one is a replay."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[bytes, None]] = {}

    def forget(self) -> None:
        self._seen.clear()

    def seen_before(self, workload: int, raw: memoryview) -> bool:
        """Whether these output bytes came before; remembers them."""
        digest = hashlib.blake2b(raw[:_FINGERPRINT_BYTES], digest_size=16).digest()
        known = self._seen.setdefault(workload, {})
        if digest in known:
            return True
        if len(known) < _REMEMBERED:
            known[digest] = None
        return False


def judge_call(
    spec: WorkloadSpec,
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    tolerance: Tolerance,
    extra: Mapping[str, ExtraChecks],
    *,
    replayed: bool,
    chunk: int,
) -> Finding:
    """One call's outputs against the reference's, ``chunk`` elements at a time.

    A wrong output that was given before is a replay.
    """
    match = compare_guard(outputs, expected, expected_of(spec), tolerance, extra, chunk=chunk)
    if match.passed:
        return Finding(max_abs_error=match.max_abs_error, max_rel_error=match.max_rel_error)
    if any(item.reference_not_finite for item in match.outputs.values()):
        return Finding(reason="fault.reference", detail=f"the reference's own output is unusable: {match.detail}")
    if replayed:
        detail = f"the output of an earlier call was returned for new inputs; {match.detail}"
        return Finding("wrong.stale-output", detail, match.max_abs_error, match.max_rel_error)
    return Finding(match.reason, match.detail, match.max_abs_error, match.max_rel_error)
