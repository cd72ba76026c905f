"""Inputs that a problem's own code makes, in a candidate's process as with the judge (imports torch).

They could travel through host memory, but gigabytes take longer there than making them once more on the device.
Nothing here is trusted: other inputs than the judge's have other digests. What must not happen is that an honest
candidate is blamed because a setting that it chose for the whole process reaches the problem's code, or the
reverse: each side has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from engine.problems.axes import resolve_axes
from engine.problems.inputs import make_inputs
from engine.problems.model import Problem
from engine.problems.reference import load_reference

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How a setting of the whole process is read and written."""


def _settings() -> list[Setting]:
    matmul = torch.backends.cuda.matmul
    # Since torch 2.9 the older name raises where the newer one was used, and not the reverse.
    tf32 = "fp32_precision" if hasattr(matmul, "fp32_precision") else "allow_tf32"

    def attribute(of: Any, name: str) -> Setting:
        return lambda: getattr(of, name), lambda value: setattr(of, name, value)

    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_default_device, torch.set_default_device),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        attribute(matmul, tf32),
        attribute(matmul, "allow_fp16_reduced_precision_reduction"),
        attribute(matmul, "allow_bf16_reduced_precision_reduction"),
    ]


class MadeInputs:
    """The problem's input function, loaded before the candidate is. Raises what the problem's module raises."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self._problem, self._device = problem, device
        self._settings = _settings()
        self._own = self._read()
        name = problem.definition.custom_inputs_entrypoint or ""
        with self._as_at_start():
            self._function = getattr(load_reference(problem.definition), name)

    def __call__(self, workload: int, seed: int) -> list[Any]:
        """One set in definition order, as :func:`engine.problems.inputs.make_inputs` gives the judge."""
        definition, wanted = self._problem.definition, self._problem.workloads[workload]
        axes = resolve_axes(definition, wanted)
        with self._as_at_start():
            return make_inputs(definition, wanted, axes, self._device, seed, entrypoint=self._function)

    def _read(self) -> list[Any]:
        return [read() for read, _ in self._settings]

    @contextmanager
    def _as_at_start(self) -> Iterator[None]:
        """With the settings that the process had before anybody's code ran, and the problem's own changes."""
        theirs = self._read()
        self._write(self._own, theirs)
        try:
            yield
        finally:
            self._own = self._read()
            self._write(theirs, self._own)

    def _write(self, wanted: list[Any], present: list[Any]) -> None:
        for (_, write), value, now in zip(self._settings, wanted, present, strict=True):
            if value != now:
                write(value)
